//! Files that are damaged, malicious or of another kind: a clear message, no panic, bounded memory.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use support::{PASSTHROUGH, program};

use crate::{exercise, export, run, said};

fn import(source: &Path) -> (tempfile::TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("a.vraj");
    let output = run("import", &[source.to_str().unwrap(), "-o", journal.to_str().unwrap()]);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(
        output.status.success() || left.is_empty(),
        "a failed import leaves no file: {left:?}"
    );
    (folder, output)
}

#[test]
fn files_of_other_kinds_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("thing");
    let cases: [(&[u8], &str); 7] = [
        (b"\x7fELF\x02\x01\x01", "looks like a program or library"),
        (b"PAR1\x15\x04", "looks like a Parquet file"),
        (b"PK\x03\x04\x14", "looks like a zip archive"),
        (b"{\"traceEvents\": []}", "looks like JSON"),
        (b"<!DOCTYPE html>", "looks like HTML"),
        (b"\x00\x01\x02\x03 no text", "looks like binary data"),
        (b"vramshim-tensors\t1\t7\t2.12.0\n", "give the journal"),
    ];
    for (content, words) in cases {
        std::fs::write(&path, content).unwrap();
        let (_folder, output) = import(&path);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
        let output = run("replay", &[path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
    }
}

#[test]
fn every_truncation_of_a_snapshot_is_refused() {
    let finished = exercise(PASSTHROUGH, 1);
    let (folder, path) = export(&finished.journals()[0], "torch-snapshot", &[]);
    let whole = std::fs::read(path).unwrap();
    let cut = folder.path().join("cut.pickle");
    let step = whole.len() / 40;
    for length in (1..whole.len()).step_by(step).chain([whole.len() - 1]) {
        std::fs::write(&cut, &whole[..length]).unwrap();
        let (_folder, output) = import(&cut);
        assert!(
            matches!(output.status.code(), Some(1 | 2)),
            "{length}: {}",
            said(&output)
        );
        assert!(said(&output).contains("cut.pickle"), "{length}: {}", said(&output));
    }
    // A wrong byte somewhere gives a journal or a message.
    for place in (2..whole.len()).step_by(step / 2) {
        let mut flipped = whole.clone();
        flipped[place] ^= 0x40;
        std::fs::write(&cut, &flipped).unwrap();
        let (_folder, output) = import(&cut);
        assert!(
            matches!(output.status.code(), Some(0..=2)),
            "{place}: {}",
            said(&output)
        );
    }
}

/// Runs a command with this many KiB of address space.
fn run_within(kib: u64, arguments: &[&str]) -> Output {
    let script = format!("ulimit -v {kib}; exec \"$0\" \"$@\"");
    Command::new("bash")
        .args(["-c", &script])
        .arg(program())
        .args(arguments)
        .output()
        .expect("bash")
}

#[test]
fn a_line_without_end_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let mut file = std::fs::File::create(&path).unwrap();
    let begin = b"Thread,Time,Action,Pointer,Size,Stream\n0,0,allocate,0x1,100,0\n0,0,alloc";
    // The kind of a file is known from its first 4 KiB.
    file.write_all(&[&begin[..], &[b'a'; 8192]].concat()).unwrap();
    // The rest of the file is a hole of zeros, without a line feed.
    file.set_len(500 << 20).unwrap();
    let journal = folder.path().join("a.vraj");
    for arguments in [
        &["import", path.to_str().unwrap(), "-o", journal.to_str().unwrap()][..],
        &["replay", path.to_str().unwrap()],
    ] {
        let output = run_within(300 << 10, arguments);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("line 3: is longer than"), "{}", said(&output));
    }
    assert!(!journal.exists());
}

#[test]
fn sizes_beyond_all_memory_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let most = u64::MAX;
    let text = format!(
        "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:01.000000,allocate,0x10,{most},0\n\
         1,00:00:02.000000,allocate,{most},{most},0\n1,00:00:03.000000,allocate failure,(nil),{most},0\n"
    );
    std::fs::write(&path, text).unwrap();
    let (folder, output) = import(&path);
    assert!(output.status.success(), "{}", said(&output));
    let journal = folder.path().join("a.vraj");
    for format in [
        "torch-snapshot",
        "perfetto",
        "pprof",
        "parquet",
        "rmm-csv",
        "csv",
        "jsonl",
        "collapsed",
        "speedscope",
    ] {
        export(&journal, format, &[]);
    }
}
