//! Files that are damaged, malicious or of another kind: a clear message, no panic, bounded memory. The reader of pickles
//! and the kinds of files have unit tests (`src/program/import`).

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use support::{Printed, assert_says, program, vramshim, vramshim_with};

use crate::damage;
use crate::formats::{import_as, run};

fn import(source: &Path) -> Printed {
    let folder = tempfile::tempdir().unwrap();
    let output = import_as(source, &folder.path().join("a.vraj"));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    let is_clean = output.code == Some(0) || left.is_empty();
    assert!(is_clean, "a failed import leaves no file: {left:?}");
    output
}

#[test]
fn files_of_other_kinds_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("thing");
    for content in [
        &b"\xff\xfeT\0h\0r\0"[..],
        b"\x7fELF\x02\x01\x01",
        b"{\"traceEvents\": []}",
        b"\x00\x01\x02\x03 no text",
        b"vramshim-pytorch\t1\t7\t2.12.0\n",
    ] {
        std::fs::write(&path, content).unwrap();
        for (output, code) in [(import(&path), 2), (run("replay", &[path.to_str().unwrap()]), 1)] {
            assert_eq!(output.code, Some(code), "{}", output.said);
            assert_says(&output.said, "RMM's log");
        }
    }
}

#[test]
fn few_compressed_bytes_do_not_become_gigabytes_of_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv.gz");
    let rows = "0,0,allocate,0x10,16,0\n0,0,free,0x10,16,0\n".repeat(4 << 10);
    // They take much less than a hundredth of them.
    let log = format!("Thread,Time,Action,Pointer,Size,Stream\n{}", rows.repeat(160));
    let mut gzip = GzEncoder::new(File::create(&path).unwrap(), Compression::best());
    gzip.write_all(log.as_bytes()).unwrap();
    gzip.finish().unwrap();
    for output in [import(&path), run("replay", &[path.to_str().unwrap()])] {
        assert_eq!(output.code, Some(1), "{}", output.said);
        assert_says(&output.said, "more than 64 times its own bytes");
        assert_says(&output.said, "unpack it");
    }
}

#[test]
fn a_line_without_end_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let mut file = std::fs::File::create(&path).unwrap();
    let begin = b"Thread,Time,Action,Pointer,Size,Stream\n0,0,allocate,0x1,100,0\n0,0,alloc";
    // The kind of a file is known from its first 4 KiB. The rest is a hole of zeros, without a line feed.
    file.write_all(&[&begin[..], &[b'a'; 8192]].concat()).unwrap();
    file.set_len(2 * damage::MOST_MEMORY).unwrap();
    let journal = folder.path().join("a.vraj");
    for (name, arguments) in [("import", &["-o", journal.to_str().unwrap()][..]), ("replay", &[])] {
        let output = damage::run(name, &path, arguments, "a long line");
        assert_eq!(output.code, Some(1), "{}", output.said);
        assert_says(&output.said, "line 3: is longer than");
    }
    assert!(!journal.exists());
}

/// A snapshot whose devices have traces of one event each, and as many segments.
fn of_devices(devices: usize) -> Vec<u8> {
    let traces = vec![json!([{"action": "alloc", "addr": 7, "size": 9}]); devices];
    let segment = |device: usize| json!({"device": device, "total_size": 512, "address": 8192});
    let segments: Vec<Value> = (0..devices).map(segment).collect();
    snapshot_of(&json!({"device_traces": traces, "segments": segments}))
}

#[test]
fn a_snapshot_has_as_many_devices_as_pytorch_knows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pickle");
    std::fs::write(&path, of_devices(128)).unwrap();
    import(&path).ok();
    run("replay", &[path.to_str().unwrap(), "--device", "127", "--json"]).ok();
    std::fs::write(&path, of_devices(129)).unwrap();
    for output in [import(&path), run("replay", &[path.to_str().unwrap()])] {
        assert_eq!(output.code, Some(1), "{}", output.said);
        assert_says(
            &output.said,
            "device_traces has 129 devices, and PyTorch knows 128 at most",
        );
    }
}

#[test]
fn what_is_no_plain_file_is_refused_without_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.pickle");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (path, words) in [
        (&*pipe, "is no plain file but a pipe"),
        (Path::new("/dev/zero"), "is a device"),
    ] {
        let (absent, prices) = (Path::new("absent.csv"), ["--prices", path.to_str().unwrap()]);
        for (name, of, arguments) in [
            ("import", path, &[][..]),
            ("replay", path, &[]),
            ("replay", absent, &prices),
        ] {
            let output = damage::run(name, of, arguments, name);
            assert!(matches!(output.code, Some(1 | 2)), "{name}: {}", output.said);
            assert_says(&output.said, words);
        }
    }
}

/// The opcodes of a pickle of plain values.
pub fn pickled(value: &Value) -> Vec<u8> {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    match value {
        Value::Null => b"N".to_vec(),
        Value::Bool(yes) => vec![if *yes { 0x88 } else { 0x89 }],
        // An integer of 9 bytes with a sign.
        Value::Number(number) => [b"\x8a\x09", &number.as_i128().unwrap().to_le_bytes()[..9]].concat(),
        Value::String(string) => text(string),
        Value::Array(entries) => {
            let entries: Vec<u8> = entries.iter().flat_map(pickled).collect();
            [b"](", &entries[..], b"e"].concat()
        }
        Value::Object(entries) => {
            let entry = |(name, entry): (&String, &Value)| [text(name), pickled(entry)].concat();
            let entries: Vec<u8> = entries.iter().flat_map(entry).collect();
            [b"}(", &entries[..], b"u"].concat()
        }
    }
}

