//! Starts and ends child processes. Each child leads a process group and has a time limit. A child is ended together
//! with its group, also when a signal ends this program.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, set_parent_process_death_signal,
    test_kill_process_group, waitpgid,
};

use serde::de::DeserializeOwned;

use crate::say::say;

/// How long killed processes are waited for. One that is in a call of the kernel's, or of another user, may stay.
const TIME_TO_DIE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// The most bytes that are read of what a child wrote.
const MOST_BYTES: u64 = 16 << 20;

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
    // If the kernel refuses, orphans go to another process and are not found.
    let _ = set_child_subreaper(Some(getpid()));
}

/// The signal that asked this program to end, if one came.
pub fn interrupted() -> Option<i32> {
    Some(INTERRUPTED.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
}

/// Ends this program by the signal's default action.
pub fn end_by(signal: i32) -> ! {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
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
    /// All of its processes have ended, or they could not be ended.
    is_over: bool,
}

impl Group {
    pub fn start(command: &mut Command) -> io::Result<Group> {
        command.process_group(0);
        // SAFETY: the closure makes one system call, which is allowed between fork and exec. The call makes the kernel
        // kill the child when this program is killed.
        unsafe {
            command.pre_exec(|| {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            });
        }
        Ok(Group {
            child: command.spawn()?,
            ended: None,
            is_over: false,
        })
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until the child ends, at most for `limit`, and calls `meanwhile` repeatedly.
    pub fn wait(&mut self, limit: Duration, mut meanwhile: impl FnMut()) -> io::Result<End> {
        let deadline = Instant::now() + limit;
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
            meanwhile();
            std::thread::sleep(PAUSE);
        }
    }

    fn look(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Kills the child and its group. Returns whether all have ended.
    pub fn end(&mut self) -> bool {
        let begun = Instant::now();
        while self.is_alive() {
            if begun.elapsed() >= TIME_TO_DIE {
                self.is_over = true;
                let group = self.child.id();
                say!("processes of the group {group} cannot be ended, and go on");
                return false;
            }
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// Whether the group has processes. Those that have ended are reaped.
    fn is_alive(&mut self) -> bool {
        if self.is_over || matches!(self.look(), Ok(None)) {
            return !self.is_over;
        }
        let group = Pid::from_child(&self.child);
        // The leader was waited for, and no other code waits for orphans of its group, which became children of this program.
        while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
        self.is_over = test_kill_process_group(group).is_err();
        !self.is_over
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

pub struct Answer {
    pub end: End,
    /// The child's standard output and standard error.
    pub text: String,
    pub error_text: String,
}

impl Answer {
    /// The lines of this kind that the child wrote. A driver or a layer may have written others between them.
    pub fn states<T: DeserializeOwned>(&self) -> impl DoubleEndedIterator<Item = T> {
        self.text.lines().filter_map(|line| serde_json::from_str(line).ok())
    }

    /// Why `who` did not come to its end while it was at `doing`.
    pub fn failure(&self, who: &str, doing: &str, limit: Duration) -> String {
        let doing = if doing.is_empty() { "starting" } else { doing };
        let last = self.error_text.lines().rfind(|line| !line.trim().is_empty());
        let last = last.map_or_else(String::new, |line| format!(": {}", line.trim()));
        match self.end {
            End::By(status) => match status.signal() {
                Some(signal) => format!("{who} crashed with signal {signal} in {doing}"),
                None => format!("{who} ended the process in {doing} ({status}){last}"),
            },
            End::Interrupted => "interrupted".into(),
            End::TooLong => format!("{who} did not come back from {doing} within {limit:?}"),
        }
    }
}

/// Starts a child, and waits until it ends, at most for `limit`.
pub fn ask(command: &mut Command, limit: Duration) -> io::Result<Answer> {
    // Files in memory. A process that stays behind may still write to them, which a pipe without a reader would not allow.
    let file = || memfd_create("answer", MemfdFlags::CLOEXEC).map(File::from);
    let (text, error_text) = (file()?, file()?);
    command
        .stdin(Stdio::null())
        .stdout(text.try_clone()?)
        .stderr(error_text.try_clone()?);
    let mut group = Group::start(command)?;
    let end = group.wait(limit, || {})?;
    group.end();
    let [text, error_text] = [text, error_text].map(|mut file| {
        let mut bytes = Vec::new();
        let read = file
            .rewind()
            .and_then(|()| file.take(MOST_BYTES).read_to_end(&mut bytes));
        read.map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    Ok(Answer {
        end,
        text: text?,
        error_text: error_text?,
    })
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
