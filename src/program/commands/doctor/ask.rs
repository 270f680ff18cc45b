//! Starts this program again as a child (`probe`), and reads the child's answer, with a time limit.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::de::DeserializeOwned;

use super::probe::COMMAND;
use crate::launch::environment::Environment;
use crate::launch::processes::{End, Group};
use crate::render::format::duration;

/// The most bytes that are read of what a child wrote.
const MOST_BYTES: u64 = 16 << 20;

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
