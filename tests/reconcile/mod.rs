//! Tests of `vramshim reconcile`: running jobs compared with the simulated NVML, whose figures are exact; memory that
//! the ledger does not have; and wrong arguments.

mod gone;
mod holder;
mod layers;
mod stand_in;

use std::collections::BTreeSet;
use std::process::Command;

use holder::{differences, holder, host, look, number, only, reconcile};
use serde_json::{Value, json};
use support::member::Member;
use support::{
    AUTO_GROWTH, Fields, Job, MIB, NAIVE_BEST_FIT, PASSTHROUGH, Runs, assert_fields, assert_says, client, program,
};

const CONTEXT: u64 = 300 * MIB;

#[test]
fn a_running_job_agrees_to_the_byte() {
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        let (_folder, state) = host();
        let job = Member::start(holder(&state).strategy(strategy));
        let job = job.with(&["device 0", "alloc 3", "alloc 40", "free", "alloc 5"]);
        let (page, code) = look(&[&job.pid()]);
        assert_eq!(code, 0, "{page:#}");
        let (device, process) = only(&page);
        let ledger = &process["ledger"];
        assert_eq!(ledger["requested"], 8 * MIB, "{strategy:?}");
        assert_eq!(process["nvml_used"], ledger["reserved"], "{strategy:?}");
        assert_eq!(device["nvml"]["used"], ledger["reserved"], "{strategy:?}");
        assert_fields(device, json!({"unknown": 0, "other_processes": 0}), "");
        let free = ledger["free_inside"].number();
        if strategy.name == "passthrough" {
            assert_eq!((free, &ledger["reserved"]), (0, &(8 * MIB).into()));
        } else {
            assert_eq!(free, ledger["reserved"].number() - 8 * MIB, "{strategy:?}");
            assert!(free > 0);
        }
        assert_eq!(process["pid"], job.child.id());
        assert_eq!(process["job"], "holder");
        assert_says(device["uuid"].text(), "GPU-51585f66-");
        assert_eq!(device["name"], "Simulated GPU");
    }
}

#[test]
fn the_size_of_a_context_is_known_from_the_first_measurement() {
    // Under a limit the library asks NVML. Without a limit it has the driver's figure for the device.
    for (limit, basis) in [("0", "device"), ("3GiB", "nvml")] {
        for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
            let (_folder, state) = host();
            let job = holder(&state)
                .strategy(strategy)
                .env("SIMGPU_CONTEXT_BYTES", "300MiB")
                .env("VRAMSHIM_MEMORY_LIMIT", limit);
            let job = Member::start(job).with(&["device 0", "alloc 64"]);
            let (page, code) = look(&[&job.pid()]);
            let (device, process) = only(&page);
            assert_eq!((code, &process["context_basis"]), (0, &basis.into()), "{page:#}");
            assert_eq!(differences(process), [300, 0, 0, 0, 0], "{strategy:?}");
            let reserved = process["ledger"]["reserved"].number();
            assert_eq!(device["nvml"]["used"], CONTEXT + reserved);
        }
    }
}

#[test]
fn a_process_without_the_library_is_listed_apart() {
    let (_folder, state) = host();
    let _foreign = Member::start(holder(&state).alone()).with(&["device 0", "alloc 700"]);
    let job = Member::start(holder(&state)).with(&["device 0", "alloc 64"]);
    let beside = Member::start(holder(&state)).with(&["device 0", "alloc 32"]);
    let (page, code) = look(&[&job.pid()]);
    assert_eq!(code, 0);
    let device = &page["devices"][0];
    let wanted = json!({"other_processes": 700 * MIB, "unknown": 0});
    assert_fields(device, wanted, "");
    // The process that was not named runs under the library, so its bytes are explained too.
    let processes = device["processes"].list().iter();
    let pids: BTreeSet<u64> = processes.filter_map(|process| process["pid"].as_u64()).collect();
    assert_eq!(pids, [&job, &beside].map(|holder| holder.child.id().into()).into());
}

