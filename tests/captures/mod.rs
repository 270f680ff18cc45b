//! A policy knows which stream captures are open, however each of them ends. It never invalidates an open capture, and
//! never waits for one that has ended.

use support::{AUTO_GROWTH, AUTO_GROWTH_CHUNKS, Job, NAIVE_BEST_FIT, Strategy, client, tests};

/// A request larger than a chunk goes to the driver, which waits by itself. This chunk holds every request of the
/// scenes.
const LARGE_CHUNK: Strategy = NAIVE_BEST_FIT.with(&[("FLAGS_initial_gpu_memory_in_mb", "3200")]);

fn scene(name: &str, strategy: Strategy) -> Job {
    let path = client("captures/captures.c", "captures", &["libcuda.so.1"]);
    Job::new(path)
        .env("SIMGPU_DELAYED", "1")
        .strategy(strategy)
        .args([name])
}

fn under_each_strategy(name: &str, with: impl Fn(Job) -> Job) {
    for strategy in [LARGE_CHUNK, AUTO_GROWTH, AUTO_GROWTH_CHUNKS] {
        with(scene(name, strategy)).run().ok();
    }
}

tests! {
    a_capture_ends_with_its_stream => under_each_strategy("stream", |job| job);
    a_capture_ends_with_its_context => under_each_strategy("context", |job| job);
}

#[test]
fn one_handle_is_another_stream_in_each_thread() {
    let layer = client("captures/layer.c", "captures_layer.so", &["-shared", "-fPIC"]);
    under_each_strategy("threads", |job| job.preload(layer.clone()));
}

tests! {
    a_capture_is_that_of_the_thread_whose_begin_succeeded => under_each_strategy("refused", |job| job);
    a_capture_that_could_not_be_ended_is_still_open =>
        under_each_strategy("failed", |job| job.env("SIMGPU_FAULTS", "cuStreamEndCapture:1=908"));
    a_capture_that_begins_while_a_free_waits_begins_at_once_and_stays_valid =>
        under_each_strategy("meanwhile", |job| job);
}

#[test]
fn idle_release_breaks_no_capture() {
    // Giving memory back takes longer than the time between two captures.
    let slow = "cuMemUnmap=300us,cuMemRelease=300us,cuMemFree=2ms";
    for strategy in [NAIVE_BEST_FIT, AUTO_GROWTH, AUTO_GROWTH_CHUNKS] {
        let job = scene("idle", strategy).env("VRAMSHIM_IDLE_RELEASE", "20ms");
        job.env("SIMGPU_LATENCY", slow).run().ok();
    }
}
