//! Programs on one simulated host, under one limit, while some are killed and stopped, and some become daemons.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use quota::file::SharedAccount;
use serde_json::Value;
use support::member::{Host, Member};
use support::random::Random;
use support::{
    Fields, Job, MIB, STRATEGIES, Strategy, assert_ended_well, assert_requested, assert_whole, inspect, journals_in,
};
use tempfile::TempDir;

const DEVICES: usize = 2;
const TOTAL: u64 = 8192 * MIB;

#[derive(Clone, Copy)]
pub struct Crowd {
    /// How many there are at a time.
    pub count: usize,
    /// Bytes that they may have together of each device.
    pub limit: u64,
    /// All of them close descriptors at random moments, in threads with descriptors of their own too, and fork.
    pub all_wild: bool,
}

pub fn crowd(count: usize, limit: u64, all_wild: bool) -> Crowd {
    Crowd { count, limit, all_wild }
}

struct Process {
    child: Child,
    strategy: Strategy,
    answer: PathBuf,
    was_killed: bool,
    _folder: TempDir,
}

struct Run {
    host: Host,
    crowd: Crowd,
    random: Random,
    started: u64,
}

impl Run {
    fn path(&self, name: &str) -> PathBuf {
        let path = self.host.folder.path().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        path
    }

    fn start(&mut self) -> Process {
        let strategy = STRATEGIES[self.random.below(STRATEGIES.len())];
        let kind = if self.crowd.all_wild { 0 } else { self.random.below(4) };
        self.started += 1;
        let answer = self.path("answers").join(self.started.to_string());
        let seed = self.random.below(1 << 20).to_string();
        let threads = [1, 2, 8][self.random.below(3)].to_string();
        let mut job = Job::new(super::path())
            .sim("8GiB", DEVICES as u32)
            .strategy(strategy)
            .env("SIMGPU_STATE", self.host.folder.path().join("state"))
            .env("VRAMSHIM_ACCOUNTS", self.host.accounts())
            .env("VRAMSHIM_MEMORY_LIMIT", self.crowd.limit.to_string())
            .env("VRAMSHIM_LOG", "error")
            .env("VRAMSHIM_DIR", self.path("journals"))
            .args([
                seed.as_str(),
                if self.crowd.count > 16 { "90" } else { "240" },
                threads.as_str(),
            ])
            .args(["limited".to_owned(), format!("answer={}", answer.display())]);
        job = match kind {
            0 => job.args(["wild"]),
            1 => job.args(["daemon"]),
            _ => job.args([format!("handles={}", self.path("handles").display())]),
        };
        let (mut child, folder) = job.start();
        // Nobody reads what the process says, and a full pipe would stop it.
        child.stdout.take();
        let mut errors = child.stderr.take().expect("stderr");
        let told = answer.with_extension("errors");
        std::thread::spawn(move || {
            let mut file = std::fs::File::create(told).expect("a file");
            let _ = std::io::copy(&mut errors, &mut file);
        });
        Process {
            child,
            strategy,
            answer,
            was_killed: false,
            _folder: folder,
        }
    }

