//! `vramshim stress`: a driver without a fault passes, and each fault is told with the exit code 1.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Fields, Job, MIB, assert_fields, assert_says, client, program, simulated};
use tempfile::TempDir;

/// A short run on a simulated GPU. Each strategy plays two rounds, or as many as its share of the time lets begin.
fn stress(arguments: &[&str]) -> Job {
    on("512MiB", arguments)
}

fn on(sim: &str, arguments: &[&str]) -> Job {
    let job = Job::new(program())
        .alone()
        .without("VRAMSHIM_DIR")
        .limit(Duration::from_secs(300));
    job.env("VRAMSHIM_SIMGPU", simulated("libcuda.so.1").parent().expect("a folder"))
        .without("SIMGPU_MEMORY")
        .without("SIMGPU_DEVICES")
        .args(["stress", "--sim", sim, "--for", "300ms", "--seed", "1"])
        .args(arguments)
}

/// The page and the exit code.
fn page(job: Job) -> (Value, i32) {
    let finished = job.args(["--json"]).run();
    let page = serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", finished.stdout, finished.stderr));
    (page, finished.status.code().expect("an exit code"))
}

fn turns(page: &Value) -> Vec<&Value> {
    let devices = page["devices"].list().iter();
    devices.flat_map(|device| device["turns"].list()).collect()
}

fn passthrough() -> Job {
    stress(&["--strategy", "passthrough"])
}

/// The driver has the fault of faulty.c, after so many calls.
fn faulty(strategy: &str, fault: &str, after: &str) -> Job {
    let layer = client("stress/faulty.c", "libfaulty.so", &["-shared", "-fPIC"]);
    let job = stress(&["--strategy", strategy]).preload(layer);
    job.env("STRESS_FAULT", fault).env("STRESS_AFTER", after)
}

/// Checks and returns the fault of the only turn.
fn told(job: Job, wanted: Value, words: &str) -> Value {
    let (page, code) = page(job);
    let turns = turns(&page);
    assert_eq!((code, turns.len()), (1, 1), "{page:#}");
    assert_eq!(page["passed"], false);
    let fault = &turns[0]["fault"];
    assert_fields(fault, wanted, words);
    assert_says(fault["words"].text(), words);
    fault.clone()
}

support::tests! {
    // A refusal for lack of memory is no fault, unless the device has plenty.
    a_refusal_is_a_fault_if_there_is_memory => told(passthrough().env("SIMGPU_FAULTS", "cuMemAlloc:100=2"),
        json!({"kind": "no_memory", "code": 2}), "while the device has");
    wrong_figures_of_free_memory_are_told =>
        told(faulty("passthrough", "stays", "0"), json!({"kind": "nvml_differs"}), "by cuMemGetInfo");
    // The figures are read as often as others could have moved them.
    wrong_figures_are_told_of_a_policy =>
        told(faulty("auto_growth", "stays", "0"), json!({"kind": "nvml_differs"}), "");
    bytes_that_are_handed_out_twice_are_told => told(faulty("passthrough", "overlaps", "200"),
        json!({"kind": "handed_out_twice", "call": "cuMemAlloc"}), "");
    a_driver_that_hangs_is_told => told(faulty("passthrough", "hangs", "200").args(["--timeout", "10s"]),
        json!({"kind": "hangs", "call": "cuMemFree"}), "within 10.0 s");
    a_driver_that_crashes_is_told =>
        told(faulty("passthrough", "crashes", "20"), json!({"kind": "died"}), "signal: 11");
    a_worker_that_was_killed_is_told => told(faulty("passthrough", "killed", "200"), json!({}), "signal: 9");
}

#[test]
fn changed_bytes_are_told() {
    for strategy in ["passthrough", "naive_best_fit", "auto_growth"] {
        let job = faulty(strategy, "corrupts", "200");
        told(job, json!({"kind": "bytes_changed"}), "lost what was written");
    }
}

/// Driver and NVML both tell that the memory is still there.
#[test]
fn memory_that_a_driver_does_not_free_is_told() {
    let told = told(faulty("passthrough", "leaks", "200"), json!({}), "since the start");
    assert!(
        ["nvml_differs", "driver_differs"].contains(&told["kind"].text()),
        "{told}"
    );
}

