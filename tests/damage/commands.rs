//! Damaged journals and what lies beside them, for the commands that make something of a journal: `export`, `replay`.

use std::fs;

use serde_json::json;
use support::made::Made;
use support::{Fields, assert_fields, assert_says};

use super::{journal, journal_of, look, run};

#[test]
fn records_that_cannot_be_true_are_told_and_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut made = Made::new(folder.path(), 70, 0).unwrap();
    made.alloc_at(0, 1 << 40, 4096, 0).unwrap();
    made.alloc_at(0, 2 << 40, u64::MAX, 0).unwrap();
    made.alloc_at(0, u64::MAX - 10, 4096, 0).unwrap();
    made.alloc_at(4095, 3 << 40, 4096, 0).unwrap();
    made.fail(1 << 63).unwrap();
    let path = made.end(Some(1)).unwrap();
    let page = look(&path, &["--json"], "impossible").json();
    let job = &page["jobs"][0];
    assert_fields(job, json!({"damaged": 3, "events": 2}), "");
    assert_eq!(job["live"].list().len(), 1);
    // A failed request may be as large as it likes.
    assert_eq!(job["failed"][0]["last_size"], 1u64 << 63);
    let said = run("why", &path, &[], "impossible").text;
    assert!(said.starts_with("Damaged journal: "), "{said}");
    assert_says(&said, "Damaged: records");
    let out = folder.path().join("out");
    for format in [
        "csv",
        "perfetto",
        "torch-snapshot",
        "collapsed",
        "parquet",
        "parquet --partition",
    ] {
        let _ = fs::remove_file(&out);
        let words = format!("--to {format} -o {}", out.display());
        let seen = run("export", &path, &words.split(' ').collect::<Vec<_>>(), format);
        assert_eq!(seen.code, Some(0), "{format}: {}", seen.said);
        assert_says(&seen.said, "left out 3 damaged records");
    }
    let said = run("replay", &path, &[], "impossible").text;
    assert_says(&said, "left out 3 damaged records");
}

/// What lies beside one journal costs only what it holds.
#[test]
fn a_folder_is_exported_although_files_beside_its_journals_are_bad() {
    let folder = tempfile::tempdir().unwrap();
    let (_, bytes) = journal(folder.path(), 100);
    let of = |name: &str| folder.path().join(name);
    let out = of("out.collapsed");
    let to = out.to_str().unwrap();
    let arguments = ["--force", "--to", "collapsed", "--at", "end", "-o", to];
    let live_bytes = || {
        let lines = fs::read_to_string(&out).unwrap();
        let weight = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        lines.lines().map(weight).sum::<u64>()
    };
    assert_eq!(run("export", folder.path(), &arguments, "one journal").code, Some(0));
    let one = live_bytes();
    assert!(one > 0);
    for (rank, name) in [(1, "a"), (2, "b"), (3, "c")] {
        let elsewhere = tempfile::tempdir().unwrap();
        let (path, _) = journal_of(elsewhere.path(), 100, rank);
        fs::copy(path, of(&format!("{name}.vraj"))).unwrap();
    }
    fs::create_dir(of("a.tensors")).unwrap();
    fs::create_dir(of("b.stacks")).unwrap();
    fs::write(of("c.tensors"), [0xff; 5000]).unwrap();
    let seen = run("export", folder.path(), &arguments, "bad files");
    assert_eq!(seen.code, Some(0), "{}", seen.said);
    for name in ["a.tensors", "b.stacks", "c.tensors"] {
        assert_says(&seen.said, &format!("{name}: cannot be read"));
    }
    assert_eq!(live_bytes(), 4 * one);
    fs::write(of("d.vraj"), &bytes[..1000]).unwrap();
    let seen = run("export", folder.path(), &arguments, "a bad journal");
    assert_eq!((seen.code, live_bytes()), (Some(1), 4 * one), "{}", seen.said);
    assert_says(&seen.said, "d.vraj: cut short");
}
