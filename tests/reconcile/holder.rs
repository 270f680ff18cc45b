//! Processes that allocate and free memory on command, and the output of `vramshim reconcile` about them.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command};

use serde_json::Value;
use tempfile::TempDir;

use support::{Fields, Job, MIB, Runs, client, program};

/// A client that takes commands and runs until this value is dropped.
pub struct Holder {
    pub child: Child,
    pub answers: BufReader<ChildStdout>,
    pub folder: TempDir,
}

impl Holder {
    pub fn start(job: Job) -> Holder {
        let (mut child, folder) = job.start();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Holder { child, answers, folder }
    }

    pub fn tell(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").expect("a command");
        self.wait();
    }

    /// Waits until the client has done the last command.
    pub fn wait(&mut self) {
        loop {
            let mut answer = String::new();
            let read = self.answers.read_line(&mut answer).expect("an answer");
            assert!(read > 0, "the process ended");
            if answer.trim_end().ends_with("done") {
                break;
            }
        }
    }

    pub fn with(mut self, commands: &[&str]) -> Holder {
        commands.iter().for_each(|command| self.tell(command));
        self
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub fn journals(&self) -> PathBuf {
        self.folder.path().join("journals")
    }

    /// Closes the client's input, which ends the client. The folder with the journal stays.
    pub fn end(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("an end").success());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The client on the simulated host with this state file.
pub fn holder(state: &Path) -> Job {
    Job::new(client("reconcile/holder.c", "holder", &["libcuda.so.1"])).env("SIMGPU_STATE", state)
}

/// A simulated host: a folder and the path of the state file in it.
pub fn host() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    (folder, state)
}

pub fn reconcile(arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(program());
    command.arg("reconcile").args(arguments);
    for variable in ["LD_PRELOAD", "LD_LIBRARY_PATH", "NO_COLOR"] {
        command.env_remove(variable);
    }
    command
}

/// The JSON and the exit code of `reconcile`, after a check that they agree.
pub fn look(arguments: &[&str]) -> (Value, i32) {
    let output = reconcile(arguments).arg("--json").printed();
    let errors = output.said;
    let page: Value = serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{error}: {errors}"));
    assert_eq!(errors, "");
    let code = output.code.unwrap();
    assert_eq!(page["within_bound"], code == 0, "{page:#}");
    page["devices"].list().iter().for_each(adds_up);
    (page, code)
}

pub fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn named(process: &Value) -> i64 {
    let names = ["context", "module_code", "rounding", "managed"];
    names.iter().map(|name| number(&process["differences"][name])).sum()
}

/// Checks that the ledger's reserved bytes, the named differences and the unknown bytes add up to the used bytes.
fn adds_up(device: &Value) {
    let processes = device["processes"].list();
    for process in processes.iter().filter(|process| !process["nvml_used"].is_null()) {
        let sum = number(&process["ledger"]["reserved"]) + named(process) + number(&process["differences"]["unknown"]);
        assert_eq!(sum, number(&process["nvml_used"]), "{process:#}");
    }
    if device["nvml"].is_null() {
        return;
    }
    let of = |process: &Value| number(&process["ledger"]["reserved"]) + named(process);
    let others = device["other_processes"].as_i64().unwrap_or(0);
    let sum = processes.iter().map(of).sum::<i64>() + others + number(&device["unknown"]);
    assert_eq!(sum, number(&device["nvml"]["used"]), "{device:#}");
}

pub fn only(page: &Value) -> (&Value, &Value) {
    let devices = page["devices"].list();
    assert_eq!(devices.len(), 1, "{page:#}");
    let processes = devices[0]["processes"].list();
    assert_eq!(processes.len(), 1, "{page:#}");
    (&devices[0], &processes[0])
}

/// The differences of a process in MiB: context, rounding, module code, managed and unknown.
pub fn differences(process: &Value) -> [i64; 5] {
    ["context", "rounding", "module_code", "managed", "unknown"]
        .map(|name| number(&process["differences"][name]) / MIB as i64)
}
