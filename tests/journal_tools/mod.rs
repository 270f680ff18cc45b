//! Tests of the program's commands on real journals: what `inspect` prints, and which arguments and files are refused.

mod copies;
mod outputs;
mod starting;

use std::path::{Path, PathBuf};
use std::process::Command;

use base::api::{Api, Class};
use journal::format::Device;
use journal::format::{Allocation, Event, Library};
use journal::writer::{Journal, Options};
use serde_json::{Value, json};
use starting::run;
use support::{Printed, Runs, assert_says};

fn vramshim() -> Command {
    let mut command = Command::new(support::program());
    for variable in [
        "VRAMSHIM_LIBRARY",
        "VRAMSHIM_SIMGPU",
        "VRAMSHIM_STRATEGY",
        "LD_PRELOAD",
        "FLAGS_allocator_strategy",
    ] {
        command.env_remove(variable);
    }
    command
}

fn inspect(arguments: &[&str], path: &Path) -> Printed {
    vramshim().arg("inspect").arg(path).args(arguments).printed()
}

fn create(folder: &Path, job: &str) -> Journal {
    Journal::create(&Options {
        directory: folder.into(),
        strategy: "naive_best_fit".into(),
        job: job.into(),
        max_bytes: 1 << 20,
        command_line: b"python\0train.py".to_vec(),
        environment: b"RANK=3\0CUDA_VISIBLE_DEVICES=0".to_vec(),
    })
    .unwrap()
}

fn block(address: u64, size: u64) -> Allocation {
    Allocation {
        class: Class::Linear.into(),
        address,
        requested: size,
        allocated: size,
        reserved: None,
        cache: Library::NotKnown,
        stream: 0,
    }
}

fn free(address: u64, size: u64) -> Event {
    Event::Free {
        allocation: block(address, size),
        context_gone: false,
    }
}

/// Writes a journal with two blocks of 1 MiB in a segment, one direct allocation and one failure. The second block stays
/// live.
fn write_journal(folder: &Path, job: &str) -> PathBuf {
    let journal = create(folder, job);
    journal.device(&Device {
        total_memory: 80 << 30,
        uuid: [0xab; 16],
        name: "Simulated GPU\x1b[31m".into(),
        ..Device::default()
    });
    let segment = Event::SegmentAlloc {
        address: 0x1000_0000,
        size: 4 << 20,
        again: false,
    };
    let direct = Allocation {
        reserved: Some(4 << 20),
        ..block(0x2000_0000, 4 << 20)
    };
    let failed = Event::AllocFailed {
        class: Class::Linear.into(),
        requested: 1 << 40,
        result: 2,
        over_limit: false,
        guard: None,
    };
    for (api, event) in [
        (Api::Policy, segment),
        (Api::cudaMalloc, Event::Alloc(block(0x1000_0000, 1 << 20))),
        (Api::cudaMalloc, Event::Alloc(block(0x1010_0000, 1 << 20))),
        (Api::cuMemAlloc, Event::Alloc(direct)),
        (Api::cuMemFree, free(0x2000_0000, 4 << 20)),
        (Api::cudaFree, free(0x1000_0000, 1 << 20)),
        (Api::cudaMalloc, failed),
    ] {
        journal.write(event.encode(api, 0));
    }
    journal.ended(0);
    // This process holds a lock on the file, as a running job does. The copy has no lock, like the journal of an ended
    // job.
    let path = journal.path().to_owned();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Whether `page` has all of these values. Objects may have more fields.
fn has_all_of(page: &Value, values: &Value, path: &str) {
    match (page, values) {
        (Value::Object(_), Value::Object(values)) => {
            for (name, value) in values {
                has_all_of(&page[name], value, &format!("{path}.{name}"));
            }
        }
        (Value::Array(page), Value::Array(values)) => {
            assert_eq!(page.len(), values.len(), "{path}");
            let each = page.iter().zip(values).enumerate();
            each.for_each(|(place, (one, value))| has_all_of(one, value, &format!("{path}[{place}]")));
        }
        _ => assert_eq!(page, values, "{path}"),
    }
}

#[test]
fn inspect_in_json_tells_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_journal(folder.path(), "llm");
    let page = inspect(&["--json"], &path).ok().json();
    let job = &page["jobs"][0];
    let level = |current: u64, peak: u64| json!({ "current": current << 20, "peak": peak << 20 });
    let expected = json!({
        "pid": std::process::id(), "job": "llm", "command": "python train.py", "ended": "exit", "exit_status": 0,
        "events": 7, "events_lost": 0, "unfinished": 0, "failures": 1, "anomalies": 0,
        "devices": [{
            "uuid": "GPU-abababab-abab-abab-abab-abababababab", "total_memory": 80u64 << 30,
            "requested": level(1, 6), "reserved": level(4, 8), "utilisation": 0.75,
            "free_inside": 3 << 20, "largest_free_block": 2 << 20, "classes": [{ "class": "linear" }],
        }],
        "live": [{ "api": "cudaMalloc", "size": 1 << 20, "address": "0x10100000" }],
        "failed": [{ "result": "CUDA_ERROR_OUT_OF_MEMORY" }],
        "host_memory": { "requested": { "peak": 0 } },
    });
    has_all_of(job, &expected, "job");
    let device = &job["devices"][0];
    assert!((device["fragmentation"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-9);
}

#[test]
fn stitches_are_shown_if_there_are_any() {
    let folder = tempfile::tempdir().unwrap();
    let plain = write_journal(folder.path(), "plain");
    assert!(!inspect(&[], &plain).text.contains("stitch"));
    assert!(!inspect(&["--json"], &plain).text.contains("stitch"));

    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), "stitching");
    let write = |address, size, again| {
        journal.write(Event::SegmentAlloc { address, size, again }.encode(Api::Policy, 0));
    };
    write(0x1000_0000, 8 << 20, false);
    write(0x2000_0000, 4 << 20, true);
    write(0x3000_0000, 2 << 20, true);
    let path = journal.path().to_owned();
    let page = inspect(&[], &path).text;
    assert!(page.contains("stitches 2 made, now 6.00 MiB of addresses"), "{page}");
    let page = inspect(&["--json"], &path).json();
    let device = &page["jobs"][0]["devices"][0];
    let expected = json!({
        "stitches": 2, "stitched_bytes": 6 << 20, "reserved": { "current": 8 << 20, "peak": 8 << 20 },
        "largest_free_block": 8 << 20,
    });
    has_all_of(device, &expected, "device");
    assert_eq!(page["jobs"][0]["anomalies"], 0);
}

