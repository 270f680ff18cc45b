//! Faults that other interposing libraries have had, where `differential` cannot see them: wrong results of look-ups, several
//! runtimes, and no room for the journal.

use std::path::PathBuf;

use serde_json::json;
use support::{
    AUTO_GROWTH, Fields, Finished, Job, NAIVE_BEST_FIT, PASSTHROUGH, STRATEGIES, Strategy, assert_all_agree,
    assert_fields, assert_says, client,
};

fn program() -> PathBuf {
    client("support/clients/behaviour.c", "behaviour", &["libcuda.so.1"])
}

fn scene(name: &str, strategy: Strategy) -> Job {
    Job::new(program()).strategy(strategy).args([name])
}

/// Checks that the job printed this number of checkpoints and that each of them agrees.
fn agreed(finished: Finished, strategy: Strategy, checkpoints: usize) -> Finished {
    let finished = finished.ok();
    let lines = finished.json();
    assert_eq!(lines.len(), checkpoints, "{}", finished.stdout);
    assert_all_agree(&lines, strategy, "");
    finished
}

#[test]
fn a_free_that_the_next_layer_refuses_frees_nothing() {
    let job = scene("refused", PASSTHROUGH).env("SIMGPU_FAULTS", "cuMemFree:1=999");
    let told = agreed(job.run(), PASSTHROUGH, 3).inspect();
    assert_fields(&told, json!({"failed_calls": 1, "anomalies": 0}), "");
}

/// The hooked functions of the driver, from the list of exported symbols.
fn hooked() -> String {
    let names = include_str!("../exports/exports.txt").lines();
    let of_driver = names.filter(|name| name.starts_with("cu") && !name.starts_with("cuda"));
    of_driver.collect::<Vec<_>>().join("\n")
}

#[test]
fn look_ups_find_what_the_driver_has_and_nothing_else() {
    for version in ["13000", "12000", "11000", "10000", "4000"] {
        let job = || {
            let job = scene("look-ups", PASSTHROUGH).input(&hooked());
            job.env("SIMGPU_DRIVER_VERSION", version)
        };
        let alone = job().alone().run().ok();
        let with = job().env("EXPECT_OURS", "1").run().ok();
        assert!(alone.stdout.lines().count() > 2000);
        let mut pairs = alone.stdout.lines().zip(with.stdout.lines());
        let differing = pairs.find(|(alone, with)| alone != with);
        assert_eq!(differing, None, "driver {version}");
        assert_eq!(alone.stdout.len(), with.stdout.len());
    }
}

#[test]
fn a_look_up_gives_the_generation_that_was_asked_for() {
    for strategy in STRATEGIES {
        let finished = agreed(scene("generations", strategy).run(), strategy, 1);
        let held = support::live(&finished.inspect()["live"]);
        let expected = [("cuMemAlloc", 1000), ("cuMemAllocAsync", 5000), ("cuMemAlloc_v1", 3000)];
        let expected = expected.map(|(api, size)| ((api.to_owned(), size, 0), 1));
        assert_eq!(held, expected.into(), "{strategy:?}");
    }
}

#[test]
fn two_runtimes_in_one_process_each_get_their_own_calls() {
    let users = ["12", "13"].map(|number| {
        let library = format!("libcudart.so.{number}");
        let arguments = ["-shared", "-fPIC", &library];
        client("interposition/runtime_user.c", &format!("user{number}.so"), &arguments)
    });
    let path = client("interposition/two_runtimes.c", "two_runtimes", &[]);
    for strategy in [PASSTHROUGH, AUTO_GROWTH] {
        let finished = agreed(Job::new(&path).strategy(strategy).args(&users).run(), strategy, 3);
        let told = finished.stdout.lines().filter(|line| !line.starts_with('{'));
        let expected = ["version 12", "version 13", "errors 2 0", "errors 2 2"];
        assert!(told.eq(expected), "{}", finished.stdout);
        let job = finished.inspect();
        assert_eq!(job["failed_calls"], 2);
        let names = job["apis"].list().iter().map(|api| api["api"].text());
        assert!(names.eq(["cuMemAlloc", "cudaMalloc", "cudaFree"]), "{job:#}");
    }
}

// ---- no room for the journal: events are lost, and the job goes on ------------------------------------------------------

#[test]
fn an_unwritable_directory_is_said_once() {
    for directory in ["/proc/nowhere/x", "/dev/null/x", "/dev/full"] {
        for strategy in [PASSTHROUGH, NAIVE_BEST_FIT] {
            let finished = scene("generations", strategy).env("VRAMSHIM_DIR", directory).run();
            let finished = agreed(finished, strategy, 1);
            let errors = said(&finished, 'E');
            assert_eq!(errors.len(), 1, "{}", finished.stderr);
            assert_says(&errors[0], directory);
            assert_says(&errors[0], "VRAMSHIM_DIR");
        }
    }
}

fn said(finished: &Finished, severity: char) -> Vec<String> {
    let said = finished.said().into_iter().filter(|(of, _)| *of == severity);
    said.map(|(_, words)| words).collect()
}

/// `tests/journal` shows the same of a full disk.
#[test]
fn a_limit_on_file_sizes_costs_events_only() {
    let limited = |blocks: u32| {
        let command = format!("ulimit -f {blocks}; exec \"$0\" many");
        let job = Job::new("bash").strategy(PASSTHROUGH).args(["-c", &command]);
        agreed(job.args([program()]).run(), PASSTHROUGH, 1)
    };
    let finished = limited(2048);
    assert_eq!(said(&finished, 'W').len(), 1, "{}", finished.stderr);
    let job = finished.inspect();
    let (lost, events) = (job["events_lost"].number(), job["events"].number());
    assert!(lost > 1000 && events > 1000, "{lost} lost, {events} there");
    assert_eq!(lost + events, 120_001, "every event is there or counted as lost");
    let ended = json!({"ended": "exit", "exit_status": 0, "lost_errno": libc::EFBIG});
    assert_fields(&job, ended, "");
    // The limit is too small for the header of a journal.
    let finished = limited(8);
    assert!(!said(&finished, 'E').is_empty(), "{}", finished.stderr);
    assert_eq!(finished.journals(), Vec::<PathBuf>::new());
}

/// A write to a file of the largest size, or to a pipe that nobody reads, raises a signal that ends a process.
#[test]
fn messages_that_nobody_can_take_end_no_job() {
    for start in ["ulimit -S -f 0; exec 2> messages", "exec 2> >(:); wait $!"] {
        let command = format!("{start}; \"$0\" many > /dev/null; echo $?");
        let job = Job::new("bash").strategy(NAIVE_BEST_FIT);
        let finished = job.args(["-c", &command]).args([program()]).run().ok();
        assert_eq!(finished.stdout, "0\n", "{start}");
    }
}
