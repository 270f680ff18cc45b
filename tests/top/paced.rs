//! A job that runs a number of steps on command and waits in between (`tests/top/paced.c`).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use support::{Job, Printed, Runs, Strategy, client, program, reserved, totals};

pub struct Paced {
    child: Child,
    stdin: ChildStdin,
    answers: BufReader<ChildStdout>,
    threads: u32,
    pub folder: TempDir,
}

/// The figures of the job, the simulator and the library while the job waits.
pub struct Answer {
    pub checkpoint: Value,
    /// The library's own figures, by device.
    pub stats: Value,
    pub threads: u32,
    /// The process id of the child that the job forked.
    pub child: Option<u32>,
}

impl Paced {
    pub fn start(strategy: Strategy, seed: u64, threads: u32) -> Paced {
        Self::start_as(job(strategy, seed, threads), threads)
    }

    pub fn start_as(job: Job, threads: u32) -> Paced {
        let (child, folder) = job.start();
        Self::of(child, folder, threads)
    }

    /// Starts a command that ends as a job of one thread, in a folder of its own.
    pub fn start_command(mut command: Command) -> Paced {
        let folder = tempfile::tempdir().expect("a folder");
        command
            .current_dir(folder.path())
            .env("VRAMSHIM_DIR", folder.path().join("journals"));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Self::of(command.spawn().expect("a start"), folder, 1)
    }

    fn of(mut child: Child, folder: TempDir, threads: u32) -> Paced {
        Paced {
            stdin: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
            threads,
            folder,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("a job that listens");
    }

    pub fn answer(&mut self) -> Answer {
        let mut answer = Answer {
            checkpoint: Value::Null,
            stats: Value::Null,
            threads: self.threads,
            child: None,
        };
        while answer.stats.is_null() {
            let mut line = String::new();
            let got = self.answers.read_line(&mut line).expect("its output");
            assert!(got > 0, "the job ended");
            let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if let Some(stats) = said.get("stats") {
                answer.stats = stats.clone();
            } else if let Some(child) = said.get("child") {
                answer.child = child.as_u64().map(|pid| pid as u32);
            } else {
                answer.checkpoint = said;
            }
        }
        answer
    }

    pub fn tell(&mut self, line: &str) -> Answer {
        self.say(line);
        self.answer()
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("a kill");
        self.child.wait().expect("a child");
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn job(strategy: Strategy, seed: u64, threads: u32) -> Job {
    let path = client("top/paced.c", "paced", &["libcuda.so.1"]);
    Job::new(path)
        .strategy(strategy)
        .args([seed.to_string(), threads.to_string()])
}

pub fn top<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Printed {
    let mut command = Command::new(program());
    command.arg("top").args(arguments);
    command.printed()
}

/// The output of `vramshim top --once --json` for these processes and folders.
pub fn page<A: AsRef<std::ffi::OsStr>>(only: impl IntoIterator<Item = A>) -> Value {
    let mut command = Command::new(program());
    let output = command.args(["top", "--once", "--json"]).args(only).printed();
    let output = output.ok();
    output.json()
}

/// The bytes that a job requested and still holds on a device, and the bytes that the simulator reserved for it.
pub fn truth(answer: &Answer, device: i64) -> (u64, u64) {
    let sum = |totals: support::Totals| {
        let counts = |class: &str| !matches!(class, "imported" | "address_range");
        let here = totals
            .into_iter()
            .filter(|((on, class), _)| *on == device && counts(class));
        here.map(|(_, bytes)| bytes).sum()
    };
    let own = totals(&answer.checkpoint["own"], |row| &row["requested"]);
    (sum(own), sum(reserved(&answer.checkpoint)))
}
