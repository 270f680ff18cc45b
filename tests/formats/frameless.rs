//! What views and exports say of bytes whose stack cannot be shown.

use std::path::{Path, PathBuf};

use support::made::Made;
use support::{MIB, assert_says};
use tempfile::TempDir;

use super::run;

/// A journal of a process with two stacks.
fn journal() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let mut made = Made::new(folder.path(), 70, 0).unwrap();
    for (number, line) in [("1", "7"), ("2", "9")] {
        made.stack_line(&["P", number, "/srv/job.py", line, "work"]);
        made.stack_line(&["T", number, "python", number]);
    }
    made.alloc(0, 64 * MIB, 1).unwrap();
    made.alloc(0, 192 * MIB, 2).unwrap();
    let path = made.end(Some(0)).unwrap();
    (folder, path)
}

fn views(journal: &Path) -> [String; 2] {
    let journal = journal.to_str().unwrap();
    let view = run("inspect", &[journal, "--top", "stack"]);
    let export = run("export", &[journal, "--to", "collapsed", "-o", "-"]);
    [view.text, export.said]
}

#[test]
fn a_missing_file_of_stacks_is_named_and_no_option_is_blamed() {
    let (folder, path) = journal();
    let lonely = folder.path().join("lonely.vraj");
    std::fs::rename(&path, &lonely).unwrap();
    for told in views(&lonely) {
        assert_says(&told, "lonely.stacks is missing: copy node1-70-");
        assert!(!told.contains("--stacks") && !told.contains("not recorded"), "{told}");
    }
}

#[test]
fn a_file_of_stacks_that_was_cut_is_named() {
    let (_folder, path) = journal();
    let stacks = path.with_extension("stacks");
    let text = std::fs::read_to_string(&stacks).unwrap();
    let begin: Vec<&str> = text.lines().take(3).collect();
    std::fs::write(&stacks, begin.join("\n") + "\n").unwrap();
    let [view, export] = views(&path);
    assert_says(&view, "Bytes without a stack: 75.0 % (");
    assert_says(&export, "192.0 MiB of 256.0 MiB have a stack that is not in the file: ");
}