#[test]
fn processes_of_another_host_are_not_counted() {
    let (_folder, state) = host();
    let (_other_folder, other_state) = host();
    let job = Member::start(holder(&state)).with(&["device 0", "alloc 64"]);
    let other = Member::start(holder(&other_state)).with(&["device 0", "alloc 32"]);
    let (page, code) = look(&[&job.pid(), &other.pid()]);
    assert_eq!(code, 0);
    let devices = page["devices"].list().iter();
    let each = devices.map(|device| (number(&device["nvml"]["used"]), device["processes"].list().len()));
    let wanted = [(32 * MIB as i64, 1), (64 * MIB as i64, 1)];
    assert_eq!(each.collect::<BTreeSet<_>>(), wanted.into());
}

#[test]
fn memory_that_the_library_did_not_see_is_unknown() {
    let (_folder, state) = host();
    let mut job = Member::start(holder(&state)).with(&["device 0", "alloc 64", "hide 64"]);
    let (page, code) = look(&[&job.pid()]);
    assert_eq!(code, 0, "a difference equal to the bound is accepted");
    assert_eq!(page["devices"][0]["unknown"], 64 * MIB);
    job.order("hide 1");
    let (page, code) = look(&[&job.pid()]);
    let (device, process) = only(&page);
    assert_eq!((code, &device["unknown"]), (1, &(65 * MIB).into()));
    assert_eq!(process["differences"]["unknown"], 65 * MIB);
    assert_eq!(look(&[&job.pid(), "--bound", "65MiB"]).1, 0);
    assert_eq!(look(&[&job.pid(), "--bound", "0"]).1, 1);

    let output = reconcile(&[job.pid()]).printed();
    assert_eq!((output.code, output.said.as_str()), (Some(1), ""));
    assert_says(&output.text, "65.0 MiB in one place, more than the bound of 64.0 MiB");
    assert!(!output.text.contains('\x1b'), "{}", output.text);
}

#[test]
fn devices_are_told_apart_by_uuid() {
    let (_folder, state) = host();
    let job = Member::start(holder(&state).env("CUDA_VISIBLE_DEVICES", "1,0"));
    let job = job.with(&["device 0", "alloc 10", "device 1", "alloc 20"]);
    let (page, code) = look(&[&job.pid()]);
    assert_eq!(code, 0, "{page:#}");
    let devices = page["devices"].list();
    assert_eq!(devices.len(), 2);
    for (device, start, mib) in [(&devices[0], "GPU-51585f66", 20), (&devices[1], "GPU-70777e85", 10)] {
        let bytes = mib * MIB;
        assert!(device["uuid"].text().starts_with(start), "{device:#}");
        assert_eq!(device["nvml"]["used"], bytes);
        assert_eq!(device["processes"][0]["nvml_used"], bytes);
        assert_eq!(device["unknown"], 0);
    }
}

#[test]
fn a_job_that_run_started_is_found_on_its_own_gpu() {
    let client = client("reconcile/holder.c", "holder", &["libcuda.so.1"]);
    let job = Job::new(program()).alone().without("LD_LIBRARY_PATH");
    let job = job.args(["run", "--sim", "2GiB", "--dir", "journals", "--"]);
    let job = job.args([client]);
    let job = Member::start(job).with(&["device 0", "alloc 100"]);
    for what in [job.pid(), job.journals().to_string_lossy().into_owned()] {
        let (page, code) = look(&[&what]);
        let (device, process) = only(&page);
        assert_eq!((code, &process["nvml_used"]), (0, &(100 * MIB).into()), "{page:#}");
        assert_fields(device, json!({"unknown": 0, "total": 2048 * MIB}), "");
    }
}

