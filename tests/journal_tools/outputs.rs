//! A command writes onto no file that it reads, and replaces no file of another kind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use support::made::Made;
use support::{MIB, assert_says};

use super::run;

fn journal(folder: &Path) -> PathBuf {
    let mut made = Made::new(folder, 70, 0).unwrap();
    made.stack_line(&["P", "1", "job.py", "7", "work"]);
    made.stack_line(&["T", "1", "python", "1"]);
    made.alloc(0, 100 * MIB, 1).unwrap();
    made.end(Some(0)).unwrap()
}

/// Runs the commands, which must be refused, and compares the files with those of before.
fn all_refused(commands: &[&[&str]], words: &str, folder: &Path) {
    let files = || -> BTreeMap<PathBuf, Vec<u8>> {
        let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files = paths.map(|path| (path.clone(), std::fs::read(&path).unwrap()));
        BTreeMap::from_iter(files)
    };
    let before = files();
    for arguments in commands {
        let output = run(arguments, folder);
        assert_eq!(output.code, Some(2), "{arguments:?}: {}", output.said);
        assert_says(&output.said, words);
        assert!(files() == before, "{arguments:?} changed a file");
    }
}

#[test]
fn no_command_writes_onto_a_file_that_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = journal(folder.path());
    let name = path.file_name().unwrap().to_str().unwrap();
    std::os::unix::fs::symlink(name, folder.path().join("link")).unwrap();
    std::fs::hard_link(&path, folder.path().join("hard")).unwrap();
    let log = "Action,Pointer,Size,Stream\nallocate,0x10,8,0\n";
    std::fs::write(folder.path().join("log.stacks"), log).unwrap();
    let before = std::fs::read(&path).unwrap();
    let stacks = path.with_extension("stacks");
    let stacks = stacks.to_str().unwrap();
    let commands: &[&[&str]] = &[
        &["report", ".", "-o", name],
        &["report", ".", "-o", name, "--force"],
        &["report", ".", "-o", "link", "--force"],
        &["report", ".", "-o", "hard", "--force"],
        &["report", ".", "-o", stacks, "--force"],
        &["export", name, "--to", "csv", "-o", name, "--force"],
        &["export", name, "--to", "csv", "-o", "link", "--force"],
        &["export", name, "--to", "parquet", "-o", "hard", "--force"],
        &["import", "log.stacks", "-o", "log.vraj", "--force"],
        &["import", "log.stacks", "-o", "log.stacks", "--force"],
    ];
    all_refused(commands, "give another name with -o", folder.path());
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_report_replaces_a_report_and_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    journal(folder.path());
    let made = |arguments: &[&str]| {
        run(&[&["report", "."], arguments].concat(), folder.path()).ok();
    };
    // A report that is written again each hour.
    made(&[]);
    made(&[]);
    std::fs::write(folder.path().join("empty"), "").unwrap();
    made(&["-o", "empty"]);
    let notes = "<!doctype html>\n<title>Notes</title>\n";
    std::fs::write(folder.path().join("notes.html"), notes).unwrap();
    std::fs::copy(folder.path().join("node1-70-1.vraj"), folder.path().join("other")).unwrap();
    let commands: &[&[&str]] = &[&["report", ".", "-o", "notes.html"], &["report", ".", "-o", "other"]];
    all_refused(commands, "exists already and is no report", folder.path());
    made(&["-o", "notes.html", "--force"]);
    // The metrics replace metrics alone.
    let textfile: &[&[&str]] = &[&["serve", "--dir", ".", "--textfile", "other"]];
    all_refused(textfile, "needs a name that ends in .prom", folder.path());
    for _ in 0..2 {
        run(&["serve", "--dir", ".", "--textfile", "job.prom"], folder.path()).ok();
    }
}
