//! Journals in which something wrote zeros or noise: a page that was lost as the node crashed, a hole in a copy. What is
//! damaged is not told as a fact, and decides no verdict.

use std::fs;
use std::path::{Path, PathBuf};
use support::assert_says;

use support::made::Made;
use support::{MIB, Printed, vramshim};

use super::evidence::measure;
use super::why_of;

const HEADER: usize = 16384;
const SLOT: usize = 64;

/// A job that allocates 200 times, asks for too much and exits.
fn full(folder: &Path) -> PathBuf {
    let mut job = Made::new(folder, 70, 0).unwrap();
    for _ in 0..200 {
        job.alloc(0, 4 * MIB, 0).unwrap();
    }
    measure(&mut job, 174 * MIB, 800 * MIB, 850 * MIB);
    job.fail(300 * MIB).unwrap();
    job.end(Some(1)).unwrap()
}

fn says(command: &str, path: &Path) -> Printed {
    vramshim(&[command, path.to_str().unwrap()])
}

#[test]
fn zeros_in_place_of_records_are_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = full(folder.path());
    let whole = fs::read(&path).unwrap();
    assert_eq!(why_of(&path).code, Some(12));
    assert_eq!(says("reconcile", &path).code, Some(0));
    let end = whole.len();
    for (what, from, to) in [
        ("a page in the middle", HEADER + 64 * SLOT, HEADER + 128 * SLOT),
        ("the last page", HEADER + 192 * SLOT, end),
        ("all records", HEADER, end),
    ] {
        let mut bytes = whole.clone();
        bytes[from..to].fill(0);
        fs::write(&path, bytes).unwrap();
        let told = why_of(&path);
        assert_eq!(told.code, Some(10), "{what}: {}", told.text);
        assert!(told.text.starts_with("Damaged journal: "), "{what}: {}", told.text);
        assert_eq!(told.page["why"]["uncertain"], true, "{what}");
        assert!(!told.text.contains("asked for no GPU memory"), "{what}: {}", told.text);
        let inspected = says("inspect", &path).text;
        assert_says(&inspected, " damaged, ");
        assert_says(&inspected, "may be wrong");
        if what == "a page in the middle" {
            assert_eq!(says("reconcile", &path).code, Some(1), "{what}");
        }
    }
}

#[test]
fn a_damaged_header_is_not_told_as_facts() {
    let folder = tempfile::tempdir().unwrap();
    let path = full(folder.path());
    let mut bytes = fs::read(&path).unwrap();
    // The strategy, how it ended, what was lost, host and job, and the device.
    bytes[80..700].fill(0x5a);
    fs::write(&path, bytes).unwrap();
    let told = why_of(&path);
    let inspected = says("inspect", &path).text;
    for text in [&told.text, &inspected] {
        for damaged in ["ZZZZ", "1515870811", "388,062", "d 8 h"] {
            assert!(!text.contains(damaged), "{damaged}: {text}");
        }
        assert!(text.contains("not known (damaged)"), "{text}");
    }
    support::assert_says(&told.text, "ended: not known (damaged)");
    assert!(inspected.contains("Ended     not known (damaged)"), "{inspected}");
    assert_eq!(told.page["process"]["host"], serde_json::Value::Null);
    let page: serde_json::Value =
        serde_json::from_str(&vramshim(&["inspect", "--json", path.to_str().unwrap()]).text).unwrap();
    let job = &page["jobs"][0];
    assert_eq!(
        (&job["ended"], &job["events_lost"]),
        (&"not_known".into(), &serde_json::Value::Null)
    );
    assert_eq!(job["exit_status"], serde_json::Value::Null);
}
