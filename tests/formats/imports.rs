//! What the tools say of an imported journal: no process, no end, and what most likely made the requests.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use support::training::{self, Plan};
use tempfile::TempDir;

use super::hostile::snapshot_of;
use super::{import_as, run};
use support::{Fields, MIB, Printed, Runs, assert_fields, assert_says};

fn log() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (log, journal) = (folder.path().join("log.csv"), folder.path().join("log.vraj"));
    let rows = "Thread,Time,Action,Pointer,Size,Stream\n\
                1,12:00:00.001000,allocate,0x700000000000,31457280,0\n\
                1,12:00:00.002000,allocate,0x700004000000,31457280,0\n\
                1,12:00:00.003000,allocate failure,0x0,4294967296,0\n";
    std::fs::write(&log, rows).unwrap();
    import_as(&log, &journal).ok();
    (folder, log, journal)
}

#[test]
fn an_imported_journal_claims_neither_a_process_nor_an_end() {
    let (_folder, _, journal) = log();
    let journal = journal.to_str().unwrap();
    let Printed { text: why, code, .. } = run("why", &[journal]);
    assert_eq!(code, Some(10), "{why}");
    assert_says(&why, "Imported trace, log, recorded from ");
    let page = run("inspect", &[journal]).text;
    let view = run("inspect", &[journal, "--top", "size"]).text;
    for page in [&why, &page, &view] {
        for wrong in ["exit 0", "rocess 0", "--pid=host"] {
            assert!(!page.contains(wrong), "{wrong}\n{page}");
        }
    }
}

/// The same answers and stacks as by `import`, and no file is left. What lies beside the trace is another job's.
#[test]
fn a_trace_is_read_as_the_journal_that_import_makes_of_it() {
    let (folder, log, _) = log();
    let [job, pickle] = ["job.vraj", "trace.pickle"].map(|name| folder.path().join(name));
    training::write(&job, &Plan::default()).unwrap();
    let [from, to] = [&job, &pickle].map(|path| path.to_str().unwrap());
    run("export", &[from, "--to", "torch-snapshot", "-o", to]).ok();
    let (apart, temporary) = (folder.path().join("apart"), folder.path().join("temporary"));
    let _ = [&apart, &temporary].map(|folder| std::fs::create_dir(folder).unwrap());
    for trace in [log, pickle] {
        let journal = apart.join(trace.with_extension("vraj").file_name().unwrap());
        import_as(&trace, &journal).ok();
        std::fs::write(trace.with_extension("tensors"), "not this trace's").unwrap();
        for arguments in [
            &["why", "--json"][..],
            &["inspect", "--json", "--top", "stack"],
            &["report", "--json"],
        ] {
            let [read, imported] = [&trace, &journal].map(|path| {
                let mut command = Command::new(support::program());
                command.env("TMPDIR", &temporary).args(arguments).arg(path);
                let Printed { text, code, .. } = command.printed();
                (text.replace(path.to_str().unwrap(), "PATH"), code)
            });
            assert_eq!(read, imported, "{arguments:?}");
        }
    }
    assert_eq!(std::fs::read_dir(temporary).unwrap().count(), 0);
}

#[test]
fn a_log_ends_before_its_file_was_changed() {
    const DAY_S: u64 = 86_400;
    let folder = tempfile::tempdir().unwrap();
    let (log, journal) = (folder.path().join("log.csv"), folder.path().join("log.vraj"));
    let midnight = 20_000 * DAY_S;
    // When it begins, when it ends, when the file was changed, and the day of its first row.
    for (from, to, changed, day) in [
        ("12:00:00.5", "12:00:01.5", midnight + DAY_S / 2 + 2, 20_000),
        ("23:55:00.5", "23:59:59.5", midnight, 19_999),
        ("23:55:00.5", "00:05:00.5", midnight + 301, 19_999),
    ] {
        let rows = format!(
            "Thread,Time,Action,Pointer,Size,Stream\n1,{from},allocate,0x1000,512,0\n1,{to},free,0x1000,512,0\n"
        );
        std::fs::write(&log, rows).unwrap();
        let file = std::fs::File::options().write(true).open(&log).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(changed))
            .unwrap();
        let arguments = [log.to_str().unwrap(), "--force", "-o", journal.to_str().unwrap()];
        run("import", &arguments).ok();
        let page = run("inspect", &[journal.to_str().unwrap(), "--json"]).json();
        let said = &page["jobs"][0]["why"]["text"];
        assert_says(&said.text(), "The size of the device is not known");
        let start_s = page["jobs"][0]["start_time_ns"].number() / 1_000_000_000;
        assert_eq!(start_s / DAY_S, day, "{from} to {to}");
    }
}

