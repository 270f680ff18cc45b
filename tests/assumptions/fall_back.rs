//! If an assumption does not hold, `vramshim doctor --assumptions` says so, and the next job does without what needs
//! it. Switches of the simulated GPU break assumptions.

use std::ops::RangeBounds;
use std::path::Path;

use serde_json::Value;
use support::{
    AUTO_GROWTH, Fields, Finished, Job, NAIVE_BEST_FIT, Strategy, THREE, assert_all_agree, assert_says, client,
    program, tests,
};

use crate::assumptions::{LIMIT, TRIES, executable};

type Switch = (&'static str, &'static str);

fn with(job: Job, switches: &[Switch], state: &Path) -> Job {
    let job = job.sim("8GiB", 2).envs(&[("SIMGPU_DELAYED", "1")]).envs(switches);
    job.env("XDG_STATE_HOME", state)
}

/// Asks again, at most twice, until the answers are as `wanted`. On a busy machine a probe can stand still for 100 ms, and
/// then it takes a call that returns at once for one that waits. The last answers are those that are stored.
fn doctor(time: &str, switches: &[Switch], state: &Path, wanted: &dyn Fn(&Value, Option<i32>) -> bool) -> Value {
    for left in (0..TRIES).rev() {
        let job = with(Job::new(program()).alone(), switches, state).env("VRAMSHIM_PROBES", executable());
        let finished = job
            .limit(LIMIT)
            .args(["doctor", "--assumptions", "--json", "--timeout", time])
            .run();
        let page = serde_json::from_str(&finished.stdout);
        let page: Value = page.unwrap_or_else(|error| panic!("{error}: {}", finished.stderr));
        if wanted(&page, finished.status.code()) {
            return page;
        }
        assert!(left > 0, "{switches:?}: {:?}: {page}", finished.status);
        println!("{switches:?}: asked again after {page}");
    }
    unreachable!("the last try")
}

/// Whether this strategy does without something, in these words and because of this assumption.
fn does_without(page: &Value, strategy: Strategy, words: &str, broken: &str) -> bool {
    let told = page["strategies"].list().iter();
    let has = |one: &Value, key: &str, words: &str| one[key].as_str().is_some_and(|text| text.contains(words));
    told.filter(|one| one["strategy"] == strategy.name)
        .any(|one| has(one, "instead", words) && has(one, "why", broken))
}

fn outcome(page: &Value, name: &str) -> String {
    let row = page["assumptions"].list().iter().find(|row| row["name"] == name);
    row.expect(name)["outcome"].text().to_owned()
}

fn assert_checkpoints(finished: &Finished, strategy: Strategy, count: impl RangeBounds<usize>, about: &str) {
    let mut checkpoints = finished.json();
    checkpoints.retain(|line| !line["account"].is_null());
    assert!(count.contains(&checkpoints.len()), "{about}: {}", finished.stdout);
    assert_all_agree(&checkpoints, strategy, about);
}

/// Runs a client that fragments its memory; its books must agree with the simulated GPU. Returns the lines that say
/// what a strategy does instead.
fn job(strategy: Strategy, switches: &[Switch], state: &Path, environment: &[Switch]) -> Vec<String> {
    let path = client("support/clients/exercise.c", "exercise", &["libcuda.so.1"]);
    let job = with(Job::new(path).strategy(strategy), switches, state).envs(environment);
    let finished = job.args(["5", "400", "2"]).run().ok();
    assert_checkpoints(&finished, strategy, 4.., &format!("{switches:?}"));
    let said = finished.said().into_iter().filter(|(severity, _)| *severity == 'W');
    said.map(|(_, words)| words)
        .filter(|words| words.contains("on device"))
        .collect()
}

/// Breaks an assumption, asks, and runs jobs over a driver with these switches that have to fall back, in these words.
fn falls_back(asked: (&str, Switch), broken: &str, switches: &[Switch], strategies: &[Strategy], words: &str) {
    let state = tempfile::tempdir().unwrap();
    doctor(asked.0, &[asked.1], state.path(), &|page, code| {
        let told = |&strategy: &Strategy| does_without(page, strategy, words, broken);
        outcome(page, broken) != "holds" && code == Some(3) && strategies.iter().all(told)
    });
    for &strategy in strategies {
        let said = job(strategy, switches, state.path(), &[]);
        let of_device_0: Vec<_> = said.iter().filter(|line| line.starts_with("on device 0")).collect();
        assert_eq!(of_device_0.len(), 1, "one line for a device: {said:?}");
        assert_says(of_device_0[0], words);
        assert_says(of_device_0[0], broken);
        let ignored = job(strategy, switches, state.path(), &[("VRAMSHIM_ASSUMPTIONS", "ignore")]);
        assert_eq!(ignored, Vec::<String>::new());
    }
}

const NO_ALIASES: Switch = ("SIMGPU_ALIASES", "0");
const MAPPING_WAITS: Switch = ("SIMGPU_MAPPING_WAITS", "1");
const QUERY_HANGS: Switch = ("SIMGPU_LATENCY", "cuEventQuery=60000ms");

