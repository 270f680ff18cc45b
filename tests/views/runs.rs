//! Several runs in one folder are not mixed; moments that no process has; steps of marks and ranges of one name.

use std::path::PathBuf;
use std::process::Command;

use journal::format::{HEADER_SIZE, MarkKind, SLOT_SIZE};
use serde_json::Value;
use support::made::Made;
use support::{Fields, MIB, Runs, assert_fields, assert_says, program, vramshim_with};

use super::{inspect, json, text};

#[test]
fn the_moment_of_several_processes_is_the_one_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    for pid in [70, 71] {
        let mut job = Made::new(folder.path(), pid, 0).unwrap();
        let gone = job.alloc(0, 100 * MIB, 0).unwrap();
        job.free(0, gone, 100 * MIB).unwrap();
        job.alloc(0, 8 * MIB, 0).unwrap();
        job.end(Some(0)).unwrap();
    }
    let page = json(folder.path(), &["--at", "end"]);
    for job in page["jobs"].list() {
        assert_eq!(job["at"]["devices"][0]["allocated"], 8 * MIB, "{page:#}");
    }
}

/// The process that `vramshim why` explains, and its exit code.
fn explained(paths: &[PathBuf]) -> (Value, Option<i32>) {
    let output = vramshim_with(&["why", "--json"], paths);
    (output.json()["process"]["pid"].clone(), output.code)
}

#[test]
fn a_process_without_memory_is_explained_before_one_that_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut killed = Made::new(folder.path(), 70, 0).unwrap();
    killed.alloc(0, MIB, 0).unwrap();
    let mut short = Made::new(folder.path(), 71, 0).unwrap();
    short.wait(2_000_000_000);
    short.fail(2048 * MIB).unwrap();
    let (killed, short) = (killed.end(None).unwrap(), short.end(Some(1)).unwrap());
    let page = vramshim_with(&["why", "--json"], [folder.path()]).json();
    assert_eq!(page["processes"][0]["verdict"], "none_failed", "{page:#}");
    let wanted = serde_json::json!({"older_processes": 0, "died_before": null});
    assert_fields(&page, wanted, "");
    // Without an argument the newest journal is taken.
    let mut newest = Command::new(program());
    newest.arg("why").current_dir("/").env("VRAMSHIM_DIR", folder.path());
    assert_eq!(newest.printed().code, Some(11));
    // There is no journal here.
    assert_eq!(newest.env_remove("VRAMSHIM_DIR").printed().code, Some(1));
    let mut later = Made::new(folder.path(), 72, 1000).unwrap();
    later.alloc(0, MIB, 0).unwrap();
    let files = [killed, short, later.end(None).unwrap()];
    // All that are named are looked at, and of a folder the newest run.
    for named in [&files[..2], &files] {
        assert_eq!(explained(named), (71.into(), Some(11)));
    }
    assert_eq!(explained(&[folder.path().to_owned()]), (72.into(), Some(0)));
    let page = vramshim_with(&["why", "--json"], [folder.path()]).json();
    assert_eq!(page["older_processes"], 2, "those that ended before the other began");
}

#[test]
fn a_moment_that_no_process_has_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    Made::new(folder.path(), 70, 0).unwrap().end(Some(0)).unwrap();
    for moment in ["oom", "mark:epoch", "99h"] {
        let output = inspect(folder.path(), &["--at", moment]);
        assert_eq!(output.code, Some(1), "{moment}: {}", output.said);
    }
}

#[test]
fn a_range_and_a_mark_of_one_name_are_one_step() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::new(folder.path(), 70, 0).unwrap();
    job.stack_line(&["N", "1", "step"]);
    for _ in 0..20 {
        job.mark(1, MarkKind::Begin).unwrap();
        job.mark(1, MarkKind::Instant).unwrap();
        job.alloc(0, MIB, 0).unwrap();
        job.mark(1, MarkKind::End).unwrap();
    }
    job.fail(2048 * MIB).unwrap();
    let path = job.end(Some(1)).unwrap();
    let page = json(&path, &["--growth"]);
    let growth = &page["jobs"][0]["growth"];
    assert_eq!(growth["moments_ns"].list().len(), 20);
    let pace = growth["holders"][0]["bytes_a_step"].as_f64().unwrap();
    assert_eq!(pace.round(), MIB as f64);
    let page = text(&path, &["--growth"]);
    assert!(!page.contains("at this pace"), "a job that died has no future\n{page}");
}

#[test]
fn figures_of_several_devices_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::new(folder.path(), 70, 0).unwrap();
    job.alloc(0, 8 * MIB, 0).unwrap();
    job.alloc(1, 4 * MIB, 0).unwrap();
    let path = job.end(Some(0)).unwrap();
    let growth = &json(&path, &["--growth"])["jobs"][0]["growth"];
    assert_fields(growth, serde_json::json!({"device": 0, "other_devices": [1]}), "");
}

#[test]
fn a_journal_that_was_cut_may_lack_the_failure() {
    let folder = tempfile::tempdir().unwrap();
    for (pid, exit, code) in [(70, Some(1), 10), (71, None, 10), (72, Some(0), 0)] {
        let mut job = Made::new(folder.path(), pid, 0).unwrap();
        for _ in 0..20 {
            job.alloc(0, MIB, 0).unwrap();
        }
        job.fail(2048 * MIB).unwrap();
        let path = job.end(exit).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len((HEADER_SIZE + 10 * SLOT_SIZE) as u64).unwrap();
        assert_eq!(explained(std::slice::from_ref(&path)), (pid.into(), Some(code)));
        assert_says(&text(&path, &[]), "events were lost (the file was cut short)");
    }
}
