//! Tests of `vramshim top` on running jobs. While the jobs wait for commands, the figures of `top` equal those of the
//! simulated device to the byte. The interactive view leaves the terminal as it was, however the view ends.

mod devices;
pub mod paced;
mod stream;
mod terminal;
mod view;

use std::collections::BTreeMap;
use std::process::Command;

use base::api::Api;
use journal::format::Device;
use journal::format::{Allocation, Event};
use journal::writer::{About, Journal};
use paced::{Answer, Paced, job, page, top, truth};
use program::analysis::running;
use program::analysis::watch::Watched;
use serde_json::{Value, json};
use support::made::linear;
use support::{AUTO_GROWTH, Fields, STRATEGIES, assert_fields, inspect, journals_in};

fn process(page: &Value, pid: u32) -> &Value {
    let mut processes = page["processes"].list().iter();
    let found = processes.find(|one| one["pid"] == pid);
    found.unwrap_or_else(|| panic!("process {pid} is missing: {page}"))
}

/// Checks the figures of `top` for a process against the job's count, the simulator's table and the library's ledger.
fn assert_true(told: &Value, answer: &Answer, context: &str) {
    let devices = told["devices"].list();
    for stats in answer.stats.list() {
        let number = stats["device"].as_i64().unwrap();
        let Some(device) = devices.iter().find(|device| device["device"] == number) else {
            assert_eq!(stats["reserved"], 0, "{context}: device {number} is missing in {told}");
            continue;
        };
        for figure in ["requested", "allocated", "reserved"] {
            assert_eq!(device[figure], stats[figure], "{context}: {figure} of device {number}");
        }
        assert_eq!(device["failed_calls"], stats["failures"], "{context}: device {number}");
        assert_eq!(device["live_count"], stats["live"], "{context}: device {number}");
        let (requested, reserved) = truth(answer, number);
        assert_eq!(device["requested"], requested, "{context}: device {number}");
        assert_eq!(device["reserved"], reserved, "{context}: device {number}");
        let count = |name: &str| device[name].number();
        assert_eq!(count("allocations") - count("frees"), count("live_count"), "{context}");
    }
}

/// Checks the sums that `top` prints for each device, by simulated GPU and UUID.
fn assert_sums(page: &Value) {
    let id = |device: &Value| (device["simulator"].to_string(), device["uuid"].text().to_owned());
    let mut sums: BTreeMap<(String, String), [u64; 4]> = BTreeMap::new();
    for process in page["processes"].list() {
        for device in process["devices"].list() {
            let sum = sums.entry(id(device)).or_default();
            for (place, name) in ["requested", "allocated", "reserved"].into_iter().enumerate() {
                sum[place] += device[name].number();
            }
            sum[3] += 1;
        }
    }
    let told: BTreeMap<(String, String), [u64; 4]> = (page["devices"].list().iter())
        .map(|device| {
            let names = ["requested", "allocated", "reserved", "processes"];
            (id(device), names.map(|name| device[name].number()))
        })
        .collect();
    assert_eq!(told, sums);
}

#[test]
fn several_processes_are_shown_to_the_byte_at_every_moment() {
    let host = tempfile::tempdir().unwrap();
    let mut jobs: Vec<(Paced, String)> = (STRATEGIES.into_iter().enumerate())
        .map(|(number, strategy)| {
            // One of the jobs sees the devices in the other order.
            let order = if number == 1 { "1,0" } else { "0,1" };
            let threads = number as u32 % 3 + 1;
            let job = job(strategy, number as u64 + 1, threads).env("CUDA_VISIBLE_DEVICES", order);
            let job = job.env("SIMGPU_STATE", host.path().join("state"));
            (Paced::start_as(job), format!("{strategy:?}"))
        })
        .collect();
    let pids: Vec<String> = jobs.iter().map(|(job, _)| job.pid().to_string()).collect();
    // A journal exists from the first CUDA call on.
    let mut answers: Vec<Answer> = jobs.iter_mut().map(|(job, _)| job.tell("10")).collect();
    for moment in 0..8 {
        let number = moment % jobs.len();
        answers[number] = jobs[number].0.tell(if moment == 5 { "fail" } else { "300" });
        let page = page(&pids);
        assert_eq!(page["processes"].list().len(), jobs.len());
        for ((job, context), answer) in jobs.iter().zip(&answers) {
            let told = process(&page, job.pid());
            assert_true(told, answer, &format!("{context}, moment {moment}"));
            assert_fields(told, json!({"events_lost": 0, "job": "paced"}), "");
            assert!(told["command"].text().contains("paced"));
        }
        assert_sums(&page);
        let devices = page["devices"].list();
        assert_eq!(devices.len(), 2, "two devices, whatever their numbers: {page}");
        for device in devices {
            assert_fields(device, json!({"total_memory": 4u64 << 30, "processes": 4}), "");
        }
    }
    // Without arguments `top` finds the processes too.
    let all = page::<&str>([]);
    for ((job, context), answer) in jobs.iter().zip(&answers) {
        assert_true(process(&all, job.pid()), answer, context);
    }
}

