//! Jobs that free memory and then ask for blocks of other sizes. A policy reuses the free memory or gives it back to
//! the driver, and live blocks keep their bytes. The client checks the bytes; the simulator reports what it has
//! allocated.

use serde_json::Value;
use support::layer::FORMS;
use support::{
    AUTO_GROWTH, AUTO_GROWTH_CHUNKS, AUTO_GROWTH_WITHOUT_VMM, Fields, Finished, GIB, Job, MIB, NAIVE_BEST_FIT,
    NAIVE_BEST_FIT_OF_ALL, PASSTHROUGH, Strategy, assert_all_agree, assert_journal_agrees, client,
};

const ONE_LARGE_CHUNK_WITHOUT_VMM: Strategy = Strategy {
    environment: &[("SIMGPU_VMM", "0"), ("FLAGS_auto_growth_chunk_size_in_mb", "4096")],
    ..AUTO_GROWTH
};
const KEEPING: [Strategy; 4] = [NAIVE_BEST_FIT, AUTO_GROWTH, AUTO_GROWTH_CHUNKS, AUTO_GROWTH_WITHOUT_VMM];

fn scene(strategy: Strategy, arguments: &[&str]) -> Job {
    let path = client("support/clients/growth.c", "growth", &["-DDLOPEN"]);
    Job::new(path).strategy(strategy).args(arguments)
}

fn checkpoints(finished: &Finished, strategy: Strategy) -> Vec<Value> {
    let found = finished.json();
    assert_all_agree(&found, strategy, "");
    found
}

/// The bytes that the simulated device has allocated to the process, at each checkpoint.
fn given(job: Job, strategy: Strategy) -> Vec<u64> {
    checkpoints(&job.run().ok(), strategy).iter().map(used).collect()
}

fn used(checkpoint: &Value) -> u64 {
    checkpoint["truth"]["devices"][0]["used_by_process"].number()
}

/// How the simulated device places memory (SIMGPU_CONTIGUOUS): in pages that need not be contiguous, or in one piece for each
/// request.
const PAGES: &str = "0";
const PIECES: &str = "1";

/// The job's answer to a question, what `inspect --json` says about the device, and the last checkpoint. Checks that
/// the books agree.
fn told(job: Job, strategy: Strategy, context: &str) -> (String, Value, Value) {
    let finished = job.run().ok();
    let mut said = finished.stdout.lines().filter(|line| !line.starts_with('{'));
    let answer = said.next().unwrap_or_default().rsplit(": ").next();
    let answer = answer.unwrap_or_default().to_owned();
    let last = checkpoints(&finished, strategy).pop().expect("a checkpoint");
    let mut job = finished.inspect();
    assert_journal_agrees(&job, &last, context);
    assert_eq!(job["anomalies"], 0, "{context}");
    (answer, job["devices"][0].take(), last)
}

/// On a device of 5 GiB the job allocates 1, 2 and 1 GiB, frees the 2 GiB, and asks for 3 GiB, for which it gets
/// `wanted`. Returns what `inspect --json` says about the device.
fn textbook(strategy: Strategy, placement: &str, wanted: &str) -> Value {
    let context = format!("{strategy:?}, SIMGPU_CONTIGUOUS={placement}");
    let job = scene(strategy, &["textbook"]).sim("5GiB", 1);
    let (answer, device, last) = told(job.env("SIMGPU_CONTIGUOUS", placement), strategy, &context);
    assert_eq!(answer, wanted, "{context}");
    let free = last["truth"]["devices"][0]["free"].number() + device["free_inside"].number();
    let expected = if wanted == "served" { 0 } else { 3 * GIB };
    assert_eq!(free, expected, "free anywhere, {context}: {device}");
    device
}

/// The free 2 GiB are mapped a second time, beside a new GiB.
#[test]
fn auto_growth_puts_scattered_memory_together() {
    for placement in [PIECES, PAGES] {
        let device = textbook(AUTO_GROWTH, placement, "served");
        assert_eq!(device["reserved"]["peak"], 5 * GIB, "{placement}");
        assert_eq!(device["stitches"], 1, "{placement}: {device}");
    }
}

/// Without stitches 3 GiB are free, but not in one piece, whether the policy keeps the freed memory or gives it back. A driver
/// with pages serves the request from what was given back, and not from one segment that keeps everything.
#[test]
fn scattered_memory_that_stays_where_it_is_runs_out() {
    let table = [
        (PASSTHROUGH, 0, "served"),
        (NAIVE_BEST_FIT, 0, ""),
        (NAIVE_BEST_FIT_OF_ALL, 2, "out of memory"),
        (AUTO_GROWTH_WITHOUT_VMM, 0, "served"),
        (ONE_LARGE_CHUNK_WITHOUT_VMM, 2, "out of memory"),
    ];
    for (strategy, kept, with_pages) in table {
        let device = textbook(strategy, PIECES, "out of memory");
        assert!(device["free_inside"].number() >= kept * GIB, "{strategy:?}: {device}");
        assert!(device.get("stitches").is_none(), "{strategy:?}: {device}");
        if !with_pages.is_empty() {
            textbook(strategy, PAGES, with_pages);
        }
    }
}