#[test]
fn a_driver_without_a_fault_passes_under_each_strategy() {
    let (page, code) = page(on("2x512MiB", &[]));
    assert!(code == 0 && page["passed"] == true, "{page:#}");
    let turns = turns(&page);
    let names: Vec<&str> = turns.iter().map(|turn| turn["strategy"].text()).collect();
    let three = ["passthrough", "naive_best_fit", "auto_growth"];
    assert_eq!(names, [three, three].concat(), "{page:#}");
    for turn in turns {
        let rounds = turn["rounds"].number();
        assert!(rounds >= 2 && turn["blocks"].number() > 100, "{turn}");
        assert!(turn["bytes_checked"].number() > MIB, "{turn}");
        // Two rest points a round, and none was left out.
        let wanted = json!({"compared": 2 * rounds, "not_compared": 0, "fault": null, "refused": 0,
            "left_out": [], "why_not_compared": []});
        assert_fields(turn, wanted, "");
    }
    assert_eq!(page["devices"][0]["total_bytes"], 512 * MIB);
    assert_eq!(page["devices"][0]["turns"][0]["free_at_idle_bytes"], 512 * MIB);
}

/// Nothing of workers that passed stays. What a job of the user has set does not reach the workers.
#[test]
fn a_run_that_passes_leaves_no_file() {
    let job = passthrough().env("VRAMSHIM_MEMORY_LIMIT", "1MiB");
    let finished = job.env("VRAMSHIM_MAX_REQUEST", "1MiB").run().ok();
    assert_says(&finished.stdout, "Passed");
    let folder = finished.folder.path().join("vramshim-stress-1");
    assert_eq!(std::fs::read_dir(&folder).map_or(0, Iterator::count), 0);
}

#[test]
fn a_call_that_fails_is_told_with_all_that_is_needed_to_repeat_it() {
    let job = passthrough().env("SIMGPU_FAULTS", "cuMemAllocAsync:20=999");
    let wanted = json!({"kind": "call_failed", "call": "cuMemAllocAsync", "code": 999});
    let told = told(job, wanted, "CUDA_ERROR_UNKNOWN (999)");
    let uuid = "CUDA_VISIBLE_DEVICES=GPU-51585f66";
    for part in ["--seed 1", "--strategy passthrough", uuid, "--sim 1x536870912B"] {
        assert_says(told["again"].text(), part);
    }
    let folder = told["folder"].text();
    assert!(folder.ends_with("vramshim-stress-1/device0-passthrough"), "{told}");
}

#[test]
fn the_folder_of_a_fault_has_the_journal_and_people_are_told() {
    let finished = passthrough().env("SIMGPU_FAULTS", "cuMemAlloc:100=46").run();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    for part in [
        "passthrough: broke in round ",
        "cuMemAlloc of ",
        "CUDA_ERROR_DEVICE_UNAVAILABLE (46)",
        "Broke: 1 of 1 turns.",
        "again:",
    ] {
        assert_says(&finished.stdout, part);
    }
    let folder = finished.folder.path().join("vramshim-stress-1/device0-passthrough");
    assert_eq!(support::journals_in(&folder).len(), 1, "{}", finished.stdout);
    assert!(!support::inspect(&folder).is_empty());
}

/// One strategy that breaks does not keep the others from their turns.
#[test]
fn the_other_strategies_follow_after_a_fault() {
    let (page, code) = page(stress(&[]).env("SIMGPU_FAULTS", "cuMemAllocAsync:20=999"));
    let turns = turns(&page);
    assert_eq!((code, turns.len()), (1, 3), "{page:#}");
    assert_eq!(turns[0]["fault"]["kind"], "call_failed", "{page:#}");
    assert!(turns.iter().all(|turn| turn["rounds"].as_u64() >= Some(1)), "{page:#}");
}

/// A layer or device without a kind of memory is no fault.
#[test]
fn kinds_that_are_not_there_are_left_out() {
    let (page, code) = page(stress(&[]).env("SIMGPU_VMM", "0"));
    assert_eq!(code, 0, "{page:#}");
    for turn in turns(&page) {
        assert_eq!(turn["left_out"], json!(["cuMemCreate"]), "{turn}");
    }
}

// ---- against a baseline

