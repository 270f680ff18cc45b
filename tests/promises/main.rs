//! What the driver promises holds under every strategy: an allocation waits for nothing, a free waits for all work that
//! may use the memory, and no call holds a lock of the library while the driver waits.
//!
//! The clients are programs that end with a driver alone, and that hang or lose bytes with an allocator that waits or
//! locks in another place. Every scene is first run without the library. A scene that does not end there proves nothing,
//! and is an error of the scene or of the simulator.

use std::time::{SystemTime, UNIX_EPOCH};

use support::{AUTO_GROWTH, Finished, Job, NAIVE_BEST_FIT, PASSTHROUGH, Strategy, client, glog};

/// `auto_growth` without virtual memory management uses chunks.
const CHUNKS: Strategy = Strategy {
    environment: &[("SIMGPU_VMM", "0")],
    ..AUTO_GROWTH
};
const ALL: [Strategy; 4] = [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH, CHUNKS];
const POLICIES: [Strategy; 3] = [NAIVE_BEST_FIT, AUTO_GROWTH, CHUNKS];

fn program(file: &str, libraries: &[&str], arguments: &[&str]) -> Job {
    let source = format!("promises/{file}.c");
    let name = format!("promises-{file}-{}", libraries[0]);
    let path = client(&source, &name, libraries);
    Job::new(path).sim("4GiB", 4).env("SIMGPU_DELAYED", "1").args(arguments)
}

fn scene(file: &str, name: &str) -> Job {
    program(file, &["libcuda.so.1"], &[name])
}

/// What is wrong with a job that should have exited with 0: its status, and its messages without those of the library.
fn failure(what: &str, finished: &Finished) -> Option<String> {
    let messages = finished.stderr.lines().filter(|line| glog(line).is_none());
    let messages: Vec<&str> = messages.collect();
    let failed = !finished.status.success();
    failed.then(|| format!("{what}: {}\n{}", finished.status, messages.join("\n")))
}

/// Runs the job without the library, and then under each strategy. Every strategy is run before the test fails.
fn plays(strategies: &[Strategy], job: impl Fn() -> Job + Sync) {
    let alone = failure("without the library", &job().alone().run());
    assert!(alone.is_none(), "{}", alone.unwrap_or_default());
    // Jobs that hang cost no processor time, so they are run beside each other.
    let failures: Vec<String> = std::thread::scope(|scope| {
        let run = |strategy: Strategy| failure(&format!("{strategy:?}"), &job().strategy(strategy).run());
        let running: Vec<_> = strategies
            .iter()
            .map(|strategy| scope.spawn(move || run(*strategy)))
            .collect();
        running
            .into_iter()
            .filter_map(|thread| thread.join().unwrap())
            .collect()
    });
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

#[test]
fn a_capture_begins_at_once_with_work_in_flight() {
    plays(&ALL, || scene("captures", "begin"));
}

#[test]
fn a_capture_survives_the_allocations_and_frees_of_any_thread() {
    plays(&ALL, || scene("captures", "beside"));
    plays(&ALL, || scene("captures", "own"));
}

#[test]
fn memory_is_reused_correctly_beside_graphs_in_flight() {
    plays(&ALL, || scene("captures", "flight"));
}

/// On a device that has room for one large block.
fn narrow(name: &str) -> Job {
    scene("memory", name).sim("1GiB", 1)
}

#[test]
fn memory_that_may_still_be_in_use_is_waited_for_before_memory_runs_out() {
    plays(&ALL, || narrow("exhausted"));
    plays(&ALL, || narrow("helped"));
    plays(&ALL, || narrow("crossed"));
}

#[test]
fn a_request_that_no_wait_can_serve_fails_at_once() {
    plays(&ALL, || narrow("hopeless"));
}

#[test]
fn a_tensor_waits_for_no_stream() {
    plays(&POLICIES, || scene("memory", "same"));
    plays(&POLICIES, || scene("memory", "other"));
}

#[test]
fn large_blocks_lie_at_addresses_that_the_driver_would_give_them() {
    plays(&ALL, || scene("memory", "aligned"));
}

#[test]
fn what_holds_for_the_driver_holds_through_the_runtime() {
    for runtime in ["libcudart.so.12", "libcudart.so.13"] {
        for name in ["waits", "frees", "devices", "aligned"] {
            plays(&ALL, || program("runtime", &[runtime, "libcuda.so.1"], &[name]));
        }
    }
}

/// Runs a scene in which one thread is held in a call of the driver.
fn holds(strategy: Strategy, name: &str, call: &str) -> Option<String> {
    let latched = |job: Job| {
        let folder = job.folder().to_owned();
        job.env("SIMGPU_LATCH_DIR", folder)
    };
    let job = || latched(program("latch", &["libcuda.so.1"], &[name, call]));
    job().alone().run().ok();
    let finished = job().env("SIMGPU_LATCH", call).strategy(strategy).run();
    let what = format!("{strategy:?}, {name}, {call}");
    let not_held = || (finished.stdout != "held\n").then(|| format!("{what}: no thread was held"));
    failure(&what, &finished).or_else(not_held)
}

#[test]
fn no_call_of_the_driver_holds_up_hits_frees_and_questions_of_other_threads() {
    let cases = [
        (PASSTHROUGH, "ask", "cuMemAlloc"),
        (NAIVE_BEST_FIT, "grow", "cuMemAlloc"),
        (AUTO_GROWTH, "grow", "cuMemCreate"),
        (AUTO_GROWTH, "grow", "cuMemMap"),
        (AUTO_GROWTH, "grow", "cuMemSetAccess"),
        (AUTO_GROWTH, "trim", "cuMemUnmap"),
        (AUTO_GROWTH, "trim", "cuMemRelease"),
        (CHUNKS, "grow", "cuMemAlloc"),
        (CHUNKS, "trim", "cuMemFree"),
    ];
    let failures: Vec<String> = std::thread::scope(|scope| {
        let running = cases.map(|(strategy, name, call)| scope.spawn(move || holds(strategy, name, call)));
        running
            .into_iter()
            .filter_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    )
}

/// `VRAMSHIM_TEST_OPERATIONS` is the number of operations of each program, and `VRAMSHIM_TEST_SEED` repeats a run.
#[test]
fn random_programs_end_and_keep_their_bytes() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    let seed = number("VRAMSHIM_TEST_SEED").unwrap_or(u64::from(now.subsec_nanos()));
    let operations = number("VRAMSHIM_TEST_OPERATIONS").unwrap_or(4000);
    for (program_seed, threads) in [(seed, 1), (seed + 1, 2), (seed + 2, 4)] {
        println!("VRAMSHIM_TEST_SEED={seed}: program {program_seed} {operations} {threads}");
        let arguments = [program_seed, operations, threads].map(|number| number.to_string());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        plays(&ALL, || {
            program("program", &["libcuda.so.1"], &arguments).sim("8GiB", 2)
        });
    }
}
