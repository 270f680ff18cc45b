//! Freed memory asked for again in another shape: it is found wherever it lies, or goes back to the driver, and what
//! stays keeps its bytes. The client checks those; the simulator is asked what it really gave away.

use serde_json::Value;
use support::layer::FORMS;
use support::{
    AUTO_GROWTH, AUTO_GROWTH_CHUNKS, Finished, Job, MIB, NAIVE_BEST_FIT, NAIVE_BEST_FIT_OF_ALL, PASSTHROUGH, Strategy,
    assert_agree, assert_journal_agrees, client,
};

const GIB: u64 = 1024 * MIB;

const AUTO_GROWTH_WITHOUT_VMM: Strategy = Strategy {
    environment: &[("SIMGPU_VMM", "0")],
    ..AUTO_GROWTH
};
const ONE_LARGE_CHUNK_WITHOUT_VMM: Strategy = Strategy {
    environment: &[("SIMGPU_VMM", "0"), ("FLAGS_auto_growth_chunk_size_in_mb", "4096")],
    ..AUTO_GROWTH
};
/// All that keep what was freed.
const KEEPING: [Strategy; 4] = [NAIVE_BEST_FIT, AUTO_GROWTH, AUTO_GROWTH_CHUNKS, AUTO_GROWTH_WITHOUT_VMM];

fn scene(strategy: Strategy, arguments: &[&str]) -> Job {
    let path = client("support/clients/growth.c", "growth", &["-DDLOPEN"]);
    Job::new(path).strategy(strategy).args(arguments)
}

/// The job's checkpoints, which all agree.
fn checkpoints(finished: &Finished, strategy: Strategy) -> Vec<Value> {
    let found = finished.json();
    for (number, checkpoint) in found.iter().enumerate() {
        assert_agree(checkpoint, strategy, &format!("{strategy:?}, checkpoint {number}"));
    }
    found
}

/// What the simulated device has given away at each checkpoint.
fn given(job: Job, strategy: Strategy) -> Vec<u64> {
    let used = |checkpoint: &Value| checkpoint["truth"]["devices"][0]["used_by_process"].as_u64();
    let found = checkpoints(&job.run().ok(), strategy);
    found.iter().map(|checkpoint| used(checkpoint).unwrap()).collect()
}

/// What lies below: memory in pages, which lie where they like, or one piece for each request.
#[derive(Clone, Copy, Debug)]
enum Below {
    Pages,
    Pieces,
}

/// 1, 2 and 1 GiB on a device of 5, the 2 freed, 3 asked for: what `inspect --json` says of the device afterwards.
fn textbook(strategy: Strategy, below: Below, answer: &str) -> Value {
    let context = format!("{strategy:?} over {below:?}");
    let pieces = match below {
        Below::Pages => "0",
        Below::Pieces => "1",
    };
    let job = scene(strategy, &["textbook"]).sim("5GiB", 1);
    let finished = job.env("SIMGPU_CONTIGUOUS", pieces).run().ok();
    let said = finished.stdout.lines().find(|line| !line.starts_with('{'));
    let wanted = format!("1 + 2 + 1 GiB allocated, 2 freed, 3 GiB asked for: {answer}");
    assert_eq!(said, Some(wanted.as_str()), "{context}");
    let last = checkpoints(&finished, strategy).pop().expect("a checkpoint");
    let mut job = finished.inspect();
    assert_journal_agrees(&job, &last, &context);
    assert_eq!(job["anomalies"], 0, "{context}");
    let device = job["devices"][0].take();
    let given = last["truth"]["devices"][0]["free"].as_u64().unwrap();
    let free = given + device["free_inside"].as_u64().unwrap();
    let wanted = if answer == "served" { 0 } else { 3 * GIB };
    assert_eq!(free, wanted, "free anywhere, {context}: {device}");
    device
}

#[test]
fn auto_growth_puts_scattered_memory_side_by_side() {
    for below in [Below::Pieces, Below::Pages] {
        let device = textbook(AUTO_GROWTH, below, "served");
        assert_eq!(device["reserved"]["peak"], 5 * GIB, "{below:?}");
        assert_eq!(device["remapped_bytes"], 2 * GIB, "all that was freed, {below:?}");
    }
}

/// What the test above is worth: without granules as much is free, but not in one piece, whether it was given back or
/// not.
#[test]
fn scattered_memory_that_stays_where_it_is_runs_out() {
    let table = [
        (PASSTHROUGH, 0),
        (NAIVE_BEST_FIT, 0),
        (NAIVE_BEST_FIT_OF_ALL, 2),
        (AUTO_GROWTH_WITHOUT_VMM, 0),
        (ONE_LARGE_CHUNK_WITHOUT_VMM, 2),
    ];
    for (strategy, kept) in table {
        let device = textbook(strategy, Below::Pieces, "out of memory");
        assert!(
            device["free_inside"].as_u64() >= Some(kept * GIB),
            "{strategy:?}: {device}"
        );
        assert!(device.get("remapped_bytes").is_none(), "{strategy:?}: {device}");
    }
}