/// One reader follows the journal while the job runs. Whenever the job waits, a second reader reads the whole journal.
/// Both have the same figures.
#[test]
fn following_a_journal_gives_the_same_figures_as_reading_it_whole() {
    for (seed, strategy) in STRATEGIES.into_iter().enumerate() {
        let mut job = Paced::start(strategy, seed as u64 + 7, 4);
        job.tell("1");
        let journal = running::journal_of(job.pid()).expect("its journal");
        let mut watched = Watched::open(&journal, Some(job.pid())).expect("a journal");
        for moment in 0..6 {
            job.member.tell(if moment == 3 { "+20000" } else { "1500" });
            // Reads while the job runs. How far the reader gets is a matter of timing.
            for _ in 0..(moment + 1) * 20 {
                watched.follow().expect("a journal");
            }
            job.answer();
            while !watched.follow().expect("a journal") {}
            let inspected = inspect(&job.member.folder.path().join("journals")).remove(0);
            let context = format!("{strategy:?}, moment {moment}");
            for whole in inspected["devices"].list() {
                let levels = watched.figures.levels(whole["device"].as_i64().unwrap() as i16);
                let sums = [levels.requested, levels.allocated, levels.reserved];
                let current = ["requested", "allocated", "reserved"].map(|figure| whole[figure]["current"].number());
                assert_eq!(sums, current.map(i128::from), "{context}");
                let counts = ["live_count", "count"].map(|figure| whole[figure].number().into());
                assert_eq!([levels.live, levels.made], counts, "{context}");
            }
        }
    }
}

#[test]
fn a_forked_child_is_not_listed_with_its_parents_journal() {
    let mut job = Paced::start(AUTO_GROWTH, 3, 1);
    job.tell("50");
    let answer = job.tell("child");
    let child = answer.child.expect("a child");
    let page = page::<&str>([]);
    assert_true(process(&page, job.pid()), &answer, "the parent");
    let processes = page["processes"].list();
    assert!(processes.iter().all(|one| one["pid"] != child), "{page}");
    assert_eq!(top(["--once", &child.to_string()]).code, Some(1));
}

#[test]
fn a_journal_that_was_deleted_is_still_read() {
    let mut job = Paced::start(AUTO_GROWTH, 5, 1);
    job.tell("50");
    for journal in journals_in(&job.member.folder.path().join("journals")) {
        std::fs::remove_file(journal).unwrap();
    }
    let answer = job.tell("50");
    let page = page([job.pid().to_string()]);
    assert_true(process(&page, job.pid()), &answer, "deleted");
}

/// This process writes two journals, as two processes would that see one device under different ordinals.
#[test]
fn limits_are_shown_and_devices_are_known_by_their_uuid() {
    let folder = tempfile::tempdir().unwrap();
    let write = |device: i16, limit: Option<u64>, size: u64| {
        let about = About {
            strategy: "passthrough".into(),
            job: "limited\x1b[31m".into(),
            command_line: b"python\0train.py".to_vec(),
            ..About::default()
        };
        let journal = Journal::create(folder.path(), 1 << 20, about).unwrap();
        journal.device(&Device {
            ordinal: device.into(),
            total_memory: 80 << 30,
            uuid: [7; 16],
            name: "GPU\x1b[31m".into(),
            limit,
            ..Device::default()
        });
        let event = Event::Alloc(Allocation {
            requested: size,
            ..linear(4096, 512)
        });
        journal.write(event.encode(Api::cudaMalloc, device));
        journal
    };
    let _journals = [write(0, Some(8 << 30), 100), write(3, None, 23)];
    let page = page([folder.path()]);
    let processes = page["processes"].list();
    let mut told: Vec<(i64, Option<u64>)> = (processes.iter())
        .map(|process| &process["devices"][0])
        .map(|device| (device["device"].as_i64().unwrap(), device["limit"].as_u64()))
        .collect();
    told.sort_unstable();
    assert_eq!(told, [(0, Some(8 << 30)), (3, None)]);
    let devices = page["devices"].list();
    assert_eq!(devices.len(), 1, "{page}");
    assert_fields(&devices[0], json!({"requested": 123, "processes": 2}), "");
    let output = top([std::ffi::OsStr::new("--once"), folder.path().as_os_str()]);
    let text = &output.text;
    let fits = text.lines().all(|line| line.chars().count() <= 80);
    assert!(fits && text.contains("limit"), "{text}");
    assert!(!text.contains('\x1b'), "escape sequences reach the terminal: {text}");
}

#[test]
fn without_jobs_the_page_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let page = page([path]);
    for list in ["devices", "processes", "other_processes", "events"] {
        assert_eq!(page[list], json!([]), "{list} in {page}");
    }
    // A machine without GPUs lacks nothing.
    assert_eq!(page["nvml_problem"], Value::Null);
    top(["--once", path]).ok();
}

#[test]
fn wrong_arguments_and_what_is_missing_are_refused() {
    let mut other = Command::new("sleep").arg("60").spawn().expect("sleep");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"no journal").unwrap();
    let stranger = other.id().to_string();
    for (arguments, code) in [
        (&["--once", "--interval", "2s"][..], 2),
        (&["--interval", "1ms"], 2),
        (&["--interval", "soon"], 2),
        // Without `--once` a terminal is needed, and stdout is a pipe here.
        (&[], 2),
        (&["--once", "--json", "/nowhere/at/all"], 1),
        (&["--once", "--json", "1073741824"], 1),
        (&["--once", "--json", &stranger], 1),
        (&["--once", "--json", file.path().to_str().unwrap()], 1),
    ] {
        let output = top(arguments);
        let is_refused = output.code == Some(code) && output.text.is_empty();
        let named = code == 2 || output.said.contains(arguments[2]);
        assert!(is_refused && named, "{arguments:?}: {output:?}");
    }
    other.kill().and_then(|()| other.wait()).expect("a kill");
}
