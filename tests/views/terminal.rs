//! No escape sequence from a file reaches the terminal.

use std::process::Command;

use base::api::Api;
use base::cuda::HOST_DEVICE;
use journal::format::Device;
use journal::format::{Event, Library, MarkKind, SurgeShare};
use journal::writer::{About, PastJournal};
use support::made::Made;
use support::{MIB, Runs};

use super::inspect;

/// A job whose every text has an escape sequence and a line feed.
#[test]
fn no_escape_sequence_reaches_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evil.vraj");
    let evil = "a\x1b]0;title\x07\nb\u{202e}\u{9b}31m";
    let about = About {
        strategy: evil.into(),
        host: evil.into(),
        job: evil.into(),
        command_line: format!("python\0-c\0import torch\nprint(1)\n{evil}").into_bytes(),
        environment: format!("RANK={evil}\0WORLD_SIZE={evil}").into_bytes(),
        software: format!("framework=PyTorch {evil}").into_bytes(),
        ..About::default()
    };
    let device = Device {
        total_memory: 1 << 30,
        name: evil.into(),
        ..Device::default()
    };
    let mut journal = PastJournal::create(&path, &about, &[device]).unwrap();
    let mark = Event::Mark {
        text: 1,
        kind: MarkKind::Instant,
    };
    journal.push(1, 1, mark.encode(Api::Policy, HOST_DEVICE)).unwrap();
    let allocation = journal::format::Allocation {
        class: base::api::Class::Linear.into(),
        address: 4096,
        requested: 4096,
        allocated: 4096,
        reserved: Some(4096),
        cache: Library::NotKnown,
        stream: 1,
    };
    let record = Event::Alloc(allocation).encode(Api::cudaMalloc, 0).with_stack(1);
    journal.push(2, 1, record).unwrap();
    journal.finish(None).unwrap();
    let field = evil.replace('\n', "\\n");
    let stacks = format!("vramshim-stacks\t1\t1\nN\t1\t{field}\nP\t1\t{field}\t3\t{field}\nT\t1\tpython\t1\n");
    std::fs::write(path.with_extension("stacks"), stacks).unwrap();
    let mut seen = false;
    for arguments in [
        &[][..],
        &["--all"],
        &["--top", "stack"],
        &["--at", "mark:nothing"],
        &support::CLOSE_LOOK[2..],
        &["--diff", path.to_str().unwrap()],
    ] {
        let output = inspect(&path, arguments);
        let page = [output.text, output.said].concat();
        let control = |c: &char| c.is_control() && *c != '\n' || *c == '\u{202e}';
        assert_eq!(page.chars().find(control), None, "{arguments:?}: {page}");
        seen |= page.contains("import torch print(1)");
        assert!(page.lines().all(|line| !line.starts_with('b')), "{arguments:?}: {page}");
    }
    assert!(seen, "a command of several lines is shown on one");
}

/// The place of a surge is a text from the file of stacks.
#[test]
fn no_escape_sequence_of_a_stack_reaches_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "VRAMSHIM_STACKS=python", "").unwrap();
    job.stack_line(&["P", "1", "/x/\x1b]0;owned\x07\x1b[31m.py", "11", "load\x1b[0m"]);
    job.stack_line(&["T", "1", "python", "1"]);
    job.alloc(0, 300 * MIB, 1).unwrap();
    let surge = SurgeShare {
        grown: 300 * MIB,
        over_ns: 1_000_000,
        asked: 300 * MIB,
        place: 1,
    };
    job.happened_at(0, Api::Policy, Event::Surge(surge), 1).unwrap();
    let path = job.end(Some(0)).unwrap();
    for command in ["why", "inspect"] {
        let output = Command::new(support::program()).arg(command).arg(&path).printed();
        let text = output.text;
        assert!(text.contains("owned") && text.contains("load"), "{command}: {text}");
        assert!(!text.contains(['\x1b', '\x07']), "{command}: {text:?}");
    }
}