/// A baseline of passthrough in a folder of its own.
fn baseline() -> (TempDir, PathBuf) {
    let finished = passthrough().args(["--json"]).run().ok();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("baseline.json");
    std::fs::write(&path, finished.stdout).unwrap();
    (folder, path)
}

fn against(path: &Path) -> Job {
    passthrough().args(["--against", path.to_str().expect("a path")])
}

#[test]
fn a_run_is_compared_with_a_baseline() {
    let (_folder, path) = baseline();
    let (same, code) = page(against(&path));
    assert_eq!((code, &same["against"]["differences"]), (0, &json!([])), "{same:#}");
    // Idle memory that moved by little is not told.
    let mut then: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let device = &mut then["devices"][0];
    let idle = device["turns"][0]["free_at_idle_bytes"].number();
    device["name"] = "another".into();
    device["turns"][0]["free_at_idle_bytes"] = (idle + MIB).into();
    let differences = |then: &Value| {
        std::fs::write(&path, then.to_string()).unwrap();
        let (page, code) = page(against(&path).env("SIMGPU_DRIVER_VERSION", "12080"));
        assert_eq!(code, 0, "{page:#}");
        let differences = page["against"]["differences"].list().iter();
        differences.map(|one| one["what"].text().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(differences(&then), ["cuda_version", "device 0: name"]);
    then["devices"][0]["turns"][0]["free_at_idle_bytes"] = (idle + 100 * MIB).into();
    then["devices"][0]["ordinal"] = 1.into();
    assert_eq!(differences(&then).len(), 11, "a device that went and one that came");
}

#[test]
fn a_file_that_is_no_baseline_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.json");
    let refused = |path: &Path| {
        let finished = against(path).run();
        assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
        finished.stderr
    };
    for contents in ["", "{\"a\": 1}", "{\"vramshim_baseline\": 1, \"devices\": 3}"] {
        std::fs::write(&path, contents).unwrap();
        assert!(refused(&path).contains("file.json"), "{contents}");
    }
    let (_folder, run) = baseline();
    let other = std::fs::read_to_string(run).unwrap();
    std::fs::write(&path, other.replacen("_baseline\": 1", "_baseline\": 7", 1)).unwrap();
    assert!(refused(&path).contains("version 7"));
    refused(&folder.path().join("none.json"));
}

#[test]
fn wrong_usage_and_a_machine_without_a_driver_are_told() {
    for (arguments, code, words) in [
        ("--sim 1GiB --strategy best", 2, "no strategy"),
        ("--sim 1GiB --for 10", 2, "a time with a unit"),
        ("--quick", 1, "libcuda.so.1 cannot be loaded"),
    ] {
        let job = Job::new(program()).alone().env("LD_LIBRARY_PATH", "/nowhere");
        let job = job.env("VRAMSHIM_SIMGPU", simulated("libcuda.so.1").parent().expect("a folder"));
        let finished = job.args(["stress"]).args(arguments.split(' ')).run();
        assert_eq!(finished.status.code(), Some(code), "{arguments}: {}", finished.stderr);
        assert_says(&finished.stderr, words);
    }
}

/// After Ctrl-C no worker is left, and what was seen is told.
#[test]
fn an_interrupted_run_ends_its_workers_and_says_what_it_saw() {
    use std::os::unix::process::ExitStatusExt;
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program());
    command
        .args("stress --sim 256MiB --for 10m --seed 5 --strategy passthrough".split(' '))
        .env("VRAMSHIM_SIMGPU", simulated("libcuda.so.1").parent().unwrap())
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let turn = folder.path().join("vramshim-stress-5/device0-passthrough");
    let end = Instant::now() + Duration::from_secs(60);
    while !turn.exists() || children_of(child.id()).is_empty() {
        assert!(Instant::now() < end, "no worker began");
        std::thread::sleep(Duration::from_millis(20));
    }
    let workers = children_of(child.id());
    assert!(!workers.is_empty());
    // SAFETY: `kill` touches no memory. The child was not waited for, so its process id is still its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{text}");
    assert_says(&text, "Interrupted. Nothing broke until then.");
    let left: Vec<String> = workers.into_iter().filter(is_alive).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn children_of(parent: u32) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children = children.collect::<String>();
    children.split_whitespace().map(str::to_owned).collect()
}

fn is_alive(process: &String) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