#[test]
fn a_process_that_is_named_in_several_ways_is_listed_once() {
    let (_folder, state) = host();
    let job = Member::start(holder(&state)).with(&["device 0", "alloc 64"]);
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("link");
    std::os::unix::fs::symlink(job.journals(), &link).unwrap();
    let (folder, link) = (job.journals().display().to_string(), link.display().to_string());
    let ways = [job.pid(), folder.clone(), format!("{folder}/"), link, "journals".into()];
    let mut command = reconcile(&ways);
    let page = command.arg("--json").current_dir(job.folder.path()).printed().json();
    let (device, process) = only(&page);
    assert_eq!((process["pid"].to_string(), &device["unknown"]), (job.pid(), &0.into()));
}

#[test]
fn bytes_that_nvml_does_not_report_are_not_invented() {
    let (_folder, state) = host();
    let silent = |job: Job| job.env("SIMGPU_NVML_BYTES", "0");
    let job = Member::start(silent(holder(&state))).with(&["device 0", "alloc 64"]);
    let _foreign = Member::start(silent(holder(&state)).alone()).with(&["device 0", "alloc 200"]);
    let (page, code) = look(&[&job.pid()]);
    let (device, process) = only(&page);
    assert_eq!(code, 1);
    assert_eq!(process["nvml_used"], Value::Null);
    assert_fields(device, json!({"other_processes": 0, "unknown": 200 * MIB}), "");
    let notes = device["notes"].to_string();
    assert_says(&notes, "1 other process");
    assert_says(&notes, &job.pid());
}

#[test]
fn without_nvml_it_says_so() {
    // The first job has a simulated GPU that no other process shares (no SIMGPU_STATE). The environment of the second job
    // does not say that its GPU is simulated.
    let own = Job::new(client("reconcile/holder.c", "holder", &["libcuda.so.1"]));
    let (_folder, state) = host();
    let variables = ["SIMGPU_STATE", "SIMGPU_MEMORY", "SIMGPU_DEVICES"];
    let disguised = variables.iter().fold(holder(&state), |job, name| job.without(name));
    for (job, words) in [(own, "SIMGPU_STATE"), (disguised, "NVML")] {
        let job = Member::start(job).with(&["device 0", "alloc 64"]);
        let (page, _) = look(&[&job.pid()]);
        let (device, process) = only(&page);
        assert!(device["nvml"].is_null() && process["nvml_used"].is_null());
        assert_eq!(process["ledger"]["reserved"], 64 * MIB);
        assert!(device["notes"].to_string().contains(words), "{page:#}");
    }
}

#[test]
fn a_real_job_can_be_reconciled_after_its_end_or_a_kill() {
    for killed in [true, false] {
        let (_folder, state) = host();
        let job = holder(&state).env("SIMGPU_CONTEXT_BYTES", "300MiB");
        let mut job = Member::start(job).with(&["device 0", "alloc 64"]);
        if killed {
            job.child.kill().and_then(|()| job.child.wait()).unwrap();
        } else {
            job.finish();
        }
        let (page, code) = look(&[job.journals().to_str().unwrap()]);
        let (device, process) = only(&page);
        assert_eq!((code, differences(process)), (0, [300, 0, 0, 0, 0]));
        assert!(device["nvml"].is_null() && process["pid"] == job.child.id());
    }
}

#[test]
fn arguments_that_name_no_job_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().to_str().unwrap();
    let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
    let without = stranger.id().to_string();
    for (arguments, words) in [
        (&["999999999"][..], "process 999999999: there is no such process"),
        (&[&without], "it does not run under the library"),
        (&[text], "no journals"),
        (&["/nowhere/x.vraj"], "/nowhere/x.vraj"),
        (&["/dev/null"], "/dev/null"),
        (&[text, "--bound", "many"], "'--bound <SIZE>': no size"),
        (&[text, "--bound", "16"], "'--bound <SIZE>': 16 is 16 bytes; type 16GiB"),
        (&[], "PID|FOLDER|FILE"),
    ] {
        let output = reconcile(arguments).printed();
        assert_eq!((output.code, &*output.text), (Some(2), ""), "{arguments:?}");
        assert_says(&output.said, words);
    }
    stranger.kill().and_then(|()| stranger.wait()).unwrap();
}
