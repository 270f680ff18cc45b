//! Rare calls on a policy's memory: the job gets the same answers as for memory that the driver allocated.

use serde_json::json;
use support::{Job, MIB, STRATEGIES, Strategy, assert_all_agree, assert_fields, client, tests, totals};

fn scene(name: &str) -> Job {
    let path = client("rare_calls/rare_calls.c", "rare_calls", &["libcuda.so.1"]);
    Job::new(path).env("SIMGPU_DELAYED", "1").args([name])
}

fn under_each_strategy(name: &str, with: impl Fn(Job) -> Job) {
    for strategy in STRATEGIES {
        with(scene(name)).strategy(strategy).run().ok();
    }
}

tests! {
    /// A job gets no handle for a block: with the handle of a granule it could map or share other blocks in the granule.
    a_block_has_no_physical_memory_of_its_own => under_each_strategy("handle", |job| job);
    /// If the policy took memory before it fails, other processes would find the device full until then.
    a_request_larger_than_the_device_takes_nothing => under_each_strategy("too-much", |job| job);
    /// A driver may take back what its pools do not use before a request fails. The simulated one does. So its figure of
    /// free memory is no reason to fail without asking.
    memory_that_a_pool_of_the_driver_keeps_serves_requests => under_each_strategy("kept", |job| job.sim("1GiB", 1));
    /// A job with many pools would pay for all of them at each wait.
    a_wait_asks_only_the_pools_that_it_can_have_changed => under_each_strategy("pools", |job| job);
    /// The driver takes memory of `cuMemAlloc` there too (`free_async_of_alloc` in tests/assumptions).
    a_block_is_freed_in_the_order_of_a_stream => under_each_strategy("ordered", |job| job.sim("64MiB", 2));
    /// A driver before CUDA 12.5 has no events of contexts.
    a_block_is_freed_in_the_order_of_a_stream_without_events_of_contexts => under_each_strategy("ordered", |job| {
        job.sim("64MiB", 2).env("SIMGPU_FAULTS", "cuCtxRecordEvent:/1=801")
    });
    a_free_that_the_driver_refuses_for_its_place_is_refused_alike => under_each_strategy("nowhere", |job| job);
    /// Calls of the library write and read files, which ends a cancelled thread. That would unwind frames of Rust.
    a_cancelled_thread_ends_at_its_own_cancellation_point => under_each_strategy("cancelled", |job| job);
}

/// A pool that is made during the destruction of its context would later serve the next context with the same handle,
/// with memory that no longer exists.
#[test]
fn no_pool_is_made_in_a_context_that_is_being_destroyed() {
    for strategy in STRATEGIES {
        let job = scene("dying").env("SIMGPU_LATENCY", "cuCtxDestroy=300ms");
        let checkpoint = job.strategy(strategy).run().ok().json().remove(0);
        let alive = totals(&checkpoint["truth"]["totals"], |row| &row["reserved"]);
        let of = |class: &str| alive.get(&(0, class.to_owned())).copied().unwrap_or(0);
        assert!(of("linear") + of("vmm") >= 100 * MIB, "{strategy:?}: {alive:?}");
    }
}

/// The job's ledger agrees with the simulated GPU at each of its checkpoints, of which there are so many.
#[track_caller]
fn assert_all_agrees_at(count: usize, job: Job, strategy: Strategy, context: &str) {
    let checkpoints = job.strategy(strategy).run().ok().json();
    assert_eq!(checkpoints.len(), count, "{context}");
    assert_all_agree(&checkpoints, strategy, context);
}

/// The last `cuCtxDetach` destroys a context, and another one often gets its handle. A pool that is left would hand out memory
/// that is gone, and the limit would be reached.
#[test]
fn a_context_that_is_detached_takes_its_memory_with_it() {
    for strategy in STRATEGIES {
        let job = scene("detached").env("VRAMSHIM_MEMORY_LIMIT", "2GiB");
        assert_all_agrees_at(3, job, strategy, "");
    }
}

/// The memory of these arrays is that of `cuMemCreate`, which counts when it is made.
#[test]
fn an_array_whose_memory_is_mapped_later_takes_none() {
    for strategy in STRATEGIES {
        for limit in ["none", "1GiB"] {
            let job = scene("sparse").sim("8GiB", 1);
            let job = if limit == "none" {
                job
            } else {
                job.env("VRAMSHIM_MEMORY_LIMIT", limit)
            };
            assert_all_agrees_at(2, job, strategy, &format!("limit {limit}"));
        }
    }
}

/// A handle of `cuMulticastCreate` is mapped and unmapped as any other. A slot that is claimed for a record that never comes
/// looks like a free in the middle of which the job ended.
#[test]
fn a_handle_that_the_ledger_does_not_have_leaves_no_slot_unfilled() {
    for strategy in STRATEGIES {
        let job = scene("unseen").strategy(strategy).run().ok().inspect();
        assert_fields(&job, json!({"unfinished": 0, "anomalies": 0}), &format!("{strategy:?}"));
    }
}

/// A free whose wait fails must not answer an error: the block is free, and a job that tried again would be told that it
/// never was one.
#[test]
fn a_free_succeeds_although_each_way_to_wait_fails_once() {
    for strategy in STRATEGIES.into_iter().filter(|strategy| strategy.name != "passthrough") {
        let faults = "cuCtxRecordEvent:1=999,cuCtxSynchronize:1=999";
        scene("refused")
            .env("SIMGPU_FAULTS", faults)
            .strategy(strategy)
            .run()
            .ok();
    }
}
