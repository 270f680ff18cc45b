//! `vramshim stress`: a driver without a fault passes, and each fault is told with the exit code 1.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Job, MIB, client, program, simulated};
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
    let devices = page["devices"].as_array().expect("devices");
    devices
        .iter()
        .flat_map(|device| device["turns"].as_array().expect("turns"))
        .collect()
}

/// The fault of the only turn.
fn fault(job: Job) -> Value {
    let (page, code) = page(job);
    let turns = turns(&page);
    assert_eq!(
        (code, turns.len(), &page["passed"]),
        (1, 1, &Value::Bool(false)),
        "{page:#}"
    );
    turns[0]["fault"].clone()
}

/// The driver has the fault that `STRESS_FAULT` names (faulty.c).
fn with_fault(job: Job, name: &str) -> Job {
    let layer = client("stress/faulty.c", "libfaulty.so", &["-shared", "-fPIC"]);
    job.preload(layer).env("STRESS_FAULT", name)
}

fn words(fault: &Value) -> &str {
    fault["words"].as_str().unwrap_or_else(|| panic!("no fault: {fault}"))
}

#[test]
fn a_driver_without_a_fault_passes_under_each_strategy() {
    let (page, code) = page(on("2x512MiB", &[]));
    assert_eq!((code, &page["passed"]), (0, &Value::Bool(true)), "{page:#}");
    let turns = turns(&page);
    let names: Vec<&str> = turns.iter().map(|turn| turn["strategy"].as_str().unwrap()).collect();
    let three = ["passthrough", "naive_best_fit", "auto_growth"];
    assert_eq!(names, [three, three].concat(), "{page:#}");
    for turn in turns {
        let number = |name: &str| turn[name].as_u64().unwrap_or_else(|| panic!("{name}: {turn}"));
        assert!(number("rounds") >= 2 && number("blocks") > 100, "{turn}");
        assert!(number("bytes_checked") > MIB, "{turn}");
        // Two rest points a round, and none was left out.
        assert_eq!(
            (number("compared"), number("not_compared")),
            (2 * number("rounds"), 0),
            "{turn}"
        );
        assert_eq!((&turn["fault"], number("refused")), (&Value::Null, 0), "{turn}");
        assert_eq!(
            (&turn["left_out"], &turn["why_not_compared"]),
            (&json!([]), &json!([])),
            "{turn}"
        );
        for call in ["cuMemAlloc", "cuMemFree", "cuMemAllocAsync", "cuMemCreate", "cuMemMap"] {
            assert!(
                turn["prices"].get(format!("{call} to 16 MiB")).is_some(),
                "{call}: {turn}"
            );
        }
    }
    assert_eq!(page["devices"][0]["total_bytes"], 512 * MIB);
    assert_eq!(page["devices"][0]["turns"][0]["free_at_idle_bytes"], 512 * MIB);
}

/// Nothing of workers that passed stays. What a job of the user has set does not reach the workers.
#[test]
fn a_run_that_passes_leaves_no_file() {
    let job = stress(&["--strategy", "passthrough"])
        .env("VRAMSHIM_MEMORY_LIMIT", "1MiB")
        .env("VRAMSHIM_MAX_REQUEST", "1MiB");
    let finished = job.run().ok();
    assert!(finished.stdout.contains("Passed"), "{}", finished.stdout);
    let folder = finished.folder.path().join("vramshim-stress-1");
    assert_eq!(std::fs::read_dir(&folder).map_or(0, Iterator::count), 0);
}

#[test]
fn a_call_that_fails_is_told_with_all_that_is_needed_to_repeat_it() {
    let job = stress(&["--strategy", "passthrough"]).env("SIMGPU_FAULTS", "cuMemAllocAsync:20=999");
    let told = fault(job);
    assert_eq!(
        (&told["kind"], &told["call"], &told["code"]),
        (&"call_failed".into(), &"cuMemAllocAsync".into(), &999.into())
    );
    assert!(words(&told).contains("CUDA_ERROR_UNKNOWN (999)"), "{told}");
    let again = told["again"].as_str().unwrap();
    for part in [
        "--seed 1",
        "--strategy passthrough",
        "CUDA_VISIBLE_DEVICES=GPU-51585f66",
        "--sim 1x536870912B",
    ] {
        assert!(again.contains(part), "{part}: {again}");
    }
    assert!(
        told["folder"]
            .as_str()
            .unwrap()
            .ends_with("vramshim-stress-1/device0-passthrough"),
        "{told}"
    );
}

