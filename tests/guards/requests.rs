//! The guard of requests for memory of a device, and of pinned and managed memory.

use crate::deaths::{Told, why};
use crate::guards::host::guard;
use serde_json::json;
use support::layer::FORMS;
use support::{
    AUTO_GROWTH, Fields, Finished, Job, NAIVE_BEST_FIT, PASSTHROUGH, assert_fields, assert_says, client, vramshim_with,
};

fn job(scene: &str) -> Job {
    let job = Job::new(client("guards/requests.c", "guard-requests", &["-DDLOPEN"])).sim("4GiB", 1);
    job.env("SIMGPU_COUNTS", "1").args([scene])
}

/// `asked` and `searched`: calls that reached the simulated GPU while the requests were made.
fn assert_refused(finished: &Finished, of_device: u64, of_host: u64) {
    let wanted = json!({"asked": 0, "searched": 0, "refused": of_device, "refused_host": of_host});
    assert_fields(&finished.json()[0], wanted, "nobody may be asked");
    let failed = finished.inspect()["failed"].clone();
    let sum = |field: &str| failed.list().iter().map(|row| row[field].number()).sum::<u64>();
    assert_eq!(sum("refused_by_guard"), of_device + of_host, "{failed}");
    assert_eq!(sum("refused_by_limit"), 0, "{failed}");
}

#[test]
fn passthrough_asks_the_driver_without_a_setting() {
    let finished = job("none").strategy(PASSTHROUGH).run().ok();
    let told = &finished.json()[0];
    assert_fields(told, json!({"refused": 0, "failures": 7}), "");
    assert!(told["asked"].number() >= 6, "{told}");
    assert!(!finished.stderr.contains("guard"), "{}", finished.stderr);
}

#[test]
fn under_a_strategy_nothing_larger_than_the_device_is_looked_for() {
    for strategy in [AUTO_GROWTH, NAIVE_BEST_FIT] {
        let finished = job("device").strategy(strategy).run().ok();
        assert_refused(&finished, 6, 0);
        let told = "8.00 GiB were asked for, and the device has 4.00 GiB in all";
        assert_says(&finished.stderr, told);
    }
}

#[test]
fn a_setting_bounds_every_kind_of_memory_under_every_strategy() {
    for strategy in [PASSTHROUGH, AUTO_GROWTH, NAIVE_BEST_FIT] {
        let job = job("setting").strategy(strategy).env("VRAMSHIM_MAX_REQUEST", "1GiB");
        assert_refused(&job.run().ok(), 13, 1);
    }
}

#[test]
fn a_damaged_length_costs_no_cache_and_why_names_the_guard() {
    let finished = job("damaged").strategy(AUTO_GROWTH).run().ok();
    assert_refused(&finished, 1, 0);
    let job = job("damaged").env("VRAMSHIM_MAX_REQUEST", "2GiB");
    let Told { text, page, .. } = why(&job.strategy(PASSTHROUGH).run().ok());
    let failure = &page["why"]["failure"];
    assert_eq!(failure["guard"]["of_device"], true, "{text}");
}

#[test]
fn a_layer_may_serve_more_than_the_device_has() {
    let finished = job("none").over(FORMS[0], "3GiB", &[]).strategy(AUTO_GROWTH).run();
    let told = &finished.json()[0];
    assert_eq!(told["refused"], 0, "{told}");
}

#[test]
fn a_job_that_dies_of_a_refused_malloc_has_a_verdict() {
    let job = job("malloc").preload(guard()).strategy(PASSTHROUGH);
    let finished = job.env("VRAMSHIM_HOST_GUARD", "256GiB").run();
    let Told { code, text, page, .. } = why(&finished);
    assert_eq!((code, &page["why"]["verdict"]), (Some(19), &"guard".into()), "{text}");
    let page = finished.inspect();
    let failed = page["failed"].list();
    let of_malloc = failed.iter().find(|row| row["api"] == "malloc").expect("the call");
    assert_eq!(of_malloc["refused_by_guard"], 1, "{of_malloc}");
    assert_eq!(of_malloc["result"], "ENOMEM", "what the caller got");
    // It asked for no memory of a GPU.
    let metrics = finished.told(&["serve", "--once", "--dir"]).text;
    for line in [
        "vramshim_node_allocation_failures_total{kind=\"host_guard\"} 1",
        "vramshim_node_allocation_failures_total{kind=\"out_of_memory\"} 0",
        "vramshim_node_allocation_failures_total{kind=\"other\"} 1",
        "paddle_gpu_malloc_failed_total 1",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line} in {metrics}");
    }
}

#[test]
fn a_job_that_dies_of_a_refused_request_has_a_verdict_and_the_stack() {
    let job = job("dies").env("VRAMSHIM_MAX_REQUEST", "2GiB").strategy(AUTO_GROWTH);
    let finished = job.env("VRAMSHIM_STACKS", "native").run();
    let Told { code, text, page, .. } = why(&finished);
    assert_eq!((code, &page["why"]["verdict"]), (Some(19), &"guard".into()), "{text}");
    let rows = vramshim_with(&["export", "--to", "csv", "-o", "-"], finished.journals()).text;
    let failed = rows.lines().find(|row| row.contains(",allocate failure,"));
    let failed = failed.unwrap_or_else(|| panic!("the failure: {rows}"));
    assert!(failed.contains("linear") && failed.contains("requests.c"), "{failed}");
}
