//! At the borders of a policy's memory the job finds what it would find with the driver's.

use support::{Job, MIB, STRATEGIES, client, totals};

fn scene(name: &str) -> Job {
    let path = client("corners/corners.c", "corners", &["libcuda.so.1"]);
    Job::new(path).env("SIMGPU_DELAYED", "1").args([name])
}

/// Whoever got the handle of a granule would share, or map, the blocks of others along with this one.
#[test]
fn a_block_has_no_physical_memory_of_its_own() {
    for strategy in STRATEGIES {
        scene("handle").strategy(strategy).run().ok();
    }
}

/// A pool that begins while its context goes would serve the next one of that handle with memory that is gone.
#[test]
fn no_pool_begins_in_a_dying_context() {
    for strategy in STRATEGIES {
        let job = scene("dying").env("SIMGPU_LATENCY", "cuCtxDestroy=300ms");
        // The C library hands out again at once what was just freed, unless it keeps that aside.
        let job = job.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
        let checkpoint = job.strategy(strategy).run().ok().json().remove(0);
        let alive = totals(&checkpoint["truth"]["totals"], |row| &row["reserved"]);
        let of = |class: &str| alive.get(&(0, class.to_owned())).copied().unwrap_or(0);
        assert!(of("linear") + of("vmm") >= 100 * MIB, "{strategy:?}: {alive:?}");
    }
}

/// Else other processes find the device full for as long as it takes to fail.
#[test]
fn a_request_larger_than_the_device_takes_nothing() {
    for strategy in STRATEGIES {
        scene("too-much").strategy(strategy).run().ok();
    }
}

/// Under one name, with another argument: whoever asks for the one must not get the other.
#[test]
fn a_context_that_is_named_is_waited_for() {
    for strategy in STRATEGIES {
        scene("named").strategy(strategy).run().ok();
    }
}
