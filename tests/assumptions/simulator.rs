//! What the simulated GPU does beyond the answers of the probes: host functions on threads of their own, devices that are
//! independent, captures, dma-bufs, faults, prices and latches.

use support::{Job, client, scratch, tests};

fn scene(name: &str) -> Job {
    let path = client("assumptions/simulator/simulator.c", "simulator", &["libcuda.so.1"]);
    Job::new(path).alone().sim("8GiB", 2).args([name])
}

/// With work that is done at once, and with work that is done as late as possible.
fn plays(name: &str) {
    for delayed in ["0", "1"] {
        scene(name).env("SIMGPU_DELAYED", delayed).run().ok();
    }
}

tests! {
    host_functions_of_two_streams_may_wait_for_each_other => plays("collective");
    captures_fork_join_break_and_are_made_again => plays("captures");
    a_launched_graph_does_the_captured_work => plays("graphs");
    a_dmabuf_stays_with_the_memory_that_it_was_made_of => plays("dmabuf");
    memory_of_cu_mem_alloc_is_freed_without_a_context => plays("nowhere");
    work_of_a_destroyed_green_context_is_waited_for_by_the_primary_one => plays("green");
    /// But for `cuMemCreate`.
    a_fault_is_answered_by_later_calls_of_its_context => plays("faults");
    work_is_done_late_and_in_the_order_of_streams_and_events => scene("order").env("SIMGPU_DELAYED", "1").run().ok();
}

/// A wait inside a free holds its context by default (src/simgpu/driver/gate.c); `calls_beside_waits` and the probes
/// beside it ask for that.
#[test]
fn a_blocked_device_blocks_no_other_and_no_lock_is_held_while_a_call_waits() {
    for delayed in ["0", "1"] {
        let job = scene("devices").env("SIMGPU_WAITS_HOLD", "0");
        job.env("SIMGPU_DELAYED", delayed).run().ok();
    }
}

#[test]
fn holes_between_mappings_are_passed_over_unless_told_not_to() {
    plays("holes");
    scene("holes").env("SIMGPU_HOLES", "0").run().ok();
}

/// 64 granules of 2 MiB: to create and map one costs 12.4 us, to set access 37 us, to unmap 34 us.
#[test]
fn each_handle_has_its_price() {
    let told = scene("growth").env("SIMGPU_LATENCY", "prices").run().ok().stdout;
    let us: Vec<u64> = told.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(us[0] >= 64 * 12 && us[1] >= 64 * 37 && us[2] >= 64 * 34, "{us:?}");
}

#[test]
fn a_latch_holds_a_call_back_and_no_other() {
    let folder = scratch("latch");
    let _ = std::fs::remove_dir_all(&folder); // of an earlier run
    std::fs::create_dir_all(&folder).unwrap();
    let job = scene("latch").env("SIMGPU_LATCH", "cuMemCreate");
    job.env("SIMGPU_LATCH_DIR", folder.to_str().unwrap()).run().ok();
}
