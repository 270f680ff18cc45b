//! What stacks are called: by the job's line of Python, and by callers if the line alone does not tell holders apart.

use std::path::{Path, PathBuf};

use support::made::Made;
use support::{Fields, MIB, vramshim_with};

use super::{json, text};

/// A helper that three functions call, through native frames, as `--stacks both` keeps them.
fn helper(folder: &Path) -> PathBuf {
    let mut job = Made::with(folder, 70, 0, "VRAMSHIM_STACKS=both", "").unwrap();
    job.stack_line(&["P", "1", "/build/_ctypes/callproc.c", "923", "_call_function_pointer"]);
    job.stack_line(&["P", "2", "/x/helper.py", "11", "malloc"]);
    job.stack_line(&["P", "3", "/p/site-packages/torch/a.py", "1", "call"]);
    for (number, function) in [(10, "weights"), (11, "leak"), (12, "buffers")] {
        job.stack_line(&["P", &number.to_string(), "/x/job.py", &number.to_string(), function]);
        job.stack_line(&["T", &number.to_string(), "python", "1", "2", &number.to_string()]);
    }
    // The same lines, called from two others, and through a package.
    for (number, line) in [("20", "20"), ("21", "21")] {
        job.stack_line(&["P", number, "/x/job.py", line, "main"]);
        job.stack_line(&["T", number, "python", "1", "2", "3", "11", number]);
    }
    for (stack, bytes) in [(10, 64), (20, 8), (21, 8), (12, 32)] {
        job.alloc(0, bytes * MIB, stack).unwrap();
    }
    job.end(Some(0)).unwrap()
}

#[test]
fn holders_of_one_line_are_told_apart_by_their_callers_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = helper(folder.path());
    let callers = "10 weights|12 buffers|11 leak < job.py:20 main|11 leak < job.py:21 main".split('|');
    let names: Vec<String> = callers
        .map(|caller| format!("/x/helper.py:11 malloc < job.py:{caller}"))
        .collect();
    for view in [&["--top", "stack"][..], &["--leaks"], &[]] {
        let page = text(&path, view);
        for name in &names {
            assert_eq!(page.matches(name).count(), 1, "{view:?}: {name}\n{page}");
        }
        assert!(!page.contains("callproc"), "{page}");
    }
    let why = vramshim_with(&["why"], [&path]).text;
    assert!(names.iter().all(|name| why.contains(name)), "{why}");
    // The report names stacks by the same frames.
    let report = vramshim_with(&["report", "--json"], [&path]).json();
    assert_eq!(report["names"].to_string(), "[[1,2],[1,2],[1,3,4],[1,3,4]]");
}

#[test]
fn two_journals_are_compared_by_the_same_names() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut job = Made::new(one.path(), 70, 0).unwrap();
    job.stack_line(&["P", "2", "/x/helper.py", "11", "malloc"]);
    job.stack_line(&["P", "10", "/x/job.py", "10", "weights"]);
    job.stack_line(&["T", "10", "python", "2", "10"]);
    job.alloc(0, 64 * MIB, 10).unwrap();
    let before = job.end(Some(0)).unwrap();
    let after = helper(other.path());
    let page = json(&before, &["--diff", after.to_str().unwrap()]);
    let mut holders = page["diff"]["holders"].list().iter();
    let weights = holders.find(|holder| holder["name"].text().contains("weights"));
    assert_eq!(weights.expect("a holder")["change"], 0, "{page}");
}
