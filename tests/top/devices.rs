//! What `vramshim top` says of devices: figures of NVML, processes without the library, and simulated GPUs that are not one.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use support::member::{Host, Member};
use support::{AUTO_GROWTH, Fields, Job, MIB, PASSTHROUGH, assert_fields, client};

use crate::top::paced::{Paced, job, page};

/// A job of `tests/top/paced.c` on the simulated host whose state is in this folder.
fn on_host(folder: &Path, seed: u64) -> Job {
    job(PASSTHROUGH, seed, 1)
        .env("SIMGPU_STATE", folder.join("state"))
        .env("SIMGPU_UTILISATION", "37")
}

#[test]
fn simulated_gpus_of_separate_runs_are_separate_devices() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [one, two] = &folders;
    let mut jobs = [
        Paced::start_as(on_host(one.path(), 1)),
        Paced::start_as(on_host(one.path(), 2)),
        Paced::start_as(on_host(two.path(), 3)),
        // Without a shared state each process has simulated GPUs of its own.
        Paced::start(AUTO_GROWTH, 4, 1),
        Paced::start(AUTO_GROWTH, 5, 1),
    ];
    let pids: Vec<String> = jobs.iter().map(|job| job.pid().to_string()).collect();
    jobs.iter_mut().for_each(|job| drop(job.tell("50")));
    let page = page(&pids);
    let devices = page["devices"].list().iter();
    let counts = devices.map(|device| (device["simulator"].text().to_owned(), device["processes"].number()));
    let state = |folder: &tempfile::TempDir| folder.path().join("state").to_string_lossy().into_owned();
    let alone = |place: usize| (format!("pid {}", pids[place]), 1);
    let expected = [(state(one), 2), (state(two), 1), alone(3), alone(4)];
    assert_eq!(counts.collect::<BTreeSet<_>>(), expected.into(), "{page:#}");
    // Two devices each; all of them have one of two UUIDs.
    assert_eq!(page["devices"].list().len(), 8);
    super::assert_sums(&page);
}

#[test]
fn nvml_says_how_busy_a_device_is_and_who_else_is_there() {
    let host = Host::new("4GiB");
    let folder = host.folder.path();
    let mut ours = Paced::start_as(on_host(folder, 1));
    ours.tell("50");
    let alone = page([ours.pid().to_string()]);
    assert_eq!(alone["other_processes"], json!([]), "{alone:#}");
    assert_eq!(alone["nvml_problem"], Value::Null);
    let mut other = Member::start(host.job().sim("4GiB", 2).env("SIMGPU_UTILISATION", "37").alone());
    assert_eq!(other.allocate(64 * MIB), 0);
    // A process whose journal is turned off is under the library, and has no figures but those of NVML.
    let mut silent = Paced::start_as(on_host(folder, 2).env("VRAMSHIM_JOURNAL_MAX", "0"));
    let answer = ours.tell("50");
    silent.tell("50");
    let page = page([ours.pid().to_string()]);
    let device = &page["devices"][0];
    assert_eq!(device["nvml_number"], 0);
    // Each of the three processes uses 37 % of the time.
    assert_eq!(device["busy_percent"], 100, "{device:#}");
    assert_eq!(alone["devices"][0]["busy_percent"], 37);
    let truth = &answer.checkpoint["truth"]["devices"][0];
    let own = &page["processes"][0]["devices"][0];
    assert_eq!(own["nvml_bytes"], truth["used_by_process"], "{own:#}");
    let others = page["other_processes"].list();
    let of = |pid: u32| {
        let is_it = |one: &&Value| one["pid"] == pid && one["uuid"] == device["uuid"];
        others
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("no {pid}: {page:#}"))
    };
    let stranger = of(other.child.id());
    assert_fields(stranger, json!({"nvml_bytes": 64 * MIB, "has_library": false}), "");
    assert!(stranger["command"].text().contains("member"), "{stranger}");
    assert_eq!(of(silent.pid())["has_library"], true);
    let owners = [own, stranger, of(silent.pid())].map(|one| one["nvml_bytes"].number());
    assert_eq!(device["used"], owners.iter().sum::<u64>());
}

/// A process that has ended, and one under the library that was not asked for, are not told as ones without it.
#[test]
fn a_process_that_has_ended_or_was_not_asked_for_is_no_stranger() {
    for ends in [true, false] {
        let host = tempfile::tempdir().unwrap();
        let mut jobs = [1, 2].map(|seed| Paced::start_as(on_host(host.path(), seed)));
        jobs.iter_mut().for_each(|job| drop(job.tell("50")));
        if ends {
            jobs[1].kill();
        }
        let page = page([jobs[0].pid().to_string()]);
        assert_eq!(page["other_processes"], json!([]), "{page:#}");
        assert_eq!(page["processes"].list().len(), 1);
    }
}

/// `vramshim run --sim` keeps the state in a descriptor of the job's own process.
#[test]
fn two_runs_of_the_simulator_are_told_apart_by_their_process() {
    let simulator = support::simulated("libcuda.so.1");
    let path = client("top/paced.c", "paced", &["libcuda.so.1"]);
    let run = |seed: &str| {
        let job = Job::new(support::program()).alone().without("LD_LIBRARY_PATH");
        let job = job.env("VRAMSHIM_SIMGPU", simulator.parent().unwrap());
        let job = job.args(["run", "--sim", "2x4GiB", "--"]).args([&path]);
        Paced::start_as(job.args([seed, "1"]))
    };
    let mut jobs = [run("1"), run("2")];
    jobs.iter_mut().for_each(|job| drop(job.tell("50")));
    let pids: Vec<String> = jobs.iter().map(|job| job.pid().to_string()).collect();
    let page = page(&pids);
    let devices = page["devices"].list();
    for pid in &pids {
        let simulator = format!("pid {pid}");
        let own = devices.iter().filter(|device| device["simulator"] == simulator);
        assert_eq!(own.clone().count(), 2, "{page:#}");
        // Each is asked by itself.
        own.for_each(|device| assert!(device["processes"] == 1 && device["used"].is_u64(), "{device}"));
    }
}