    fn accounts(&self) -> Vec<SharedAccount> {
        let files = self.host.account_files().into_iter();
        files.filter_map(|path| crate::accounts::account_at(&path)).collect()
    }
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: `kill` touches no memory. The child was not waited for, so its process id is still its own.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// The bytes of a device that all processes hold, as the simulated GPU counts them.
fn held(truth: &mut Member, device: usize) -> u64 {
    TOTAL - truth.information()["truth"]["devices"][device]["free"].number()
}

/// Runs `count` processes at a time for a while. Each one that has ended or was killed is replaced.
pub fn play(seed: u64, crowd: Crowd, duration: Duration) {
    let Crowd { count, limit, .. } = crowd;
    let mut run = Run {
        host: Host::new("8GiB"),
        crowd,
        random: Random::new(seed),
        started: 0,
    };
    // This process runs without the library, so it reports the simulated GPU's own figures.
    let mut truth = Member::start(run.host.job().sim("8GiB", DEVICES as u32).alone());
    let mut running: Vec<Process> = (0..count).map(|_| run.start()).collect();
    let mut ended = Vec::new();
    let mut most = 0;
    let end = Instant::now() + duration;
    while Instant::now() < end {
        let chosen = run.random.below(count);
        let process = &mut running[chosen];
        let is_over = process.child.try_wait().expect("a child").is_some();
        if !is_over && run.random.below(2) == 0 {
            signal(&process.child, libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(run.random.below(10) as u64));
            signal(&process.child, libc::SIGCONT);
        } else if !is_over {
            process.child.kill().expect("a kill");
            process.was_killed = true;
        }
        if is_over || process.was_killed {
            let next = run.start();
            ended.push(std::mem::replace(&mut running[chosen], next));
        }
        for device in 0..DEVICES {
            let held = held(&mut truth, device);
            // The account itself may be above the limit for a moment: it then counts a step of a driver's pool twice, as
            // the grant of the thread that allocates, and as what another thread finds after a wait.
            assert!(held <= limit, "seed {seed}: {held} bytes of device {device} are held");
            most = most.max(held);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ended.extend(running);
    println!("at most {} MiB of {} MiB were held", most / MIB, limit / MIB);
    check(&run, ended, &format!("seed {seed}"));
    for device in 0..DEVICES {
        soon(|| match held(&mut truth, device) {
            0 => Ok(()),
            held => Err(format!("seed {seed}: {held} bytes of device {device} are held")),
        });
    }
}

/// Waits for the end of all processes, and checks the books of each one that came to its end.
fn check(run: &Run, processes: Vec<Process>, context: &str) {
    let (mut whole, mut killed) = (0, 0);
    for mut process in processes {
        let status = process.child.wait().expect("its end");
        if process.was_killed && !process.answer.exists() {
            killed += 1;
            continue;
        }
        let said = || std::fs::read_to_string(process.answer.with_extension("errors")).unwrap_or_default();
        let is_over = status.success() || process.was_killed;
        assert!(is_over, "{context}: {status}\n{}", said());
        let lines = wait_for(&process.answer, context);
        if process.was_killed {
            continue; // it was killed after its last line
        }
        let pid = lines.last().expect("an end")["end"]["pid"].number();
        wait_for_end(pid, context);
        // HOST-PID-START.vraj
        let is_its_own = |path: &PathBuf| path.to_string_lossy().contains(&format!("-{pid}-"));
        let journal = journals_in(&run.path("journals")).into_iter().find(is_its_own);
        let journal = journal.unwrap_or_else(|| panic!("{context}: no journal of {pid}"));
        let job = &inspect(&journal)[0];
        let context = format!("{context}, process {pid}");
        if gave_memory_to_others(job) {
            // The thread that gives memory back works between the questions of a checkpoint, so what is reserved differs.
            for checkpoint in lines.iter().filter(|line| line.get("own").is_some()) {
                assert_requested(checkpoint, &context);
            }
            assert_ended_well(&lines, job, process.strategy, &context);
        } else {
            assert_whole(&lines, job, process.strategy, &context);
        }
        whole += 1;
    }
    println!("{context}: {whole} processes came to their end, {killed} were killed");
    for account in run.accounts() {
        soon(|| {
            account.reap();
            match account.account().used() {
                0 => Ok(()),
                used => Err(format!("{context}: {}: {used} bytes", account.path.display())),
            }
        });
    }
}

/// Waits until a check succeeds. A child that a killed process has just forked may keep what its parent had until it ends.
fn soon(mut check: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(problem) = check() {
        assert!(Instant::now() < end, "{problem}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn gave_memory_to_others(job: &Value) -> bool {
    let mut devices = job["devices"].list().iter();
    devices.any(|device| device["reclaims"]["given"].as_u64() > Some(0))
}

/// Waits until a process has ended. A daemon is no child of this process.
pub fn wait_for_end(pid: u64, context: &str) {
    soon(|| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Nobody may wait for a daemon, so its first thread stays as a zombie. Files and locks last until the others ended.
        let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        match stat.rsplit(')').next() {
            None | Some("") => Ok(()),
            Some(rest) if rest.starts_with(" Z") && threads() <= 1 => Ok(()),
            Some(_) => Err(format!("{context}: {pid} does not end")),
        }
    });
}

/// The lines of a process's answer. A daemon is no child of this process, so its end is seen by its file alone.
pub fn wait_for(answer: &Path, context: &str) -> Vec<Value> {
    soon(|| {
        let part = || std::fs::read_to_string(answer.with_extension("part")).unwrap_or_default();
        let no_end = || format!("{context}: no end of {}: {}", answer.display(), part());
        answer.exists().then_some(()).ok_or_else(no_end)
    });
    let text = std::fs::read_to_string(answer).expect("an answer");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn processes_that_die_leave_the_books_of_the_others_right() {
    play(super::seed(), crowd(6, 2048 * MIB, false), Duration::from_secs(4));
}

/// Their account is found again after every descriptor was closed, and in threads and children with other descriptors.
#[test]
fn sixty_four_processes_that_close_descriptors_stay_under_one_limit() {
    play(super::seed(), crowd(64, 1024 * MIB, true), Duration::from_secs(4));
}