#[test]
fn inspect_for_people_is_one_screen_without_escapes() {
    let folder = tempfile::tempdir().unwrap();
    write_journal(folder.path(), "llm");
    let output = inspect(&[], folder.path());
    let page = output.text;
    assert_eq!(output.code, Some(0), "{}", output.said);
    for wanted in [
        "llm",
        "python train.py",
        "RANK=3",
        "naive_best_fit",
        "exit 0",
        "75.0 %",
        "segments 1 now, obtained once, nothing given back; free inside 3.00 MiB",
        "2.00 MiB",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ] {
        assert!(page.contains(wanted), "{wanted} is missing from\n{page}");
    }
    assert!(!page.contains('\x1b'), "{page}");
    assert!(
        page.lines().count() < 50 && page.lines().all(|line| line.len() < 160),
        "{page}"
    );
}

#[test]
fn a_folder_of_journals_is_a_table_and_all_shows_each() {
    let folder = tempfile::tempdir().unwrap();
    write_journal(folder.path(), "first");
    write_journal(folder.path(), "second");
    let page = inspect(&[], folder.path()).text;
    assert!(
        page.contains("first") && page.contains("second") && !page.contains("By API"),
        "{page}"
    );
    let year = page
        .lines()
        .filter(|line| line.contains("Z ") && line.contains("naive_best_fit"));
    assert_eq!(year.count(), 2, "each row has a date\n{page}");
    let page = inspect(&["--all"], folder.path()).text;
    assert_eq!(page.matches("By API").count(), 2);
}

#[test]
fn files_that_are_no_journal_are_named_and_the_others_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let output = inspect(&[], folder.path());
    assert_eq!(output.code, Some(1));
    assert!(output.said.contains("no journals"), "{}", output.said);

    write_journal(folder.path(), "good");
    std::fs::write(folder.path().join("bad.vraj"), "nothing of the kind").unwrap();
    std::fs::write(folder.path().join("early.vraj"), "").unwrap();
    let output = inspect(&["--json"], folder.path());
    assert_eq!(output.code, Some(1));
    let told = &output.said;
    assert_says(&told, "bad.vraj: not a vramshim journal");
    assert_says(&told, "early.vraj: no header yet");
    let page = output.json();
    assert_eq!(page["jobs"].as_array().unwrap().len(), 1);

    let output = inspect(&[], Path::new("/nowhere/at/all"));
    assert_eq!(output.code, Some(1));
    assert!(output.said.contains("/nowhere/at/all"));
    assert_eq!(vramshim().arg("inspect").printed().code, Some(2));
}

#[test]
fn a_closed_pipe_ends_inspect_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_journal(folder.path(), "llm");
    let output = Command::new("sh")
        .args([
            "-c",
            r#""$0" inspect "$1" --json | true"#,
            support::program().to_str().unwrap(),
            path.to_str().unwrap(),
        ])
        .printed();
    assert_eq!(output.said, "");
}

#[test]
fn version_and_help() {
    let output = vramshim().arg("--version").printed();
    assert_eq!(output.text.trim(), format!("vramshim {}", env!("CARGO_PKG_VERSION")));
    for arguments in [&["--help"][..], &["run", "--help"], &["inspect", "--help"]] {
        let output = vramshim().args(arguments).printed();
        assert_eq!(output.code, Some(0));
        assert!(output.text.len() > 200);
    }
    let help = vramshim().arg("--help").printed().text.replace('\n', " ");
    for words in [
        "`why` exits with 10 to 20 by its verdict",
        "`inspect --fail-above` with 3",
    ] {
        assert!(help.contains(words), "{help}");
    }
}

