//! Starts this program again as a child (`probe`), and reads the child's answer, with a time limit.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::probe::COMMAND;
use crate::launch::environment::Environment;
use crate::launch::processes::{End, Group, lines_of};
use crate::render::format::duration;

/// The most bytes that are kept of a child's standard error.
const MOST_ERROR_BYTES: u64 = 16 << 10;

pub struct Answer {
    pub end: End,
    pub lines: Vec<String>,
    /// The child's standard error.
    pub error_text: String,
}

impl Answer {
    /// The last state that the child wrote.
    pub fn last_state<T: DeserializeOwned + Default>(&self) -> T {
        let mut states = self.lines.iter().rev().map(|line| serde_json::from_str(line));
        states.find_map(Result::ok).unwrap_or_default()
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
            End::TooLong => {
                let limit = duration(limit.as_nanos() as u64);
                format!("{who} did not come back from {doing} within {limit}")
            }
        }
    }
}

pub fn ask(environment: &Environment, preloads: &[PathBuf], limit: Duration) -> io::Result<Answer> {
    // The running program, even if another file has its name by now.
    let mut command = Command::new("/proc/self/exe");
    environment.apply(command.arg(COMMAND), preloads);
    ask_by(&mut command, limit)
}

/// As `ask`, with a command of the caller's.
pub fn ask_by(command: &mut Command, limit: Duration) -> io::Result<Answer> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut group = Group::start(command)?;
    let lines = group.child().stdout.take().map(lines_of);
    let error_text = group.child().stderr.take().map(beginning);
    let end = group.wait(limit, || {})?;
    let all_ended = group.end();
    Ok(Answer {
        end,
        lines: lines.map(|lines| received(&lines, all_ended)).unwrap_or_default(),
        error_text: error_text
            .and_then(|error_text| received(&error_text, all_ended).pop())
            .unwrap_or_default(),
    })
}

/// What a thread sends that reads a pipe. If all processes have ended, no process holds the other end of the pipe, so the
/// thread ends too. Otherwise the thread may wait for ever, and only what it has sent already is taken.
pub fn received<T>(receiver: &mpsc::Receiver<T>, all_ended: bool) -> Vec<T> {
    if all_ended {
        receiver.iter().collect()
    } else {
        receiver.try_iter().collect()
    }
}

/// Starts a thread that reads a pipe to its end, and sends the beginning of what it read.
fn beginning(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (send, text) = mpsc::channel();
    thread::spawn(move || {
        let (mut beginning, mut pipe) = (Vec::new(), pipe);
        let _ = pipe.by_ref().take(MOST_ERROR_BYTES).read_to_end(&mut beginning);
        // If the pipe were closed here, a process that writes more would get SIGPIPE and die.
        let _ = io::copy(&mut pipe, &mut io::sink());
        let _ = send.send(String::from_utf8_lossy(&beginning).into_owned());
    });
    text
}
