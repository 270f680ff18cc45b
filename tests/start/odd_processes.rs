//! Processes that the library must know by other means than the C library's handlers: each does what it does without.

use std::time::Duration;

use support::{AUTO_GROWTH, Fields, Finished, Job, PASSTHROUGH, client};

fn scene(name: &str) -> Job {
    let path = client("start/odd_processes.c", "odd_processes", &["libcuda.so.1", "-pthread"]);
    // A process that does not end fails its test.
    Job::new(path).args([name]).limit(Duration::from_secs(20))
}

/// Runs a scene with and without the library, in each of these surroundings.
fn runs_as_without(name: &str, surroundings: &[&[(&str, &str)]]) -> Vec<Finished> {
    let alone = scene(name).alone().run().ok();
    let run = |variables: &&[(&str, &str)], strategy| {
        let job = variables
            .iter()
            .fold(scene(name), |job, (name, value)| job.env(name, value));
        let finished = job.strategy(strategy).run().ok();
        assert_eq!(finished.stdout, alone.stdout, "{name}, {variables:?}");
        finished
    };
    let with = |variables| [run(variables, PASSTHROUGH), run(variables, AUTO_GROWTH)];
    surroundings.iter().flat_map(with).collect()
}

/// What is called is that copy of the driver, which the library cannot see.
#[test]
fn a_driver_in_a_namespace_of_its_own_is_left_alone() {
    runs_as_without("namespace", &[&[]]);
}

/// Each thread of the library lets the process end: the keeper, and the service of shared blocks.
#[test]
fn a_process_ends_with_its_last_thread() {
    let surroundings: [&[(&str, &str)]; 3] = [
        &[],
        &[("VRAMSHIM_CONTROL", "1")],
        &[("VRAMSHIM_MEMORY_LIMIT", "1GiB"), ("VRAMSHIM_SURGE", "1GiB/s")],
    ];
    for finished in runs_as_without("last_thread", &surroundings) {
        let job = finished.inspect();
        assert_eq!(job["ended"], "exit", "{job}");
    }
}

/// A child of the system call has no handler of a fork, and still writes a journal of its own.
#[test]
fn a_child_of_the_system_call_clone_has_its_own_journal() {
    for finished in runs_as_without("clone", &[&[]]) {
        let jobs = finished.inspect_all();
        let mut peaks = jobs.iter().map(|job| job["devices"][0]["allocated"]["peak"].number());
        let (one, other) = (peaks.next().unwrap(), peaks.next().unwrap());
        assert_eq!((one.min(other), one.max(other), peaks.next()), (5 << 20, 7 << 20, None));
    }
}
