//! Jobs that free memory and then ask for blocks of other sizes. A policy reuses the free memory or gives it back to
//! the driver, and live blocks keep their bytes. The client checks the bytes; the simulator reports what it has
//! allocated.

use serde_json::Value;
use support::layer::FORMS;
use support::{
    AUTO_GROWTH, AUTO_GROWTH_CHUNKS, AUTO_GROWTH_TIGHT, AUTO_GROWTH_WITHOUT_VMM, Fields, Finished, GIB, Job, MIB,
    NAIVE_BEST_FIT, NAIVE_BEST_FIT_OF_ALL, PASSTHROUGH, Strategy, assert_agree, assert_journal_agrees, client,
};

const ONE_LARGE_CHUNK_WITHOUT_VMM: Strategy = Strategy {
    environment: &[("SIMGPU_VMM", "0"), ("FLAGS_auto_growth_chunk_size_in_mb", "4096")],
    ..AUTO_GROWTH
};
/// The strategies that keep freed memory.
const KEEPING: [Strategy; 4] = [NAIVE_BEST_FIT, AUTO_GROWTH, AUTO_GROWTH_CHUNKS, AUTO_GROWTH_WITHOUT_VMM];

fn scene(strategy: Strategy, arguments: &[&str]) -> Job {
    let path = client("support/clients/growth.c", "growth", &["-DDLOPEN"]);
    Job::new(path).strategy(strategy).args(arguments)
}

/// Returns the checkpoints of the job. Checks that each checkpoint agrees.
fn checkpoints(finished: &Finished, strategy: Strategy) -> Vec<Value> {
    let found = finished.json();
    for (number, checkpoint) in found.iter().enumerate() {
        assert_agree(checkpoint, strategy, &format!("{strategy:?}, checkpoint {number}"));
    }
    found
}

/// The bytes that the simulated device has allocated to the process, at each checkpoint.
fn given(job: Job, strategy: Strategy) -> Vec<u64> {
    let used = |checkpoint: &Value| checkpoint["truth"]["devices"][0]["used_by_process"].as_u64();
    let found = checkpoints(&job.run().ok(), strategy);
    found.iter().map(|checkpoint| used(checkpoint).unwrap()).collect()
}

/// How the simulated device places memory: in pages that need not be contiguous, or in one piece for each request.
#[derive(Clone, Copy, Debug)]
enum Placement {
    Pages,
    Pieces,
}

/// On a device of 5 GiB the job allocates 1, 2 and 1 GiB, frees the 2 GiB, and asks for 3 GiB, for which it gets
/// `answer`. Returns what `inspect --json` says about the device.
fn textbook(strategy: Strategy, placement: Placement, answer: &str) -> Value {
    let context = format!("{strategy:?} over {placement:?}");
    let pieces = match placement {
        Placement::Pages => "0",
        Placement::Pieces => "1",
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
    let given = last["truth"]["devices"][0]["free"].number();
    let free = given + device["free_inside"].number();
    let wanted = if answer == "served" { 0 } else { 3 * GIB };
    assert_eq!(free, wanted, "free anywhere, {context}: {device}");
    device
}

#[test]
fn auto_growth_puts_scattered_memory_side_by_side() {
    for placement in [Placement::Pieces, Placement::Pages] {
        let device = textbook(AUTO_GROWTH_TIGHT, placement, "served");
        assert_eq!(device["reserved"]["peak"], 5 * GIB, "{placement:?}");
        assert_eq!(
            device["stitched_bytes"],
            3 * GIB,
            "all freed memory and the new is side by side, {placement:?}"
        );
    }
}

/// What large requests got from the driver goes back, and comes again in handles.
#[test]
fn auto_growth_puts_memory_together_that_it_gave_back() {
    for placement in [Placement::Pieces, Placement::Pages] {
        let device = textbook(AUTO_GROWTH, placement, "served");
        assert_eq!(device["reserved"]["peak"], 5 * GIB, "{placement:?}");
        assert!(device.get("stitches").is_none(), "{placement:?}: {device}");
    }
}

/// Without stitches 3 GiB are free, but not in one piece, whether the policy keeps the freed memory or gives it back.
/// This is the control of `auto_growth_puts_scattered_memory_side_by_side`.
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
        let device = textbook(strategy, Placement::Pieces, "out of memory");
        assert!(
            device["free_inside"].as_u64() >= Some(kept * GIB),
            "{strategy:?}: {device}"
        );
        assert!(device.get("stitches").is_none(), "{strategy:?}: {device}");
    }
}

