//! Files that are damaged, malicious or of another kind: a clear message, no panic, bounded memory.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use support::{PASSTHROUGH, Printed, Runs, program};

use crate::formats::{exercise, export, run};

fn import(source: &Path) -> (tempfile::TempDir, Printed) {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("a.vraj");
    let output = run("import", &[source.to_str().unwrap(), "-o", journal.to_str().unwrap()]);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(
        output.code == Some(0) || left.is_empty(),
        "a failed import leaves no file: {left:?}"
    );
    (folder, output)
}

#[test]
fn files_of_other_kinds_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("thing");
    let words = "RMM's log";
    let contents: [&[u8]; 5] = [
        b"\xff\xfeT\0h\0r\0",
        b"\x7fELF\x02\x01\x01",
        b"{\"traceEvents\": []}",
        b"\x00\x01\x02\x03 no text",
        b"vramshim-pytorch\t1\t7\t2.12.0\n",
    ];
    for content in contents {
        std::fs::write(&path, content).unwrap();
        let (_folder, output) = import(&path);
        assert_eq!(output.code, Some(2), "{}", output.said);
        assert!(output.said.contains(words), "{words}: {}", output.said);
        let output = run("replay", &[path.to_str().unwrap()]);
        assert_eq!(output.code, Some(1), "{}", output.said);
        assert!(output.said.contains(words), "{words}: {}", output.said);
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
        assert!(matches!(output.code, Some(1 | 2)), "{length}: {}", output.said);
        assert!(output.said.contains("cut.pickle"), "{length}: {}", output.said);
    }
    // A wrong byte somewhere gives a journal or a message.
    for place in (2..whole.len()).step_by(step / 2) {
        let mut flipped = whole.clone();
        flipped[place] ^= 0x40;
        std::fs::write(&cut, &flipped).unwrap();
        let (_folder, output) = import(&cut);
        assert!(matches!(output.code, Some(0..=2)), "{place}: {}", output.said);
    }
}

/// Runs a command with this many KiB of address space.
fn run_within(kib: u64, arguments: &[&str]) -> Printed {
    let script = format!("ulimit -v {kib}; exec \"$0\" \"$@\"");
    Command::new("bash")
        .args(["-c", &script])
        .arg(program())
        .args(arguments)
        .printed()
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
        assert_eq!(output.code, Some(1), "{}", output.said);
        assert!(output.said.contains("line 3: is longer than"), "{}", output.said);
    }
    assert!(!journal.exists());
}

#[test]
fn sizes_beyond_all_memory_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    // The most that a record may have, and more than that: no process can have it, so it counts as damaged.
    let (large, most) = (1u64 << 56, u64::MAX);
    let text = format!(
        "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:01.000000,allocate,0x10,{large},0\n\
         1,00:00:01.000000,allocate,{},{large},0\n1,00:00:02.000000,allocate,0x10,{most},0\n\
         1,00:00:02.000000,allocate,{most},{most},0\n1,00:00:03.000000,allocate failure,(nil),{most},0\n",
        most - large
    );
    std::fs::write(&path, text).unwrap();
    let (folder, output) = import(&path);
    assert!(output.code == Some(0), "{}", output.said);
    let journal = folder.path().join("a.vraj");
    for format in ["torch-snapshot", "perfetto", "parquet", "csv", "collapsed"] {
        export(&journal, format, &[]);
    }
    let seen = run("inspect", &[journal.to_str().unwrap()]);
    let page = &seen.text;
    assert!(page.contains("2 damaged"), "{page}{}", seen.said);
}

#[test]
fn hostile_pickles_take_neither_time_nor_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pickle");
    let journal = folder.path().join("a.vraj");
    let begin = b"\x80\x04".as_slice();
    let many = |bytes: &[u8]| [begin, b"N", &bytes.repeat((20 << 20) / bytes.len()), b"."].concat();
    // A trace names one event 60,000 times, and each of 128 devices names the trace.
    let text = |text: &str| [b"\x8c", [text.len() as u8].as_slice(), text.as_bytes()].concat();
    let again = [
        begin,
        b"}",
        &text("device_traces"),
        b"](}\x94",
        &b"h\0".repeat(60_000),
        b"e\x940](",
        &b"h\x01".repeat(128),
        b"es.",
    ]
    .concat();
    let cases: [(&str, Vec<u8>, &str); 9] = [
        (
            "integer",
            [begin, b"\x8b\0\0\0\x08", &vec![0x7f; 128 << 20], b"."].concat(),
            "byte 2: LONG4 is an integer",
        ),
        ("nested lists", many(b"]"), "lists and dictionaries"),
        ("nested tuples", many(b"\x85"), "lists and dictionaries"),
        ("marks", many(b"("), "nested more than 256 deep"),
        ("doubles", many(b"2"), "values wait for their list"),
        ("kept", many(b"\x94"), "keeps a value at a place beyond"),
        (
            "a far place",
            [begin, b"Nr\xff\xff\xff\xff."].concat(),
            "byte 3: keeps a value at a place beyond",
        ),
        ("again", again, "again and again"),
        (
            "a call",
            [begin, b"\x8c\x02os\x8c\x06system\x93."].concat(),
            "0x93 is no opcode of plain values",
        ),
    ];
    for (name, bytes, words) in cases {
        std::fs::write(&path, bytes).unwrap();
        for arguments in [
            &["import", path.to_str().unwrap(), "-o", journal.to_str().unwrap()][..],
            &["replay", path.to_str().unwrap()],
        ] {
            let output = run_within(700 << 10, arguments);
            assert_eq!(output.code, Some(1), "{name}: {}", output.said);
            assert!(output.said.contains(words), "{name}: {}", output.said);
        }
    }
    assert!(!journal.exists());
}

