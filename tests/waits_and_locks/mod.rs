//! What the driver promises holds under every strategy: an allocation waits for nothing, a free waits for all work that
//! may use the memory, and no call holds a lock of the library while the driver waits.
//!
//! The clients are programs that end with a driver alone, and that hang or lose bytes with an allocator that waits or
//! locks in another place. Every scene is first run without the library. A scene that does not end there proves nothing,
//! and is an error of the scene or of the simulator.
//!
//! With a real driver some scenes of several threads hang, because a wait inside `cuMemFree` or a copy holds up other
//! threads (src/simgpu/driver/gate.c). So scenes are run without the library, and in passthrough, on a simulator that does
//! not hold up, and under a policy on one that does: there the library must not add a call that is held up. The scenes of
//! `HELD_UP` hold up a request for new memory in any case, unless the memory is mapped.

use support::{
    AUTO_GROWTH, AUTO_GROWTH_WITHOUT_VMM as CHUNKS, Finished, Job, NAIVE_BEST_FIT, PASSTHROUGH, Strategy, client, glog,
    tests,
};

const ALL: [Strategy; 4] = [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH, CHUNKS];
const POLICIES: [Strategy; 3] = [NAIVE_BEST_FIT, AUTO_GROWTH, CHUNKS];

fn program(file: &str, libraries: &[&str], scene: &[&str]) -> Job {
    let name = format!("{file}-{}", libraries[0]);
    let path = client(&format!("waits_and_locks/{file}.c"), &name, libraries);
    Job::new(path).sim("4GiB", 4).env("SIMGPU_DELAYED", "1").args(scene)
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

/// In `trims` a free by a trim may begin in the moment after the library has seen that there is no work.
const HELD_UP: [&str; 4] = ["threads", "beside", "mutexes", "trims"];

fn held_up_by_none(job: Job) -> Job {
    job.env("SIMGPU_WAITS_HOLD", "0")
}

/// Runs each job without the library, and then under each strategy. All jobs are run before the test fails.
fn play<'a>(strategies: &[Strategy], names: &[&'a str], job: impl Fn(&'a str) -> Job + Sync) {
    let mut failures = Vec::new();
    for name in names {
        let alone = held_up_by_none(job(name)).alone().run();
        if let Some(failure) = failure(&format!("{name}, without the library"), &alone) {
            failures.push(failure);
            continue;
        }
        let under = |strategy: Strategy| {
            let maps = strategy.name == AUTO_GROWTH.name && strategy != CHUNKS;
            let is_held_up = strategy.name != PASSTHROUGH.name && (maps || !HELD_UP.contains(name));
            let job = if is_held_up {
                job(name)
            } else {
                held_up_by_none(job(name))
            };
            failure(&format!("{name}, {strategy:?}"), &job.strategy(strategy).run())
        };
        failures.extend(side_by_side(strategies, under));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The failures of all cases. Jobs that hang cost no processor time, so the cases are run at the same time.
fn side_by_side<T: Copy + Send>(cases: &[T], run: impl Fn(T) -> Option<String> + Sync) -> Vec<String> {
    let run = &run;
    std::thread::scope(|scope| {
        let running: Vec<_> = cases.iter().map(|&case| scope.spawn(move || run(case))).collect();
        let ended = running.into_iter().map(|thread| thread.join().expect("a case"));
        ended.flatten().collect()
    })
}

/// Plays scenes of one file.
fn plays(strategies: &[Strategy], file: &str, names: &[&str]) {
    play(strategies, names, |name| scene(file, name));
}

tests! {
    no_thread_that_waits_in_a_call_holds_up_an_allocation_or_a_question =>
        plays(&ALL, "waits", &["beside", "teardown"]);
    a_trim_holds_up_no_allocation => plays(&ALL, "waits", &["trim", "trims"]);
    a_host_function_may_take_a_mutex_that_is_held_during_an_allocation => plays(&ALL, "waits", &["mutexes"]);
    memory_that_is_given_back_holds_up_no_allocation =>
        play(&ALL, &["mutexes"], |name| scene("waits", name).env("VRAMSHIM_IDLE_RELEASE", "5ms"));
    one_thread_launches_work_of_devices_that_wait_for_each_other_around_a_free => plays(&ALL, "waits", &["apart"]);
    a_free_returns_after_the_work_that_uses_the_memory => plays(&ALL, "frees", &["streams", "peers"]);
    a_block_is_an_allocation_until_its_free_returns => plays(&ALL, "frees", &["asked"]);
    one_pool_serves_the_primary_context_and_its_green_contexts =>
        play(&ALL, &["one-pool", "last"], |name| scene("frees", name).sim("1GiB", 1));
    a_block_is_waited_for_on_the_streams_of_all_contexts_of_its_device => plays(&ALL, "frees", &["green"]);
    streams_of_green_contexts_are_told_apart_and_end_with_them => plays(&POLICIES, "frees", &["defaults", "destroyed"]);
    a_capture_survives_the_allocations_and_frees_of_any_thread =>
        plays(&ALL, "captures", &["often", "again", "cig"]);
    /// A block that is freed while another thread captures serves the next request, and the free waits for its work.
    memory_is_used_again_while_another_thread_captures => plays(&ALL, "captures", &["filled"]);
    captures_that_the_library_does_not_see_survive_but_for_the_first => plays(&ALL, "captures", &["missed"]);
    a_new_primary_context_hands_out_no_memory_of_the_one_before => plays(&ALL, "retains", &["threads", "tensors"]);
}

#[test]
fn no_memory_is_lost_if_a_context_is_reset_while_others_allocate() {
    let slow = |name| scene("retains", name).env("SIMGPU_LATENCY", "cuMemCreate=200us,cuMemMap=100us");
    play(&ALL, &["resets"], slow);
}

/// On a device that has room for one large block.
fn narrow(name: &str) -> Job {
    scene("memory", name).sim("1GiB", 1)
}

#[test]
fn memory_that_may_still_be_in_use_is_waited_for_before_memory_runs_out() {
    play(&ALL, &["exhausted", "helped"], narrow);
}

/// Segments and chunks are given back by a free, which waits; mapped memory by an unmapping, which may wait.
fn short(name: &str) -> Job {
    let job = scene("short", name).sim("1GiB", 1).env("SIMGPU_UNMAP_WAITS", "1");
    // Here the free of the job itself holds up the request, with a driver and with segments of a policy.
    if name == "queued" { held_up_by_none(job) } else { job }
}

#[test]
fn memory_may_run_out_while_the_caller_holds_a_lock_that_the_work_wants() {
    play(&ALL, &["idle", "async", "graph", "queued", "tensors", "lasting"], short);
}

#[test]
fn chunks_that_go_back_by_themselves_are_not_waited_for_under_a_lock() {
    for flag in ["FLAGS_free_idle_chunk", "FLAGS_free_when_no_cache_hit"] {
        play(&[CHUNKS], &["idle", "async", "queued"], |name| {
            short(name).env(flag, "true")
        });
    }
}

tests! {
    a_request_that_no_wait_can_serve_fails_at_once => play(&ALL, &["hopeless"], narrow);
    a_tensor_waits_for_no_stream => plays(&POLICIES, "memory", &["per-thread"]);
    the_per_thread_stream_is_another_one_in_each_thread => plays(&POLICIES, "memory", &["threads"]);
    large_blocks_lie_at_addresses_that_the_driver_would_give_them => plays(&ALL, "memory", &["aligned"]);
}

#[test]
fn what_holds_for_the_driver_holds_through_the_runtime() {
    for runtime in ["libcudart.so.12", "libcudart.so.13"] {
        let libraries = [runtime, "libcuda.so.1", "-DRUNTIME"];
        for (file, names) in [
            ("waits", ["trim", "apart"]),
            ("frees", ["streams", "asked"]),
            ("memory", ["hopeless", "aligned"]),
        ] {
            play(&ALL, &names, |name| program(file, &libraries, &[name]));
        }
    }
}

/// A fault says nothing about memory, so the library reports neither a lack of it nor a missing ability of the driver.
#[test]
fn after_a_fault_every_call_answers_its_error_until_the_context_is_gone() {
    let names = ["freed", "allocated", "first"];
    // Physical memory is created in a context with a fault, and it may be that it can be mapped too.
    let with_fault = |name, maps| scene("faults", name).env("SIMGPU_MAPPING_AFTER_FAULT", maps);
    for maps in ["0", "1"] {
        play(&ALL, &names, |name| with_fault(name, maps));
    }
    for (strategy, maps) in POLICIES.iter().flat_map(|&one| [(one, "0"), (one, "1")]) {
        for name in names {
            let finished = with_fault(name, maps).strategy(strategy).run().ok();
            let said = finished.said();
            let wrong = |words: &str| words.contains("chunk") || words.contains("emory error");
            let expected = strategy.environment.contains(&("SIMGPU_VMM", "0"));
            let is_right = expected || !said.iter().any(|(_, words)| wrong(words));
            assert!(is_right, "{strategy:?}, {name}: {said:?}");
            let granules = strategy.name == AUTO_GROWTH.name && !expected;
            assert_eq!(finished.stdout.trim() != "created 0", granules, "{strategy:?}, {name}");
        }
    }
}

/// The driver answers the error of a context that is current also to calls which concern no context.
#[test]
fn memory_of_other_contexts_goes_back_while_one_with_a_fault_is_current() {
    plays(&ALL, "faults", &["beside"]);
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
        (NAIVE_BEST_FIT, "export", "cuIpcGetMemHandle"),
        (AUTO_GROWTH, "export", "cuMemExportToShareableHandle"),
        (NAIVE_BEST_FIT, "free", "cuCtxRecordEvent"),
        (AUTO_GROWTH, "free", "cuCtxRecordEvent"),
    ];
    let failures = side_by_side(&cases, |(strategy, name, call)| holds(strategy, name, call));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
