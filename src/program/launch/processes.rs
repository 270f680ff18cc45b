//! Starts and ends child processes. Each child leads a process group and has a time limit. A child is ended together
//! with all processes that it started, also when a signal ends this program.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::say::say;
use base::identity::fields_from_state;

/// How long processes may take to end after SIGTERM, before they are killed.
const TIME_TO_END: Duration = Duration::from_secs(3);
/// How long killed processes are waited for. One that is in a call of the kernel's, or of another user, may stay.
const TIME_TO_DIE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);
/// How long a new child is watched every `PAUSE`.
const CLOSE_WATCH: Duration = Duration::from_millis(500);

/// The signal that asked this program to end; 0 if no signal came.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

extern "C" fn interrupted_by(signal: libc::c_int) {
    INTERRUPTED.store(signal, Ordering::Relaxed);
}

/// From this call on, signals that would end this program are only noted, and orphaned descendants become children of
/// this program.
pub fn take_charge() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores a number in an atomic. A signal that was ignored stays ignored (`nohup`,
        // background jobs).
        unsafe {
            let handler = interrupted_by as extern "C" fn(libc::c_int) as libc::sighandler_t;
            if libc::signal(signal, handler) == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
    // SAFETY: the call takes numbers only. If the kernel refuses, orphans go to another process and are not found.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// The signal that asked this program to end, if one came.
pub fn interrupted() -> Option<i32> {
    Some(INTERRUPTED.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
}

/// Ends this program by the signal's default action.
pub fn end_by(signal: i32) -> ! {
    // SAFETY: numbers only.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}

/// How a child ended, or why waiting for the child stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    By(ExitStatus),
    /// Its time limit was over.
    TooLong,
    /// A signal asked this program to end.
    Interrupted,
}

/// A child that leads its own process group.
pub struct Group {
    child: Child,
    ended: Option<ExitStatus>,
    /// Some of its processes could not be ended.
    given_up: bool,
}

impl Group {
    pub fn start(command: &mut Command) -> io::Result<Group> {
        command.process_group(0);
        // SAFETY: the closure makes one system call, which is allowed between fork and exec. The call makes the kernel
        // kill the child when this program is killed.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn()?;
        leaders().push(child.id());
        Ok(Group {
            child,
            ended: None,
            given_up: false,
        })
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until the child ends, at most for `limit`, and calls `meanwhile` repeatedly.
    pub fn wait(&mut self, limit: Duration, mut meanwhile: impl FnMut(&Group)) -> io::Result<End> {
        let begun = Instant::now();
        let deadline = begun + limit;
        loop {
            if let Some(status) = self.look()? {
                return Ok(End::By(status));
            }
            if interrupted().is_some() {
                return Ok(End::Interrupted);
            }
            if Instant::now() >= deadline {
                return Ok(End::TooLong);
            }
            let looked = Instant::now();
            meanwhile(self);
            // At first the pauses are short, so that short-lived processes are seen. Later `meanwhile` takes at most a
            // fifth of the time.
            let pause = if begun.elapsed() < CLOSE_WATCH {
                PAUSE
            } else {
                PAUSE.max(looked.elapsed() * 4)
            };
            std::thread::sleep(pause);
        }
    }

    fn look(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Asks the child, its group and all its descendants to end, and kills those that do not end soon. Returns whether all
    /// have ended.
    pub fn end(&mut self) -> bool {
        let deadline = Instant::now() + TIME_TO_END;
        let mut asked = Vec::new();
        let mut killed: Option<Instant> = None;
        let asked_by = interrupted();
        loop {
            let alive = self.alive();
            if alive.is_empty() || self.given_up {
                return alive.is_empty();
            }
            if killed.is_some_and(|killed| killed.elapsed() >= TIME_TO_DIE) {
                self.given_up = true;
                let numbers: Vec<String> = alive.iter().map(u32::to_string).collect();
                say!("these processes cannot be ended, and go on: {}", numbers.join(", "));
                return false;
            }
            // A second signal means that the user does not want to wait.
            let late = Instant::now() >= deadline || interrupted() != asked_by;
            for process in alive {
                if late {
                    killed.get_or_insert_with(Instant::now);
                    signal(process, libc::SIGKILL);
                } else if !asked.contains(&process) {
                    signal(process, libc::SIGTERM);
                    // A stopped process handles signals only after it is continued.
                    signal(process, libc::SIGCONT);
                    asked.push(process);
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The living processes of `family`. Orphans that have ended are reaped.
    fn alive(&mut self) -> Vec<u32> {
        let leader = self.child.id();
        let mut alive = Vec::new();
        if matches!(self.look(), Ok(None)) {
            alive.push(leader);
        }
        let us = std::process::id();
        for (process, parent) in self.family().into_iter().filter(|&(process, _)| process != leader) {
            // SAFETY: the process is an orphan that became our child, and no other code waits for it.
            let reaped = parent == us
                && unsafe { libc::waitpid(process as i32, std::ptr::null_mut(), libc::WNOHANG) } == process as i32;
            if !reaped {
                alive.push(process);
            }
        }
        alive
    }

    /// Process and parent of the child, of its descendants, and of orphans that became children of this program.
    pub fn family(&self) -> Vec<(u32, u32)> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let us = std::process::id();
        // SAFETY: has no preconditions.
        let our_group = unsafe { libc::getpgrp() } as u32;
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let process = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(process) = process
                && let Some((parent, group)) = parent_and_group_of(process)
                // Other code starts it, in the group of this program, and waits for it. No orphan is in that group.
                && !(parent == us && group == our_group)
            {
                children.entry(parent).or_default().push(process);
            }
        }
        let others = leaders();
        let ours = children.remove(&us).unwrap_or_default();
        let of_this = |process: &u32| *process == self.child.id() || !others.contains(process);
        let mut family: Vec<(u32, u32)> = ours.into_iter().filter(of_this).map(|process| (process, us)).collect();
        let mut seen = 0;
        while let Some(&(parent, _)) = family.get(seen) {
            let children = children.get(&parent).into_iter().flatten();
            family.extend(children.map(|&process| (process, parent)));
            seen += 1;
        }
        family
    }
}

/// The ids of all children that `Group::start` started.
fn leaders() -> MutexGuard<'static, Vec<u32>> {
    static LEADERS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    LEADERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a thread that sends the lines of a pipe as they arrive.
pub fn lines_of(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

fn signal(process: u32, signal: libc::c_int) {
    // SAFETY: the call takes numbers only. The process is a descendant that was not reaped, so its number is not
    // reused.
    unsafe { libc::kill(process as libc::pid_t, signal) };
}

fn parent_and_group_of(process: u32) -> Option<(u32, u32)> {
    let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    let numbers = fields_from_state(&stat)?.skip(1);
    let mut numbers = numbers.map_while(|field| std::str::from_utf8(field).ok()?.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}
