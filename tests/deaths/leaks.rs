//! Leaks, also behind the cache of a framework, which frees nothing: `why` and `inspect --leaks` have one rule.

use std::process::Command;

use serde_json::Value;
use support::made::Made;
use support::{MIB, program};

use super::evidence::measure;
use super::{GIB, assert_no_verdict_on_live_memory, assert_verdict, job, number, why};

/// What `why` says of a job that obtains 120 segments until it fails, and frees none. PyTorch runs in the job. Returns the verdict, the exit code, the steps to do next, and the bytes that `inspect --leaks` suspects.
fn told() -> (String, Option<i32>, String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "", "framework=PyTorch 2.12.0").unwrap();
    for _ in 0..120 {
        job.alloc(0, 8 * MIB, 0).unwrap();
    }
    measure(&mut job, 64 * MIB, 960 * MIB, 960 * MIB);
    job.fail(80 * MIB).unwrap();
    let path = job.end(Some(1)).unwrap();
    let ask = |arguments: &[&str]| {
        let output = Command::new(program()).args(arguments).arg(&path).output().unwrap();
        let page: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), page)
    };
    let (code, page) = ask(&["why", "--json"]);
    let (_, leaks) = ask(&["inspect", "--leaks", "--json"]);
    (
        page["why"]["verdict"].as_str().unwrap().to_owned(),
        code,
        page["next"].to_string(),
        leaks["jobs"][0]["leaks"]["devices"][0]["suspected_bytes"].clone(),
    )
}

#[test]
fn what_may_be_a_leak_or_data_is_told_as_both() {
    let (verdict, code, next, suspected) = told();
    assert_eq!((verdict.as_str(), code), ("live_set", Some(12)), "{next}");
    assert!(next.contains("960.0 MiB came again and again and stayed"), "{next}");
    assert_eq!(suspected, 960 * MIB);
}

#[test]
fn steady_growth_is_told_from_a_large_live_set() {
    let finished = job("leak").run();
    let told = why(&finished, &[]);
    assert_verdict(&told, "growth", 13);
    assert_no_verdict_on_live_memory(&finished);
    let growth = number(&told.page["why"]["growth"]["bytes"]);
    assert!(growth > 12 * GIB, "{growth}");
    assert!(
        told.page["holders"][0]["what"].as_str().unwrap().contains("8.00 MiB"),
        "{}",
        told.text
    );
}

/// A job that loads for a while before it leaks: `why` and `inspect --leaks` tell the same.
#[test]
fn a_leak_that_begins_late_is_one_for_both() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::new(folder.path(), 70, 0).unwrap();
    job.alloc(0, 8 * MIB, 0).unwrap();
    job.wait(900_000_000);
    for _ in 0..110 {
        let temporary = job.alloc(0, MIB, 0).unwrap();
        job.alloc(0, 8 * MIB, 0).unwrap();
        job.free(0, temporary, MIB).unwrap();
    }
    measure(&mut job, 136 * MIB, 888 * MIB, 888 * MIB);
    job.fail(200 * MIB).unwrap();
    let path = job.end(Some(1)).unwrap();
    let output = |arguments: &[&str]| {
        let output = Command::new(program()).args(arguments).arg(&path).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let page: Value = serde_json::from_str(&output(&["why", "--json"])).unwrap();
    assert_eq!(page["why"]["verdict"], "growth", "{page}");
    let leaks: Value = serde_json::from_str(&output(&["inspect", "--leaks", "--json"])).unwrap();
    let suspected = &leaks["jobs"][0]["leaks"]["devices"][0]["suspected_bytes"];
    assert_eq!(suspected, 888 * MIB);
    let text = output(&["inspect", "--leaks"]);
    assert!(
        text.contains("Live bytes grew from ") && text.contains("leak?"),
        "{text}"
    );
}
