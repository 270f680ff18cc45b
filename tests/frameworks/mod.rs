//! Runs PyTorch, cuda-bindings and numba-cuda, unmodified, on the simulated GPU, and checks that the real CUDA runtime
//! looks up the driver's functions through the library. Needs the environment that scripts/ci/setup frameworks creates.

mod first;
mod jobs;
mod stacks;
pub mod switch;
mod why;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use jobs::{forked, forked_with};
use serde_json::json;
use support::{Fields, Finished, Job, Runs, assert_fields, library, tests, vramshim_with};
use switch::{calls, with_options};

use crate::formats::readers::python_of;

const STRATEGIES: &[&str] = &["passthrough", "naive_best_fit", "auto_growth"];

fn python() -> PathBuf {
    python_of("frameworks")
}

fn environment() -> PathBuf {
    let folder = python().ancestors().nth(2).map(PathBuf::from);
    folder.expect("the folder of an environment")
}

/// A job with the time that a framework needs that is read from a slow disk.
fn job_of(program: PathBuf) -> Job {
    Job::new(program).limit(Duration::from_secs(600))
}

fn path(name: &str) -> String {
    let script = support::root().join("tests/frameworks").join(name);
    script.to_string_lossy().into_owned()
}

fn agreed(finished: &Finished) -> usize {
    let lines = finished.stdout.lines();
    lines.filter(|line| line.starts_with("agreed:")).count()
}

/// Checks that every process that left a journal exited with 0.
fn check(finished: Finished, strategy: &str, least_agreements: usize) -> Finished {
    let (name, found) = (&finished.name, agreed(&finished));
    assert!(found >= least_agreements, "{name}: {found}\n{}", finished.stdout);
    let wanted = json!({"ended": "exit", "exit_status": 0, "strategy": strategy, "events_lost": 0, "anomalies": 0});
    for told in finished.inspect_all() {
        assert_fields(&told, wanted.clone(), name);
    }
    finished
}

fn run(job: &str, strategy: &str, memory: &str, least_agreements: usize) -> Finished {
    let finished = forked("off", strategy, memory, &[&path(job)]).ok();
    check(finished, strategy, least_agreements)
}

fn start_lines(finished: &Finished) -> usize {
    let starts = |words: &str| words.starts_with("Using ") && words.ends_with(" allocation strategy");
    let said = finished.said().into_iter();
    said.filter(|(level, words)| *level == 'I' && starts(words)).count()
}

/// Runs the job under every strategy. Checks that one process of the job uses CUDA.
fn under_every_strategy(job: &str, memory: &str, least_agreements: usize) {
    for strategy in STRATEGIES {
        let finished = run(job, strategy, memory, least_agreements);
        assert_eq!(start_lines(&finished), 1, "{job} {strategy}:\n{}", finished.stderr);
        finished.inspect();
    }
}

/// Python starts as it does for a user: PyTorch chooses its backend while it is imported, and the example compares its
/// totals itself.
fn started_under_every_strategy(job: &str, least_agreements: usize) {
    for strategy in STRATEGIES {
        let job = with_options(&["--strategy", strategy], "8GiB", &[&path(job)]);
        let finished = check(job.run().ok(), strategy, least_agreements);
        assert_eq!(start_lines(&finished), 1, "{strategy}:\n{}", finished.stderr);
    }
}

tests! {
    the_pytorch_example_runs => started_under_every_strategy("example.py", 0);
    the_drivers_stream_ordered_allocator => started_under_every_strategy("stream_ordered.py", 3);
    growing_tensors => under_every_strategy("growing.py", "24GiB", 5);
    convolutions => under_every_strategy("convolutions.py", "8GiB", 1);
    out_of_memory_and_recovery => under_every_strategy("out_of_memory.py", "8GiB", 4);
    expandable_segments => under_every_strategy("expandable.py", "8GiB", 3);
    data_loader_workers_leave_no_journal => under_every_strategy("loader.py", "8GiB", 2);
    two_devices => under_every_strategy("two_devices.py", "8GiB", 2);
    cuda_bindings => under_every_strategy("cuda_bindings_client.py", "8GiB", 2);
    numba => under_every_strategy("numba_client.py", "8GiB", 1);
}

fn losses(finished: &Finished) -> usize {
    finished.stdout.lines().filter(|line| line.contains("loss")).count()
}

