//! Puts a question to a child of this program (`probe`), and listens no longer than said.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::environment::Environment;
use super::probe::{COMMAND, What};
use super::processes::{End, Group};

/// The most that is kept of what a child says on stderr.
const MOST_WORDS: u64 = 16 << 10;

pub struct Answer {
    pub end: End,
    pub lines: Vec<String>,
    /// What stood on stderr.
    pub words: String,
}

pub fn command(what: What, environment: &Environment, preloads: &[PathBuf]) -> Command {
    // This very file, even if another one has its name by now.
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
    let mut group = Group::start(&mut command(what, environment, preloads))?;
    let lines = group.child().stdout.take().map(listen);
    let words = group.child().stderr.take().map(|pipe| {
        thread::spawn(move || {
            let mut words = Vec::new();
            let _ = pipe.take(MOST_WORDS).read_to_end(&mut words);
            String::from_utf8_lossy(&words).into_owned()
        })
    });
    let end = group.wait(limit, |_| {})?;
    // Then nobody holds the other ends of the pipes.
    group.end();
    Ok(Answer {
        end,
        lines: lines.map(|lines| lines.iter().collect()).unwrap_or_default(),
        words: words.and_then(|words| words.join().ok()).unwrap_or_default(),
    })
}

/// The lines of a pipe, as they come.
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
