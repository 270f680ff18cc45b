//! A process of the stranger that answers `vramshim ctl` as if it were a job.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use base::control::{folder_in, socket_name};
use serde_json::json;

use super::STRANGER;

/// What it says once it listens, or has a new journal. The harness of the tests prints lines, too.
const READY: &str = "the stranger is ready";

fn sockets() -> PathBuf {
    folder_in(Path::new("/tmp"), STRANGER)
}

pub struct Stranger {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Stranger {
    pub fn start() -> Stranger {
        let _ = fs::remove_dir_all(sockets());
        fs::DirBuilder::new().mode(0o700).create(sockets()).unwrap();
        chown(sockets(), Some(STRANGER), Some(STRANGER)).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "damage::hostile::stranger::answers_as_a_job",
            "--ignored",
            "--nocapture",
        ]);
        command
            .uid(STRANGER)
            .gid(STRANGER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut stranger = Stranger { child, said };
        stranger.wait();
        stranger
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn says_its_journal_is(&mut self, path: &Path) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{}", path.display()).unwrap();
        self.wait();
    }

    fn wait(&mut self) {
        let mut line = String::new();
        while !line.contains(READY) {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "the stranger has ended");
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(sockets());
    }
}

#[test]
#[ignore = "a process that `Stranger` starts"]
fn answers_as_a_job() {
    let listener = UnixListener::bind(sockets().join(socket_name(std::process::id(), 1))).unwrap();
    let journal = Arc::new(Mutex::new(String::new()));
    let answered = journal.clone();
    std::thread::spawn(move || {
        for mut peer in listener.incoming().flatten() {
            let answer = json!({"journal": *answered.lock().unwrap(), "now_ns": 1, "\u{1b}]0;x": "\u{202e}"});
            let mut order = String::new();
            let _ = BufReader::new(&peer).read_line(&mut order);
            let _ = peer.write_all(answer.to_string().as_bytes());
        }
    });
    println!("{READY}");
    for line in std::io::stdin().lines() {
        *journal.lock().unwrap() = line.unwrap();
        println!("{READY}");
    }
}