#[test]
fn an_exported_log_counts_its_own_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, out) = (folder.path().join("job.vraj"), folder.path().join("log.csv"));
    // The job has marks and segments, which a log has not.
    training::write(&journal, &Plan::default()).unwrap();
    let arguments = [&journal, &out].map(|path| path.to_str().unwrap());
    let output = run("export", &[arguments[0], "--to", "csv", "-o", arguments[1], "--json"]);
    let page = output.json();
    let rows = std::fs::read_to_string(&out).unwrap().lines().count() as u64 - 1;
    assert_eq!(page["events"], rows);
}

/// A log that was cut inside its last number still has a row that can be read.
#[test]
fn a_log_that_was_cut_inside_a_number_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (log, journal) = (folder.path().join("log.csv"), folder.path().join("log.vraj"));
    let whole = "Thread,Time,Action,Pointer,Size,Stream\n\
                 1,12:00:00.001000,allocate,0x6e1edec00000,512,0\n\
                 1,12:00:00.002000,allocate,0x6e1edec01000,512,0\n\
                 1,12:00:00.003000,free,0x6e1edec00000,512,0\n";
    for (end, cut) in [
        ("1,12:00:00.004000,free,0x6e1edec01000,5", "line 5: 5 of 6 columns"),
        ("1,12:00:00.004000,allocate failure,0x0,5", "line 5: 5 of 6 columns"),
        ("1,12:00:00.004000,free,0x6e1edec01000,512,0", ""),
        // Such a row in the middle is what the program wrote.
        ("1,12:00:00.004000,free,0x6e1edec01000,5\n", ""),
    ] {
        std::fs::write(&log, format!("{whole}{end}")).unwrap();
        let said = import_as(&log, &journal).ok().said;
        let told = format!("{cut}: the row is cut short; what comes before is imported");
        let (events, is_told) = match cut {
            "" => ("4 events", !said.contains("cut short")),
            _ => ("3 events", said.contains(&told)),
        };
        assert!(is_told, "{end}: {said}");
        assert_says(&said, events);
    }
}

/// What a command prints as JSON of a trace, of its first job or process.
fn told(command: &[&str], trace: &Path) -> Value {
    let arguments = [&command[1..], &["--json", trace.to_str().unwrap()]].concat();
    let page = run(command[0], &arguments).json();
    let first = ["jobs", "processes"].map(|list| page[list][0].clone());
    first.into_iter().find(|first| first.is_object()).unwrap_or(page)
}

/// RMM tells requests, and neither what its pool obtained for them nor, without times, when.
#[test]
fn what_a_log_does_not_tell_is_not_known() {
    let (folder, log, journal) = log();
    for trace in [&log, &journal] {
        let device = &told(&["inspect"], trace)["devices"][0];
        let unknown = json!({"reserved": null, "utilisation": null, "free_inside": null, "largest_free_block": null,
            "fragmentation": null, "segments": null});
        assert_fields(device, unknown, "");
        assert_fields(&device["classes"][0], json!({"class": "linear", "reserved": null}), "");
        assert_eq!(device["allocated"]["peak"], 60 * MIB);
        let at = &told(&["inspect", "--at", "peak"], trace)["at"]["devices"][0];
        let wanted = json!({"allocated": 60 * MIB, "reserved": null, "free_inside": null});
        assert_fields(at, wanted, "");
        let device = &told(&["report"], trace)["devices"][0];
        let wanted = json!({"reserved": null, "peak_reserved": null, "peak_bytes": 60 * MIB});
        assert_fields(device, wanted, "");
    }
    let timeless = folder.path().join("timeless.csv");
    let rows = "Action,Pointer,Size,Stream\nallocate,0x10,8,0\nfree,0x10,8,0\n";
    std::fs::write(&timeless, rows).unwrap();
    let job = told(&["inspect"], &timeless);
    assert_fields(&job, json!({"start_time": null, "duration_ns": null}), "");
    let imported = folder.path().join("timeless.vraj");
    import_as(&timeless, &imported).ok();
    for trace in [&timeless, &imported] {
        assert_eq!(told(&["replay"], trace)["duration_ns"], Value::Null);
    }
}

