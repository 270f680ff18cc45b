//! If an assumption does not hold, `vramshim doctor --assumptions` says so, and the next job does without what needs
//! it. Switches of the simulated GPU break assumptions.

use std::path::Path;

use serde_json::Value;
use support::{AUTO_GROWTH, Fields, Job, NAIVE_BEST_FIT, Strategy, THREE, assert_agree, client, program};

use crate::assumptions::{LIMIT, TRIES, executable};

/// A switch of the simulated GPU.
type Switch = (&'static str, &'static str);

fn with(job: Job, switches: &[Switch], state: &Path) -> Job {
    let job = job
        .sim("8GiB", 2)
        .env("SIMGPU_DELAYED", "1")
        .env("XDG_STATE_HOME", state);
    switches.iter().fold(job, |job, (name, value)| job.env(name, value))
}

/// The answers of `doctor --assumptions`, and its exit code.
type Answers = (Value, Option<i32>);

fn doctor(switches: &[Switch], state: &Path) -> Answers {
    doctor_within("60s", switches, state)
}

/// The same. Asks again if the answers are not as `wanted`, because a probe that does not run for some 100 ms may take a call
/// that returns at once for one that waits. The last answers are those that are stored.
fn doctor_until(time: &str, switches: &[Switch], state: &Path, wanted: &dyn Fn(&Answers) -> bool) -> Answers {
    let mut answers = doctor_within(time, switches, state);
    for _ in 1..TRIES {
        if wanted(&answers) {
            break;
        }
        println!("{switches:?}: asked again after {}", answers.0);
        answers = doctor_within(time, switches, state);
    }
    answers
}

/// Whether this strategy does without something, in these words and because of this assumption.
fn does_without(page: &Value, strategy: Strategy, words: &str, broken: &str) -> bool {
    let told = page["strategies"].list().iter();
    let has = |one: &Value, key: &str, words: &str| one[key].as_str().is_some_and(|text| text.contains(words));
    told.filter(|one| one["strategy"] == strategy.name)
        .any(|one| has(one, "instead", words) && has(one, "why", broken))
}

fn doctor_within(time: &str, switches: &[Switch], state: &Path) -> Answers {
    let job = with(Job::new(program()).alone(), switches, state).env("VRAMSHIM_PROBES", executable());
    let job = job.limit(LIMIT);
    let finished = job.args(["doctor", "--assumptions", "--json", "--timeout", time]).run();
    let page = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stderr));
    (page, finished.status.code())
}

fn outcome(page: &Value, name: &str) -> String {
    let rows = page["assumptions"].list();
    let row = rows.iter().find(|row| row["name"] == name);
    row.map_or_else(String::new, |row| {
        row["outcome"].as_str().unwrap_or_default().to_owned()
    })
}

/// Runs a client that fragments its memory; its books must agree with the simulated GPU. Returns the lines that say
/// what a strategy does instead.
fn job(strategy: Strategy, switches: &[Switch], state: &Path, environment: &[Switch]) -> Vec<String> {
    let path = client("support/clients/exercise.c", "exercise", &["libcuda.so.1"]);
    let job = with(Job::new(path).strategy(strategy), switches, state);
    let job = environment.iter().fold(job, |job, (name, value)| job.env(name, value));
    let finished = job.args(["5", "400", "2"]).run().ok();
    let checkpoints: Vec<Value> = finished
        .json()
        .into_iter()
        .filter(|line| !line["account"].is_null())
        .collect();
    assert!(checkpoints.len() > 3, "{}", finished.stdout);
    for (index, checkpoint) in checkpoints.iter().enumerate() {
        assert_agree(checkpoint, strategy, &format!("{switches:?}, checkpoint {index}"));
    }
    let said = finished.said().into_iter().filter(|(severity, _)| *severity == 'W');
    said.map(|(_, words)| words)
        .filter(|words| words.contains("on device"))
        .collect()
}

/// Breaks assumptions, asks, and runs jobs that have to fall back, in these words and because of this assumption.
fn falls_back(switches: &[Switch], broken: &str, strategies: &[Strategy], words: &str) {
    let state = tempfile::tempdir().unwrap();
    let wanted = |(page, _): &Answers| {
        strategies
            .iter()
            .all(|&strategy| does_without(page, strategy, words, broken))
    };
    let (page, code) = doctor_until("60s", switches, state.path(), &wanted);
    let found = outcome(&page, broken);
    assert!(found == "differs" || found == "hangs", "{broken}: {found}");
    assert_eq!(code, Some(3));
    for &strategy in strategies {
        assert!(
            does_without(&page, strategy, words, broken),
            "{}: {}",
            strategy.name,
            page["strategies"]
        );
        let said = job(strategy, switches, state.path(), &[]);
        let of_device_0: Vec<_> = said.iter().filter(|line| line.starts_with("on device 0")).collect();
        assert_eq!(of_device_0.len(), 1, "one line for a device: {said:?}");
        assert!(
            of_device_0[0].contains(words) && of_device_0[0].contains(broken),
            "{said:?}"
        );
        let ignored = job(strategy, switches, state.path(), &[("VRAMSHIM_ASSUMPTIONS", "ignore")]);
        assert_eq!(ignored, Vec::<String>::new());
    }
}

#[test]
fn a_driver_that_maps_no_handle_twice_gets_no_aliases() {
    falls_back(
        &[("SIMGPU_ALIASES", "0")],
        "stitch_of_handles",
        &[AUTO_GROWTH],
        "without stitches",
    );
}