/// Two halves of granules that are partly in use, on a device that has nothing else: what the job says of a request for
/// as much, and what `inspect --json` says of the device.
fn halves(job: Job) -> (String, Value) {
    let finished = job.sim("6MiB", 1).run().ok();
    let said = finished.stdout.lines().find(|line| !line.starts_with('{'));
    let said = said
        .expect("an answer")
        .rsplit(' ')
        .next()
        .unwrap_or_default()
        .to_owned();
    let last = checkpoints(&finished, AUTO_GROWTH).pop().expect("a checkpoint");
    let mut job = finished.inspect();
    assert_journal_agrees(&job, &last, &said);
    assert_eq!(job["anomalies"], 0);
    (said, job["devices"][0].take())
}

#[test]
fn auto_growth_maps_free_halves_of_granules_side_by_side() {
    let (said, device) = halves(scene(AUTO_GROWTH, &["ends"]));
    assert_eq!(said, "served");
    assert_eq!(device["reserved"]["peak"], 6 * MIB, "{device}");
    assert!(device["remapped_bytes"].as_u64() >= Some(2 * MIB), "{device}");
}

/// What the test above is worth, and what a layer sees that maps nothing twice: no failure but out of memory.
#[test]
fn halves_of_granules_stay_where_they_are_over_a_layer_that_maps_nothing_twice() {
    for form in FORMS {
        let job = scene(AUTO_GROWTH, &["ends"]).over(form, "6MiB", &[("LAYER_VMM", "once")]);
        let (said, device) = halves(job);
        assert_eq!(said, "memory", "{form:?}: {device}");
        assert!(device.get("remapped_bytes").is_none(), "{form:?}: {device}");
    }
}

#[test]
fn blocks_keep_their_bytes_however_their_memory_is_put_together() {
    for (strategy, seed) in KEEPING
        .into_iter()
        .flat_map(|strategy| ["1", "2"].map(|seed| (strategy, seed)))
    {
        let finished = scene(strategy, &["random", seed]).sim("160MiB", 1).run().ok();
        let last = checkpoints(&finished, strategy).pop().expect("a checkpoint");
        let job = finished.inspect();
        assert_journal_agrees(&job, &last, &format!("{strategy:?} {seed}"));
        assert_eq!(job["anomalies"], 0);
        let remapped = job["devices"][0].get("remapped_bytes").is_some();
        let in_granules = strategy.name == AUTO_GROWTH.name && !strategy.environment.contains(&("SIMGPU_VMM", "0"));
        assert_eq!(remapped, in_granules, "{strategy:?} {seed}");
    }
}

/// What a policy keeps in one reservation stays where it is, whatever lies below.
#[test]
fn pages_below_do_not_help_who_keeps_what_was_freed() {
    for strategy in [NAIVE_BEST_FIT_OF_ALL, ONE_LARGE_CHUNK_WITHOUT_VMM] {
        textbook(strategy, Below::Pages, "out of memory");
    }
}

/// A driver with pages maps what it has as it likes; so it does chunks that went back to it.
#[test]
fn memory_that_the_driver_has_back_is_scattered_for_nobody() {
    for strategy in [PASSTHROUGH, AUTO_GROWTH_WITHOUT_VMM] {
        textbook(strategy, Below::Pages, "served");
    }
}

/// What the tests above build on.
#[test]
fn the_simulator_finds_pieces_and_takes_them_back() {
    let path = client("growth/extents.c", "extents", &["libcuda.so.1"]);
    for (scene, pieces) in [("kinds", "1"), ("paging", "0"), ("processes", "1")] {
        let job = Job::new(&path).alone().sim("1GiB", 1).args([scene]);
        let state = job.folder().join("state");
        let job = job.env("SIMGPU_STATE", state).env("SIMGPU_CONTIGUOUS", pieces);
        job.run().ok();
    }
}

#[test]
fn a_job_that_rests_gives_free_memory_back() {
    for strategy in KEEPING {
        let job = scene(strategy, &["idle", "50"]).env("VRAMSHIM_IDLE_RELEASE", "100ms");
        assert_eq!(given(job, strategy), [64 * MIB, 0], "{strategy:?}");
    }
}

#[test]
fn a_job_that_rests_keeps_free_memory_unless_told_otherwise() {
    // What `naive_best_fit` got for one request alone goes back with it.
    for (strategy, held) in KEEPING.into_iter().zip([64, 320, 320, 320]) {
        let job = scene(strategy, &["idle", "0.2"]);
        assert_eq!(given(job, strategy), [held * MIB; 2], "{strategy:?}");
    }
}

#[test]
fn trim_gives_free_memory_back_at_once() {
    for strategy in KEEPING {
        assert_eq!(
            given(scene(strategy, &["trim"]), strategy),
            [64 * MIB, 0],
            "{strategy:?}"
        );
    }
}

#[test]
fn free_memory_is_in_no_other_requests_way() {
    for strategy in [NAIVE_BEST_FIT_OF_ALL, AUTO_GROWTH, AUTO_GROWTH_CHUNKS] {
        let finished = scene(strategy, &["others"]).sim("1GiB", 1).run().ok();
        assert_eq!(checkpoints(&finished, strategy).len(), 6, "{strategy:?}");
    }
}

#[test]
fn small_blocks_are_in_no_large_ones_way() {
    let job = scene(AUTO_GROWTH, &["between"]).sim("2GiB", 1);
    assert_eq!(given(job, AUTO_GROWTH), [2 * GIB]);
}
