//! Tests of the program's commands on real journals: what `inspect` prints, and which arguments and files are refused.

mod copies;
mod narrow;
mod outputs;
mod starting;

use std::path::{Path, PathBuf};
use std::process::Command;

use base::api::Api;
use journal::format::{Allocation, Device, Event};
use journal::writer::About;
use serde_json::{Value, json};
use support::made::{self, Made};
use support::{Fields, MIB, Printed, Runs, assert_fields, assert_says, vramshim_with};

fn vramshim() -> Command {
    let mut command = Command::new(support::program());
    let variables = "VRAMSHIM_LIBRARY VRAMSHIM_SIMGPU VRAMSHIM_STRATEGY LD_PRELOAD FLAGS_allocator_strategy";
    for variable in variables.split(' ') {
        command.env_remove(variable);
    }
    command
}

fn run(arguments: &[&str], folder: &Path) -> Printed {
    vramshim().args(arguments).current_dir(folder).printed()
}

fn inspect(arguments: &[&str], path: &Path) -> Printed {
    vramshim().arg("inspect").arg(path).args(arguments).printed()
}

/// A block that the policy serves.
fn block(address: u64) -> Allocation {
    Allocation {
        reserved: None,
        ..made::linear(address, MIB)
    }
}

/// Writes a journal with two blocks of 1 MiB in a segment, one direct allocation and one failure. The second block stays
/// live.
fn write_journal(folder: &Path, job: &str) -> PathBuf {
    let about = About {
        pid: 70 + job.len() as u32,
        wall_start_ns: 1_790_000_000_000_000_000,
        strategy: "naive_best_fit".into(),
        job: job.into(),
        command_line: b"python\0train.py".to_vec(),
        ..About::default()
    };
    let device = Device {
        total_memory: 80 << 30,
        uuid: [0xab; 16],
        name: "Simulated GPU\x1b[31m".into(),
        ..Device::default()
    };
    let mut made = Made::about(folder, &about, &[device]).unwrap();
    let segment = Event::SegmentAlloc {
        address: 0x1000_0000,
        size: 4 * MIB,
        again: false,
    };
    for (api, event) in [
        (Api::Policy, segment),
        (Api::cudaMalloc, Event::Alloc(block(0x1000_0000))),
        (Api::cudaMalloc, Event::Alloc(block(0x1010_0000))),
        (Api::cuMemAlloc, Event::Alloc(made::linear(0x2000_0000, 4 * MIB))),
        (Api::cuMemFree, made::free(made::linear(0x2000_0000, 4 * MIB))),
        (Api::cudaFree, made::free(block(0x1000_0000))),
        (Api::cudaMalloc, made::failed(1 << 40, 2, false)),
    ] {
        made.happened(0, api, event).unwrap();
    }
    made.end(Some(0)).unwrap()
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
        "pid": 73, "job": "llm", "command": "python train.py", "ended": "exit", "exit_status": 0,
        "events": 7, "events_lost": 0, "unfinished": 0, "failed_calls": 1, "anomalies": 0,
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
fn a_folder_of_journals_is_a_table_and_all_shows_each() {
    let folder = tempfile::tempdir().unwrap();
    write_journal(folder.path(), "first");
    write_journal(folder.path(), "second");
    let page = inspect(&[], folder.path()).text;
    let is_row = |line: &&str| line.contains("Z ") && line.contains("naive_best_fit");
    assert_eq!(page.lines().filter(is_row).count(), 2, "each row has a date\n{page}");
    assert!(!page.contains("By API"), "{page}");
    let page = inspect(&["--all"], folder.path()).text;
    assert_eq!(page.matches("By API").count(), 2);
}

#[test]
fn files_that_are_no_journal_are_named_and_the_others_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let empty = inspect(&[], folder.path());
    assert_eq!(empty.code, Some(1));
    assert_says(&empty.said, "no journals");
    let pod = folder.path().join("pod");
    std::fs::create_dir(&pod).unwrap();
    write_journal(&pod, "inner");
    let above = inspect(&[], folder.path());
    assert_says(&above.said, &format!("  vramshim inspect {}", pod.display()));

    write_journal(folder.path(), "good");
    std::fs::write(folder.path().join("bad.vraj"), "nothing of the kind").unwrap();
    std::fs::write(folder.path().join("early.vraj"), "").unwrap();
    let output = inspect(&["--json"], folder.path());
    assert_eq!(output.code, Some(1));
    assert_says(&output.said, "bad.vraj: not a vramshim journal");
    assert_says(&output.said, "early.vraj: no header yet");
    assert_eq!(output.json()["jobs"].list().len(), 1);

    let absent = inspect(&[], Path::new("/nowhere/at/all"));
    assert_eq!(absent.code, Some(1));
    assert_says(&absent.said, "/nowhere/at/all");
    assert_says(&absent.said, "a process writes one once it uses CUDA");
}

#[test]
fn without_a_path_a_command_takes_the_newest_run() {
    let here = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 6] = [
        &["inspect"],
        &["inspect", "--leaks", "newest"],
        &["replay", "--strategy", "auto_growth"],
        &["export", "--to", "csv", "-o", "-"],
        &["report", "-o", "-"],
        &["why"],
    ];
    for command in commands {
        let none = run(command, here.path());
        assert_eq!(none.code, Some(1), "{command:?}");
        assert_says(&none.said, "no journal here: a process writes one once it uses CUDA");
    }
    for (name, age_s) in [("old", 60), ("größe", 0)] {
        let folder = here.path().join(format!("vramshim-{name}"));
        std::fs::create_dir(&folder).unwrap();
        let journal = std::fs::File::open(write_journal(&folder, name)).unwrap();
        let written = std::time::SystemTime::now() - std::time::Duration::from_secs(age_s);
        journal.set_modified(written).unwrap();
    }
    for command in commands {
        let newest = run(command, here.path());
        assert!(matches!(newest.code, Some(0 | 10..)), "{command:?}: {}", newest.said);
    }
    assert_says(&run(&["inspect"], here.path()).text, "größe");
}

#[test]
fn a_closed_pipe_ends_inspect_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_journal(folder.path(), "llm");
    let script = r#""$0" inspect "$1" --json | true"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(support::program()).arg(path);
    assert_eq!(shell.printed().said, "");
}

#[test]
fn damage_is_told_and_the_rest_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_journal(folder.path(), "llm");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[16384 + 2 * 64 + 24] ^= 1; // the size in the third record
    bytes[180] ^= 1; // the host's name
    std::fs::write(&path, bytes).unwrap();
    for command in ["inspect", "why"] {
        let page = vramshim_with(&[command], [&path]).text;
        let first = page.lines().next().unwrap();
        assert!(first.starts_with("Damaged journal: "), "{page}");
        let end = "Damaged: process, records, which are left out";
        assert!(first.ends_with(end), "{page}");
    }
    let page = inspect(&["--json"], &path).json();
    let job = &page["jobs"][0];
    assert_fields(job, json!({"damaged": 1, "events": 6}), "");
    assert_eq!(job["damaged_header"], json!(["process"]));
}
