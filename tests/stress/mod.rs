//! `vramshim stress`: a driver without a fault passes, and each fault is told with the exit code 1.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Finished, Job, MIB, client, program, simulated};

/// A short run on a simulated GPU. Each strategy plays two rounds, or as many as its share of the time lets begin.
fn stress(arguments: &[&str]) -> Job {
    let job = Job::new(program())
        .alone()
        .without("VRAMSHIM_DIR")
        .limit(Duration::from_secs(300));
    job.env("VRAMSHIM_SIMGPU", simulated("libcuda.so.1").parent().expect("a folder"))
        .without("SIMGPU_MEMORY")
        .without("SIMGPU_DEVICES")
        .args([
            "stress", "--sim", "4GiB", "--memory", "128MiB", "--for", "300ms", "--seed", "1",
        ])
        // Nothing but the simulated GPU is there, so the figures agree closely.
        .args(["--bound", "4MiB"])
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
    let (page, code) = page(stress(&["--sim-devices", "2"]));
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
        assert_eq!(turn["left_out"], serde_json::json!([]));
        let priced: Vec<&str> = turn["prices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|price| price["call"].as_str().unwrap())
            .collect();
        for call in [
            "cuMemAlloc",
            "cuMemFree",
            "cuMemAllocAsync",
            "cuMemAllocPitch",
            "cuMemAllocManaged",
            "cuMemCreate",
            "cuMemMap",
        ] {
            assert!(priced.contains(&call), "{call}: {priced:?}");
        }
    }
    assert_eq!(page["devices"][0]["total_bytes"], 4096 * MIB);
    assert_eq!(page["devices"][0]["free_at_idle_bytes"], 4096 * MIB);
}

/// The folder has the baseline and nothing of workers that passed; a second run replaces it. What a job of the user has
/// set does not reach the workers.
#[test]
fn a_run_that_passes_leaves_a_baseline_alone() {
    let job = stress(&["--strategy", "passthrough", "--dir", "out"])
        .env("VRAMSHIM_MEMORY_LIMIT", "1MiB")
        .env("VRAMSHIM_MAX_REQUEST", "1MiB");
    let finished = job.run().ok();
    assert!(
        finished.stdout.contains("Passed: nothing broke."),
        "{}",
        finished.stdout
    );
    let folder = finished.folder.path().join("out");
    let names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["baseline.json"]);
    let kept: Value = serde_json::from_slice(&std::fs::read(folder.join("baseline.json")).unwrap()).unwrap();
    assert_eq!((&kept["vramshim_baseline"], &kept["seed"]), (&1.into(), &1.into()));
    assert_eq!(kept["driver"], "580.00.00");
}