/// Two halves of handles are free on a device without other free memory, and the job asks for nearly as much as both.
/// Returns the answer, and what `inspect --json` says about the device.
fn halves(job: Job) -> (String, Value) {
    let (answer, device, _) = told(job.sim("6MiB", 1), AUTO_GROWTH, "halves");
    (answer, device)
}

#[test]
fn auto_growth_maps_free_halves_of_handles_side_by_side() {
    let (said, device) = halves(scene(AUTO_GROWTH, &["ends"]));
    assert_eq!(said, "served");
    assert_eq!(device["reserved"]["peak"], 6 * MIB, "{device}");
    assert_eq!(device["stitches"], 1, "{device}");
}

/// The control of `auto_growth_maps_free_halves_of_handles_side_by_side`. The request fails with out of memory and no
/// other error.
#[test]
fn halves_of_handles_are_not_joined_over_a_layer_that_maps_nothing_twice() {
    for form in FORMS {
        let job = scene(AUTO_GROWTH, &["ends"]).over(form, "6MiB", &[("LAYER_VMM", "once")]);
        let (said, device) = halves(job);
        assert_eq!(said, "out of memory", "{form:?}: {device}");
        assert!(device.get("stitches").is_none(), "{form:?}: {device}");
    }
}

#[test]
fn blocks_keep_their_bytes_however_their_memory_is_put_together() {
    let scenes = [("random", "1"), ("random", "2"), ("large", "1"), ("large", "2")];
    for (strategy, (size, seed)) in KEEPING.into_iter().flat_map(|one| scenes.map(|scene| (one, scene))) {
        let context = format!("{strategy:?} {size} {seed}");
        let memory = if size == "large" { "5GiB" } else { "160MiB" };
        let (_, device, _) = told(scene(strategy, &[size, seed]).sim(memory, 1), strategy, &context);
        let has_stitches = device.get("stitches").is_some();
        let is_mapped = strategy.name == AUTO_GROWTH.name && !strategy.environment.contains(&("SIMGPU_VMM", "0"));
        assert_eq!(has_stitches, is_mapped, "{context}");
    }
}

#[test]
fn free_memory_goes_back_when_it_is_trimmed_or_when_the_job_idles_if_that_is_set() {
    // A segment that `naive_best_fit` obtained for a single request goes back with its block.
    for (strategy, held) in KEEPING.into_iter().zip([64, 320, 320, 320]) {
        let idle = |seconds| scene(strategy, &["idle", seconds]);
        let released = given(idle("50").env("VRAMSHIM_IDLE_RELEASE", "100ms"), strategy);
        assert_eq!(released, [64 * MIB, 0], "{strategy:?}");
        assert_eq!(given(idle("0.2"), strategy), [held * MIB; 2], "{strategy:?}");
        let trimmed = given(scene(strategy, &["trim"]), strategy);
        assert_eq!(trimmed, [64 * MIB, 0], "{strategy:?}");
    }
}

#[test]
fn free_memory_of_a_policy_blocks_no_other_request() {
    for strategy in [NAIVE_BEST_FIT_OF_ALL, AUTO_GROWTH, AUTO_GROWTH_CHUNKS] {
        let finished = scene(strategy, &["others"]).sim("1GiB", 1).run().ok();
        assert_eq!(checkpoints(&finished, strategy).len(), 6, "{strategy:?}");
    }
}

#[test]
fn small_blocks_do_not_fragment_memory_for_large_ones() {
    let job = scene(AUTO_GROWTH, &["between"]).sim("2GiB", 1);
    assert_eq!(given(job, AUTO_GROWTH), [2 * GIB]);
}

/// The next layer may refuse to create or map memory that it would allocate.
#[test]
fn a_request_gets_a_chunk_before_it_is_out_of_memory() {
    for function in ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve"] {
        for first in [1, 3] {
            let faults = format!("{function}:{first}+=2");
            let job = scene(AUTO_GROWTH, &["refused"]).sim("2GiB", 1);
            let finished = job.env("SIMGPU_FAULTS", &faults).run().ok();
            assert_eq!(checkpoints(&finished, AUTO_GROWTH).len(), 2, "{faults}");
            assert_eq!(finished.inspect()["anomalies"], 0, "{faults}");
        }
    }
}

/// The last attempt costs a request one call.
#[test]
fn a_full_device_is_asked_for_a_chunk_once() {
    let job = scene(AUTO_GROWTH, &["full"]).sim("64MiB", 1).env("SIMGPU_COUNTS", "1");
    assert_eq!(job.run().ok().stdout, "1\n");
}