/// A snapshot of a segment of 40 MiB, of which 30 are used, with the trace of these events.
fn snapshot(folder: &Path, events: &[Value]) -> PathBuf {
    let path = folder.join("trace.pickle");
    let live = json!({"address": 4096, "size": 30 * MIB, "state": "active_allocated"});
    let free = json!({"address": 4096 + 30 * MIB, "size": 10 * MIB, "state": "inactive"});
    let segment = json!({"device": 0, "address": 4096, "total_size": 40 * MIB, "stream": 0, "blocks": [live, free]});
    let mut page = json!({"segments": [segment]});
    if !events.is_empty() {
        page["device_traces"] = json!([events]);
    }
    std::fs::write(&path, snapshot_of(&page)).unwrap();
    path
}

fn event(action: &str, size: u64, device_free: Value) -> Value {
    json!({"action": action, "addr": 4096, "size": size, "stream": 0, "time_us": 1_790_000_000_000_000u64,
        "device_free": device_free})
}

/// A history that begins with memory in use, or that is not there, has no peak and no times of what came before.
#[test]
fn what_was_before_a_history_is_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let segment = event("segment_alloc", 40 * MIB, Value::Null);
    let block = event("alloc", 30 * MIB, Value::Null);
    for (events, late, segments, blocks) in [
        (vec![], true, Value::Null, Value::Null),
        (vec![block.clone()], true, Value::Null, json!(1)),
        // Segments and tensors are told apart.
        (vec![segment, block], false, json!(1), json!(1)),
    ] {
        let path = snapshot(folder.path(), &events);
        let job = told(&["inspect"], &path);
        assert_eq!(job["peaks_are_at_least"], late, "{job:#}");
        assert_eq!(told(&["report"], &path)["peaks_are_at_least"], late);
        for (api, calls) in [("torch.segment_alloc", segments), ("torch.alloc", blocks)] {
            let found = job["apis"].list().iter().find(|one| one["api"] == api);
            assert_eq!(found.map_or(&Value::Null, |one| &one["calls"]), &calls, "{job:#}");
        }
        assert_eq!(job["start_time"].is_null(), events.is_empty(), "{job:#}");
        let wanted = json!({"current": 30 * MIB, "peak": 30 * MIB});
        assert_fields(&job["devices"][0]["allocated"], wanted, "");
        assert_eq!(job["devices"][0]["reserved"]["peak"], 40 * MIB);
        let text = run("inspect", &[path.to_str().unwrap()]).text;
        assert_eq!(text.contains("\u{2265} 40.0 MiB"), late, "{text}");
    }
}

/// PyTorch tells what the device had free when it was out of memory. What others held, and so the size, it does not tell.
#[test]
fn what_pytorch_told_of_a_failure_is_evidence() {
    let folder = tempfile::tempdir().unwrap();
    for (size, free, code) in [
        // 10 MiB lie free in the segment, 8 are missing; then 22; then the device has enough.
        (20 * MIB, json!(12 * MIB), 14),
        (30 * MIB, json!(8 * MIB), 10),
        (20 * MIB, json!(64 * MIB), 10),
        (20 * MIB, Value::Null, 10),
    ] {
        let path = snapshot(folder.path(), &[event("oom", size, free.clone())]);
        let output = run("why", &["--json", path.to_str().unwrap()]);
        let why = &output.json()["why"];
        assert_eq!(output.code, Some(code), "{why:#}");
        assert_eq!(why["failure"]["device_free"], free);
        assert_eq!(why["ledger"], Value::Null, "the parts do not sum to a device: {why:#}");
        if free == 8 * MIB {
            assert_says(why["text"].text(), "8.00 MiB free at the failure, as PyTorch told");
        }
    }
}
