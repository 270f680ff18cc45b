//! Leaks, also behind the cache of a framework, which frees nothing: `why` and `inspect --leaks` have one rule.

use std::path::Path;

use serde_json::Value;
use support::made::Made;
use support::{Fields, MIB, assert_says, vramshim};

use super::evidence::measure;
use super::{GIB, Told, assert_no_verdict_on_live_memory, assert_verdict, job, why, why_of};

fn told(path: &Path) -> (Told, Value) {
    let leaks = vramshim(&["inspect", "--leaks", "--json", path.to_str().unwrap()]).json();
    let suspected = leaks["jobs"][0]["leaks"]["devices"][0]["suspected_bytes"].clone();
    (why_of(path), suspected)
}

/// A job that obtains 120 segments until it fails, and frees none. PyTorch runs in the job.
#[test]
fn what_may_be_a_leak_or_data_is_told_as_both() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "", "framework=PyTorch 2.12.0").unwrap();
    for _ in 0..120 {
        job.alloc(0, 8 * MIB, 0).unwrap();
    }
    measure(&mut job, 64 * MIB, 960 * MIB, 960 * MIB);
    job.fail(80 * MIB).unwrap();
    let (told, suspected) = told(&job.end(Some(1)).unwrap());
    assert_verdict(&told, "live_set", 12);
    assert_says(
        &told.page["next"].to_string(),
        "960.0 MiB came again and again and stayed",
    );
    assert_eq!(suspected, 960 * MIB);
}

#[test]
fn steady_growth_is_told_from_a_large_live_set() {
    let finished = job("leak").run();
    let told = why(&finished);
    assert_verdict(&told, "growth", 13);
    assert_no_verdict_on_live_memory(&finished);
    let growth = told.page["why"]["growth"]["bytes"].number();
    assert!(growth > 12 * GIB, "{growth}");
    assert_says(told.page["holders"][0]["what"].text(), "8.00 MiB");
}

/// No two requests have one size, as behind a pool that keeps buffers that are never large enough. None has a stack.
#[test]
fn what_came_bit_by_bit_in_many_sizes_is_not_denied() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "", "").unwrap();
    job.alloc(0, 500 * MIB, 0).unwrap();
    for number in 0..60 {
        job.alloc(0, 3 * MIB + number * 4096, 0).unwrap();
    }
    let path = job.end(Some(0)).unwrap();
    let text = vramshim(&["inspect", "--leaks", "--growth", path.to_str().unwrap()]).text;
    assert_says(
        &text,
        "of it came bit by bit and stayed, as with a leak; no one size did",
    );
    assert_says(&text, "growth or data, which is not known without marks");
    assert!(!text.contains("none of it"), "{text}");
}

/// An interpreter that shuts down frees what a list had kept until then.
#[test]
fn what_the_shutdown_frees_was_a_leak() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "", "").unwrap();
    let mut kept = Vec::new();
    for _ in 0..100 {
        kept.push(job.alloc(0, 5 * MIB, 0).unwrap());
        for _ in 0..6 {
            let temporary = job.alloc(0, MIB, 0).unwrap();
            job.free(0, temporary, MIB).unwrap();
        }
    }
    for address in kept {
        job.free(0, address, 5 * MIB).unwrap();
    }
    let path = job.end(Some(0)).unwrap();
    let page = vramshim(&["inspect", "--leaks", "--growth", "--json", path.to_str().unwrap()]).json();
    let job = &page["jobs"][0];
    assert_eq!(job["leaks"]["devices"][0]["holders"][0]["suspect"], true, "{page:#}");
    let [from, to] = ["from", "to"].map(|end| job["growth"][end].number());
    assert!(to > from + 200 * MIB, "{page:#}");
    let told = why_of(&path);
    assert_verdict(&told, "none_failed", 0);
    assert!(told.page["why"]["growth"]["bytes"].number() > 200 * MIB, "it grew");
    assert_says(&told.page["next"].to_string(), "--growth");
    assert!(!told.text.contains("failed request"), "none failed: {}", told.text);
}