#[test]
fn a_driver_whose_mapping_waits_grows_in_chunks() {
    let broken = "create_map_access_beside_blocked_work";
    falls_back(
        &[("SIMGPU_MAPPING_WAITS", "1")],
        broken,
        &[AUTO_GROWTH],
        "grows in chunks",
    );
}

#[test]
fn a_hang_is_an_answer() {
    let switches = [("SIMGPU_LATENCY", "cuEventQuery=60000ms")];
    let (broken, words) = ("event_query_beside_blocked_work", "passes every request through");
    let state = tempfile::tempdir().unwrap();
    let strategies = [NAIVE_BEST_FIT, AUTO_GROWTH];
    let wanted = |(page, _): &Answers| {
        let told = |&strategy: &Strategy| does_without(page, strategy, words, broken);
        outcome(page, broken) == "hangs" && strategies.iter().all(told)
    };
    let (page, code) = doctor_until("5s", &switches, state.path(), &wanted);
    assert_eq!(outcome(&page, broken), "hangs");
    assert_eq!(code, Some(3));
    for strategy in strategies {
        let said = job(strategy, &[], state.path(), &[]);
        assert!(said[0].contains(words) && said[0].contains(broken), "{said:?}");
    }
}

#[test]
fn a_driver_as_assumed_changes_nothing() {
    let state = tempfile::tempdir().unwrap();
    let (page, code) = doctor_until("60s", &[], state.path(), &|answers| answers.1 == Some(0));
    assert_eq!(code, Some(0), "{page}");
    assert!(
        page["strategies"].list().iter().all(|one| one["instead"].is_null()),
        "{}",
        page["strategies"]
    );
    let prices = page["prices"].list();
    for (call, size) in [
        ("cuMemCreate", "2 MiB"),
        ("cuMemSetAccess", "1 GiB"),
        ("cuMemFree", "128 MiB"),
    ] {
        let found = prices
            .iter()
            .find(|price| price["call"] == call && price["size"] == size);
        assert!(
            found.is_some_and(|price| price["median_us"].is_number()),
            "{call} {size}: {prices:?}"
        );
    }
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
        let wanted = |answers: &Answers| answers.1 == Some(0) && outcome(&answers.0, name) != "holds";
        let (page, code) = doctor_until("60s", &[switch], state.path(), &wanted);
        let found = outcome(&page, name);
        assert!(found == "differs" || found == "hangs", "{name}: {found}");
        assert_eq!(code, Some(0), "{name}");
    }
}

#[test]
fn what_is_stored_is_for_this_driver_alone() {
    let state = tempfile::tempdir().unwrap();
    doctor(
        &[("SIMGPU_ALIASES", "0"), ("SIMGPU_DRIVER_VERSION", "12080")],
        state.path(),
    );
    assert_eq!(
        job(AUTO_GROWTH, &[], state.path(), &[]),
        Vec::<String>::new(),
        "another version"
    );
    assert!(!job(AUTO_GROWTH, &[("SIMGPU_DRIVER_VERSION", "12080")], state.path(), &[]).is_empty());
}

#[test]
fn doctor_says_what_is_stored() {
    let state = tempfile::tempdir().unwrap();
    let finding = || {
        let job = with(
            Job::new(program()).alone(),
            &[("VRAMSHIM_STRATEGY", "auto_growth")],
            state.path(),
        );
        let page: Value = serde_json::from_str(&job.args(["doctor", "--json"]).run().stdout).expect("JSON");
        let findings = page["findings"].list().clone();
        findings
            .into_iter()
            .find(|finding| finding["check"] == "assumptions")
            .expect("a finding")
    };
    assert_eq!(finding()["severity"], "note", "not asked yet: {}", finding());
    doctor_until("60s", &[], state.path(), &|answers| answers.1 == Some(0));
    assert_eq!(finding()["severity"], "ok", "{}", finding());
    // Assumptions that were not asked do not count as broken.
    let found = finding()["found"].text().to_owned();
    assert!(
        found.contains(", that do not: ") && found.contains(", not asked: "),
        "{found}"
    );
    doctor(&[("SIMGPU_MAPPING_WAITS", "1")], state.path());
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
        let job = Job::new(&path).strategy(strategy);
        let job = switches.iter().fold(job, |job, (name, value)| job.env(name, value));
        let finished = job.run().ok();
        let about = format!("{}, {switches:?}", strategy.name);
        assert!(
            strategy.name != AUTO_GROWTH.name || finished.stderr.contains("hole of 33554432"),
            "{about}: {}",
            finished.stderr
        );
        let checkpoints = finished.json();
        assert_eq!(checkpoints.len(), 4);
        for (index, checkpoint) in checkpoints.iter().enumerate() {
            assert_agree(checkpoint, strategy, &format!("{about}, checkpoint {index}"));
        }
    }
}

/// What the job itself maps: a hole is passed over, and what was mapped around it is off the books.
#[test]
fn the_books_follow_a_job_that_unmaps_over_a_hole() {
    let path = client("assumptions/clients/holes.c", "holes", &["libcuda.so.1"]);
    for strategy in THREE {
        let checkpoints = Job::new(&path).strategy(strategy).run().ok().json();
        assert_eq!(checkpoints.len(), 3);
        for (index, checkpoint) in checkpoints.iter().enumerate() {
            assert_agree(checkpoint, strategy, &format!("{}, checkpoint {index}", strategy.name));
        }
    }
}
