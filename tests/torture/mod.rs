//! Random programs over all kinds of memory, while the driver fails, descriptors vanish, and processes die. Afterwards
//! four books agree to the byte: the program's own count, the library's ledger, the journal, and the simulated GPU's
//! table. The quota of the process counts what the simulated GPU counts.
//!
//! With VRAMSHIM_TEST_SEED the programs differ, and VRAMSHIM_TEST_TORTURE sets for how many seconds the test that is
//! marked as ignored runs (`scripts/torture`).

mod processes;
mod surroundings;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Finished, Job, STRATEGIES, Strategy, assert_whole, client};

/// Codes that a driver may answer: out of memory, an invalid value, and an unknown error.
const CODES: [u32; 3] = [2, 1, 999];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn seed() -> u64 {
    number("VRAMSHIM_TEST_SEED", 1)
}

fn path() -> PathBuf {
    client("torture/torture.c", "torture", &["libcuda.so.1"])
}

/// A program with a limit on each device, so that a quota counts.
fn program(seed: u64, steps: u32, threads: u32, words: &[&str]) -> Job {
    Job::new(path())
        .env("VRAMSHIM_MEMORY_LIMIT", "3GiB")
        .args([seed.to_string(), steps.to_string(), threads.to_string()])
        .args(words)
}

/// Checks what a program printed that shares its account with no other, and its journal.
fn check_alone(lines: &[Value], job: &Value, strategy: Strategy, context: &str) {
    assert_whole(lines, job, strategy, context);
    check_quotas(lines, context);
}

/// Checks that the quota of a process counts what the simulated GPU counts, if it shares its account with no other.
fn check_quotas(lines: &[Value], context: &str) {
    let last = lines.iter().rfind(|line| line.get("own").is_some()).unwrap();
    let end = lines.iter().find_map(|line| line.get("end")).expect("an end");
    for (device, limit) in end["limits"].as_array().unwrap().iter().enumerate() {
        let truth = &last["truth"]["devices"][device]["used_by_process"];
        assert_eq!(&limit["used"], truth, "quota of device {device}, {context}");
    }
}

/// Checks a program that ended, and returns how many faults it met.
fn check(finished: Finished, strategy: Strategy, context: &str) -> u64 {
    let status = finished.status;
    assert!(status.success(), "{context}: {status}\n{}", finished.stderr);
    let lines = finished.json();
    let end = lines.iter().find_map(|line| line.get("end")).expect("an end");
    // A forked child that asks has a journal of its own.
    let jobs = finished.inspect_all();
    let job = jobs.iter().find(|job| job["pid"] == end["pid"]);
    check_alone(&lines, job.expect("a journal"), strategy, context);
    end["faults"].as_u64().unwrap()
}

fn play(seed: u64, steps: u32) {
    let strategy = STRATEGIES[seed as usize % STRATEGIES.len()];
    let threads = [1, 2, 3, 8, 64][seed as usize / 4 % 5];
    let words: &[&str] = [&["wild"][..], &[], &["faults"], &["wild", "faults"]][seed as usize / 20 % 4];
    let context = format!("seed {seed}, {threads} threads, {words:?}, {}", strategy.name);
    let mut job = program(seed, steps / threads.min(8), threads, words).strategy(strategy);
    if words.contains(&"faults") {
        let code = CODES[seed as usize % CODES.len()];
        job = job.env("SIMGPU_FAULTS", format!("*:/{}={code}", 31 + seed % 97));
    }
    check(job.run(), strategy, &context);
}

#[test]
fn four_books_of_a_random_program_agree() {
    let first = seed() * 1000;
    (first..first + 80).for_each(|seed| play(seed, 240));
}

/// Runs a program one of whose calls fails, and returns how many faults it met.
fn with_fault(strategy: Strategy, code: u32, call: u64) -> u64 {
    let faults = format!("*:{call}={code}");
    let job = program(seed(), 60, 1, &["faults"]).strategy(strategy);
    let context = format!("SIMGPU_FAULTS={faults}, seed {}, {strategy:?}", seed());
    check(job.env("SIMGPU_FAULTS", &faults).run(), strategy, &context)
}

/// Lets the calls of the driver fail one at a time: call `first` in the first run, then every `stride` calls later,
/// until a run ends without the fault. Returns the number of runs. Fails after the last run.
fn sweep(strategy: Strategy, code: u32, first: u64, stride: usize) -> usize {
    let mut failures = Vec::new();
    let mut calls = (first..).step_by(stride).zip(1..);
    let runs = loop {
        let (call, runs) = calls.next().unwrap();
        match std::panic::catch_unwind(|| with_fault(strategy, code, call)) {
            Ok(0) => break runs,
            Ok(_) => {}
            Err(_) => failures.push(call),
        }
    };
    let what = format!("books are wrong after these calls failed with {code}, {strategy:?}");
    assert!(failures.is_empty(), "{what}: {failures:?}");
    runs
}

/// A stride that has no factor in common with the loops of the library meets all kinds of calls.
#[test]
fn a_call_of_the_driver_that_fails_leaves_the_books_right() {
    for (number, strategy) in STRATEGIES.into_iter().enumerate() {
        let runs = sweep(strategy, CODES[number % 3], 1 + number as u64, 37);
        assert!(runs > 5, "{strategy:?}: only {runs} calls failed");
    }
}

/// All of it, for as long as VRAMSHIM_TEST_TORTURE says.
#[test]
#[ignore = "takes minutes: scripts/torture"]
fn torture() {
    let whole = Duration::from_secs(number("VRAMSHIM_TEST_TORTURE", 600));
    let (half, end) = (Instant::now() + whole / 2, Instant::now() + whole);
    let mut round = seed() * 1000;
    println!("seed {}", seed());
    for code in CODES {
        for strategy in STRATEGIES.into_iter().rev() {
            if Instant::now() < half {
                let count = sweep(strategy, code, 1, 1);
                println!("{count} calls failed in turn with {code}, {strategy:?}");
            }
        }
    }
    while Instant::now() < end {
        play(round, 600);
        surroundings::play(round, 600);
        if round.is_multiple_of(20) {
            let count = number("VRAMSHIM_TEST_PROCESSES", 8) as usize;
            let crowd = processes::crowd(count, 2048 * support::MIB, false);
            processes::play(round, crowd, Duration::from_secs(5));
        }
        round += 1;
    }
    println!("{} programs", round - seed() * 1000);
}