/// Two halves of handles are free on a device without other free memory, and the job asks for nearly as much as both.
/// Returns the last word of the answer, and what `inspect --json` says about the device.
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
        assert_eq!(said, "memory", "{form:?}: {device}");
        assert!(device.get("stitches").is_none(), "{form:?}: {device}");
    }
}

#[test]
fn blocks_keep_their_bytes_however_their_memory_is_put_together() {
    let sizes = [("random", "160MiB"), ("large", "5GiB")];
    let seeds = sizes.iter().flat_map(|size| ["1", "2"].map(|seed| (size, seed)));
    let runs = KEEPING
        .into_iter()
        .flat_map(|strategy| seeds.clone().map(move |(size, seed)| (strategy, size, seed)));
    for (strategy, (size, memory), seed) in runs {
        let context = format!("{strategy:?} {size} {seed}");
        let finished = scene(strategy, &[size, seed]).sim(memory, 1).run().ok();
        let last = checkpoints(&finished, strategy).pop().expect("a checkpoint");
        let job = finished.inspect();
        assert_journal_agrees(&job, &last, &context);
        assert_eq!(job["anomalies"], 0);
        let has_stitches = job["devices"][0].get("stitches").is_some();
        let is_mapped = strategy.name == AUTO_GROWTH.name && !strategy.environment.contains(&("SIMGPU_VMM", "0"));
        assert_eq!(has_stitches, is_mapped, "{context}");
    }
}

/// Large blocks are the driver's own as long as the job only grows. They go back when they are freed.
#[test]
fn large_blocks_of_a_job_that_only_grows_are_the_drivers() {
    let finished = scene(AUTO_GROWTH, &["weights"]).sim("16GiB", 1).run().ok();
    let found = checkpoints(&finished, AUTO_GROWTH);
    let used = |checkpoint: &Value| checkpoint["truth"]["devices"][0]["used_by_process"].as_u64();
    let used: Vec<u64> = found.iter().filter_map(used).collect();
    let weights = 7 * GIB + 512 * MIB;
    let wanted = [512, 0, 512, 768].map(|last| weights + last * MIB);
    assert_eq!(used, wanted);
    let handles = |checkpoint: &Value| {
        let all = checkpoint["truth"]["allocations"].list().iter();
        let handles = all.filter(|one| one["api"] == "cuMemCreate");
        handles.map(|one| one["reserved"].number()).sum::<u64>()
    };
    let handles: Vec<u64> = found.iter().map(handles).collect();
    assert!(handles[0] <= GIB, "most of the memory is the driver's own: {handles:?}");
    assert_eq!(handles[..3], [handles[0]; 3]);
    let last = handles[0] + 768 * MIB;
    assert_eq!(
        handles[3], last,
        "the job has freed much, so its next block is in handles"
    );
}

/// A policy that keeps everything in one segment cannot join free blocks, even on a device that places memory in pages.
#[test]
fn pages_of_the_device_do_not_help_a_policy_that_keeps_freed_memory() {
    for strategy in [NAIVE_BEST_FIT_OF_ALL, ONE_LARGE_CHUNK_WITHOUT_VMM] {
        textbook(strategy, Placement::Pages, "out of memory");
    }
}

/// A driver with pages can serve a large request from memory that was given back in several pieces.
#[test]
fn memory_that_was_given_back_serves_a_large_request() {
    for strategy in [PASSTHROUGH, AUTO_GROWTH_WITHOUT_VMM] {
        textbook(strategy, Placement::Pages, "served");
    }
}

/// The other tests of this file rely on this behaviour of the simulator.
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
fn an_idle_job_gives_free_memory_back() {
    for strategy in KEEPING {
        let job = scene(strategy, &["idle", "50"]).env("VRAMSHIM_IDLE_RELEASE", "100ms");
        assert_eq!(given(job, strategy), [64 * MIB, 0], "{strategy:?}");
    }
}

#[test]
fn an_idle_job_keeps_free_memory_by_default() {
    // A segment that `naive_best_fit` obtained for a single request goes back with its block.
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