/// PyTorch's count, the ledger and the simulated GPU's table agree at every checkpoint. The simulated GPU computes nothing, so a
/// loss is what its memory held before.
#[test]
fn training_agrees_in_each_mode() {
    let expected = losses(&run("train.py", "passthrough", "8GiB", 4));
    assert!(expected >= 8, "{expected} steps");
    for (mode, strategy) in ["off", "allocator", "record"]
        .into_iter()
        .flat_map(|mode| STRATEGIES.iter().map(move |one| (mode, one)))
    {
        let finished = check(forked(mode, strategy, "8GiB", &[&path("train.py")]).ok(), strategy, 4);
        assert_eq!(losses(&finished), expected, "{mode} {strategy}");
        let is_allocator = calls(&finished, "vramshim_torch_alloc") > 500;
        assert_eq!(is_allocator, mode == "allocator", "{mode} {strategy}");
    }
}

#[test]
fn a_pluggable_allocator_serves_every_tensor() {
    for strategy in STRATEGIES {
        let finished = run("pluggable.py", strategy, "8GiB", 2);
        for api in ["vramshim_torch_alloc", "vramshim_torch_free"] {
            assert!(calls(&finished, api) > 200, "{strategy}: {api}");
        }
    }
}

#[test]
fn tensors_shared_with_another_process() {
    for strategy in STRATEGIES {
        let finished = run("share.py", strategy, "8GiB", 1);
        let warned = finished.said().iter().any(|(level, _)| "WE".contains(*level));
        assert!(!warned, "{}", finished.stderr);
        let processes = finished.inspect_all().len();
        assert_eq!(processes, 2, "{strategy}: two processes use the device");
    }
}

#[test]
fn a_strategy_chosen_in_the_program() {
    let code =
        "import os, torch; os.environ['FLAGS_allocator_strategy'] = 'naive_best_fit'; torch.zeros(10, device='cuda')";
    let finished = with_options(&[], "4GiB", &["-c", code]).run().ok();
    assert_eq!(finished.inspect()["strategy"], "naive_best_fit");
    assert_eq!(start_lines(&finished), 1);
}

#[test]
fn importing_torch_starts_nothing() {
    let code = "import torch, os; print(len(os.listdir('/proc/self/task')), torch.__version__)";
    let [with, without] = [true, false].map(|with| {
        let job = job_of(python()).without("LD_LIBRARY_PATH");
        let job = job.env("FLAGS_allocator_strategy", "auto_growth");
        let job = if with { job } else { job.alone() };
        let finished = job.args(["-c", code]).run().ok();
        let left = std::fs::read_dir(finished.folder.path()).unwrap().count();
        assert_eq!(left, 0, "a file was created");
        (finished.stdout, finished.stderr)
    });
    assert_eq!(with, without);
}

/// The real runtime refuses the simulated driver after its look-ups, so only the look-ups are checked.
#[test]
fn the_real_runtimes_look_everything_up_through_the_library() {
    for name in ["libcudart.so.12", "libcudart.so.13"] {
        let mut find = Command::new("find");
        let found = find.arg(environment().join("lib")).args(["-name", name]).printed();
        let runtime = found.text.lines().next().expect(name);
        let job = job_of(python());
        let log = job.folder().join("look-ups");
        let code = format!(
            "import ctypes; r = ctypes.CDLL({runtime:?}); p = ctypes.c_void_p(); r.cudaMalloc(ctypes.byref(p), 4096)"
        );
        let finished = job.env("SIMGPU_LOOKUPS", &log).args(["-c", &code]).run();
        let log = std::fs::read_to_string(&log).unwrap_or_else(|_| panic!("{name}: {}", finished.stderr));
        let asked: Vec<Vec<&str>> = log.lines().map(|line| line.split(' ').collect()).collect();
        assert!(asked.len() > 100, "{name}: {} look-ups", asked.len());
        let other = asked.iter().find(|look_up| *look_up[4] != *library().as_os_str());
        assert_eq!(other, None, "{name} looked up without the library");
        for function in "cuMemAlloc cuMemFree cuMemAllocAsync cuMemGetInfo cuArray3DCreate".split(' ') {
            let found = asked.iter().any(|look_up| look_up[0] == function && look_up[3] == "0");
            assert!(found, "{name} did not ask for {function}");
        }
    }
}