/// A pickle of a page with `devices` traces of one event each, and as many segments.
fn of_devices(devices: usize) -> Vec<u8> {
    let mut bytes = b"\x80\x04}(X\x0d\0\0\0device_traces](".to_vec();
    for _ in 0..devices {
        bytes.extend(b"](}(X\x06\0\0\0actionX\x05\0\0\0allocX\x04\0\0\0addrK\x07X\x04\0\0\0sizeK\x09ue");
    }
    bytes.extend(b"eX\x08\0\0\0segments](");
    for device in 0..devices {
        bytes.extend(b"}(X\x06\0\0\0deviceM");
        bytes.extend((device as u16).to_le_bytes());
        bytes.extend(b"X\x0a\0\0\0total_sizeM\0\x02X\x07\0\0\0addressM\0\x20u");
    }
    bytes.extend(b"eu.");
    bytes
}

#[test]
fn a_snapshot_has_as_many_devices_as_pytorch_knows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pickle");
    std::fs::write(&path, of_devices(128)).unwrap();
    let (_folder, output) = import(&path);
    assert!(output.code == Some(0), "{}", output.said);
    run("replay", &[path.to_str().unwrap(), "--device", "127", "--json"]).ok();
    for devices in [129, 10_000, 60_000] {
        std::fs::write(&path, of_devices(devices)).unwrap();
        let (_folder, imported) = import(&path);
        for output in [imported, run("replay", &[path.to_str().unwrap()])] {
            assert_eq!(output.code, Some(1), "{}", output.said);
            let words = format!("device_traces has {devices} devices, and PyTorch knows 128 at most");
            assert!(output.said.contains(&words), "{}", output.said);
        }
    }
}

#[test]
fn what_is_no_plain_file_is_refused_without_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.pickle");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let pipe = pipe.to_str().unwrap();
    let zero = "/dev/zero";
    for (arguments, words) in [
        (&["import", pipe][..], "is no plain file but a pipe"),
        (&["import", zero], "is a device"),
        (&["replay", pipe], "is no plain file but a pipe"),
        (&["replay", zero], "is a device"),
        (
            &["replay", "--prices", pipe, "absent.csv"],
            "is no plain file but a pipe",
        ),
        (&["replay", "--prices", zero, "absent.csv"], "is a device"),
    ] {
        // A command that waits is ended, and fails here by its code, 124.
        let limited = Command::new("timeout")
            .arg("60")
            .arg(program())
            .args(arguments)
            .printed();
        let output = limited;
        assert!(matches!(output.code, Some(1 | 2)), "{arguments:?}: {}", output.said);
        assert!(output.said.contains(words), "{arguments:?}: {}", output.said);
    }
}

/// The opcodes of a pickle of plain values.
pub fn pickled(value: &serde_json::Value) -> Vec<u8> {
    use serde_json::Value;
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    match value {
        Value::Null => b"N".to_vec(),
        Value::Bool(yes) => vec![if *yes { 0x88 } else { 0x89 }],
        // An integer of 9 bytes with a sign.
        Value::Number(number) => {
            let number = number
                .as_i64()
                .map_or_else(|| i128::from(number.as_u64().unwrap()), i128::from);
            [b"\x8a\x09", &number.to_le_bytes()[..9]].concat()
        }
        Value::String(string) => text(string),
        Value::Array(entries) => {
            let entries: Vec<u8> = entries.iter().flat_map(pickled).collect();
            [b"](", &entries[..], b"e"].concat()
        }
        Value::Object(entries) => {
            let entries = entries
                .iter()
                .map(|(name, entry)| [text(name), pickled(entry)].concat());
            [b"}(", &entries.collect::<Vec<_>>().concat()[..], b"u"].concat()
        }
    }
}

/// Sets a terminal's title, changes its colour by a control character of one letter, and goes back on the line.
const SEQUENCES: &str = "\u{1b}]0;owned\u{7}\u{9b}31m\r\u{8}\u{7f}";

