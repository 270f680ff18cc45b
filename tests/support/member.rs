//! Processes that share a device and run commands one at a time (`tests/support/clients/member.c`).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout};

use serde_json::Value;
use tempfile::TempDir;

use super::{Job, MIB, client};

pub struct Member {
    pub child: Child,
    answers: BufReader<ChildStdout>,
    pub folder: TempDir,
}

/// A simulated host with one device, and the folder of accounts that its processes share.
pub struct Host {
    pub folder: TempDir,
    pub memory: &'static str,
}

impl Host {
    pub fn new(memory: &'static str) -> Host {
        let folder = tempfile::tempdir().expect("a folder");
        Host { folder, memory }
    }

    pub fn accounts(&self) -> std::path::PathBuf {
        self.folder.path().join("accounts")
    }

    /// A job on this host, without limits.
    pub fn job(&self) -> Job {
        self.runs(Job::new(member_client()).sim(self.memory, 1))
    }

    /// Runs a job on this host.
    pub fn runs(&self, job: Job) -> Job {
        job.env("SIMGPU_STATE", self.folder.path().join("state"))
    }

    /// A job that shares the host's account, under this limit.
    pub fn member(&self, limit: &str) -> Job {
        self.job()
            .env("VRAMSHIM_ACCOUNTS", self.accounts())
            .env("VRAMSHIM_MEMORY_LIMIT", limit)
    }

    /// The accounts in the folder. Beside them may be files that processes have not completed yet, which have longer names.
    pub fn account_files(&self) -> Vec<std::path::PathBuf> {
        let files = std::fs::read_dir(self.accounts()).into_iter().flatten().flatten();
        let is_account = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "account");
        files.map(|file| file.path()).filter(is_account).collect()
    }

    pub fn account_file(&self) -> std::path::PathBuf {
        let mut files = self.account_files();
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }
}

pub fn member_client() -> &'static Path {
    static CLIENT: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    CLIENT.get_or_init(|| client("support/clients/member.c", "member", &["-DDLOPEN"]))
}

impl Member {
    pub fn start(job: Job) -> Member {
        let (mut child, folder) = job.start();
        let answers = BufReader::new(child.stdout.take().expect("its output"));
        Member { child, answers, folder }
    }

    pub fn tell(&mut self, order: &str) {
        let stdin = self.child.stdin.as_mut().expect("its input");
        writeln!(stdin, "{order}").expect("an order");
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        if line.is_empty() {
            let mut errors = String::new();
            let _ = std::io::Read::read_to_string(self.child.stderr.as_mut().expect("stderr"), &mut errors);
            panic!("the process ended: {:?}: {errors}", self.child.wait());
        }
        line.trim_end().to_owned()
    }

    pub fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub fn journals(&self) -> std::path::PathBuf {
        self.folder.path().join("journals")
    }

    pub fn wait(&mut self) {
        while !self.answer().ends_with("done") {}
    }

    /// Gives orders whose answer is `done`.
    pub fn with(mut self, orders: &[&str]) -> Member {
        orders.iter().for_each(|order| self.order(order));
        self
    }

    pub fn order(&mut self, order: &str) {
        self.tell(order);
        self.wait();
    }

    /// Allocates memory in the process and returns the CUDA result.
    pub fn allocate(&mut self, bytes: u64) -> i32 {
        let answer = self.ask(&format!("a {bytes}"));
        answer.split(' ').next().unwrap().parse().expect("a result")
    }

    /// As `allocate`, for sizes in MiB.
    pub fn allocate_mib<const N: usize>(&mut self, sizes: [u64; N]) -> [i32; N] {
        sizes.map(|size| self.allocate(size * MIB))
    }

    pub fn information(&mut self) -> Value {
        serde_json::from_str(&self.ask("i")).expect("JSON")
    }

    pub fn kill(mut self) {
        self.child.kill().expect("a living process");
        self.child.wait().expect("its end");
    }

    /// Closes the process's input, waits for its end, and returns its stderr.
    pub fn end(mut self) -> String {
        self.finish()
    }

    /// As `end`; the folder stays.
    pub fn finish(&mut self) -> String {
        drop(self.child.stdin.take());
        let mut errors = String::new();
        std::io::Read::read_to_string(self.child.stderr.as_mut().expect("stderr"), &mut errors).expect("stderr");
        let status = self.child.wait().expect("its end");
        assert!(status.success(), "{status}: {errors}");
        errors
    }
}

/// A test that fails leaves no process behind.
impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
