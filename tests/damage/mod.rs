//! Damaged journals: whatever the bytes are, `inspect` and its views end with a message or a page, soon, and in little
//! memory. They never panic. The intact part of a journal is shown.
//!
//! `VRAMSHIM_TEST_DAMAGE=10000` runs as many cases as that.

mod commands;
mod holes;
mod sweep;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Fields, assert_says};

use support::random::Random;
use support::training::{self, Plan};

const HEADER: usize = 16384;
const SLOT: usize = 64;
/// More than any damaged file here may need.
pub const MOST_MEMORY: u64 = 1 << 30;
/// No measurement: a hang ends the test by then.
const HANG: Duration = Duration::from_secs(60);

/// The options that look at a journal most closely.
const VIEWS: [&[&str]; 4] = [&[], &["--json"], &support::CLOSE_LOOK, &["--at", "oom", "--json"]];

fn cases(default: u64) -> u64 {
    let wanted = std::env::var("VRAMSHIM_TEST_DAMAGE")
        .ok()
        .and_then(|text| text.parse().ok());
    wanted.unwrap_or(default)
}

pub struct Seen {
    pub code: i32,
    pub out: String,
    pub said: String,
}

/// Runs `inspect` on a file. Fails if it panics, is killed, or takes too much memory or too long.
fn look(path: &Path, arguments: &[&str], context: &str) -> Seen {
    let seen = run("inspect", path, arguments, context);
    // A window whose moments the damage has turned round is refused.
    let is_turned = seen.code == 2 && seen.said.contains("the first moment is not before the second");
    assert!(
        matches!(seen.code, 0 | 1) || is_turned,
        "{context}: {arguments:?}: {}",
        seen.said
    );
    seen
}

/// Runs a command of the program on a file. Fails if it panics, is killed, or takes too much memory or too long.
pub fn run(name: &str, path: &Path, arguments: &[&str], context: &str) -> Seen {
    let limited = format!("ulimit -v {}; exec \"$@\"", MOST_MEMORY / 1024);
    let mut command = Command::new("sh");
    command
        .args(["-c", &limited, "sh"])
        .arg(support::program())
        .arg(name)
        .arg(path)
        .args(arguments);
    let out = tempfile::tempfile().unwrap();
    let said = tempfile::tempfile().unwrap();
    command
        .stdout(out.try_clone().unwrap())
        .stderr(said.try_clone().unwrap())
        .stdin(Stdio::null());
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(
            begin.elapsed() < HANG || child.kill().is_err(),
            "{context}: {arguments:?} hangs"
        );
        std::thread::sleep(Duration::from_millis(1));
    };
    let read = |mut file: std::fs::File| {
        use std::io::{Read, Seek};
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).expect("UTF-8")
    };
    let seen = Seen {
        code: status.code().unwrap_or(-1),
        out: read(out),
        said: read(said),
    };
    assert!(
        seen.code >= 0 && !seen.said.contains("panicked"),
        "{context}: {arguments:?} ended with {status}: {}",
        seen.said
    );
    if arguments.contains(&"--json") {
        serde_json::from_str::<serde_json::Value>(&seen.out).unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    seen
}

fn journal(folder: &Path, events: u64) -> (std::path::PathBuf, Vec<u8>) {
    journal_of(folder, events, 0)
}

/// The journal of a rank: a process of its own.
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
    assert_eq!(seen.code, 1);
    for length in (0..HEADER).step_by(31) {
        assert_says(&seen.said, &format!("/{length}.vraj: "));
    }
    for slots in 0..=EVENTS {
        let begin = HEADER + slots * SLOT;
        let folder = cut(&mut (begin..(begin + SLOT).min(ranks[0].len() + 1)));
        let context = format!("{slots} slots");
        let seen = look(folder.path(), &["--json"], &context);
        let page: serde_json::Value = serde_json::from_str(&seen.out).unwrap();
        let jobs = page["jobs"].list();
        assert_eq!(
            (seen.code, jobs.len()),
            (0, if slots < EVENTS { SLOT } else { 1 }),
            "{context}"
        );
        for job in jobs {
            assert_eq!(job["events"], slots, "{context}: what is there is shown");
            assert_eq!(job["events_lost"], EVENTS - slots, "{context}");
        }
        look(folder.path(), VIEWS[slots % VIEWS.len()], &context);
    }
}

/// Changes some bytes. Half of the changes are in the header, which is small.
fn damage(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..1 + random.below(8) {
        let end = if random.below(2) == 0 { HEADER } else { bytes.len() };
        let place = random.below(end);
        match random.below(3) {
            0 => bytes[place] = random.number() as u8,
            1 => bytes[place] ^= 1 << random.below(8),
            _ => {
                let end = bytes.len().min(place + random.below(4096));
                bytes[place..end].fill(random.number() as u8);
            }
        }
    }
}

fn damaged(events: u64, cases: u64, seed: u64) {
    /// Files that one process reads.
    const BATCH: u64 = 50;
    let folder = tempfile::tempdir().unwrap();
    let (_, whole) = journal(folder.path(), events);
    let mut random = Random::with_state(seed);
    for batch in 0..cases.div_ceil(BATCH) {
        let folder = tempfile::tempdir().unwrap();
        for case in 0..BATCH.min(cases) {
            let mut bytes = whole.clone();
            damage(&mut bytes, &mut random);
            std::fs::write(folder.path().join(format!("{case}.vraj")), bytes).unwrap();
        }
        let arguments = VIEWS[batch as usize % VIEWS.len()];
        let context = format!("batch {batch} of {events} events");
        let seen = look(folder.path(), arguments, &context);
        assert!(!seen.out.is_empty(), "{context}: what is intact is shown");
        for line in seen.said.lines().filter(|line| line.contains(".vraj")) {
            assert!(line.starts_with("vramshim: "), "{context}: {line}");
        }
    }
}

#[test]
fn changed_bytes_are_told_or_harmless() {
    damaged(2_000, cases(2_000), 0x5eed);
}

#[test]
fn changed_bytes_of_a_large_journal_are_told_or_harmless() {
    damaged(100_000, cases(2_000) / 100, 0xfeed);
}
