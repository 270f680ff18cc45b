//! `vramshim export` and `vramshim import`: what they write has the ledger's totals and keeps the rules of each
//! format, and hostile files do no harm. With the feature `frameworks`, the formats' own readers read the files, too.

mod fleet;
mod frameless;
pub mod hostile;
mod imports;
#[cfg(feature = "frameworks")]
pub mod readers;
mod tables;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use support::made::Made;
use support::training::{self, Plan};
use support::{
    AUTO_GROWTH, Fields, Finished, Job, PASSTHROUGH, Printed, Runs, STRATEGIES, Strategy, assert_fields, assert_says,
    client, inspect, program, vramshim_with,
};
use tempfile::TempDir;

fn run(command: &str, arguments: &[&str]) -> Printed {
    vramshim_with(&[command], arguments)
}

/// Imports a file into a journal, which may be there already.
fn import_as(from: &Path, to: &Path) -> Printed {
    vramshim_with(&["import", "--force", "-o"], [to, from])
}

/// Exports a journal or folder into a new file.
fn export(source: &Path, format: &str, more: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    vramshim_with(&[&["export", "--to", format], more, &["-o"]].concat(), [&path, source]).ok();
    (folder, path)
}

/// Checks snapshots (`snapshot.py`), and returns the figures of each.
pub fn check_all<P: AsRef<OsStr>>(snapshots: impl IntoIterator<Item = P>) -> Vec<Value> {
    let script = support::root().join("tests/formats/snapshot.py");
    let output = Command::new("python3").arg(script).args(snapshots).printed().ok();
    let lines = output.text.lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn check(snapshot: &Path) -> Value {
    check_all([snapshot]).remove(0)
}

fn snapshot(source: &Path, more: &[&str]) -> Value {
    let (_folder, path) = export(source, "torch-snapshot", more);
    check(&path)
}

/// A job that uses every class of memory, and ends while it holds some.
fn exercise(strategy: Strategy, threads: u32) -> Finished {
    let path = client("support/clients/exercise.c", "linked", &["libcuda.so.1"]);
    let job = Job::new(path).strategy(strategy).args(["3", "400"]);
    job.args([threads.to_string()]).run().ok()
}

/// The totals of each device in `vramshim inspect`, as `snapshot.py` prints them.
fn ledger(path: &Path) -> Value {
    let mut sums = json!({});
    for device in inspect(path)[0]["devices"].list() {
        let current = |name: &str| device[name]["current"].as_u64().or(device[name].as_u64()).unwrap();
        let [reserved, allocated, requested] = ["reserved", "allocated", "requested"].map(current);
        if reserved + allocated + requested > 0 {
            let sum = json!({"reserved": reserved, "allocated": allocated, "requested": requested});
            sums[device["device"].to_string()] = sum;
        }
    }
    sums
}

#[test]
fn a_snapshot_keeps_pytorchs_rules_and_has_the_ledgers_totals() {
    for strategy in STRATEGIES {
        for threads in [1, 3] {
            let finished = exercise(strategy, threads);
            let journal = &finished.journals()[0];
            let checked = snapshot(journal, &[]);
            assert_eq!(checked["sums"], ledger(journal), "{} {threads}", strategy.name);
            for action in ["alloc", "free_completed", "segment_alloc"] {
                let actions = &checked["actions"];
                assert!(actions[action].number() > 20, "{action}: {actions}");
            }
            let highest = |checked: &Value| {
                let sums = checked["sums"].as_object().unwrap().values();
                sums.map(|sums| sums["allocated"].number()).max()
            };
            assert!(highest(&snapshot(journal, &["--at", "peak"])) >= highest(&checked));
        }
    }
}

#[test]
fn a_snapshot_of_a_training_job_has_its_peak_and_its_failures() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("a.vraj");
    let plan = Plan {
        events: 30_000,
        out_of_memory: true,
        ..Plan::default()
    };
    let truth = training::write(&journal, &plan).unwrap();
    assert_eq!(snapshot(&journal, &[])["sums"], ledger(&journal));
    let at_peak = snapshot(&journal, &["--at", "peak"]);
    assert_eq!(at_peak["sums"]["0"]["requested"], truth.peak);
    assert_eq!(snapshot(&journal, &["--at", "oom"])["actions"]["oom"], truth.failures);
}

#[test]
fn a_snapshot_that_is_imported_and_exported_again_has_the_same_live_blocks() {
    for strategy in [PASSTHROUGH, AUTO_GROWTH] {
        let finished = exercise(strategy, 1);
        let (_folder, path) = export(&finished.journals()[0], "torch-snapshot", &[]);
        let before = check(&path);
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("a.vraj");
        import_as(&path, &journal).ok();
        let jobs = inspect(&journal);
        assert_fields(&jobs[0], json!({"anomalies": 0, "events_lost": 0}), "");
        let after = snapshot(&journal, &[]);
        assert!(!before["live"].list().is_empty());
        for field in ["live", "sums"] {
            assert_eq!(after[field], before[field], "{}", strategy.name);
        }
        assert_eq!(after["sums"], ledger(&journal));
    }
}

