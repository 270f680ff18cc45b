//! A freed block is not handed out while work of a peer may still touch it, and memory is mapped and unmapped in few calls.
//! `differential` shows for all streams and captures that no block is handed out too early.

use support::{AUTO_GROWTH, Fields, Job, STRATEGIES, client};

fn scene(name: &str) -> Job {
    let path = client("reuse/reuse.c", "reuse", &["libcuda.so.1"]);
    Job::new(path).env("SIMGPU_DELAYED", "1").args([name])
}

/// An event of a peer's work that cannot be made, recorded or waited for says nothing about the work.
#[test]
fn a_failed_call_for_a_peers_event_does_not_hand_its_memory_out() {
    for strategy in STRATEGIES {
        let run = |fault: &str| {
            let job = scene("peer").sim("8GiB", 2).env("SIMGPU_FAULTS", fault);
            job.strategy(strategy).run().ok().stdout
        };
        let names = ["cuEventCreate", "cuCtxRecordEvent", "cuEventSynchronize"];
        for (name, count) in names.into_iter().zip(run("").split_whitespace()) {
            for which in 1..=count.parse::<u64>().expect("a number") {
                run(&format!("{name}:{which}=999"));
            }
        }
    }
}

/// A driver that unmaps nothing is not asked for ever.
#[test]
fn a_request_ends_although_nothing_can_be_unmapped() {
    for fault in ["", "cuMemUnmap:1+=1"] {
        let job = scene("irregular").sim("80GiB", 1).env("SIMGPU_FAULTS", fault);
        let told = job.strategy(AUTO_GROWTH).run().ok().stdout;
        let unmaps: u64 = told.trim().parse().expect("a number");
        assert!(unmaps < 1000, "{fault}: {unmaps}");
    }
}

/// Where a driver maps memory in pieces of less than 2 MiB, blocks still lie at multiples of that.
#[test]
fn small_granules_serve_aligned_requests() {
    let mapped = ["2MiB", "1MiB", "64KiB"].map(|granularity| {
        let job = scene("aligned").sim("8GiB", 1).env("SIMGPU_GRANULARITY", granularity);
        let told = job.strategy(AUTO_GROWTH).run().ok().stdout;
        told.trim().parse::<u64>().expect("a number")
    });
    assert!(mapped.iter().all(|&maps| maps < 10 * mapped[0]), "{mapped:?}");
}

/// The search for the tightest place knows mapped memory only. Chunks serve as well when mapping ends.
#[test]
fn chunks_serve_after_memory_is_mapped_no_more() {
    let peaks = ["", "cuMemCreate:20+=801"].map(|fault| {
        let job = scene("tensors").sim("24GiB", 1).env("SIMGPU_FAULTS", fault);
        let job = job.env("FLAGS_auto_growth_chunk_size_in_mb", "64");
        let page = job.strategy(AUTO_GROWTH).run().ok().inspect();
        page["devices"][0]["reserved"]["peak"].number()
    });
    assert!(peaks[1] < peaks[0] + peaks[0] / 4, "{peaks:?}");
}
