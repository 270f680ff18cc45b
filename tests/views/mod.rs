//! The views of journals with known answers, and of real jobs over the simulated GPU.

pub mod agree;
mod names;
mod running;
mod runs;
mod tensors;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use support::made::Made;
use support::training::{self, Plan, Truth};
use support::{Fields, Job, MIB, Printed, Runs, assert_fields, assert_says, client};
use tempfile::TempDir;

const STRATEGIES: [&str; 2] = ["passthrough", "auto_growth"];

fn inspect(path: &Path, arguments: &[&str]) -> Printed {
    let mut command = Command::new(support::program());
    command
        .env_remove("NO_COLOR")
        .envs([("TERM", "xterm"), ("COLUMNS", "100")]);
    command.arg("inspect").arg(path).args(arguments).printed()
}

fn text(path: &Path, arguments: &[&str]) -> String {
    inspect(path, arguments).ok().text
}

fn json(path: &Path, arguments: &[&str]) -> Value {
    inspect(path, &[arguments, &["--json"]].concat()).ok().json()
}

fn generated(plan: Plan) -> (TempDir, PathBuf, Truth) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("training.vraj");
    let truth = training::write(&path, &plan).unwrap();
    (folder, path, truth)
}

/// A job of some steps that leaks, and dies for lack of memory.
fn leaking(strategy: &str) -> Plan {
    Plan {
        events: 12_000,
        strategy: strategy.into(),
        leak: 3 << 20,
        out_of_memory: true,
        ..Plan::default()
    }
}

fn device<'a>(page: &'a Value, view: &str) -> &'a Value {
    let devices = page["jobs"][0][view]["devices"].list();
    devices.iter().find(|device| device["device"] == 0).unwrap()
}

fn sum(holders: &Value, field: &str) -> u64 {
    holders.list().iter().map(|holder| holder[field].number()).sum()
}

#[test]
fn the_peak_is_right_to_the_byte_by_any_grouping() {
    for strategy in STRATEGIES {
        let (_folder, path, truth) = generated(leaking(strategy));
        for by in ["stack", "size", "api", "thread", "stream"] {
            let page = json(&path, &["--at", "peak", "--top", by]);
            let device = device(&page, "at");
            assert_eq!(device["by"], by);
            assert_eq!(device["allocated"], truth.peak, "{strategy} by {by}");
            assert_eq!(device["time_ns"], truth.peak_ns, "{strategy} by {by}");
            assert_eq!(sum(&device["holders"], "bytes"), truth.peak, "{strategy} by {by}");
        }
        let page = json(&path, &["--top", "size"]);
        for holder in device(&page, "at")["holders"].list() {
            let each = holder["requested"].number() / holder["count"].number();
            let (bytes, count) = truth.sizes_at_peak[&each];
            assert_fields(holder, json!({"bytes": bytes, "count": count}), &format!("{each}"));
        }
    }
}

#[test]
fn every_moment_can_be_named() {
    let (_folder, path, truth) = generated(leaking("auto_growth"));
    let allocated = |when: &str| device(&json(&path, &["--at", when]), "at")["allocated"].clone();
    assert_eq!(allocated("end"), truth.live_bytes);
    assert_eq!(allocated("oom"), truth.live_bytes, "the failure is the last event");
    assert_eq!(allocated("mark:step"), truth.marks.last().unwrap().1);
    let (time_ns, bytes) = truth.marks[3];
    assert_eq!(allocated(&format!("{time_ns}ns")), bytes);
}

#[test]
fn stacks_are_named_by_the_line_and_missing_ones_are_explained() {
    let (_folder, path, _) = generated(leaking("auto_growth"));
    assert_says(&text(&path, &["--top", "stack"]), "model.py:11 embedding");

    let mut plan = leaking("auto_growth");
    plan.annotated = false;
    let (_folder, path, truth) = generated(plan);
    let page = json(&path, &["--top", "stack"]);
    assert_eq!(device(&page, "at")["by"], "size", "size is what is left to group by");
    assert_eq!(sum(&device(&page, "at")["holders"], "bytes"), truth.peak);
}