/// `accounts` compares the answers of several processes that share the limit.
#[test]
fn nvidia_ml_py_and_pytorch_are_told_the_same() {
    const LIMIT: &str = "2147483648";
    for strategy in STRATEGIES {
        let limit = [("VRAMSHIM_MEMORY_LIMIT", LIMIT), ("SIMGPU_CONTEXT_BYTES", "314572800")];
        let environment = [&[("VRAMSHIM_STRATEGY", *strategy)][..], &limit].concat();
        let finished = forked_with("off", &environment, "16GiB", &[&path("told.py"), LIMIT]).ok();
        check(finished, strategy, 30);
    }
}

/// A message with a damaged length reaches a real server, under the guard of host memory.
#[test]
fn a_damaged_length_ends_no_job() {
    let guard = library().with_file_name("libvramshim_hostguard.so");
    let job = job_of(python()).args([path("damaged_length.py")]).preload(guard);
    let finished = job.env("VRAMSHIM_HOST_GUARD", "256GiB").run().ok();
    let (out, errors) = (&finished.stdout, &finished.stderr);
    assert!(out.contains("closed\nsurvived 1 2"), "{out}\n{errors}");
    assert!(errors.contains("vramshim host guard: malloc of 96217"), "{errors}");
    assert!(errors.contains("libtorch_cpu.so+0x"), "the stack: {errors}");
}

/// Runs a job of `traces` under PyTorch's allocator, which records its requests. Replays them with the model of PyTorch's
/// allocator and with auto_growth, and runs the job under the library.
fn assert_foretold(name: &str) {
    let recorded = tempfile::tempdir().unwrap();
    let played = |mode: &str, strategy: &str, folder: &str| {
        let arguments = [&path("traces"), folder, name];
        forked(mode, strategy, "140GiB", &arguments).ok().json().remove(0)
    };
    let own = played("off", "passthrough", recorded.path().to_str().unwrap());
    let trace = recorded.path().join(format!("real_{name}.csv.gz"));
    let command = "replay --json --device-memory=140GiB --strategy=torch --strategy=auto_growth";
    let options: Vec<&str> = command.split(' ').collect();
    let page = vramshim_with(&options, [trace]).json();
    assert_eq!(page["peak_live"], own["live"], "{name}");
    let peak = |number: usize| page["strategies"][number]["peak_reserved"].number();
    assert_eq!(own["reserved"], peak(0), "{name}");
    let live = played("allocator", "auto_growth", "-");
    assert_eq!(live["backend"], "pluggable", "{name}");
    // The two runs request memory in a different order, because threads of autograd and other streams allocate too.
    let most = peak(1) + peak(1) / 16;
    assert!(live["reserved"].number() <= most, "{name}: {live}, {page}");
}

tests! {
    live_jobs_reserve_what_replay_foretold => ["sharded", "prefetching", "beam_search"].into_iter().for_each(assert_foretold);
    #[ignore = "takes a minute; to be run after a change of auto_growth or of the models in replay"]
    all_live_jobs_reserve_what_replay_foretold =>
        ["adapters", "experts", "llama_variable", "convolutions"].into_iter().for_each(assert_foretold);
}

/// A short form of scripts/ci/advice, which fails if anything that was said is wrong. Returns its tables.
fn carried_out(words: &[&str]) -> String {
    let mut script = Command::new(support::root().join("scripts/ci/advice"));
    let told = script.args(words).env("VRAMSHIM_FRAMEWORKS", environment()).printed();
    assert_eq!(told.code, Some(0), "{}\n{}", told.text, told.said);
    told.text
}

#[test]
fn a_job_needs_the_device_that_replay_foretold_of_one_recorded_run() {
    let told = carried_out(&["foretold", "adamw", "pinned_down", "quantise"]);
    assert_eq!(told.matches('%').count(), 9, "each job under each allocator: {told}");
}

#[test]
fn the_advice_for_a_death_works_when_it_is_carried_out() {
    let deaths = [
        "live set",
        "the limit",
        "three processes",
        "cudaMallocAsync",
        "accumulation",
    ];
    let told = carried_out(&deaths);
    assert!(told.contains("works") && told.contains("equal"), "{told}");
}
