//! `vramshim reconcile`: running jobs beside the simulated NVML, whose figures are exact; journals of jobs that are gone;
//! memory that the ledger cannot know; and every refusal.

mod common;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use common::{AUTO_GROWTH, Job, MIB, NAIVE_BEST_FIT, PASSTHROUGH, client, inspect, program};
use serde_json::Value;
use tempfile::TempDir;
use vramshim::api::{Api, Class};
use vramshim::journal::format::{FLAG_DIRECT, Kind, Record};
use vramshim::journal::writer::{Journal, Options};

const CONTEXT: u64 = 300 * MIB;

/// A client that does as it is told, and lives until it is dropped.
struct Holder {
    child: Child,
    answers: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Holder {
    fn start(job: Job) -> Holder {
        let (mut child, folder) = job.start();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Holder { child, answers, folder }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").expect("a command");
        loop {
            let mut answer = String::new();
            let read = self.answers.read_line(&mut answer).expect("an answer");
            assert!(read > 0, "{command}: the client ended");
            if answer.trim_end().ends_with("done") {
                break;
            }
        }
    }

    fn with(mut self, commands: &[&str]) -> Holder {
        commands.iter().for_each(|command| self.tell(command));
        self
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn journals(&self) -> PathBuf {
        self.folder.path().join("journals")
    }

    /// Ends it by itself; the folder with its journal stays.
    fn end(&mut self) {
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

/// The client on the host whose state is this file.
fn holder(state: &Path) -> Job {
    Job::new(client("holder.c", "holder", &["libcuda.so.1"])).env("SIMGPU_STATE", state)
}

/// A folder for the state of a simulated host.
fn host() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    (folder, state)
}

fn reconcile(arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(program());
    command.arg("reconcile").args(arguments);
    for variable in ["LD_PRELOAD", "LD_LIBRARY_PATH", "NO_COLOR"] {
        command.env_remove(variable);
    }
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Its page of JSON and its exit code, which must go together.
fn look(arguments: &[&str]) -> (Value, i32) {
    let output = reconcile(arguments).arg("--json").output().unwrap();
    let errors = stderr(&output);
    let page: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    assert_eq!(errors, "");
    let code = output.status.code().unwrap();
    assert_eq!(page["within_bound"], code == 0, "{page:#}");
    page["devices"].as_array().unwrap().iter().for_each(adds_up);
    (page, code)
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn named(process: &Value) -> i64 {
    let names = ["context", "module_code", "rounding", "managed"];
    names.iter().map(|name| number(&process["differences"][name])).sum()
}

/// What is used is the sum of what was named and the unknown.
fn adds_up(device: &Value) {
    let processes = device["processes"].as_array().unwrap();
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

fn only(page: &Value) -> (&Value, &Value) {
    let devices = page["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 1, "{page:#}");
    let processes = devices[0]["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 1, "{page:#}");
    (&devices[0], &processes[0])
}

#[test]
fn a_running_job_agrees_to_the_byte() {
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        let (_folder, state) = host();
        let job = Holder::start(holder(&state).strategy(strategy));
        let job = job.with(&["device 0", "alloc 3", "alloc 40", "free", "alloc 5"]);
        let (page, code) = look(&[&job.pid()]);
        assert_eq!(code, 0, "{page:#}");
        let (device, process) = only(&page);
        let ledger = &process["ledger"];
        assert_eq!(ledger["requested"], 8 * MIB, "{strategy:?}");
        assert_eq!(process["nvml_used"], ledger["reserved"], "{strategy:?}");
        assert_eq!(device["nvml"]["used"], ledger["reserved"], "{strategy:?}");
        assert_eq!((&device["unknown"], &device["other_processes"]), (&0.into(), &0.into()));
        let free = ledger["free_inside"].as_u64().unwrap();
        if strategy.name == "passthrough" {
            assert_eq!((free, &ledger["reserved"]), (0, &(8 * MIB).into()));
        } else {
            assert_eq!(free, ledger["reserved"].as_u64().unwrap() - 8 * MIB, "{strategy:?}");
            assert!(free > 0);
        }
        assert_eq!(process["pid"], job.child.id());
        assert_eq!(process["job"], "holder");
        assert!(
            device["uuid"].as_str().unwrap().starts_with("GPU-51585f66-"),
            "{device:#}"
        );
        assert_eq!(device["name"], "Simulated GPU");
    }
}

#[test]
fn what_contexts_take_is_never_charged_to_the_ledger() {
    let (_folder, state) = host();
    let job = Holder::start(holder(&state).env("SIMGPU_CONTEXT_BYTES", "300MiB")).with(&["device 0", "alloc 64"]);
    let (page, _) = look(&[&job.pid()]);
    let (device, process) = only(&page);
    assert_eq!(device["nvml"]["used"], CONTEXT + 64 * MIB);
    // A journal that measured says that it is the context's; one that did not cannot know.
    let differences = &process["differences"];
    let beyond = number(&differences["context"]) + number(&differences["unknown"]);
    assert_eq!(beyond as u64, CONTEXT, "{page:#}");
    assert_eq!(
        process["context_basis"].is_null(),
        differences["context"] == 0,
        "{page:#}"
    );
}

#[test]
fn a_process_without_the_library_is_another_one() {
    let (_folder, state) = host();
    let _foreign = Holder::start(holder(&state).alone()).with(&["device 0", "alloc 700"]);
    let job = Holder::start(holder(&state)).with(&["device 0", "alloc 64"]);
    let beside = Holder::start(holder(&state)).with(&["device 0", "alloc 32"]);
    let (page, code) = look(&[&job.pid()]);
    assert_eq!(code, 0);
    let device = &page["devices"][0];
    assert_eq!(device["other_processes"], 700 * MIB);
    assert_eq!(device["unknown"], 0);
    // The one that was not asked about is under the library: its bytes have names, too.
    let mut pids: Vec<u64> = Vec::new();
    for process in device["processes"].as_array().unwrap() {
        pids.push(process["pid"].as_u64().unwrap());
    }
    let mut wanted = vec![u64::from(job.child.id()), u64::from(beside.child.id())];
    wanted.sort();
    pids.sort();
    assert_eq!(pids, wanted);
}

#[test]
fn another_host_is_no_neighbour() {
    let (_folder, state) = host();
    let (_other_folder, other_state) = host();
    let job = Holder::start(holder(&state)).with(&["device 0", "alloc 64"]);
    let other = Holder::start(holder(&other_state)).with(&["device 0", "alloc 32"]);
    let (page, code) = look(&[&job.pid(), &other.pid()]);
    assert_eq!(code, 0);
    let mut used: Vec<i64> = Vec::new();
    for device in page["devices"].as_array().unwrap() {
        assert_eq!(device["processes"].as_array().unwrap().len(), 1, "{page:#}");
        used.push(number(&device["nvml"]["used"]));
    }
    used.sort();
    assert_eq!(used, [32 * MIB as i64, 64 * MIB as i64]);
}

#[test]
fn memory_taken_behind_the_library_is_unknown() {
    let (_folder, state) = host();
    let mut job = Holder::start(holder(&state)).with(&["device 0", "alloc 64", "hide 64"]);
    let (page, code) = look(&[&job.pid()]);
    assert_eq!(code, 0, "the bound itself is within the bound");
    assert_eq!(page["devices"][0]["unknown"], 64 * MIB);
    job.tell("hide 1");
    let (page, code) = look(&[&job.pid()]);
    let (device, process) = only(&page);
    assert_eq!((code, &device["unknown"]), (1, &(65 * MIB).into()));
    assert_eq!(process["differences"]["unknown"], 65 * MIB);
    assert_eq!(look(&[&job.pid(), "--bound", "65MiB"]).1, 0);
    assert_eq!(look(&[&job.pid(), "--bound", "0"]).1, 1);

    let output = reconcile(&[job.pid()]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(1), ""));
    assert!(
        text.contains("65.0 MiB in one place, more than the bound of 64.0 MiB"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn devices_are_told_apart_by_uuid() {
    let (_folder, state) = host();
    let job = Holder::start(holder(&state).env("CUDA_VISIBLE_DEVICES", "1,0"));
    let job = job.with(&["device 0", "alloc 10", "device 1", "alloc 20"]);
    let (page, code) = look(&[&job.pid()]);
    assert_eq!(code, 0, "{page:#}");
    let devices = page["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    for (device, start, bytes) in [
        (&devices[0], "GPU-51585f66", 20 * MIB),
        (&devices[1], "GPU-70777e85", 10 * MIB),
    ] {
        assert!(device["uuid"].as_str().unwrap().starts_with(start), "{device:#}");
        assert_eq!(device["nvml"]["used"], bytes);
        assert_eq!(device["processes"][0]["nvml_used"], bytes);
        assert_eq!(device["unknown"], 0);
    }
}

#[test]
fn a_job_that_run_started_is_found_on_its_own_gpu() {
    let mut command = Command::new(program());
    let folder = tempfile::tempdir().unwrap();
    command
        .args(["run", "--sim", "2GiB", "--dir"])
        .arg(folder.path().join("journals"))
        .arg("--")
        .arg(client("holder.c", "holder", &["libcuda.so.1"]));
    for variable in ["LD_PRELOAD", "LD_LIBRARY_PATH", "SIMGPU_STATE"] {
        command.env_remove(variable);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let answers = BufReader::new(child.stdout.take().unwrap());
    let mut job = Holder { child, answers, folder };
    job.tell("device 0");
    job.tell("alloc 100");
    for what in [job.pid(), job.journals().to_string_lossy().into_owned()] {
        let (page, code) = look(&[&what]);
        let (device, process) = only(&page);
        assert_eq!((code, &device["unknown"]), (0, &0.into()), "{page:#}");
        assert_eq!(
            (&device["total"], &process["nvml_used"]),
            (&(2048 * MIB).into(), &(100 * MIB).into())
        );
    }
}

#[test]
fn bytes_that_nvml_keeps_to_itself_are_not_made_up() {
    let (_folder, state) = host();
    let silent = |job: Job| job.env("SIMGPU_NVML_BYTES", "0");
    let job = Holder::start(silent(holder(&state))).with(&["device 0", "alloc 64"]);
    let _foreign = Holder::start(silent(holder(&state)).alone()).with(&["device 0", "alloc 200"]);
    let (page, code) = look(&[&job.pid()]);
    let (device, process) = only(&page);
    assert_eq!(code, 1);
    assert_eq!(process["nvml_used"], Value::Null);
    assert_eq!(
        (&device["other_processes"], &device["unknown"]),
        (&0.into(), &(200 * MIB).into())
    );
    let notes = device["notes"].to_string();
    assert!(
        notes.contains("1 other process") && notes.contains(&job.pid()),
        "{notes}"
    );
}

#[test]
fn without_nvml_it_says_so() {
    // A simulated GPU that is its process's own, and one that does not say that it is simulated.
    let own = Job::new(client("holder.c", "holder", &["libcuda.so.1"]));
    let (_folder, state) = host();
    let disguised = holder(&state)
        .without("SIMGPU_STATE")
        .without("SIMGPU_MEMORY")
        .without("SIMGPU_DEVICES");
    for (job, words) in [(own, "SIMGPU_STATE"), (disguised, "NVML")] {
        let job = Holder::start(job).with(&["device 0", "alloc 64"]);
        let (page, _) = look(&[&job.pid()]);
        let (device, process) = only(&page);
        assert_eq!((&device["nvml"], &process["nvml_used"]), (&Value::Null, &Value::Null));
        assert_eq!(process["ledger"]["reserved"], 64 * MIB);
        assert!(device["notes"].to_string().contains(words), "{page:#}");
    }
}

#[test]
fn a_watch_ends_with_ctrl_c_or_with_its_jobs() {
    let (_folder, state) = host();
    let mut job = Holder::start(holder(&state)).with(&["device 0", "alloc 64"]);
    let start = |job: &Holder| {
        let mut command = reconcile(&[&job.pid(), "--json", "--bound=1MiB", "--watch", "20ms"]);
        let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        (
            watch,
            lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()),
        )
    };
    let (watch, mut rounds) = start(&job);
    assert_eq!(rounds.next().unwrap()["within_bound"], true);
    job.tell("hide 2");
    assert!(rounds.any(|round| round["within_bound"] == false));
    // SAFETY: the child is ours and has not been waited for.
    unsafe { libc::kill(watch.id() as i32, libc::SIGINT) };
    let rest = rounds.map(|round| round["within_bound"].clone()).collect::<Vec<_>>();
    assert!(rest.iter().all(|within| *within == false), "{rest:?}");
    let output = watch.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(1), ""));

    let (watch, mut rounds) = start(&job);
    assert!(rounds.next().is_some());
    job.end();
    rounds.for_each(drop);
    let output = watch.wait_with_output().unwrap();
    assert!(output.status.code().is_some(), "ended by {}", output.status);
    assert_eq!(stderr(&output), "");
}

// ---- journals of processes that are gone

fn record(kind: Kind, address: u64, size: u64) -> Record {
    Record {
        time_ns: 0,
        address,
        size,
        allocated: size,
        detail: size,
        tid: 0,
        result: 0,
        api: Api::cuMemAlloc.number(),
        device: 0,
        kind: kind as u8,
        class: Class::Linear.number(),
        flags: FLAG_DIRECT,
        unused: 0,
    }
}

/// Total of 4 GiB; all in MiB.
fn measured(used: u64, nvml: u64, reserved: u64) -> Record {
    Record {
        size: 4096 * MIB,
        allocated: (4096 - used) * MIB,
        detail: nvml * MIB,
        class: 0,
        flags: 0,
        ..record(Kind::Measured, reserved * MIB, 0)
    }
}

fn alloc(address: u64, mib: u64) -> Record {
    record(Kind::Alloc, address * MIB, mib * MIB)
}

fn options(folder: &Path) -> Options {
    Options {
        directory: folder.into(),
        strategy: "passthrough".into(),
        job: "gone".into(),
        max_bytes: 1 << 20,
        command_line: b"gone".to_vec(),
        environment: Vec::new(),
    }
}

/// A journal with these records whose process said that it ended, or was killed.
fn gone(folder: &Path, records: &[Record], said: bool) -> PathBuf {
    let journal = Journal::create(&options(folder)).unwrap();
    journal.device(0, 4096 * MIB, [0xab; 16], "Simulated GPU\x1b[31m", None);
    for record in records {
        journal.write(*record);
    }
    if said {
        journal.ended(0);
    }
    // This process holds the lock on what it wrote; a copy is nobody's.
    let bytes = std::fs::read(journal.path()).unwrap();
    std::fs::remove_file(journal.path()).unwrap();
    let path = folder.join(format!("{said}-{}.vraj", records.len()));
    std::fs::write(&path, bytes).unwrap();
    path
}

fn differences(process: &Value) -> [i64; 5] {
    ["context", "rounding", "module_code", "managed", "unknown"]
        .map(|name| number(&process["differences"][name]) / MIB as i64)
}

#[test]
fn a_job_that_is_gone_is_as_of_its_last_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let records = [
        measured(1300, 300, 0),
        alloc(1024, 64),
        measured(1384, 384, 64),
        alloc(2048, 16), // not measured any more
    ];
    for said in [true, false] {
        let path = gone(folder.path(), &records, said);
        let (page, code) = look(&[path.to_str().unwrap()]);
        let (device, process) = only(&page);
        assert_eq!(code, 0);
        assert_eq!(
            (&device["nvml"], &process["nvml_used"]),
            (&Value::Null, &(384 * MIB).into())
        );
        assert_eq!(process["ledger"]["reserved"], 64 * MIB);
        assert_eq!(
            (&process["context_basis"], &device["other_processes"]),
            (&"nvml".into(), &(1000 * MIB).into())
        );
        assert_eq!(differences(process), [300, 0, 0, 0, 20]);
        assert!(device["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(look(&[path.to_str().unwrap(), "--bound", "19MiB"]).1, 1);
    }
    // Both of them by their folder.
    let (page, code) = look(&[folder.path().to_str().unwrap()]);
    assert_eq!((code, page["devices"].as_array().unwrap().len()), (0, 2));
    // What a file says does not reach the terminal as it is.
    let output = reconcile(&[folder.path()]).output().unwrap();
    assert!(
        !output.stdout.contains(&0x1b),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn without_nvmls_figure_a_context_is_what_one_can_be() {
    let folder = tempfile::tempdir().unwrap();
    // Alone at first; somebody came later, or something was hidden: nothing tells which.
    let path = gone(
        folder.path(),
        &[measured(300, 0, 0), alloc(1024, 64), measured(1064, 0, 64)],
        true,
    );
    let (page, code) = look(&[path.to_str().unwrap()]);
    let (device, process) = only(&page);
    assert_eq!((code, &process["context_basis"]), (1, &"device".into()));
    assert_eq!(differences(process), [300, 0, 0, 0, 700]);
    assert_eq!(
        (&device["other_processes"], &device["unknown"]),
        (&Value::Null, &(700 * MIB).into())
    );
    // No context takes that much: somebody was there.
    let path = gone(folder.path(), &[measured(2000, 0, 0), measured(2000, 0, 0)], true);
    let (page, code) = look(&[path.to_str().unwrap()]);
    let (_, process) = only(&page);
    assert_eq!((code, &process["context_basis"]), (1, &Value::Null));
    assert_eq!(differences(process), [0, 0, 0, 0, 2000]);
}

#[test]
fn rounding_is_what_pages_can_hold() {
    let folder = tempfile::tempdir().unwrap();
    // 1 MiB on a page of 2, whose other half the driver took as well, and 1 MiB more that no page explains.
    let records = [measured(300, 300, 0), alloc(1024, 1), measured(303, 303, 1)];
    let path = gone(folder.path(), &records, true);
    let (page, _) = look(&[path.to_str().unwrap()]);
    assert_eq!(differences(only(&page).1), [300, 1, 0, 0, 1]);
}

#[test]
fn less_than_the_ledger_has_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let managed = Record {
        class: Class::Managed.number(),
        api: Api::cuMemAllocManaged.number(),
        ..alloc(2048, 100)
    };
    let records = [
        measured(300, 300, 0),
        alloc(1024, 200),
        managed,
        measured(370, 370, 300),
    ];
    let path = gone(folder.path(), &records, true);
    let (page, code) = look(&[path.to_str().unwrap()]);
    assert_eq!(differences(only(&page).1), [300, 0, 0, -100, -130]);
    assert_eq!(code, 1);
}

#[test]
fn inspect_reconciles_where_something_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let plain = gone(folder.path(), &[alloc(1024, 64)], true);
    let page = inspect(&plain);
    assert!(page[0]["devices"][0].get("reconciliation").is_none());
    let text = Command::new(program()).arg("inspect").arg(&plain).output().unwrap();
    assert!(!String::from_utf8_lossy(&text.stdout).contains("Reconciliation"));
    // Nor is there anything to reconcile, which is no success.
    let (page, code) = look(&[plain.to_str().unwrap()]);
    assert_eq!((code, &only(&page).0["compared"]), (1, &false.into()));

    let path = gone(
        folder.path(),
        &[measured(300, 300, 0), alloc(1024, 64), measured(384, 384, 64)],
        true,
    );
    let page = inspect(&path);
    let part = &page[0]["devices"][0]["reconciliation"];
    assert_eq!(differences(part), [300, 0, 0, 0, 20]);
    assert_eq!(
        (&part["nvml_used"], &part["ledger"]["reserved"]),
        (&(384 * MIB).into(), &(64 * MIB).into())
    );
    assert_eq!(
        (&part["other_processes"], &part["unknown"]),
        (&0.into(), &(20 * MIB).into())
    );
    let text = Command::new(program()).arg("inspect").arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(
        text.contains("Reconciliation at") && text.contains("20.0 MiB"),
        "{text}"
    );
}

#[test]
fn a_real_job_that_ended_or_was_killed_can_be_looked_at() {
    for killed in [true, false] {
        let (_folder, state) = host();
        let mut job = Holder::start(holder(&state)).with(&["device 0", "alloc 64"]);
        match killed {
            true => {
                job.child.kill().unwrap();
                job.child.wait().unwrap();
            }
            false => job.end(),
        }
        let (page, _) = look(&[job.journals().to_str().unwrap()]);
        let (device, process) = only(&page);
        assert_eq!(
            (&device["nvml"], &process["pid"]),
            (&Value::Null, &job.child.id().into())
        );
    }
}

#[test]
fn what_names_nothing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().to_str().unwrap();
    let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
    let without = stranger.id().to_string();
    let cases: [(&[&str], &str); 9] = [
        (&["999999999"], "process 999999999: there is none"),
        (&[&without], "keeps no journal"),
        (&[text], "no journals"),
        (&["/nowhere/x.vraj"], "/nowhere/x.vraj"),
        (&["/dev/null"], "/dev/null"),
        (&[text, "--bound", "many"], "--bound \"many\" is no size"),
        (&[text, "--watch", "4711"], "--watch \"4711\" is no interval"),
        (&[text, "--watch", "0"], "--watch \"0\" is no interval"),
        (&[], "PID|FOLDER|FILE"),
    ];
    for (arguments, words) in cases {
        let output = reconcile(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}
