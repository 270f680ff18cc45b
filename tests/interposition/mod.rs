//! One test for each fault that other interposing libraries have had. Among them are odd arguments, unknown pointers,
//! memory charged to the wrong device and wrong results of look-ups. Others are blocks that do not look like
//! allocations, blocks reused too early, and full disks.

use std::path::{Path, PathBuf};

use serde_json::json;
use support::{
    AUTO_GROWTH, Fields, Finished, Job, NAIVE_BEST_FIT, PASSTHROUGH, STRATEGIES, Strategy, assert_agree, assert_fields,
    assert_says, client, left_out,
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
    for (number, line) in lines.iter().enumerate() {
        assert_agree(line, strategy, &format!("{strategy:?}, checkpoint {number}"));
    }
    finished
}

fn without_json(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('{')).collect()
}

#[test]
fn odd_calls_answer_as_without_the_library() {
    let alone = scene("codes", PASSTHROUGH).alone().run().ok();
    assert!(alone.stdout.lines().count() > 50);
    for strategy in STRATEGIES {
        let finished = agreed(scene("codes", strategy).run(), strategy, 1);
        assert_eq!(
            without_json(&finished.stdout),
            without_json(&alone.stdout),
            "{strategy:?}"
        );
    }
}

#[test]
fn a_free_that_the_next_layer_refuses_frees_nothing() {
    let job = scene("refused", PASSTHROUGH).env("SIMGPU_FAULTS", "cuMemFree:1=999");
    let told = agreed(job.run(), PASSTHROUGH, 3).inspect();
    assert_fields(&told, json!({"failures": 1, "anomalies": 0}), "");
}

#[test]
fn memory_is_charged_to_the_device_it_is_on() {
    for strategy in STRATEGIES {
        agreed(scene("devices", strategy).run(), strategy, 7);
    }
}

#[test]
fn arrays_are_counted_in_bytes() {
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT] {
        agreed(scene("arrays", strategy).run(), strategy, 3);
    }
}

