//! Runs every client under every strategy. At every checkpoint three counts agree byte for byte: the client's own, the
//! simulator's table, and the library's ledger. Afterwards the journal shows the same numbers.

mod cudarc_client;

use serde_json::Value;
use support::{Fields, Finished, Job, STRATEGIES, Strategy, assert_whole, client, simulated, tests};

/// Checks a finished job: its checkpoints, its journal, and the list of allocations that it did not free.
fn check(finished: Finished, strategy: Strategy, context: &str) -> Value {
    let finished = finished.ok();
    let lines = finished.json();
    let job = finished.inspect();
    assert_whole(&lines, &job, strategy, context);
    job
}

/// Runs `exercise`, and returns what `inspect --json` says of it.
fn exercise(variant: &str, strategy: Strategy, arguments: [u32; 3], with: impl Fn(Job) -> Job) -> Value {
    let flag = match variant {
        "linked" => "libcuda.so.1",
        "dlopen" => "-DDLOPEN",
        _ => "-DPROC",
    };
    let path = client("support/clients/exercise.c", variant, &[flag]);
    let context = format!("{variant} {strategy:?} {arguments:?}");
    let job = Job::new(path).args(arguments.map(|number| number.to_string()));
    check(with(job.strategy(strategy)).run(), strategy, &context)
}

fn agrees(variant: &str, threads: &[u32]) {
    for (seed, strategy) in (0..).zip(STRATEGIES) {
        for &threads in threads {
            exercise(variant, strategy, [seed, 400, threads], |job| job);
        }
    }
}

tests! {
    a_linked_client_agrees => agrees("linked", &[1, 3]);
    a_client_through_dlsym_agrees => agrees("dlopen", &[1, 3]);
    a_client_through_get_proc_address_agrees => agrees("proc", &[1]);
}

/// A request that the next layer refuses changes no total of any class.
#[test]
fn failures_of_the_next_layer_leave_the_account_right() {
    for strategy in STRATEGIES {
        let faults = |job: Job| job.env("SIMGPU_FAULTS", "cuMemAlloc:/5=2,cuMemCreate:/3=2");
        let told = exercise("linked", strategy, [7, 400, 2], faults);
        // Failures are records too.
        assert!(told["failed_calls"].number() > 10, "{strategy:?}");
    }
}

/// The device is full most of the time.
#[test]
fn a_full_device_leaves_the_account_right() {
    for strategy in STRATEGIES {
        let full = |job: Job| job.sim("10MiB", 2).env("SIMGPU_POOL_CHUNK", "2MiB");
        let told = exercise("linked", strategy, [11, 2000, 1], full);
        let full = told["failed"].list().iter().filter(|one| one["code"] == 2).count();
        assert!(full > 6, "{strategy:?}: the device was full for only {full} APIs");
    }
}

fn runtime(number: u32) {
    let library = format!("libcudart.so.{number}");
    let path = client("support/clients/runtime.c", &format!("runtime{number}"), &[&library]);
    for strategy in STRATEGIES {
        let context = format!("runtime {number} {strategy:?}");
        let finished = Job::new(&path).strategy(strategy).args(["5", "600"]).run();
        let calls = finished.json().into_iter().find_map(|line| line.get("calls").cloned());
        let calls = calls.unwrap_or_else(|| panic!("{context}: {}", finished.stderr));
        let job = check(finished, strategy, &context);
        // A runtime call of the client makes one record, under the name of the runtime function. The driver calls
        // inside the runtime make no records.
        let told = job["apis"].list().iter();
        let told = told.map(|api| (api["api"].text().to_owned(), api["calls"].clone()));
        assert_eq!(Value::Object(told.collect()), calls, "{context}");
    }
}

tests! {
    a_client_of_runtime_12_agrees => runtime(12);
    a_client_of_runtime_13_agrees => runtime(13);
}

/// The simulated GPU preloads a runtime of each major version. The journal names the one that the job is linked with.
#[test]
fn the_journal_names_the_runtime_that_the_job_uses() {
    let of = |path: &std::path::Path| {
        let preloads = ["libcudart.so.12", "libcudart.so.13"].map(simulated);
        let job = preloads.into_iter().fold(Job::new(path), Job::preload);
        job.args(["5", "50"]).run().ok().inspect()["software"]["runtime"].clone()
    };
    for (number, version) in [(12, "12.8"), (13, "13.0")] {
        let library = format!("libcudart.so.{number}");
        let path = client("support/clients/runtime.c", &format!("runtime{number}"), &[&library]);
        assert_eq!(of(&path), version);
    }
    // A job that looks its runtime up may use either.
    let path = client("counts/looked_up.c", "looked_up", &[]);
    assert_eq!(of(&path), "12.8, 13.0");
}

#[test]
fn a_client_in_rust_agrees() {
    for strategy in STRATEGIES {
        let job = Job::new(std::env::current_exe().unwrap()).strategy(strategy);
        let job = job.args(["--exact", "counts::cudarc_client::client", "--ignored", "--nocapture"]);
        check(job.run(), strategy, &format!("cudarc {strategy:?}"));
    }
}
