//! No escape sequence from a file reaches the terminal.

use base::api::Api;
use journal::format::{Device, Event, MarkKind, SurgeShare};
use journal::writer::About;
use support::made::Made;
use support::{MIB, assert_says};

use super::inspect;

/// A job whose every text has an escape sequence and a line feed. The place of a surge is a text from the file of stacks.
#[test]
fn no_escape_sequence_reaches_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let evil = "a\x1b]0;title\x07\nb\u{202e}\u{9b}31m";
    let about = About {
        pid: 1,
        strategy: evil.into(),
        host: evil.into(),
        job: evil.into(),
        command_line: format!("python\0-c\0import torch\nprint(1)\n{evil}").into_bytes(),
        environment: format!("RANK={evil}\0WORLD_SIZE={evil}\0VRAMSHIM_STACKS=python").into_bytes(),
        software: format!("framework=PyTorch {evil}").into_bytes(),
        ..About::default()
    };
    let device = Device {
        total_memory: 1 << 30,
        name: evil.into(),
        ..Device::default()
    };
    let mut job = Made::about(folder.path(), &about, &[device]).unwrap();
    let field = evil.replace('\n', "\\n");
    job.stack_line(&["N", "1", &field]);
    job.stack_line(&["P", "1", &format!("/x/{field}.py"), "3", &format!("load{field}")]);
    job.stack_line(&["T", "1", "python", "1"]);
    job.mark(1, MarkKind::Instant).unwrap();
    job.alloc(0, 300 * MIB, 1).unwrap();
    let surge = SurgeShare {
        grown: 300 * MIB,
        over_ns: 1_000_000,
        asked: 300 * MIB,
        place: 1,
    };
    job.happened_at(0, Api::Policy, Event::Surge(surge), 1).unwrap();
    let path = job.end(None).unwrap();
    let name = path.to_str().unwrap();
    let (nothing, close) = (["--at", "mark:nothing"], &support::CLOSE_LOOK[2..]);
    let views = [
        &[][..],
        &["--all"],
        &["--top", "stack"],
        &nothing,
        close,
        &["--diff", name],
    ];
    let why = support::vramshim(&["why", name]);
    let outputs = views.into_iter().map(|view| inspect(&path, view)).chain([why]);
    let pages: Vec<String> = outputs.map(|output| output.text + &output.said).collect();
    for page in &pages {
        let control = |c: &char| c.is_control() && *c != '\n' || *c == '\u{202e}';
        assert_eq!(page.chars().find(control), None, "{page}");
        assert!(page.lines().all(|line| !line.starts_with('b')), "{page}");
    }
    // Both are shown on one line.
    for shown in ["import torch print(1)", "loada"] {
        assert_says(&pages.join("\n"), shown);
    }
}