/// The hooked functions of the driver, from the list of exported symbols.
fn hooked() -> String {
    let names = include_str!("../exports/exports.txt").lines();
    names
        .filter(|name| name.starts_with("cu") && !name.starts_with("cuda"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn look_ups_find_what_the_driver_has_and_nothing_else() {
    for version in ["13000", "12000", "11000", "10000", "4000"] {
        let job = || {
            scene("look-ups", PASSTHROUGH)
                .env("SIMGPU_DRIVER_VERSION", version)
                .input(&hooked())
        };
        let alone = job().alone().run().ok();
        let with = job().env("EXPECT_OURS", "1").run().ok();
        assert!(alone.stdout.lines().count() > 2000);
        let differing = alone
            .stdout
            .lines()
            .zip(with.stdout.lines())
            .find(|(alone, with)| alone != with);
        assert_eq!(differing, None, "driver {version}");
        assert_eq!(alone.stdout.len(), with.stdout.len());
    }
}

#[test]
fn a_look_up_gives_the_generation_that_was_asked_for() {
    for strategy in STRATEGIES {
        let finished = agreed(scene("generations", strategy).run(), strategy, 1);
        let mut held: Vec<(String, u64)> = support::live(&finished.inspect()["live"])
            .into_keys()
            .map(|(api, size, _)| (api, size))
            .collect();
        held.sort();
        let expected = [("cuMemAlloc", 1000), ("cuMemAllocAsync", 5000), ("cuMemAlloc_v1", 3000)];
        assert_eq!(held, expected.map(|(api, size)| (api.to_owned(), size)), "{strategy:?}");
    }
}

#[test]
fn a_block_looks_like_an_allocation() {
    let finished = scene("questions", PASSTHROUGH).run().ok();
    assert_eq!(finished.stdout, "ipc 0\n");
    for strategy in [NAIVE_BEST_FIT, AUTO_GROWTH, support::AUTO_GROWTH_CHUNKS] {
        let finished = scene("questions", strategy).env("POOLED", "1").run().ok();
        // tests/ipc checks what another process gets with the handle.
        assert_eq!(finished.stdout, "ipc 0\n", "{strategy:?}");
    }
}

fn shared(source: &str, name: &str, runtime: &str) -> PathBuf {
    let mut arguments = vec!["-shared", "-fPIC"];
    arguments.extend((!runtime.is_empty()).then_some(runtime));
    client(source, name, &arguments)
}

#[test]
fn a_free_waits_for_the_device_and_a_request_does_not() {
    for strategy in [NAIVE_BEST_FIT, AUTO_GROWTH, support::AUTO_GROWTH_CHUNKS] {
        scene("reuse", strategy)
            .preload(shared("support/clients/count_sync.c", "count_sync.so", ""))
            .run()
            .ok();
    }
}

#[test]
fn two_runtimes_in_one_process_each_get_their_own_calls() {
    let users = ["12", "13"].map(|number| {
        shared(
            "interposition/runtime_user.c",
            &format!("user{number}.so"),
            &format!("libcudart.so.{number}"),
        )
    });
    let path = client("interposition/two_runtimes.c", "two_runtimes", &[]);
    for strategy in [PASSTHROUGH, AUTO_GROWTH] {
        let finished = agreed(Job::new(&path).strategy(strategy).args(&users).run(), strategy, 3);
        assert_eq!(
            without_json(&finished.stdout),
            ["version 12", "version 13", "errors 2 0", "errors 2 2"]
        );
        let job = finished.inspect();
        assert_eq!(job["failures"], 2);
        let names: Vec<&str> = job["apis"]
            .list()
            .iter()
            .filter_map(|api| api["api"].as_str())
            .collect();
        assert_eq!(names, ["cuMemAlloc", "cudaMalloc", "cudaFree"]);
    }
}

// ---- no room for the journal: events are lost, and the job goes on ------------------------------------------------------

#[test]
fn an_unwritable_directory_is_said_once() {
    for directory in ["/proc/nowhere/x", "/dev/null/x", "/dev/full"] {
        for strategy in [PASSTHROUGH, NAIVE_BEST_FIT] {
            let finished = scene("arrays", strategy).env("VRAMSHIM_DIR", directory).run();
            let finished = agreed(finished, strategy, 3);
            let errors: Vec<_> = finished
                .said()
                .into_iter()
                .filter(|(severity, _)| *severity == 'E')
                .collect();
            assert_eq!(errors.len(), 1, "{}", finished.stderr);
            assert_says(&errors[0].1, directory);
            assert_says(&errors[0].1, "VRAMSHIM_DIR");
        }
    }
}

/// Checks that the job exits with 0, that the library warns once, and that the journal counts every lost event.
fn cut_short(finished: Finished, folder: &Path) {
    let finished = agreed(finished, PASSTHROUGH, 1);
    let warnings: Vec<_> = finished
        .said()
        .into_iter()
        .filter(|(severity, _)| *severity == 'W')
        .collect();
    assert_eq!(warnings.len(), 1, "{}", finished.stderr);
    let job = &support::inspect(folder)[0];
    let (lost, events) = (job["events_lost"].number(), job["events"].number());
    assert!(lost > 1000 && events > 1000, "{lost} lost, {events} there");
    assert_eq!(lost + events, 120_001, "every event is there or counted as lost");
    assert_fields(job, json!({"ended": "exit", "exit_status": 0}), "");
}

#[test]
fn a_limit_on_file_sizes_costs_events_only() {
    let limited = |blocks: u32| {
        let command = format!("ulimit -f {blocks}; exec \"$0\" many");
        Job::new("bash")
            .strategy(PASSTHROUGH)
            .args(["-c", &command])
            .args([program()])
    };
    let finished = limited(2048).run();
    let folder = finished.folder.path().join("journals");
    let job = &support::inspect(&folder)[0];
    assert_eq!(job["lost_errno"].as_i64(), Some(27), "EFBIG");
    let keep = tempfile::tempdir().unwrap();
    std::fs::copy(&finished.journals()[0], keep.path().join("journal.vraj")).unwrap();
    cut_short(finished, keep.path());
    // The limit is too small for the header of a journal.
    let finished = agreed(limited(8).run(), PASSTHROUGH, 1);
    assert!(
        finished.said().iter().any(|(severity, _)| *severity == 'E'),
        "{}",
        finished.stderr
    );
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

#[test]
fn a_size_limit_of_the_journals_own_costs_events_only() {
    let finished = scene("many", PASSTHROUGH).env("VRAMSHIM_JOURNAL_MAX", "2MiB").run();
    let keep = tempfile::tempdir().unwrap();
    std::fs::copy(&finished.journals()[0], keep.path().join("journal.vraj")).unwrap();
    cut_short(finished, keep.path());
}

#[test]
fn a_full_disk_costs_events_only() {
    let disk = tempfile::tempdir().unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = std::process::Command::new(program)
            .args(arguments)
            .arg(disk.path())
            .output();
        output.is_ok_and(|output| output.status.success())
    };
    if !run("mount", &["-t", "tmpfs", "-o", "size=2m", "tmpfs"]) {
        return left_out("a full disk needs the right to mount one (tests/journal tests the writer alone)");
    }
    let finished = scene("many", PASSTHROUGH).env("VRAMSHIM_DIR", disk.path()).run();
    let keep = tempfile::tempdir().unwrap();
    let copied = std::fs::copy(&support::journals_in(disk.path())[0], keep.path().join("journal.vraj"));
    assert!(run("umount", &[]), "umount {}", disk.path().display());
    copied.unwrap();
    cut_short(finished, keep.path());
}
