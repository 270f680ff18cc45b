//! The guard of requests for memory of a device, and of pinned and managed memory.

use std::process::Command;

use crate::guards::host::guard;
use serde_json::{Value, json};
use support::layer::FORMS;
use support::{
    AUTO_GROWTH, Fields, Finished, Job, NAIVE_BEST_FIT, PASSTHROUGH, Runs, assert_fields, assert_says, client, program,
};

fn job(scene: &str) -> Job {
    let job = Job::new(client("guards/requests.c", "guard-requests", &["-DDLOPEN"])).sim("4GiB", 1);
    job.env("SIMGPU_COUNTS", "1").args([scene])
}

fn why(finished: &Finished) -> (Option<i32>, Value, String) {
    let run = |more: &[&str]| {
        let mut command = Command::new(program());
        command
            .arg("why")
            .arg(finished.folder.path().join("journals"))
            .args(more);
        command.printed()
    };
    let (text, json) = (run(&[]), run(&["--json"]));
    let page = json.json();
    (text.code, page, text.text)
}

/// `asked` and `searched`: calls that reached the simulated GPU while the requests were made.
fn assert_refused(finished: &Finished, of_device: u64, of_host: u64) {
    let told = &finished.json()[0];
    assert_fields(
        told,
        json!({"asked": 0, "searched": 0}),
        &format!("nobody may be asked: {told}"),
    );
    assert_fields(told, json!({"refused": of_device, "refused_host": of_host}), "");
    let failed = finished.inspect()["failed"].clone();
    let sum = |field: &str| failed.list().iter().map(|row| row[field].number()).sum::<u64>();
    assert_eq!(sum("refused_by_guard"), of_device + of_host, "{failed}");
    assert_eq!(sum("refused_by_limit"), 0, "{failed}");
}

#[test]
fn passthrough_asks_the_driver_without_a_setting() {
    let finished = job("none").strategy(PASSTHROUGH).run().ok();
    let told = &finished.json()[0];
    assert_eq!(
        (told["refused"].clone(), told["failures"].clone()),
        (0.into(), 7.into()),
        "{told}"
    );
    assert!(told["asked"].number() >= 6, "{told}");
    assert!(!finished.stderr.contains("guard"), "{}", finished.stderr);
}

#[test]
fn under_a_strategy_nothing_larger_than_the_device_is_looked_for() {
    for strategy in [AUTO_GROWTH, NAIVE_BEST_FIT] {
        let finished = job("device").strategy(strategy).run().ok();
        assert_refused(&finished, 6, 0);
        let stderr = &finished.stderr;
        assert_says(
            &stderr,
            "Out of memory error on GPU 0. Cannot allocate 8.00 GiB memory on GPU 0: the library's guard",
        );
        assert_says(&stderr, "8.00 GiB were asked for, and the device has 4.00 GiB in all");
    }
}

#[test]
fn a_setting_bounds_every_kind_of_memory_under_every_strategy() {
    for strategy in [PASSTHROUGH, AUTO_GROWTH, NAIVE_BEST_FIT] {
        let finished = job("setting")
            .strategy(strategy)
            .env("VRAMSHIM_MAX_REQUEST", "1GiB")
            .run()
            .ok();
        assert_refused(&finished, 13, 1);
    }
}

#[test]
fn a_damaged_length_costs_no_cache_and_why_names_the_guard() {
    let finished = job("damaged").strategy(AUTO_GROWTH).run().ok();
    assert_refused(&finished, 1, 0);
    let finished = job("damaged")
        .env("VRAMSHIM_MAX_REQUEST", "2GiB")
        .strategy(PASSTHROUGH)
        .run()
        .ok();
    let (_, page, text) = why(&finished);
    let failure = &page["why"]["failure"];
    assert_eq!(failure["guard"]["of_device"], true, "{text}");
    assert!(
        text.contains("refused by the guard") || text.contains("guard"),
        "{text}"
    );
}

#[test]
fn a_layer_may_serve_more_than_the_device_has() {
    let finished = job("none").over(FORMS[0], "3GiB", &[]).strategy(AUTO_GROWTH).run();
    let told = &finished.json()[0];
    assert_eq!(told["refused"], 0, "{told}");
}

#[test]
fn a_job_that_dies_of_a_refused_malloc_has_a_verdict() {
    let finished = job("malloc")
        .preload(guard())
        .env("VRAMSHIM_HOST_GUARD", "256GiB")
        .strategy(PASSTHROUGH)
        .run();
    let (code, page, text) = why(&finished);
    assert_eq!((code, &page["why"]["verdict"]), (Some(19), &"guard".into()), "{text}");
    for words in [
        "896.1 GiB were asked for, and VRAMSHIM_HOST_GUARD is 256.0 GiB. The host guard refused it",
        "malloc of 896.1 GiB of the host's memory, refused by the host guard",
        "raise VRAMSHIM_HOST_GUARD",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let page = finished.inspect();
    let failed = page["failed"].list();
    let of_malloc = failed.iter().find(|row| row["api"] == "malloc").expect("the call");
    assert_eq!(of_malloc["refused_by_guard"], 1, "{of_malloc}");
    assert_eq!(of_malloc["result"], "ENOMEM", "what the caller got");
    // It asked for no memory of a GPU.
    let journals = finished.folder.path().join("journals");
    let mut serve = Command::new(program());
    let served = serve.args(["serve", "--once", "--dir"]).arg(journals).printed();
    let metrics = served.text;
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
    let finished = job("dies")
        .env("VRAMSHIM_MAX_REQUEST", "2GiB")
        .env("VRAMSHIM_STACKS", "native")
        .strategy(AUTO_GROWTH)
        .run();
    let (code, page, text) = why(&finished);
    assert_eq!((code, &page["why"]["verdict"]), (Some(19), &"guard".into()), "{text}");
    let export = Command::new(program())
        .args(["export", "--to", "csv", "-o", "-"])
        .args(finished.journals())
        .output();
    let rows = String::from_utf8(export.expect("export").stdout).unwrap();
    let failed = rows.lines().find(|row| row.contains(",allocate failure,"));
    let failed = failed.unwrap_or_else(|| panic!("the failure: {rows}"));
    assert!(failed.contains("linear") && failed.contains("requests.c"), "{failed}");
}