#[test]
fn leaks_and_growth_name_what_stays_a_step() {
    for strategy in STRATEGIES {
        let mut plan = leaking(strategy);
        plan.events = 100_000;
        let (_folder, path, truth) = generated(plan);
        assert!(truth.steps > 64, "of so many marks a part is looked at");
        let page = json(&path, &["--leaks", "--growth"]);
        let leaks = device(&page, "leaks");
        assert_eq!(leaks["suspected_bytes"], truth.leaked, "{strategy}");
        assert_eq!(leaks["allocated"], truth.live_bytes);
        assert_eq!(leaks["holders"][0]["stack"][0]["function"], "remember_loss");
        let growth = &page["jobs"][0]["growth"];
        assert_eq!(growth["at_marks"], true);
        let holders = growth["holders"].list();
        assert_eq!(holders.len(), 1, "nothing else grows: {growth}");
        assert_eq!(holders[0]["bytes_a_step"], (3u64 << 20) as f64);
        let seconds = growth["seconds_to_limit"].as_f64().unwrap();
        let pace = growth["bytes_a_second"].as_f64().unwrap();
        assert!((seconds * pace - ((80u64 << 30) - truth.peak) as f64).abs() < 1e6);
    }
    let (_folder, path, _) = generated(Plan {
        events: 12_000,
        ..Plan::default()
    });
    let page = json(&path, &["--leaks", "--growth"]);
    assert_eq!(device(&page, "leaks")["suspected_bytes"], 0);
    assert_eq!(page["jobs"][0]["growth"]["holders"].list().len(), 0);
}

#[test]
fn a_job_that_only_allocates_does_not_grow() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = support::made::Made::new(folder.path(), 1, 1).unwrap();
    for _ in 0..200 {
        job.alloc(0, 1 << 20, 0).unwrap();
        job.wait(1_000_000);
    }
    let path = job.end(Some(0)).unwrap();
    let growth = &json(&path, &["--growth"])["jobs"][0]["growth"];
    assert_fields(growth, json!({"repeats_itself": false, "holders": []}), "");
}

/// A job may take long to end after it ran out of memory. What grew until then is no less a leak.
#[test]
fn a_leak_is_one_also_if_the_job_lingers_after_the_failure() {
    let mut plan = leaking("passthrough");
    plan.lingers_ns = 3_600_000_000_000;
    let (_folder, path, truth) = generated(plan);
    let page = json(&path, &["--leaks"]);
    assert_eq!(device(&page, "leaks")["suspected_bytes"], truth.leaked);
}

#[test]
fn growth_is_found_without_marks() {
    let mut plan = leaking("passthrough");
    plan.annotated = false;
    let (_folder, path, truth) = generated(plan);
    let growth = &json(&path, &["--growth"])["jobs"][0]["growth"];
    assert_eq!(growth["at_marks"], false);
    let holders = growth["holders"].list();
    assert_eq!(holders.len(), 1, "{growth}");
    let (from, to) = (&holders[0]["from"], &holders[0]["to"]);
    assert!(from.as_u64() < to.as_u64() && to.number() <= truth.leaked);
}

#[test]
fn a_diff_is_signed_and_fails_above_a_share() {
    let (_one, before, small) = generated(leaking("auto_growth"));
    let mut plan = leaking("auto_growth");
    plan.scale = 2;
    let (_two, after, large) = generated(plan);
    let other = after.to_str().unwrap();
    let page = json(&before, &["--diff", other]);
    let diff = &page["diff"];
    assert_eq!(diff["before"]["peak_allocated"], small.peak);
    assert_eq!(diff["after"]["peak_allocated"], large.peak);
    let holders = diff["holders"].list().iter();
    let changes = holders.map(|holder| holder["change"].as_i64().unwrap());
    assert_eq!(changes.sum::<i64>(), large.peak as i64 - small.peak as i64);
    let code = |from: &Path, to: &Path| inspect(from, &["--diff", to.to_str().unwrap(), "--fail-above", "5%"]).code;
    assert_eq!(code(&before, &after), Some(3));
    assert_eq!(code(&after, &before), Some(0), "less is no failure");
    assert_eq!(code(&before, &before), Some(0));
}

