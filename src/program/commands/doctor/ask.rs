//! Starts this program again as a child (`probe`), and reads the child's answer, with a time limit.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::probe::{COMMAND, What};
use crate::launch::environment::Environment;
use crate::launch::processes::{End, Group};

/// The most bytes that are kept of a child's standard error.
const MOST_ERROR_BYTES: u64 = 16 << 10;

pub struct Answer {
    pub end: End,
    pub lines: Vec<String>,
    /// The child's standard error.
    pub error_text: String,
}

pub fn command(what: What, environment: &Environment, preloads: &[PathBuf]) -> Command {
    // The running program, even if another file has its name by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg(COMMAND).arg(what.name());
    environment.apply(&mut command, preloads);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub fn ask(what: What, environment: &Environment, preloads: &[PathBuf], limit: Duration) -> std::io::Result<Answer> {
    ask_by(&mut command(what, environment, preloads), limit)
}

/// As `ask`, with a command that the caller has changed.
pub fn ask_by(command: &mut Command, limit: Duration) -> std::io::Result<Answer> {
    let mut group = Group::start(command)?;
    let lines = group.child().stdout.take().map(listen);
    let error_text = group.child().stderr.take().map(|pipe| {
        thread::spawn(move || {
            let mut error_text = Vec::new();
            let _ = pipe.take(MOST_ERROR_BYTES).read_to_end(&mut error_text);
            String::from_utf8_lossy(&error_text).into_owned()
        })
    });
    let end = group.wait(limit, |_| {})?;
    // Now no process holds the other ends of the pipes, so the threads that read the pipes end.
    group.end();
    Ok(Answer {
        end,
        lines: lines.map(|lines| lines.iter().collect()).unwrap_or_default(),
        error_text: error_text
            .and_then(|error_text| error_text.join().ok())
            .unwrap_or_default(),
    })
}

/// Starts a thread that sends the lines of a pipe as they arrive.
pub fn listen(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
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