#[test]
fn a_call_that_fails_is_told_with_all_that_is_needed_to_repeat_it() {
    let job = stress(&["--strategy", "passthrough"]).env("SIMGPU_FAULTS", "cuMemAllocPitch:20=999");
    let told = fault(job);
    assert_eq!(
        (&told["kind"], &told["call"], &told["code"]),
        (&"call_failed".into(), &"cuMemAllocPitch".into(), &999.into())
    );
    assert!(words(&told).contains("CUDA_ERROR_UNKNOWN (999)"), "{told}");
    let again = told["again"].as_str().unwrap();
    for part in [
        "--seed 1",
        "--strategy passthrough",
        "--device GPU-51585f66",
        "--memory 134217728B",
        "--sim 4GiB",
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
    let finished = stress(&["--strategy", "passthrough", "--dir", "out"])
        .env("SIMGPU_FAULTS", "cuMemAlloc:100=46")
        .run();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    for part in [
        "passthrough broke in round ",
        "cuMemAlloc of ",
        "CUDA_ERROR_DEVICE_UNAVAILABLE (46)",
        "Broke: 1 of 1 turns.",
        "again:",
    ] {
        assert!(finished.stdout.contains(part), "{part}: {}", finished.stdout);
    }
    let folder = finished.folder.path().join("out/device0-passthrough");
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
fn a_driver_that_hangs_or_crashes_is_told_with_the_call() {
    let hang = with_fault(stress(&["--strategy", "passthrough", "--timeout", "10s"]), "hangs");
    let told = fault(hang);
    assert_eq!(
        (&told["kind"], &told["call"]),
        (&"hangs".into(), &"cuMemFree".into()),
        "{told}"
    );
    assert!(words(&told).contains("within 10.0 s"), "{told}");

    // Of several threads it is not known which one crashed.
    let one_thread = stress(&["--strategy", "passthrough", "--threads", "1"]).env("STRESS_AFTER", "20");
    let told = fault(with_fault(one_thread, "crashes"));
    assert_eq!(
        (&told["kind"], &told["call"]),
        (&"died".into(), &"cuMemAlloc".into()),
        "{told}"
    );
    assert!(words(&told).contains("signal 11"), "{told}");

    let told = fault(with_fault(stress(&["--strategy", "passthrough"]), "killed"));
    assert!(words(&told).contains("signal 9"), "{told}");
}

/// One strategy that breaks does not keep the others from their turns.
#[test]
fn the_other_strategies_follow_after_a_fault() {
    let (page, code) = page(stress(&[]).env("SIMGPU_FAULTS", "cuMemAllocPitch:20=999"));
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
        assert_eq!(turn["left_out"], serde_json::json!(["cuMemCreate"]), "{turn}");
    }
}

// ---- against a baseline

fn text(path: impl AsRef<OsStr>) -> String {
    path.as_ref().to_str().expect("a path").to_owned()
}

/// A baseline of passthrough in a folder of its own.
fn baseline() -> (Finished, PathBuf) {
    let finished = stress(&["--strategy", "passthrough", "-o", "baseline.json"]).run().ok();
    let path = finished.folder.path().join("baseline.json");
    (finished, path)
}

fn against(path: &Path, more: &[&str]) -> Job {
    stress(&["--strategy", "passthrough", "--against", &text(path)]).args(more)
}

#[test]
fn a_run_is_compared_with_a_baseline() {
    let (_folder, path) = baseline();
    let (page, code) = page(against(&path, &[]));
    assert_eq!(code, 0, "{page:#}");
    assert_eq!(page["against"]["differences"], serde_json::json!([]), "{page:#}");
    assert!(page["against"]["prices"].as_array().unwrap().len() > 5, "{page:#}");
    assert_eq!(
        page["baseline_file"],
        Value::Null,
        "a run with --against keeps no baseline unasked"
    );
    let (other, code) = self::page(against(&path, &[]).env("SIMGPU_DRIVER_VERSION", "12080"));
    let whats: Vec<&str> = other["against"]["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["what"].as_str().unwrap())
        .collect();
    assert_eq!((code, whats), (0, vec!["cuda_version"]), "{other:#}");
}

/// Only a threshold that was given fails. The price is a hundred times what it was, so the machine's load decides nothing.
#[test]
fn a_price_that_rose_is_told_and_fails_if_asked() {
    let (_folder, path) = baseline();
    let slow = |more: &[&str]| against(&path, more).env("SIMGPU_LATENCY", "cuMemAlloc=5ms");
    let (told, code) = page(slow(&[]));
    assert_eq!(code, 0, "{told:#}");
    let first = told["against"]["prices"]
        .as_array()
        .unwrap()
        .iter()
        .find(|price| price["call"] == "cuMemAlloc");
    let Some(first) = first else {
        panic!("{told:#}");
    };
    assert!(first["ratio"].as_f64() > Some(10.0), "{first}");
    let finished = slow(&["--slower", "10"]).run();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stdout);
    for part in ["too slow", "cuMemAlloc", "but calls cost more than --slower accepts"] {
        assert!(finished.stdout.contains(part), "{part}: {}", finished.stdout);
    }
}

#[test]
fn a_file_that_is_no_baseline_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.json");
    for (contents, words) in [
        ("", "no JSON"),
        ("{\"a\": 1}", "no field vramshim_baseline"),
        ("{\"vramshim_baseline\": 7}", "of version 7"),
        ("{\"vramshim_baseline\": 1, \"devices\": 3}", "damaged baseline"),
    ] {
        std::fs::write(&path, contents).unwrap();
        let finished = against(&path, &[]).run();
        assert_eq!(finished.status.code(), Some(2), "{contents}: {}", finished.stderr);
        assert!(
            finished.stderr.contains(words) && finished.stderr.contains("file.json"),
            "{}",
            finished.stderr
        );
    }
    let missing = against(&folder.path().join("none.json"), &[]).run();
    assert_eq!(missing.status.code(), Some(2), "{}", missing.stderr);
    let there = stress(&["-o", &text(&path)]).run();
    assert!(
        there.status.code() == Some(2) && there.stderr.contains("--force"),
        "{}",
        there.stderr
    );
}

#[test]
fn wrong_usage_is_refused() {
    for (arguments, words) in [
        (&["--device", "7"][..], "no such device"),
        (&["--strategy", "best"], "no strategy"),
        (&["--threads", "0"], "from 1 to 64"),
        (&["--slower", "2"], "--against"),
        (&["--bound", "much"], "no size"),
    ] {
        let mut job = stress(arguments);
        if arguments[0] == "--bound" {
            // The option is there already.
            job = Job::new(program())
                .alone()
                .args(["stress", "--sim", "1GiB"])
                .args(arguments);
        }
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
        .args([
            "stress",
            "--sim",
            "2GiB",
            "--memory",
            "64MiB",
            "--for",
            "10m",
            "--seed",
            "5",
            "--strategy",
            "passthrough",
        ])
        .env("VRAMSHIM_SIMGPU", simulated("libcuda.so.1").parent().unwrap())
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let calls = folder.path().join("vramshim-stress-5/device0-passthrough/calls");
    let end = Instant::now() + Duration::from_secs(60);
    while !calls.exists() {
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