#[test]
fn the_views_of_ranks_are_shown_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut peaks = Vec::new();
    for rank in 0..3 {
        let path = folder.path().join(format!("rank{rank}.vraj"));
        let mut plan = leaking("auto_growth");
        (plan.rank, plan.scale) = ((rank, 3), if rank == 2 { 2 } else { 1 });
        peaks.push(training::write(&path, &plan).unwrap().peak);
    }
    let page = json(folder.path(), &["--top", "stack"]);
    let jobs = page["jobs"].list().iter();
    let sums = jobs.map(|job| sum(&job["at"]["devices"][0]["holders"], "bytes"));
    assert_eq!(sums.collect::<Vec<_>>(), peaks);
}

#[test]
fn wrong_options_are_refused() {
    let (_folder, path, _) = generated(Plan::default());
    for (arguments, code) in [
        (&["--at", "yesterday"][..], 2),
        (&["--at", "5"], 2),
        (&["--at", "mark:"], 2),
        (&["--top", "colour"], 2),
        (&["--top", "0"], 2),
        (&["--diff", "/nowhere.vraj", "--fail-above", "5"], 2),
        (&["--diff", "/nowhere.vraj", "--fail-above=-5%"], 2),
        // Nothing to compare with.
        (&["--fail-above", "5%"], 2),
        (&["--diff", "/nowhere.vraj"], 1),
        (&["--at", "mark:epoch"], 1),
    ] {
        let output = inspect(&path, arguments);
        assert_eq!(output.code, Some(code), "{arguments:?}: {}", output.said);
    }
}

/// A job that was killed before it gave a sign of life has no end in its header.
#[test]
fn the_growth_of_a_job_is_seen_however_it_ended() {
    let rates = [Some(0), None].map(|exit| {
        let folder = tempfile::tempdir().unwrap();
        let mut job = Made::new(folder.path(), 70, 0).unwrap();
        for _ in 0..300 {
            let step: Vec<u64> = (0..4).map(|_| job.alloc(0, 100 * MIB, 0).unwrap()).collect();
            job.alloc(0, MIB, 0).unwrap();
            for block in step {
                job.free(0, block, 100 * MIB).unwrap();
            }
        }
        let path = job.end(exit).unwrap();
        let holders = json(&path, &["--growth"])["jobs"][0]["growth"]["holders"].clone();
        assert_eq!(holders.list().len(), 1, "{exit:?}: {holders}");
        holders[0]["bytes_a_step"].as_f64().expect("a rate")
    });
    // The ends are a millisecond apart, so the parts of the time begin at other events.
    assert!((rates[0] / rates[1] - 1.0).abs() < 0.01, "{rates:?}");
}

#[test]
fn the_views_of_a_real_job_agree_with_its_own_counts() {
    let path = client("support/clients/exercise.c", "viewed", &["libcuda.so.1"]);
    for strategy in support::STRATEGIES {
        let finished = Job::new(&path).strategy(strategy).args(["7", "400", "2"]).run().ok();
        let page = finished.inspect();
        let all = &page["devices"][0];
        let journal = finished.journals().remove(0);
        let views = json(&journal, &["--at", "end", "--top", "api", "--leaks"]);
        let end = device(&views, "at");
        assert_eq!(end["allocated"], all["allocated"]["current"], "{strategy:?}");
        assert_eq!(end["requested"], all["requested"]["current"], "{strategy:?}");
        let graphs = end["graphs"].number();
        assert_eq!(sum(&end["holders"], "bytes") + graphs, end["allocated"].number());
        let views = json(&journal, &["--at", "peak", "--top", "size"]);
        let peak = device(&views, "at");
        assert_eq!(peak["allocated"], all["allocated"]["peak"], "{strategy:?}");
    }
}