#[test]
fn the_folder_of_a_fault_has_the_journal_and_people_are_told() {
    let finished = stress(&["--strategy", "passthrough"])
        .env("SIMGPU_FAULTS", "cuMemAlloc:100=46")
        .run();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    for part in [
        "passthrough: broke in round ",
        "cuMemAlloc of ",
        "CUDA_ERROR_DEVICE_UNAVAILABLE (46)",
        "Broke: 1 of 1 turns.",
        "again:",
    ] {
        assert!(finished.stdout.contains(part), "{part}: {}", finished.stdout);
    }
    let folder = finished.folder.path().join("vramshim-stress-1/device0-passthrough");
    assert_eq!(support::journals_in(&folder).len(), 1, "{}", finished.stdout);
    assert!(!support::inspect(&folder).is_empty());
}

/// A refusal for lack of memory is no fault, unless the device has plenty.
#[test]
fn a_refusal_is_a_fault_if_there_is_memory() {
    let job = stress(&["--strategy", "passthrough"]).env("SIMGPU_FAULTS", "cuMemAlloc:100=2");
    let told = fault(job);
    assert_eq!(
        (&told["kind"], &told["code"]),
        (&"no_memory".into(), &2.into()),
        "{told}"
    );
    assert!(words(&told).contains("while the device has"), "{told}");
}

#[test]
fn wrong_figures_of_free_memory_are_told() {
    let told = fault(with_fault(stress(&["--strategy", "passthrough"]), "stays").env("STRESS_AFTER", "0"));
    assert_eq!(told["kind"], "nvml_differs", "{told}");
    assert!(words(&told).contains("by cuMemGetInfo"), "{told}");
    // The figures are read as often as others could have moved them.
    let under = with_fault(stress(&["--strategy", "auto_growth"]), "stays").env("STRESS_AFTER", "0");
    assert_eq!(fault(under)["kind"], "nvml_differs");
}

/// Driver and NVML both tell that the memory is still there.
#[test]
fn memory_that_a_driver_does_not_free_is_told() {
    let told = fault(with_fault(stress(&["--strategy", "passthrough"]), "leaks"));
    assert!(
        ["nvml_differs", "driver_differs"].contains(&told["kind"].as_str().unwrap()),
        "{told}"
    );
    assert!(words(&told).contains("since the start"), "{told}");
}

#[test]
fn changed_bytes_are_told() {
    for strategy in ["passthrough", "naive_best_fit", "auto_growth"] {
        let told = fault(with_fault(stress(&["--strategy", strategy]), "corrupts"));
        assert_eq!(told["kind"], "bytes_changed", "{strategy}: {told}");
        assert!(words(&told).contains("lost what was written"), "{told}");
    }
}

#[test]
fn bytes_that_are_handed_out_twice_are_told() {
    let told = fault(with_fault(stress(&["--strategy", "passthrough"]), "overlaps"));
    assert_eq!(
        (&told["kind"], &told["call"]),
        (&"handed_out_twice".into(), &"cuMemAlloc".into()),
        "{told}"
    );
}

#[test]
fn a_driver_that_hangs_or_crashes_is_told() {
    let hang = with_fault(stress(&["--strategy", "passthrough", "--timeout", "10s"]), "hangs");
    let told = fault(hang);
    assert_eq!(
        (&told["kind"], &told["call"]),
        (&"hangs".into(), &"cuMemFree".into()),
        "{told}"
    );
    assert!(words(&told).contains("within 10.0 s"), "{told}");

    let crash = stress(&["--strategy", "passthrough"]).env("STRESS_AFTER", "20");
    let told = fault(with_fault(crash, "crashes"));
    assert_eq!(told["kind"], "died", "{told}");
    assert!(words(&told).contains("signal: 11"), "{told}");

    let told = fault(with_fault(stress(&["--strategy", "passthrough"]), "killed"));
    assert!(words(&told).contains("signal: 9"), "{told}");
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
    let finished = stress(&["--strategy", "passthrough", "--json"]).run().ok();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("baseline.json");
    std::fs::write(&path, finished.stdout).unwrap();
    (folder, path)
}

fn against(path: &Path, more: &[&str]) -> Job {
    stress(&["--strategy", "passthrough", "--against", path.to_str().expect("a path")]).args(more)
}

