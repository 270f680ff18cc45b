//! The ledger agrees with the clients' own count and with what the simulated driver really holds: every client, every
//! strategy, every class, every device, byte for byte.

mod common;

use std::path::Path;

use common::{Job, assert_checkpoints, compile_to, only_job, scratch, simgpu, sums};
use serde_json::Value;

/// Strategies with the settings that make them work hard.
const STRATEGIES: &[(&str, &[(&str, &str)])] = &[
    ("passthrough", &[]),
    ("naive_best_fit", &[("FLAGS_initial_gpu_memory_in_mb", "256"), ("FLAGS_reallocate_gpu_memory_in_mb", "16")]),
    ("auto_growth", &[]),
    ("auto_growth", &[("FLAGS_auto_growth_chunk_size_in_mb", "8"), ("FLAGS_free_idle_chunk", "true")]),
    ("auto_growth", &[("FLAGS_free_when_no_cache_hit", "1")]),
];

fn each_strategy(run: impl Fn(&str, &[(&str, &str)])) {
    for (strategy, variables) in STRATEGIES {
        run(strategy, variables);
    }
}

/// Runs a client under a strategy, compares every checkpoint, and the journal with the last of them.
fn agrees(client: &Path, arguments: &[&str], strategy: &str, variables: &[(&str, &str)], least: usize) -> Value {
    let folder = scratch();
    let name = client.file_name().unwrap().to_string_lossy().into_owned();
    let context = format!("{name} {arguments:?} {strategy} {variables:?}");
    let mut job = Job::new(client, folder.path()).strategy(strategy);
    for (variable, value) in variables {
        job = job.env(variable, value);
    }
    for argument in arguments {
        job = job.arg(argument);
    }
    let journals = job.journals();
    let checkpoints = assert_checkpoints(&job.run(), least, &context);
    let job = only_job(&journals);
    assert_eq!(job["ended"], "exit", "{context}");
    assert_eq!(job["events_lost"], 0, "{context}");
    assert_eq!(job["anomalies"], 0, "{context}: {}", job["anomaly_kinds"]);
    assert_eq!(job["strategy"], strategy, "{context}");
    same_as_account(&job, checkpoints.last().unwrap(), &context);
    job
}

/// What the journal says was held at the end is what the account said at the last checkpoint.
fn same_as_account(job: &Value, checkpoint: &Value, context: &str) {
    let mut read = Vec::new();
    for device in job["devices"].as_array().unwrap() {
        for class in device["classes"].as_array().unwrap() {
            let mut entry = class.clone();
            entry["device"] = device["device"].clone();
            read.push(entry);
        }
    }
    if let Some(classes) = job["host_memory"]["classes"].as_array() {
        for class in classes {
            let mut entry = class.clone();
            entry["device"] = (-1).into();
            read.push(entry);
        }
    }
    let read = Value::from(read);
    for kind in ["requested", "allocated", "reserved"] {
        let current = |one: &Value| one[kind]["current"].as_u64().unwrap();
        let account = sums(&checkpoint["account"]["totals"], current);
        assert_eq!(sums(&read, current), account, "{context}: {kind} in the journal");
    }
    let live: u64 = job["live"].as_array().unwrap().iter().map(|one| one["size"].as_u64().unwrap()).sum();
    let graph = |one: &Value| if one["class"] == "graph" { 0 } else { one["requested"].as_u64().unwrap() };
    let own: u64 = sums(&checkpoint["own"], graph).values().sum();
    assert_eq!(live, own, "{context}: live at the end");
}

#[test]
fn a_linked_client_with_one_thread() {
    let folder = scratch();
    let client = folder.path().join("exercise");
    compile_to(&client, "exercise.c", &["-lcuda"]);
    each_strategy(|strategy, variables| {
        for seed in ["1", "2", "3"] {
            agrees(&client, &[seed, "800", "1"], strategy, variables, 20);
        }
    });
}

#[test]
fn a_linked_client_with_four_threads() {
    let folder = scratch();
    let client = folder.path().join("exercise");
    compile_to(&client, "exercise.c", &["-lcuda"]);
    each_strategy(|strategy, variables| {
        for seed in ["4", "5", "6", "7", "8"] {
            agrees(&client, &[seed, "1200", "4"], strategy, variables, 30);
        }
    });
}

#[test]
fn a_client_that_looks_everything_up() {
    let folder = scratch();
    for road in ["-DDLOPEN", "-DPROC"] {
        let client = folder.path().join(format!("exercise{road}"));
        compile_to(&client, "exercise.c", &[road]);
        each_strategy(|strategy, variables| {
            agrees(&client, &["9", "800", "1"], strategy, variables, 20);
            agrees(&client, &["10", "800", "3"], strategy, variables, 20);
        });
    }
}

#[test]
fn a_runtime_client_is_recorded_once_under_the_names_it_called() {
    let folder = scratch();
    for major in ["12", "13"] {
        let client = folder.path().join(format!("runtime{major}"));
        let runtime = simgpu(&format!("libcudart.so.{major}"));
        compile_to(&client, "runtime.c", &[runtime.to_str().unwrap()]);
        each_strategy(|strategy, variables| {
            let job = agrees(&client, &[], strategy, variables, 3);
            let apis = job["apis"].as_array().unwrap();
            let calls = |name: &str| apis.iter().find(|api| api["api"] == name).map(|api| api["calls"].as_u64().unwrap());
            assert_eq!(calls("cudaMalloc"), Some(12), "{apis:?}");
            assert_eq!(calls("cudaFree"), Some(6), "{apis:?}");
            assert_eq!(calls("cudaMallocHost"), Some(2), "{apis:?}");
            assert_eq!(calls("cudaMallocAsync"), Some(2), "{apis:?}");
            let driver = apis.iter().any(|api| api["api"].as_str().unwrap().starts_with("cuM"));
            assert!(!driver, "a driver call of the runtime's own was recorded: {apis:?}");
        });
    }
}

#[test]
fn a_rust_client_through_cudarc() {
    // Built beside the tests by cargo, as an example.
    let test = std::env::current_exe().unwrap();
    let client = test.parent().unwrap().parent().unwrap().join("examples/cudarc_client");
    assert!(client.exists(), "{}: build with cargo test", client.display());
    each_strategy(|strategy, variables| {
        agrees(&client, &[], strategy, variables, 3);
    });
}

#[test]
fn a_fault_at_each_driver_call_loses_no_byte() {
    let folder = scratch();
    let client = folder.path().join("faults");
    compile_to(&client, "faults.c", &["-lcuda"]);
    for function in ["cuMemAlloc", "cuMemFree", "cuCtxSynchronize", "cuMemGetInfo"] {
        for call in 1..=12 {
            let fault = format!("{function}:{call}=2");
            each_strategy(|strategy, variables| {
                let mut variables = variables.to_vec();
                variables.push(("SIMGPU_FAULTS", &fault));
                agrees(&client, &[], strategy, &variables, 3);
            });
        }
    }
}
