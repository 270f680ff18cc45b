//! What the driver promises holds under every strategy: an allocation waits for nothing, a free waits for all work that
//! may use the memory, and no call holds a lock of the library while the driver waits.
//!
//! The clients are programs that end with a driver alone, and that hang or lose bytes with an allocator that waits or
//! locks in another place. Every scene is first run without the library. A scene that does not end there proves nothing,
//! and is an error of the scene or of the simulator.

use support::{AUTO_GROWTH, Job, NAIVE_BEST_FIT, PASSTHROUGH, Strategy, client};

/// `auto_growth` without virtual memory management uses chunks.
const CHUNKS: Strategy = Strategy {
    environment: &[("SIMGPU_VMM", "0")],
    ..AUTO_GROWTH
};
const ALL: [Strategy; 4] = [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH, CHUNKS];
const POLICIES: [Strategy; 3] = [NAIVE_BEST_FIT, AUTO_GROWTH, CHUNKS];

fn scene(file: &str, name: &str) -> Job {
    let source = format!("promises/{file}.c");
    let path = client(&source, &format!("promises-{file}"), &["libcuda.so.1"]);
    Job::new(path).sim("4GiB", 4).env("SIMGPU_DELAYED", "1").args([name])
}

/// Runs the job without the library, and then under each strategy. All strategies run before the test fails.
fn plays(strategies: &[Strategy], job: impl Fn() -> Job) {
    let alone = job().alone().run();
    assert!(
        alone.status.success(),
        "without the library: {}\n{}",
        alone.status,
        alone.stderr
    );
    let mut failures = Vec::new();
    for strategy in strategies {
        let finished = job().strategy(*strategy).run();
        if !finished.status.success() {
            let message: Vec<&str> = finished
                .stderr
                .lines()
                .filter(|line| support::glog(line).is_none())
                .collect();
            failures.push(format!("{strategy:?}: {}\n{}", finished.status, message.join("\n")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn an_allocation_does_not_wait_for_work_that_waits_for_this_thread() {
    plays(&ALL, || scene("waits", "sizes"));
    plays(&ALL, || scene("waits", "several"));
}

#[test]
fn no_thread_waits_for_the_work_of_another_thread_in_an_allocation() {
    plays(&ALL, || scene("waits", "threads"));
}

#[test]
fn a_host_function_may_take_a_mutex_that_is_held_during_an_allocation() {
    plays(&ALL, || scene("waits", "mutex"));
    plays(&ALL, || scene("waits", "mutexes"));
}

#[test]
fn one_thread_launches_both_halves_of_a_collective_around_an_allocation() {
    plays(&ALL, || scene("waits", "collective-2"));
    plays(&ALL, || scene("waits", "collective-4"));
}

#[test]
fn a_free_waits_for_no_other_device() {
    plays(&ALL, || scene("waits", "apart-2"));
    plays(&ALL, || scene("waits", "apart-4"));
}

#[test]
fn a_free_returns_after_the_work_that_uses_the_memory() {
    for name in ["streams", "others", "managed", "graphs", "green"] {
        plays(&ALL, || scene("frees", name));
    }
}

#[test]
fn a_free_waits_for_peers_that_may_write_the_memory() {
    plays(&ALL, || scene("frees", "peers"));
    plays(&ALL, || scene("frees", "granted"));
}