#[test]
fn a_run_is_compared_with_a_baseline() {
    let (_folder, path) = baseline();
    let (page, code) = page(against(&path, &[]));
    assert_eq!(code, 0, "{page:#}");
    assert_eq!(page["against"]["differences"], json!([]), "{page:#}");
    assert!(page["against"]["prices"].as_array().unwrap().len() > 5, "{page:#}");
    // Idle memory that moved by little is not told, nor are prices of few calls.
    let mut then: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let device = &mut then["devices"][0];
    let idle = device["turns"][0]["free_at_idle_bytes"].as_u64().unwrap();
    device["name"] = "another".into();
    device["turns"][0]["free_at_idle_bytes"] = (idle + MIB).into();
    device["turns"][0]["prices"] = json!({"cuMemMap to 16 MiB": {"count": 3, "p50_ns": 1}});
    let differences = |then: &Value| {
        std::fs::write(&path, then.to_string()).unwrap();
        let job = against(&path, &[]).env("SIMGPU_DRIVER_VERSION", "12080");
        let (page, code) = self::page(job);
        assert_eq!((code, &page["against"]["prices"]), (0, &json!([])), "{page:#}");
        let differences = page["against"]["differences"].as_array().unwrap().clone();
        differences
            .iter()
            .map(|one| one["what"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(differences(&then), ["cuda_version", "device 0: name"]);
    then["devices"][0]["turns"][0]["free_at_idle_bytes"] = (idle + 100 * MIB).into();
    then["devices"][0]["ordinal"] = 1.into();
    assert_eq!(differences(&then).len(), 11, "a device that went and one that came");
}

/// The price is a hundred times what it was, so the machine's load decides nothing.
#[test]
fn a_price_that_rose_is_told() {
    let (_folder, path) = baseline();
    let (told, code) = page(against(&path, &[]).env("SIMGPU_LATENCY", "cuMemAlloc=5ms"));
    assert_eq!(code, 0, "{told:#}");
    let mut prices = told["against"]["prices"].as_array().unwrap().iter();
    let first = prices
        .find(|price| price["what"].as_str().unwrap().contains(": cuMemAlloc to "))
        .unwrap();
    assert!(first["ratio"].as_f64() > Some(10.0), "{first}");
}

#[test]
fn a_file_that_is_no_baseline_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.json");
    let refused = |path: &Path| {
        let finished = against(path, &[]).run();
        assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
        finished.stderr
    };
    for contents in ["", "{\"a\": 1}", "{\"vramshim_baseline\": 1, \"devices\": 3}"] {
        std::fs::write(&path, contents).unwrap();
        assert!(refused(&path).contains("file.json"), "{contents}");
    }
    let (_folder, run) = baseline();
    let other =
        std::fs::read_to_string(run)
            .unwrap()
            .replacen("\"vramshim_baseline\": 1", "\"vramshim_baseline\": 7", 1);
    std::fs::write(&path, other).unwrap();
    assert!(refused(&path).contains("version 7"));
    refused(&folder.path().join("none.json"));
}

#[test]
fn wrong_usage_is_refused() {
    for (arguments, words) in [
        (["--strategy", "best"], "no strategy"),
        (["--for", "10"], "a time with a unit"),
    ] {
        let mut job = Job::new(program())
            .alone()
            .args(["stress", "--sim", "1GiB"])
            .args(arguments);
        job = job.env("VRAMSHIM_SIMGPU", simulated("libcuda.so.1").parent().expect("a folder"));
        let finished = job.run();
        assert_eq!(finished.status.code(), Some(2), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{arguments:?}: {}", finished.stderr);
    }
}

#[test]
fn a_machine_without_a_driver_is_told() {
    let job = Job::new(program())
        .alone()
        .args(["stress", "--quick"])
        .env("LD_LIBRARY_PATH", "/nowhere");
    let finished = job.run();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("libcuda.so.1 cannot be loaded"),
        "{}",
        finished.stderr
    );
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
    assert!(text.contains("Interrupted. Nothing broke until then."), "{text}");
    let left: Vec<u32> = workers.into_iter().filter(|worker| is_alive(*worker)).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn stat_of(process: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|process| stat_of(*process).is_some_and(|(_, of)| of == parent))
        .collect()
}

fn is_alive(process: u32) -> bool {
    stat_of(process).is_some_and(|(state, _)| state != 'Z')
}