tests! {
    a_driver_that_maps_no_handle_twice_gets_no_aliases =>
        falls_back(("60s", NO_ALIASES), "stitch_of_handles", &[NO_ALIASES], &[AUTO_GROWTH], "without stitches");
    a_driver_whose_mapping_waits_grows_in_chunks => falls_back(
        ("60s", MAPPING_WAITS), "create_map_access_beside_blocked_work", &[MAPPING_WAITS], &[AUTO_GROWTH], "grows in chunks"
    );
    a_hang_is_an_answer => falls_back(
        ("5s", QUERY_HANGS), "event_query_beside_blocked_work", &[], &[NAIVE_BEST_FIT, AUTO_GROWTH], "passes every request through"
    );
}

#[test]
fn a_driver_as_assumed_changes_nothing() {
    let state = tempfile::tempdir().unwrap();
    let page = doctor("60s", &[], state.path(), &|_, code| code == Some(0));
    let mut strategies = page["strategies"].list().iter();
    assert!(strategies.all(|one| one["instead"].is_null()), "{page}");
    for strategy in [NAIVE_BEST_FIT, AUTO_GROWTH] {
        assert_eq!(job(strategy, &[], state.path(), &[]), Vec::<String>::new());
    }
}

/// A free that does not wait for peers breaks no strategy, because a policy waits itself. Nor does an unmap that waits,
/// because an allocation unmaps memory only before it reports out of memory.
#[test]
fn what_no_strategy_needs_is_told_and_changes_nothing() {
    let not_needed = [
        (("SIMGPU_FREE_WAITS_FOR_PEERS", "0"), "free_waits_for_peers"),
        (("SIMGPU_UNMAP_WAITS", "1"), "unmap_beside_blocked_work"),
    ];
    for (switch, name) in not_needed {
        let state = tempfile::tempdir().unwrap();
        let wanted = |page: &Value, code| code == Some(0) && outcome(page, name) != "holds";
        doctor("60s", &[switch], state.path(), &wanted);
    }
}

#[test]
fn what_is_stored_is_for_this_driver_alone() {
    let state = tempfile::tempdir().unwrap();
    let version = ("SIMGPU_DRIVER_VERSION", "12080");
    doctor("60s", &[NO_ALIASES, version], state.path(), &|_, _| true);
    assert_eq!(job(AUTO_GROWTH, &[], state.path(), &[]), Vec::<String>::new());
    assert!(!job(AUTO_GROWTH, &[version], state.path(), &[]).is_empty());
}

#[test]
fn doctor_says_what_is_stored() {
    let state = tempfile::tempdir().unwrap();
    let finding = || {
        let job = Job::new(program()).alone().strategy(AUTO_GROWTH);
        let job = with(job, &[], state.path()).args(["doctor", "--json"]);
        let page: Value = serde_json::from_str(&job.run().stdout).expect("JSON");
        let mut findings = page["findings"].list().iter();
        let finding = findings.find(|finding| finding["check"] == "assumptions");
        finding.expect("a finding").clone()
    };
    assert_eq!(finding()["severity"], "note", "not asked yet: {}", finding());
    doctor("60s", &[], state.path(), &|_, code| code == Some(0));
    assert_eq!(finding()["severity"], "ok", "{}", finding());
    // Assumptions that were not asked do not count as broken.
    let found = finding()["found"].text().to_owned();
    assert_says(&found, ", that do not: ");
    assert_says(&found, ", not asked: ");
    doctor("60s", &[MAPPING_WAITS], state.path(), &|_, _| true);
    assert_eq!(finding()["severity"], "warning", "{}", finding());
}

#[test]
fn without_a_driver_doctor_says_so() {
    let job = Job::new(program())
        .alone()
        .env("LD_LIBRARY_PATH", "")
        .env("VRAMSHIM_PROBES", executable());
    let finished = job.args(["doctor", "--assumptions"]).run();
    assert_eq!(finished.status.code(), Some(4), "{}", finished.stdout);
    assert!(finished.stderr.contains("libcuda.so.1"), "{}", finished.stderr);
}

/// `primary_context_reset_keeps_vmm` has sources for and against it, so the library relies on neither answer. A hole in
/// what a policy has mapped is passed over by no call (`unmap_passes_over_a_hole`), as some drivers refuse that.
#[test]
fn the_books_follow_a_reset_whatever_it_leaves_and_nothing_is_lost() {
    let path = client("assumptions/clients/resets.c", "resets", &["libcuda.so.1"]);
    let switches: [&[Switch]; 4] = [
        &[],
        &[("SIMGPU_HOLES", "0")],
        &[("SIMGPU_RESET_UNMAPS", "1")],
        &[("SIMGPU_RESET_FREES_VMM", "1")],
    ];
    for (&strategy, switches) in THREE.iter().flat_map(|one| switches.map(|switches| (one, switches))) {
        let finished = Job::new(&path).strategy(strategy).envs(switches).run().ok();
        let about = format!("{}, {switches:?}", strategy.name);
        if strategy == AUTO_GROWTH {
            assert_says(&finished.stderr, "hole of 33554432");
        }
        assert_checkpoints(&finished, strategy, 4..=4, &about);
    }
}

/// What the job itself maps: a hole is passed over, and what was mapped around it is off the books.
#[test]
fn the_books_follow_a_job_that_unmaps_over_a_hole() {
    let path = client("assumptions/clients/holes.c", "holes", &["libcuda.so.1"]);
    for strategy in THREE {
        assert_checkpoints(&Job::new(&path).strategy(strategy).run().ok(), strategy, 3..=3, "");
    }
}