/// The pickle of a page of PyTorch's.
pub fn snapshot_of(page: &Value) -> Vec<u8> {
    [b"\x80\x04", &pickled(page)[..], b"."].concat()
}

/// Sets a terminal's title, changes its colour by a control character of one letter, and goes back on the line.
const SEQUENCES: &str = "\u{1b}]0;owned\u{7}\u{9b}31m\r\u{8}\u{7f}";

/// The journal of a snapshot whose names are made up to harm terminals and spreadsheets. Its own name has a line feed and a
/// byte that is no UTF-8.
fn harmful_names() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pickle");
    let name = format!("=HYPERLINK(\"http://host.example\"){SEQUENCES}");
    let frames = json!([{"filename": format!("@{name}"), "line": 7, "name": name}]);
    let event = json!({"action": "alloc", "addr": 4096, "size": 8192, "stream": 0, "time_us": 9, "frames": frames});
    let mark = |name: &str| json!({"name": name, "stage": "INSTANT", "time_us": 10});
    let page = json!({"segments": [], "device_traces": [[event]],
        "external_annotations": [mark(&name), mark("+1"), mark("'quoted"), mark("step -1")]});
    std::fs::write(&path, snapshot_of(&page)).unwrap();
    let own = [b"j", SEQUENCES.as_bytes(), b"\nb\xff.vraj"].concat();
    let journal = folder.path().join(OsStr::from_bytes(&own));
    let output = vramshim_with(&["import", "-o"], [&journal, &path]).ok();
    assert_harmless("import", &output);
    (folder, journal)
}

fn assert_harmless(what: &str, output: &Printed) {
    assert!(!output.text.is_empty() || !output.said.is_empty(), "{what}");
    for text in [&output.text, &output.said] {
        let control = text.chars().find(|&c| c.is_control() && !matches!(c, '\n' | '\t'));
        assert_eq!(control, None, "{what}: {text:?}");
        let torn = |line: &str| line.starts_with("b\u{fffd}") || line.starts_with("vramshim: b\u{fffd}");
        assert!(!text.lines().any(torn), "{what}: {text}");
    }
}

#[test]
fn control_characters_of_a_job_reach_no_terminal() {
    let (folder, journal) = harmful_names();
    let missing = journal.with_extension("missing.vraj");
    let noise = journal.with_extension("noise.vraj");
    std::fs::write(&noise, "noise").unwrap();
    std::fs::write(noise.with_extension("stacks"), "noise").unwrap();
    for place in [&journal, &missing, &noise, &folder.path().to_owned()] {
        for arguments in [
            &["inspect"][..],
            &["inspect", "--json"],
            &["inspect", "--all", "--top", "stack", "--growth", "--leaks"],
            &["inspect", "--top", "stack", "--growth", "--leaks", "--json"],
            &["why"],
            &["why", "--json"],
            &["replay", "--strategy", "torch"],
            &["replay", "--strategy", "torch", "--json"],
            &["report", "--json"],
            &["reconcile"],
            &["top", "--once"],
            &["export", "--to", "csv", "-o", "-"],
            &["export", "--to", "collapsed", "-o", "-"],
            &["export", "--to", "torch-snapshot", "--at", "oom", "-o", "-"],
            &["import"],
        ] {
            assert_harmless(&format!("{arguments:?} {place:?}"), &vramshim_with(arguments, [place]));
        }
    }
    assert_harmless("ctl", &vramshim(&["ctl", "1", &format!("set{SEQUENCES}")]));
    assert_harmless("top", &vramshim(&["top", "--once", "--json", "--dir", SEQUENCES]));
    // What a table gets from a job is no formula, and numbers are as they were.
    let table = vramshim_with(&["export", "--to", "csv", "-o", "-"], [&journal]).text;
    assert_says(&table, ",\"'@=HYPERLINK(\"\"http");
    assert_says(&table, ",0x1000,8192,1,");
    let link = folder.path().join("plain.vraj");
    std::os::unix::fs::symlink(&journal, &link).unwrap();
    std::fs::copy(journal.with_extension("stacks"), link.with_extension("stacks")).unwrap();
    for (format, words) in [("csv", "HYPERLINK"), ("parquet", "a terminal cannot show it")] {
        // `script` runs the command at a terminal.
        let line = format!("{} export {} --to {format} -o -", program().display(), link.display());
        let Ok(shown) = Command::new("script").args(["-qec", &line, "/dev/null"]).output() else {
            return support::left_out("script is not installed: not checked at a terminal");
        };
        let mut shown = Printed::from(shown);
        shown.text = shown.text.replace("\r\n", "\n");
        assert_says(&shown.text, words);
        assert_harmless(format, &shown);
    }
}

#[test]
fn a_log_that_another_program_wrote_again_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let imported = |text: &str| {
        std::fs::write(&path, text).unwrap();
        import(&path)
    };
    let plain = "Action,Pointer,Size,Stream\nallocate,0x1000,1024,0\nfree,0x1000,1024,0\n";
    let quoted = |line: &str| format!("\"{}\"\n", line.replace(',', "\",\""));
    let quoted: String = plain.lines().map(quoted).collect();
    let bom = format!("\u{feff}{plain}");
    for text in [plain, &bom, &plain.replace('\n', "\r\n"), &quoted] {
        assert_says(&imported(text).ok().said, "(2 events");
    }
    let torn = imported(&plain.replace("free", "\"fr\nee\"")).said;
    assert_says(&torn, "line 3: action \"\\\"fr\"");
}
