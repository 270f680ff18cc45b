//! Damaged journals: whatever the bytes are, `inspect` and its views end with a message or a page, soon, and in little
//! memory. They never panic. The intact part of a journal is shown.

mod commands;
mod foreign;
mod holes;
mod hostile;
pub mod sweep;

use std::path::Path;
use std::process::Command;

use support::training::{self, Plan};
use support::{Fields, Printed, Runs, assert_says};

const HEADER: usize = 16384;
const SLOT: usize = 64;
pub const MOST_MEMORY: u64 = 1 << 30;
/// No measurement: a hang ends the test by then.
const HANG_S: u64 = 60;

const VIEWS: [&[&str]; 4] = [&[], &["--json"], &support::CLOSE_LOOK, &["--at", "oom", "--json"]];

fn look(path: &Path, arguments: &[&str], context: &str) -> Printed {
    let seen = run("inspect", path, arguments, context);
    // A window whose moments the damage has turned round is refused.
    let is_turned = seen.code == Some(2) && seen.said.contains("the first moment is not before the second");
    let is_read = matches!(seen.code, Some(0 | 1));
    assert!(is_read || is_turned, "{context}: {arguments:?}: {seen:?}");
    seen
}

pub fn run(name: &str, path: &Path, arguments: &[&str], context: &str) -> Printed {
    let limited = format!("ulimit -v {}; exec timeout {HANG_S} \"$0\" \"$@\"", MOST_MEMORY / 1024);
    let mut command = Command::new("sh");
    command.args(["-c", &limited]).arg(support::program());
    let seen = command.arg(name).arg(path).args(arguments).printed();
    // A panic exits with 101, `timeout` with 124.
    assert!(matches!(seen.code, Some(0..=100)), "{context}: {arguments:?}: {seen:?}");
    // Nothing is told of a file whose header is damaged.
    if arguments.contains(&"--json") && (seen.code == Some(0) || !seen.text.is_empty()) {
        seen.json();
    }
    seen
}

fn journal(folder: &Path, events: u64) -> (std::path::PathBuf, Vec<u8>) {
    journal_of(folder, events, 0)
}

fn journal_of(folder: &Path, events: u64, rank: u32) -> (std::path::PathBuf, Vec<u8>) {
    let path = folder.join("whole.vraj");
    let plan = Plan {
        events,
        rank: (rank, SLOT as u32 + 1),
        leak: 4096,
        out_of_memory: true,
        ..Plan::default()
    };
    training::write(&path, &plan).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    (path, bytes)
}

#[test]
fn every_length_of_a_small_journal_is_read() {
    const EVENTS: usize = 40;
    // Journals of one process would count as copies.
    let ranks = (0..SLOT as u32).map(|rank| {
        let folder = tempfile::tempdir().unwrap();
        journal_of(folder.path(), EVENTS as u64, rank).1
    });
    let ranks: Vec<Vec<u8>> = ranks.collect();
    assert!(ranks.iter().all(|whole| whole.len() == HEADER + EVENTS * SLOT));
    let cut = |lengths: &mut dyn Iterator<Item = usize>| {
        let folder = tempfile::tempdir().unwrap();
        for length in lengths {
            let whole = &ranks[length % SLOT];
            let path = folder.path().join(format!("{length}.vraj"));
            std::fs::write(path, &whole[..length]).unwrap();
        }
        folder
    };
    let short = cut(&mut (0..HEADER).step_by(31));
    let seen = look(short.path(), &[], "short files");
    assert_eq!(seen.code, Some(1));
    for length in (0..HEADER).step_by(31) {
        assert_says(&seen.said, &format!("/{length}.vraj: "));
    }
    for slots in 0..=EVENTS {
        let begin = HEADER + slots * SLOT;
        let folder = cut(&mut (begin..(begin + SLOT).min(ranks[0].len() + 1)));
        let context = format!("{slots} slots");
        let seen = look(folder.path(), &["--json"], &context);
        let page = seen.json();
        let jobs = page["jobs"].list();
        let count = if slots < EVENTS { SLOT } else { 1 };
        assert_eq!((seen.code, jobs.len()), (Some(0), count), "{context}");
        for job in jobs {
            assert_eq!(job["events"], slots, "{context}: what is there is shown");
            assert_eq!(job["events_lost"], EVENTS - slots, "{context}");
        }
        look(folder.path(), VIEWS[slots % VIEWS.len()], &context);
    }
}
