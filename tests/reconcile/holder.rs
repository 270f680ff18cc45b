//! Processes that allocate and free memory on command, and the output of `vramshim reconcile` about them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use support::{Fields, Job, MIB, Runs, client, program};

pub fn holder(state: &Path) -> Job {
    Job::new(client("reconcile/holder.c", "holder", &["libcuda.so.1"])).env("SIMGPU_STATE", state)
}

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
