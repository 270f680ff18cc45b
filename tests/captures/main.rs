//! A policy knows which captures are open, whatever becomes of them: it breaks none, and waits for no ended one.

use support::{AUTO_GROWTH, AUTO_GROWTH_CHUNKS, Job, NAIVE_BEST_FIT, Strategy, client};

/// What is larger than a chunk the driver would serve, which waits of its own accord.
const LARGE_CHUNK: Strategy = Strategy {
    name: "naive_best_fit",
    environment: &[("FLAGS_initial_gpu_memory_in_mb", "3200")],
};

fn scene(name: &str, strategy: Strategy) -> Job {
    let path = client("captures/captures.c", "captures", &["libcuda.so.1"]);
    Job::new(path)
        .env("SIMGPU_DELAYED", "1")
        .strategy(strategy)
        .args([name])
}

fn in_all(name: &str, with: impl Fn(Job) -> Job) {
    for strategy in [LARGE_CHUNK, AUTO_GROWTH, AUTO_GROWTH_CHUNKS] {
        with(scene(name, strategy)).run().ok();
    }
}

#[test]
fn a_capture_ends_with_its_stream() {
    in_all("stream", |job| job);
}

#[test]
fn a_capture_ends_with_its_context() {
    in_all("context", |job| job);
}

#[test]
fn one_handle_is_another_stream_in_each_thread() {
    let layer = client("captures/layer.c", "captures_layer.so", &["-shared", "-fPIC"]);
    in_all("threads", |job| job.preload(layer.clone()));
}

#[test]
fn a_capture_that_could_not_be_ended_is_still_open() {
    in_all("failed", |job| job.env("SIMGPU_FAULTS", "cuStreamEndCapture:1=908"));
}

#[test]
fn a_capture_that_begins_while_a_policy_waits_is_whole() {
    in_all("meanwhile", |job| job.env("SIMGPU_LATENCY", "cuCtxSynchronize=300ms"));
}

#[test]
fn memory_given_back_when_idle_breaks_no_capture() {
    // Giving it back takes longer than from one capture to the next.
    let slow = "cuMemUnmap=300us,cuMemRelease=300us,cuMemFree=2ms";
    for strategy in [NAIVE_BEST_FIT, AUTO_GROWTH, AUTO_GROWTH_CHUNKS] {
        let job = scene("idle", strategy).env("VRAMSHIM_IDLE_RELEASE", "20ms");
        job.env("SIMGPU_LATENCY", slow).run().ok();
    }
}
