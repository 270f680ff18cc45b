//! Copies of a journal: a process counts once, however many journals tell of it.

use std::path::Path;

use support::made::Made;
use support::{Fields, MIB, assert_says};

use super::run;

/// A journal of 300 MiB, with a copy and a longer time ago a copy that was made while the job ran.
fn with_copies(folder: &Path) {
    let mut made = Made::new(folder, 70, 0).unwrap();
    made.alloc(0, 100 * MIB, 0).unwrap();
    made.alloc(0, 200 * MIB, 0).unwrap();
    made.fail(4096 * MIB).unwrap();
    let path = made.end(Some(1)).unwrap();
    // The first by name has fewer events, and no end.
    let early = tempfile::tempdir().unwrap();
    let mut made = Made::new(early.path(), 70, 0).unwrap();
    made.alloc(0, 100 * MIB, 0).unwrap();
    std::fs::copy(made.end(None).unwrap(), folder.join("a.vraj")).unwrap();
    std::fs::copy(&path, folder.join("b.vraj")).unwrap();
}

#[test]
fn a_process_counts_once_in_every_command() {
    let folder = tempfile::tempdir().unwrap();
    with_copies(folder.path());
    for arguments in [
        &["inspect", "."][..],
        &["inspect", "--top", "size", "."],
        &["why", "."],
        &["reconcile", "."],
        &["report", "--json", "."],
        &["export", "--to", "collapsed", "-o", "-", "."],
        &["replay", "."],
    ] {
        let output = run(arguments, folder.path());
        for copy in ["a", "b"] {
            let left_out = "left out: it is a journal of the same process as ./node1-70-1.vraj";
            assert_says(&output.said, &format!("./{copy}.vraj: {left_out}"));
        }
        assert!(!output.text.contains("2 processes"), "{arguments:?}: {}", output.text);
    }
    let page = run(&["inspect", "--json", "."], folder.path()).json();
    assert_eq!(page["jobs"].list().len(), 1, "{page}");
    assert_eq!(page["jobs"][0]["devices"][0]["allocated"]["peak"], 300 * MIB);
    let text = run(&["export", "--to", "collapsed", "-o", "-", "."], folder.path()).text;
    assert!(text.trim_end().ends_with(&(300 * MIB).to_string()), "{text}");
}

#[test]
fn journals_that_are_named_one_by_one_are_the_same_case() {
    let folder = tempfile::tempdir().unwrap();
    with_copies(folder.path());
    let (name, again) = ("node1-70-1.vraj", "./node1-70-1.vraj");
    std::os::unix::fs::symlink(name, folder.path().join("link.vraj")).unwrap();
    let output = run(
        &["inspect", "--json", "b.vraj", name, again, "link.vraj"],
        folder.path(),
    );
    assert_eq!(output.json()["jobs"].list().len(), 1, "{}", output.text);
    let left_out = "b.vraj: left out: it is a journal of the same process as ";
    assert_says(&output.said, left_out);
    assert_eq!(output.said.lines().count(), 1, "{}", output.said);
}

#[test]
fn logs_without_times_are_no_copies_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    for (name, size) in [("one", 100), ("two", 200)] {
        let log = format!("Action,Pointer,Size,Stream\nallocate,0x10,{size},0\n");
        let (from, to) = (format!("{name}.csv"), format!("{name}.vraj"));
        std::fs::write(folder.path().join(&from), log).unwrap();
        assert!(run(&["import", &from, "-o", &to], folder.path()).code == Some(0));
    }
    let page = run(&["inspect", "--json", "."], folder.path()).json();
    assert_eq!(page["jobs"].list().len(), 2);
}