/// The journal of a snapshot whose names are made up to harm terminals and spreadsheets.
fn harmful_names() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pickle");
    let name = format!("=HYPERLINK(\"http://host.example\"){SEQUENCES}");
    let frames = serde_json::json!([{"filename": format!("@{name}"), "line": 7, "name": name}]);
    let event = serde_json::json!({"action": "alloc", "addr": 4096, "size": 8192, "stream": 0, "time_us": 9,
        "frames": frames});
    let mark = |name: &str| serde_json::json!({"name": name, "stage": "INSTANT", "time_us": 10});
    let page = serde_json::json!({"segments": [], "device_traces": [[event]],
        "external_annotations": [mark(&name), mark("+1"), mark("'quoted"), mark("step -1")]});
    std::fs::write(&path, [b"\x80\x04", &pickled(&page)[..], b"."].concat()).unwrap();
    let journal = folder.path().join(format!("j{SEQUENCES}.vraj"));
    let output = run(
        "import",
        &[path.to_str().unwrap(), "-o", journal.to_str().unwrap(), "--json"],
    )
    .ok();
    assert_harmless("import", &output);
    (folder, journal)
}

fn assert_harmless(what: &str, output: &Printed) {
    for text in [&output.text, &output.said] {
        let control = text.chars().find(|&c| c.is_control() && !matches!(c, '\n' | '\t'));
        assert_eq!(control, None, "{what}: {text:?}");
    }
}

#[test]
fn control_characters_of_a_job_reach_no_terminal() {
    let (folder, journal) = harmful_names();
    let name = journal.to_str().unwrap();
    for arguments in [
        &["inspect", name][..],
        &["inspect", name, "--json"],
        &["inspect", name, "--top", "stack", "--growth", "--leaks"],
        &["inspect", name, "--top", "stack", "--growth", "--leaks", "--json"],
        &["why", name],
        &["why", name, "--json"],
        &["replay", name, "--strategy", "torch"],
        &["replay", name, "--strategy", "torch", "--json"],
        &["report", name, "--json"],
        &["reconcile", name],
        &["export", name, "--to", "csv", "-o", "-"],
        &["export", name, "--to", "collapsed", "-o", "-"],
        &["export", name, "--to", "torch-snapshot", "--at", "oom", "-o", "-"],
        &["import", name],
        &["ctl", "1", &format!("set{SEQUENCES}")],
        &["top", "--once", "--json", "--dir", SEQUENCES],
    ] {
        let output = run(arguments[0], &arguments[1..]);
        assert!(!output.text.is_empty() || !output.said.is_empty(), "{arguments:?}");
        assert_harmless(&arguments.join(" "), &output);
    }
    let link = folder.path().join("plain.vraj");
    std::os::unix::fs::symlink(&journal, &link).unwrap();
    std::os::unix::fs::symlink(journal.with_extension("stacks"), link.with_extension("stacks")).unwrap();
    for (format, words) in [("csv", "HYPERLINK"), ("parquet", "a terminal cannot show it")] {
        // `script` runs the command at a terminal.
        let line = format!("{} export {} --to {format} -o -", program().display(), link.display());
        let Ok(shown) = Command::new("script").args(["-qec", &line, "/dev/null"]).output() else {
            println!("script is not installed: not checked at a terminal");
            return;
        };
        let text = Printed::from(shown).text.replace("\r\n", "\n");
        assert!(text.contains(words), "{text:?}");
        assert!(
            !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')),
            "{text:?}"
        );
    }
}

#[test]
fn a_spreadsheet_gets_no_formula_of_a_job() {
    let (_folder, journal) = harmful_names();
    let (_out, path) = export(&journal, "csv", &[]);
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(",\"'@=HYPERLINK(\"\"http"), "{text}");
    assert!(text.contains(",0x1000,8192,1,"), "numbers are as they were: {text}");
}

#[test]
fn a_log_that_another_program_wrote_again_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let plain = "Action,Pointer,Size,Stream\nallocate,0x1000,1024,0\nfree,0x1000,1024,0\n";
    let quoted: String = plain
        .lines()
        .map(|line| format!("\"{}\"\n", line.replace(',', "\",\"")))
        .collect();
    for text in [
        plain.to_owned(),
        format!("\u{feff}{plain}"),
        plain.replace('\n', "\r\n"),
        quoted,
    ] {
        std::fs::write(&path, &text).unwrap();
        let (_folder, output) = import(&path);
        assert!(
            output.code == Some(0) && output.said.contains("(2 events"),
            "{text:?}: {}",
            output.said
        );
    }
    std::fs::write(&path, plain.replace("free", "\"fr\nee\"")).unwrap();
    let (_folder, output) = import(&path);
    assert!(output.said.contains("line 3: action \"\\\"fr\""), "{}", output.said);
}

#[test]
fn a_folder_that_takes_no_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    std::fs::write(&path, "Action,Pointer,Size,Stream\nallocate,0x1000,1024,0\n").unwrap();
    let absent = folder.path().join("absent");
    let journal = absent.join("a.vraj");
    let output = run("import", &[path.to_str().unwrap(), "-o", journal.to_str().unwrap()]);
    let words = format!("{}: no file can be made in this folder: No such file", absent.display());
    assert!(
        output.code == Some(1) && output.said.contains(&words),
        "{}",
        output.said
    );
    assert!(!output.said.contains(".part"), "{}", output.said);
}