#[test]
fn a_log_is_replayed_as_the_journal_is() {
    let finished = exercise(PASSTHROUGH, 1);
    let journal = &finished.journals()[0];
    let (_folder, log) = export(journal, "csv", &[]);
    let text = std::fs::read_to_string(&log).unwrap();
    let page = |path: &Path| {
        let replayed = run("replay", &[path.to_str().unwrap(), "--json", "--strategy", "torch"]);
        replayed.ok().json()
    };
    let allocations = text.lines().filter(|line| line.contains(",allocate,")).count();
    assert!(allocations > 50);
    assert_eq!(page(&log)["unmatched"], 0);
    // A journal of the log has the same requests.
    let folder = tempfile::tempdir().unwrap();
    let imported = folder.path().join("log.vraj");
    import_as(&log, &imported).ok();
    let (of_log, of_journal) = (page(&log), page(&imported));
    for field in ["requests", "peak_live"] {
        assert_eq!(of_log[field], of_journal[field], "{field}");
    }
    assert_eq!(inspect(&imported)[0]["apis"].list().len(), 2);
}

/// MemoryViz is slow with long traces. What is left out is told.
#[test]
fn a_snapshot_has_the_last_million_entries_of_a_trace() {
    const PAIRS: u64 = 210_000;
    /// A segment and a block that come, a block that is asked for and goes, and a segment that goes.
    const ENTRIES_OF_A_PAIR: u64 = 5;
    let folder = tempfile::tempdir().unwrap();
    let mut made = Made::new(folder.path(), 70, 0).unwrap();
    for _ in 0..PAIRS {
        made.alloc_at(0, 1 << 40, 512, 0).unwrap();
        made.free(0, 1 << 40, 512).unwrap();
    }
    let journal = made.end(Some(0)).unwrap();
    let out = folder.path().join("out.pickle");
    let written = vramshim_with(&["export", "--json", "--to", "torch-snapshot", "-o"], [&out, &journal]).ok();
    assert_eq!(written.json()["events"], 1_000_000);
    let left_out = PAIRS * ENTRIES_OF_A_PAIR - 1_000_000;
    assert_says(&written.json()["notes"].to_string(), &format!("{left_out} older ones"));
}

#[test]
fn a_file_is_not_replaced_without_force_and_not_left_half() {
    let finished = exercise(PASSTHROUGH, 1);
    let journal = finished.journals()[0].clone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.csv");
    std::fs::write(&path, "mine").unwrap();
    let arguments = [journal.to_str().unwrap(), "--to", "csv", "-o", path.to_str().unwrap()];
    let refused = run("export", &arguments);
    assert_eq!(refused.code, Some(2));
    assert_says(&refused.said, "exists already");
    let written = || std::fs::read_to_string(&path).unwrap();
    assert_eq!(written(), "mine");
    run("export", &[&arguments[..], &["--force"]].concat()).ok();
    assert!(written().starts_with("Thread,Time,Action,Pointer,Size,Stream,"));
    let piped = run("export", &[arguments[0], "--to", "csv", "-o", "-"]);
    assert_eq!(piped.text, written());
    let wrong = run("export", &[arguments[0], "--to", "csv", "--at", "peak", "-o", "-"]);
    assert_eq!(wrong.code, Some(2));
    // A moment that the job does not have leaves no file.
    let calm = folder.path().join("calm.vraj");
    training::write(&calm, &Plan::default()).unwrap();
    let none = folder.path().join("none");
    let arguments = ["--to", "collapsed", "--at", "oom", "-o", none.to_str().unwrap()];
    let absent = run("export", &[&[calm.to_str().unwrap()], &arguments[..]].concat());
    assert_eq!((absent.code, none.exists()), (Some(1), false));
}

#[test]
fn what_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = support::made::Made::new(folder.path(), 1, 1_790_000_000).unwrap();
    for _ in 0..10_000 {
        job.alloc(0, 1 << 20, 0).unwrap();
    }
    let journal = job.end(Some(0)).unwrap();
    let out = folder.path().join("out.csv");
    let exported = |to: &str, shell: &str| {
        // The file may not grow beyond 64 blocks: that is told as a full disk is.
        let script = format!("trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\" {shell}");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(program()).arg("export").arg(&journal);
        command.args(["--to", "csv", "-o", to]).printed()
    };
    let output = exported(out.to_str().unwrap(), "");
    let wanted = format!("vramshim: {}: cannot be written: File too large", out.display());
    assert_eq!((output.code, out.exists()), (Some(1), false));
    assert!(output.said.starts_with(&wanted), "{}", output.said);
    let output = exported("-", ">/dev/full");
    assert_eq!(output.code, Some(1));
    assert_says(&output.said, "cannot write to standard output: No space left");
    for help in ["--help", "--version"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(program()).arg(help).stdout(full).printed();
        assert_eq!(output.code, Some(1), "{help}");
        assert_says(&output.said, "cannot write to standard output");
    }
}
