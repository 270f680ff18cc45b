//! Programs whose surroundings change while they run: the disk is full, the size of files is limited, folders vanish, and
//! the process becomes another program, or starts one as a daemon. The program goes on. Its count, the ledger, the quota
//! and the simulated GPU agree as always. So does the journal, unless events are lost, which is told and counted.

use std::path::{Path, PathBuf};

use super::processes::{wait_for, wait_for_end};
use serde_json::Value;
use support::{
    Fields, Job, STRATEGIES, Strategy, assert_agree, assert_all_agree, assert_ended_well, assert_journal_agrees,
};
use support::{inspect, journals_in, left_out, small_disk};

struct Left<'a> {
    lines: Vec<Value>,
    /// What the library said: the letter of the severity and the message.
    said: Vec<(char, String)>,
    play: &'a Play,
}

struct Play {
    strategy: Strategy,
    arguments: Vec<String>,
    context: String,
}

impl Play {
    fn new(seed: u64, steps: u32, words: &[String]) -> Play {
        let strategy = STRATEGIES[seed as usize / 4 % STRATEGIES.len()];
        let threads = [1, 8, 64][seed as usize % 3];
        let mut arguments = vec![
            seed.to_string(),
            (steps / threads.min(8)).to_string(),
            threads.to_string(),
        ];
        arguments.extend_from_slice(words);
        if seed / 16 % 2 == 1 {
            arguments.push("wild".to_owned());
        }
        let context = format!("seed {seed}, {arguments:?}, {}", strategy.name);
        Play {
            strategy,
            arguments,
            context,
        }
    }

    /// The program, with its journal and its account on `disk`. The soft limit on the size of files is in KiB.
    fn job(&self, disk: &Path, limit_kib: Option<u64>) -> Job {
        let limit = limit_kib.map_or_else(|| "unlimited".to_owned(), |kib| kib.to_string());
        Job::new("bash")
            .strategy(self.strategy)
            .env("VRAMSHIM_MEMORY_LIMIT", "3GiB")
            .env("VRAMSHIM_DIR", disk.join("journals"))
            .args(["-c", &format!("ulimit -S -f {limit}; exec \"$0\" \"$@\"")])
            .args([super::path()])
            .args(&self.arguments)
    }

    fn left(&self, job: Job) -> Left<'_> {
        let finished = job.run();
        let status = finished.status;
        assert!(status.success(), "{}: {status}\n{}", self.context, finished.stderr);
        let (lines, said) = (finished.json(), finished.said());
        Left {
            lines,
            said,
            play: self,
        }
    }
}

/// The journals of a process, in the folder of journals and in the one that it was renamed to.
fn journals_of(disk: &Path, pid: &Value) -> Vec<Value> {
    let folders = [disk.join("journals"), disk.join("journals.away")];
    let is_its_own = |path: &PathBuf| path.to_string_lossy().contains(&format!("-{pid}-"));
    let journals = folders.iter().flat_map(|folder| journals_in(folder)).filter(is_its_own);
    journals.flat_map(|path| inspect(&path)).collect()
}

impl Left<'_> {
    fn has_said(&self, severity: char, words: &str) -> bool {
        let mut said = self.said.iter();
        said.any(|(letter, message)| *letter == severity && message.contains(words))
    }

    fn end(&self) -> &Value {
        self.lines.iter().find_map(|line| line.get("end")).expect("an end")
    }

    /// Checks all books; returns how many events the journal has lost.
    fn check(&self, disk: &Path) -> u64 {
        let (context, strategy) = (&self.play.context, self.play.strategy);
        super::check_quotas(&self.lines, context);
        let checkpoints = || self.lines.iter().filter(|line| line.get("own").is_some());
        assert_all_agree(checkpoints(), strategy, context);
        let pid = &self.end()["pid"];
        wait_for_end(pid.number(), context);
        let journals = journals_of(disk, pid);
        let Some(job) = journals.iter().find(|job| job["ended"] == "exit") else {
            let is_explained = self.end()["removed"] == true || self.has_said('E', "cannot");
            assert!(is_explained, "{context}: {journals:?}, and {:?}", self.said);
            return 0;
        };
        let lost = job["events_lost"].as_u64().unwrap();
        if lost == 0 {
            assert_journal_agrees(job, checkpoints().next_back().unwrap(), context);
            assert_ended_well(&self.lines, job, strategy, context);
        } else {
            assert_eq!(job["exit_status"], 0, "{context}");
            let is_told = self.has_said('W', "cannot grow");
            assert!(is_told, "{context}: {lost} events are lost, and {:?}", self.said);
        }
        lost
    }
}

