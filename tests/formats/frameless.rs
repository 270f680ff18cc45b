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
        let wanted = "lonely.stacks is missing: copy node1-70-";
        assert_says(&told, wanted);
        assert_says(&told, "stacks there from the folder in which the job wrote");
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
    let wanted = "stacks was cut, or is of another journal: copy ";
    assert_says(&view, "Bytes without a stack: 75.0 % (");
    assert_says(&view, wanted);
    assert_says(&export, "192.0 MiB of 256.0 MiB have a stack that is not in the file: ");
    assert!(export.contains(wanted), "{export}");
}

/// The sentence concerns one device, and stands with it.
#[test]
fn the_reason_stands_with_the_device_that_it_concerns() {
    let folder = tempfile::tempdir().unwrap();
    let mut made = Made::new(folder.path(), 70, 0).unwrap();
    made.stack_line(&["P", "1", "/srv/job.py", "7", "work"]);
    made.stack_line(&["T", "1", "python", "1"]);
    made.alloc(-1, 4, 0).unwrap();
    made.alloc(0, 64 * MIB, 1).unwrap();
    let path = made.end(Some(0)).unwrap();
    let [view, export] = views(&path);
    let lines: Vec<&str> = view.lines().collect();
    let place = lines
        .iter()
        .position(|line| line.contains("The records have no stacks"))
        .unwrap();
    assert!(lines[place - 1].starts_with("Host memory at the peak"), "{view}");
    assert!(view.contains("job.py:7 work"), "{view}");
    // The job ran with --stacks.
    assert!(
        !view.contains("--stacks") && !export.contains("--stacks"),
        "{view}{export}"
    );
}

/// PyTorch records no frame of Python for what a thread of autograd allocates.
#[test]
fn a_tensor_without_python_has_one_name_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let mut made = Made::with(folder.path(), 70, 0, "", "framework=PyTorch 2.12.0").unwrap();
    made.alloc_at(0, 0x7f00_0000_0000, 2 * MIB, 0).unwrap();
    let path = made.end(Some(0)).unwrap();
    let (began_us, segment) = (1_790_000_000_000_000u64, 0x7f00_0000_0000u64);
    let lines = [
        "vramshim-pytorch\t1\t70\t2.12.0".to_owned(),
        format!("S\t{began_us}\t0\t{segment}\t{}", 2 * MIB),
        "T\t0".to_owned(),
        "T\t1\t/srv/job.py\t7\twork".to_owned(),
        format!("A\t{}\t0\t{segment}\t{MIB}\t0\t0", began_us + 1000),
        format!("A\t{}\t0\t{}\t512\t0\t1", began_us + 1000, segment + MIB),
    ];
    std::fs::write(path.with_extension("tensors"), lines.join("\n") + "\n").unwrap();
    let [view, export] = views(&path);
    assert_says(&view, "no Python stack (such as a thread of autograd)");
    assert!(export.contains("1.00 MiB of 1.00 MiB have no Python stack"), "{export}");
    assert!(!export.contains("--stacks"), "{export}");
}