#[test]
fn damage_is_told_and_the_rest_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_journal(folder.path(), "llm");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[16384 + 2 * 64 + 24] ^= 1; // the size in the third record
    bytes[180] ^= 1; // the host's name
    std::fs::write(&path, bytes).unwrap();
    let page = inspect(&[], &path).text;
    assert!(page.contains("1 damaged"), "{page}");
    assert_says(
        &page,
        "figures below may be wrong, because parts of the file are damaged: process, records",
    );
    // The verdict is not told without it.
    let why = Command::new(support::program()).arg("why").arg(&path).printed();
    for page in [page, why.text] {
        let first = page.lines().next().unwrap();
        assert!(first.starts_with("Damaged journal: "), "{page}");
        assert!(
            first.ends_with("Damaged: process, records, which are left out"),
            "{page}"
        );
    }
    let page = inspect(&["--json"], &path).json();
    let job = &page["jobs"][0];
    assert_eq!((&job["damaged"], &job["events"]), (&1.into(), &6.into()));
    assert_eq!(job["damaged_header"], json!(["process"]));
}

/// The page about a job that made these calls on a device of 24 GiB.
fn page_of(calls: &[Event], software: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), "llm");
    journal.device(&Device {
        total_memory: 24 << 30,
        uuid: [0xab; 16],
        name: "Simulated GPU".into(),
        ..Device::default()
    });
    journal.software(software);
    for event in calls {
        journal.write(event.encode(Api::cudaMalloc, 0));
    }
    inspect(&[], journal.path()).text
}

fn failed(bytes: u64) -> Event {
    Event::AllocFailed {
        class: Class::Linear.into(),
        requested: bytes,
        result: 2,
        over_limit: false,
        guard: None,
    }
}

fn direct(address: u64, size: u64) -> Event {
    Event::Alloc(Allocation {
        reserved: Some(size),
        ..block(address, size)
    })
}

#[test]
fn inspect_begins_with_the_verdict() {
    let held = direct(0x1000_0000, 6 << 30);
    let first = |calls: &[Event]| page_of(calls, b"").lines().next().unwrap().to_owned();
    let line = first(&[held, free(0x1000_0000, 6 << 30)]);
    assert_says(
        &line,
        "at most 6.00 GiB of device 0 reserved, 18.0 GiB below the device's memory",
    );
    // After a failure the verdict stands first, and then what failed.
    let second = |calls: &[Event]| {
        let page = page_of(calls, b"");
        let mut lines = page.lines().map(str::to_owned);
        let verdict = lines.next().unwrap();
        assert!(verdict.starts_with("Verdict: "), "{page}");
        lines.next().unwrap()
    };
    // PyTorch asks again after a failure; that is one failure.
    let line = second(&[held, failed(40 << 30), failed(40 << 30)]);
    assert!(
        line.starts_with("Out of memory: cudaMalloc of 40.0 GiB on device 0 (asked twice, counted once)"),
        "{line}"
    );
    assert_says(&line, "the job still runs, and allocated nothing since");
    let line = second(&[
        held,
        failed(40 << 30),
        direct(0x9_0000_0000, 4096),
        failed(1 << 40),
        direct(0xa_0000_0000, 1),
    ]);
    assert!(
        line.starts_with("Out of memory twice, and the job went on: the last was cudaMalloc of 1.00 TiB"),
        "{line}"
    );
    assert!(line.contains("then 1 allocation followed"), "{line}");
}

#[test]
fn software_is_shown_and_utilisation_says_whose_blocks_it_counts() {
    let calls = [direct(0x1000_0000, 6 << 30)];
    let page = page_of(&calls, b"framework=PyTorch 2.12.0\0runtime=13.0\0driver=13.1");
    assert_says(
        &page,
        "Software  PyTorch 2.12.0, CUDA runtime 13.0, driver for CUDA 13.1",
    );
    assert_says(&page, "utilisation 100.0 %, counting PyTorch's segments as used");
    let page = page_of(&calls, b"");
    assert!(
        !page.contains("Software") && page.contains("utilisation 100.0 %\n"),
        "{page}"
    );
}

#[test]
fn a_small_number_without_a_unit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, wanted) in [
        (&["--sim", "24"][..], "24 is 24 bytes; type 24GiB for GiB, or 24B"),
        (&["--limit", "8"][..], "--limit 8 is 8 bytes; type 8GiB"),
        (&["--limit", "0=5,1=1GiB"][..], "--limit 0=... 5 is 5 bytes; type 5GiB"),
        (
            &["--sim", "1GiB", "--limit", "3=1GiB"][..],
            "--limit 3=1GiB: there is no device 3, only device 0",
        ),
    ] {
        let output = run(folder.path(), arguments, &["echo", "started"]);
        assert_eq!((output.code, output.text.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(output.said.contains(wanted), "{}", output.said);
    }
    for arguments in [&["--limit", "0"][..], &["--limit", "8B"], &["--limit", "2000000"]] {
        let output = run(folder.path(), arguments, &["echo", "started"]);
        assert_eq!(output.text, "started\n", "{arguments:?}: {}", output.said);
    }
}