/// A program whose journal and account are on this disk. Returns how many events were lost.
fn on(disk: &Path, seed: u64, steps: u32, words: &[String], limit_kib: Option<u64>) -> u64 {
    let play = Play::new(seed, steps, words);
    let job = play.job(disk, limit_kib);
    play.left(job.env("VRAMSHIM_ACCOUNTS", disk.join("accounts")))
        .check(disk)
}

/// A disk of a few KiB, which is full at random moments. `None` if this process may not mount one.
fn on_a_full_disk(seed: u64, steps: u32) -> Option<u64> {
    let disk = tempfile::tempdir().expect("a folder");
    let mut lost = None;
    let kib = [64, 128, 192, 256, 320, 512, 1024, 4096][seed as usize / 4 % 8];
    small_disk(disk.path(), kib, || {
        let ballast = format!("ballast={}", disk.path().join("ballast").display());
        lost = Some(on(disk.path(), seed, steps, &[ballast], None));
    });
    lost
}

fn with_limited_sizes(seed: u64, steps: u32) -> u64 {
    let disk = tempfile::tempdir().expect("a folder");
    let limit_kib = [Some(0), Some(16), Some(32), Some(64), Some(128), Some(1024), None][seed as usize / 4 % 7];
    on(disk.path(), seed, steps, &["sizes".to_owned()], limit_kib)
}

fn in_folders_that_vanish(seed: u64, steps: u32) -> u64 {
    let disk = tempfile::tempdir().expect("a folder");
    let folders = ["journals", "accounts"].map(|name| format!("folder={}", disk.path().join(name).display()));
    on(disk.path(), seed, steps, &folders, None)
}

/// The process becomes another program after its first checkpoint.
fn that_becomes_another(seed: u64, steps: u32) -> u64 {
    let disk = tempfile::tempdir().expect("a folder");
    let play = Play::new(seed, steps, &["again".to_owned()]);
    let mut left = play.left(play.job(disk.path(), None));
    let at = left.lines.iter().position(|line| line.get("again").is_some());
    let at = at.expect("a second program");
    let second = left.lines.split_off(at);
    let first = std::mem::replace(&mut left.lines, second);
    assert_eq!(left.check(disk.path()), 0);
    let journals = journals_of(disk.path(), &left.end()["pid"]);
    let replaced: Vec<&Value> = journals.iter().filter(|job| job["ended"] != "exit").collect();
    assert_eq!(replaced.len(), 1, "{}: {journals:?}", play.context);
    let last = first.iter().rfind(|line| line.get("own").is_some()).unwrap();
    assert_agree(last, play.strategy, &play.context);
    assert_journal_agrees(replaced[0], last, &play.context);
    0
}

/// The process forks a daemon, which becomes another program beside it.
fn that_starts_a_daemon(seed: u64, steps: u32) -> u64 {
    let disk = tempfile::tempdir().expect("a folder");
    let answer = disk.path().join("answer");
    let play = Play::new(seed, steps, &[format!("again={}", answer.display())]);
    let mut left = play.left(play.job(disk.path(), None));
    assert_eq!(left.check(disk.path()), 0);
    left.lines = wait_for(&answer, &play.context);
    left.check(disk.path())
}

/// One program. The seed decides what happens to it. Returns how many events were lost.
pub fn play(seed: u64, steps: u32) -> u64 {
    match seed % 8 {
        0 | 4 => on_a_full_disk(seed, steps).unwrap_or_else(|| {
            left_out("a full disk needs the right to mount one");
            0
        }),
        1 | 5 => with_limited_sizes(seed, steps),
        2 | 6 => in_folders_that_vanish(seed, steps),
        3 => that_becomes_another(seed, steps),
        _ => that_starts_a_daemon(seed, steps),
    }
}

#[test]
fn programs_go_on_whatever_happens_around_them() {
    let first = super::seed() * 1000;
    let lost: u64 = (first..first + 40).map(|seed| play(seed, 480)).sum();
    assert!(lost > 0, "limits of the size of files cost events");
}
