//! Tests of the allocator for PyTorch (`vramshim_torch_*`) without PyTorch: which stream may get a freed block next,
//! and when.

use support::{
    AUTO_GROWTH, AUTO_GROWTH_CHUNKS, Fields, Finished, Job, NAIVE_BEST_FIT, STRATEGIES, assert_all_agree, client,
};

const POLICIES: [support::Strategy; 3] = [NAIVE_BEST_FIT, AUTO_GROWTH, AUTO_GROWTH_CHUNKS];

fn scene(name: &str) -> Job {
    let path = client("tensors/tensors.c", "tensors", &["libcuda.so.1"]);
    Job::new(path).env("SIMGPU_DELAYED", "1").args([name])
}

fn in_all(name: &str) -> [(support::Strategy, Finished); 4] {
    STRATEGIES.map(|strategy| (strategy, scene(name).strategy(strategy).run().ok()))
}

/// PyTorch allocates before the job has retained the primary context. Without a retain by the library, the context and
/// its memory would be destroyed after the call.
#[test]
fn the_first_tensor_outlives_the_call_that_made_it() {
    for (strategy, finished) in in_all("first") {
        let checkpoints = finished.json();
        assert_eq!(checkpoints.len(), 3);
        assert_all_agree(&checkpoints, strategy, "");
    }
}

#[test]
fn with_record_stream_only_recorded_blocks_wait_and_without_it_each_free() {
    for (strategy, finished) in in_all("elsewhere") {
        let told = finished.stdout.trim();
        if strategy.name == "passthrough" {
            assert!(told.ends_with("waited 0"), "{told}"); // the driver itself waits
        } else {
            assert_eq!(told, "same 100 waited 0", "{strategy:?}");
        }
    }
}

#[test]
fn memory_moves_to_another_stream_only_after_a_wait() {
    for strategy in POLICIES {
        // The device has too little memory for both streams at the same time.
        let finished = scene("crossing").sim("160MiB", 1).strategy(strategy).run().ok();
        let waited = finished.stdout.trim().strip_prefix("waited ").expect("a count");
        assert_ne!(waited, "0", "{strategy:?}");
    }
}

#[test]
fn a_new_stream_with_the_handle_of_a_destroyed_one_is_another_stream() {
    // Without the thread cache malloc reuses freed memory at once, so a new stream gets the handle of the destroyed
    // one.
    for strategy in STRATEGIES {
        let job = scene("namesake").strategy(strategy);
        job.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0").run().ok();
    }
}

#[test]
fn a_free_puts_no_work_on_the_default_stream() {
    for strategy in POLICIES {
        scene("mutual").strategy(strategy).run().ok();
    }
}

#[test]
fn memory_that_a_cuda_graph_may_use_is_not_reused() {
    for strategy in STRATEGIES {
        let finished = scene("captured").sim("600MiB", 1).strategy(strategy).run().ok();
        let said = finished.said();
        let warnings: Vec<_> = said.iter().filter(|(_, words)| words.contains("CUDA graph")).collect();
        assert!(warnings.len() == 1 && warnings[0].0 == 'W', "{strategy:?}: {said:?}");
    }
}

/// PyTorch names a private pool for each graph and says when the graph is gone. Memory that is not given back then would
/// not fit ten times.
#[test]
fn a_private_pools_memory_comes_back_with_its_last_graph() {
    for strategy in STRATEGIES {
        let finished = scene("pools").sim("200MiB", 1).strategy(strategy).run().ok();
        let mentions = finished.said().iter().any(|(_, words)| words.contains("CUDA graph"));
        assert!(!mentions, "{strategy:?}: {}", finished.stderr);
    }
}

#[test]
fn without_pytorch_a_refused_request_returns_null_and_says_why() {
    for (strategy, finished) in in_all("refused") {
        assert_eq!(finished.stdout.trim(), "returned (nil)");
        let said = finished.said();
        let mut errors = said.iter().filter(|(severity, _)| *severity == 'E');
        let (_, words) = errors.next().expect("an error");
        let begin = "CUDA out of memory. Tried to allocate 1.00 PiB on GPU 0: ";
        assert!(words.starts_with(begin), "{words}");
        let more = (errors.count(), words.matches("1.00 PiB").count());
        assert_eq!(more, (0, 1), "{strategy:?}: {said:?}");
    }
}

/// `frameworks` tests `torch.OutOfMemoryError` with PyTorch itself.
#[test]
fn a_pytorch_without_its_exceptions_symbols_throws_a_runtime_error() {
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libc10_cuda.so"];
    let libc10 = client("tensors/c10.c", "tensors_libc10_cuda.so", &flags);
    for strategy in STRATEGIES {
        let finished = scene("refused").env("LIBC10", &libc10).strategy(strategy).run().ok();
        let thrown = "thrown by vramshim_torch_alloc (libvramshim, 0): CUDA out of memory. Tried to ";
        assert!(finished.stdout.starts_with(thrown), "{strategy:?}: {}", finished.stdout);
        let said = finished.said();
        assert!(said.iter().all(|(severity, _)| *severity != 'E'), "{said:?}");
    }
}

#[test]
fn replay_predicts_what_the_library_does() {
    // Work and events are done at once, as `replay` assumes.
    let job = scene("steps").env("SIMGPU_DELAYED", "0");
    let finished = job.sim("1GiB", 1).strategy(AUTO_GROWTH).run().ok();
    let options = "replay --json --strategy auto_growth --device-memory 1GiB";
    let page = finished.told(&options.split(' ').collect::<Vec<_>>()).json();
    let told = &page["strategies"][0];
    let job = finished.inspect();
    let linear = &job["devices"][0]["classes"][0];
    let streams = job["live"].list().iter().map(|live| live["stream"].as_u64());
    let streams: std::collections::BTreeSet<_> = streams.map(|stream| stream.expect("a stream")).collect();
    assert!(streams.contains(&1) && streams.into_iter().all(|stream| (1..=3).contains(&stream)));
    assert_eq!(told["waits_in_allocations"], 0, "{told:#}");
    assert_eq!(told["peak_reserved"], linear["reserved"]["peak"], "{told:#}");
}

/// A library whose calls write files, wait or read would unwind frames of Rust, or leave a lock locked.
#[test]
fn a_cancelled_thread_gets_its_tensors_and_ends_at_its_own_cancellation_point() {
    const SETTINGS: [(&str, &str); 6] = [
        ("VRAMSHIM_STACKS", "native"),
        ("VRAMSHIM_MEMORY_LIMIT", "200MiB"),
        ("VRAMSHIM_JOURNAL_MAX", "1MiB"),
        ("VRAMSHIM_MAX_REQUEST", "1GiB"),
        ("VRAMSHIM_LOG", "debug"),
        ("SIMGPU_FAULTS", "cuCtxRecordEvent:/1=801"),
    ];
    for strategy in STRATEGIES {
        for (name, value) in SETTINGS {
            let job = scene("cancelled").env("SIMGPU_DELAYED", "0").env(name, value);
            job.strategy(strategy).run().ok();
        }
    }
}
