//! Runs PyTorch, cuda-bindings and numba-cuda, unmodified, on the simulated GPU, and checks that the real CUDA runtime
//! looks up the driver's functions through the library. Needs the environment that scripts/ci/setup frameworks creates.

mod damaged;
mod largest;
mod stacks;
mod switch;
mod why;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use support::layer::{Form, Habits, assert_book_is_true, assert_books_agree};
use support::{Fields, Finished, Job, assert_fields, assert_says, library, program, simulated, tests, vramshim_with};

const STRATEGIES: &[&str] = &["passthrough", "naive_best_fit", "auto_growth"];

fn environment() -> PathBuf {
    let cache = || {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let base = std::env::var_os("XDG_CACHE_HOME").map_or(home.join(".cache"), PathBuf::from);
        std::env::var_os("VRAMSHIM_CACHE").map_or(base.join("vramshim"), PathBuf::from)
    };
    let folder = std::env::var_os("VRAMSHIM_FRAMEWORKS").map_or_else(|| cache().join("frameworks"), PathBuf::from);
    assert!(
        folder.join("bin/python").exists(),
        "{}: run scripts/ci/setup frameworks",
        folder.display()
    );
    folder
}

/// A job with the time that a framework needs that is read from a slow disk.
fn job_of(program: PathBuf) -> Job {
    Job::new(program).limit(Duration::from_secs(600))
}

fn python() -> PathBuf {
    environment().join("bin/python")
}

fn script(name: &str) -> PathBuf {
    support::root().join("tests/frameworks").join(name)
}

/// Runs a job with `vramshim run --sim`, as a user would. Checks that every process that left a journal exited with 0.
fn run(job: &str, strategy: &str, memory: &str, least_agreements: usize) -> Finished {
    run_with(&[job], strategy, memory, least_agreements)
}

/// Like `run`, with arguments for the job.
fn run_with(job: &[&str], strategy: &str, memory: &str, least_agreements: usize) -> Finished {
    let under = job_of(program())
        .alone()
        .without("LD_LIBRARY_PATH")
        .without("SIMGPU_MEMORY")
        .without("SIMGPU_DEVICES");
    let simulator = simulated("libcuda.so.1");
    let finished = under
        .env("VRAMSHIM_SIMGPU", simulator.parent().unwrap())
        .args([
            "run",
            "--strategy",
            strategy,
            "--sim",
            format!("2x{memory}").as_str(),
            "--",
        ])
        .args([python(), script(job[0])])
        .args(&job[1..])
        .env("VRAMSHIM_PROGRAM", program())
        .run()
        .ok();
    let agreed = finished
        .stdout
        .lines()
        .filter(|line| line.starts_with("agreed:"))
        .count();
    assert!(
        agreed >= least_agreements,
        "{job:?} {strategy}: {agreed} checkpoints compared\n{}",
        finished.stdout
    );
    for told in finished.inspect_all() {
        assert_fields(&told, json!({"ended": "exit", "exit_status": 0}), "");
        assert_fields(&told, json!({"events_lost": 0, "anomalies": 0}), "");
        assert_eq!(told["strategy"], strategy);
    }
    finished
}

fn start_lines(finished: &Finished) -> usize {
    let starts = |words: &str| words.starts_with("Using ") && words.ends_with(" allocation strategy");
    finished
        .said()
        .iter()
        .filter(|(severity, words)| *severity == 'I' && starts(words))
        .count()
}

/// Runs the job under every strategy. Checks that one process of the job uses CUDA. Returns the output of `inspect` for
/// each run.
fn under_every_strategy(job: &str, memory: &str, least_agreements: usize) -> Vec<Value> {
    let one = |strategy: &&str| {
        let finished = run(job, strategy, memory, least_agreements);
        assert_eq!(start_lines(&finished), 1, "{job} {strategy}:\n{}", finished.stderr);
        finished.inspect()
    };
    STRATEGIES.iter().map(one).collect()
}

/// The example compares its totals itself.
#[test]
fn the_pytorch_example_runs() {
    for strategy in STRATEGIES {
        run("example.py", strategy, "4GiB", 0);
    }
}

#[test]
fn growing_tensors() {
    for told in under_every_strategy("growing.py", "24GiB", 5) {
        let live = told["live"].list();
        assert!(
            live.iter()
                .any(|one| one["api"] == "cudaMalloc" && one["size"] == 419_430_400),
            "{live:?}"
        );
    }
}

fn losses(stdout: &str) -> Vec<String> {
    let lines = stdout.lines().filter(|line| line.contains("loss"));
    lines.map(str::to_owned).collect()
}

#[test]
fn training() {
    let mut seen = Vec::new();
    for strategy in STRATEGIES {
        seen.push(losses(&run("train.py", strategy, "8GiB", 4).stdout));
    }
    assert!(seen[0].len() >= 8 && seen.iter().all(|one| *one == seen[0]), "{seen:?}");
}

#[test]
fn convolutions() {
    for strategy in STRATEGIES {
        run("convolutions.py", strategy, "8GiB", 1);
    }
}

/// Runs the job under every strategy over a quota layer of 4 GiB, preloaded and in the driver's place. Returns what each
/// run printed. The job compares PyTorch's count with the library's ledger and the simulator's table. This function
/// compares the layer's book with both.
fn over_a_quota_layer(job: &str) -> Vec<String> {
    let layers: [(Form, Habits); 2] = [
        (
            Form::Preloaded,
            &[
                ("LAYER_CONTIGUOUS", "1"),
                ("LAYER_FORGETFUL", "1"),
                ("LAYER_SLOW", "50us"),
            ],
        ),
        (Form::Replacing, &[("LAYER_VMM", "0"), ("LAYER_POOLS", "0")]),
    ];
    let mut printed = Vec::new();
    for (strategy, (form, habits)) in STRATEGIES
        .iter()
        .flat_map(|strategy| layers.map(|layer| (strategy, layer)))
    {
        let context = format!("{job} {form:?} {habits:?} {strategy}");
        let preloaded = ["libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"].into_iter();
        let under = job_of(python()).sim("8GiB", 1).over(form, "4GiB", habits);
        let under = preloaded.fold(under, |job, name| job.preload(simulated(name)));
        let under = under.env("VRAMSHIM_STRATEGY", strategy);
        let finished = under.args([script(job)]).run().ok();
        assert_eq!(start_lines(&finished), 1, "{context}: {}", finished.stderr);
        let books = finished.json();
        assert!(books.len() >= 4, "{context}: {}", finished.stdout);
        for book in &books {
            assert_book_is_true(book, &context);
            assert_books_agree(book, &context);
        }
        printed.push(finished.stdout);
    }
    printed
}

#[test]
fn training_over_a_quota_layer() {
    let seen: Vec<_> = over_a_quota_layer("train.py").iter().map(|text| losses(text)).collect();
    assert!(seen[0].len() >= 8 && seen.iter().all(|one| *one == seen[0]), "{seen:?}");
}

#[test]
fn out_of_memory_over_a_quota_layer() {
    for printed in over_a_quota_layer("out_of_memory.py") {
        assert_says(&printed, "has a total capacity of 4.00 GiB");
    }
}

#[test]
fn a_pluggable_allocator_serves_every_tensor() {
    let mut seen = Vec::new();
    for strategy in STRATEGIES {
        let finished = run("pluggable.py", strategy, "8GiB", 2);
        let told = finished.inspect();
        let calls = |name: &str| {
            let apis = told["apis"].list();
            let api = apis
                .iter()
                .find(|api| api["api"] == name)
                .unwrap_or_else(|| panic!("no {name}: {told}"));
            api["calls"].number()
        };
        assert!(
            calls("vramshim_torch_alloc") > 200 && calls("vramshim_torch_free") > 200,
            "{told}"
        );
        seen.push(losses(&finished.stdout));
    }
    assert!(seen[0].len() == 8 && seen.iter().all(|one| *one == seen[0]), "{seen:?}");
}

#[test]
fn out_of_memory_and_recovery() {
    for told in under_every_strategy("out_of_memory.py", "8GiB", 4) {
        assert!(told["failures"].as_u64() > Some(0), "no failure in the journal: {told}");
    }
}

tests! {
    expandable_segments => under_every_strategy("expandable.py", "8GiB", 3);
    the_drivers_stream_ordered_allocator => under_every_strategy("stream_ordered.py", "8GiB", 3);
    data_loader_workers_leave_no_journal => under_every_strategy("loader.py", "8GiB", 2);
    two_devices => under_every_strategy("two_devices.py", "8GiB", 2);
}

#[test]
fn tensors_shared_with_another_process() {
    for strategy in STRATEGIES {
        let finished = run("share.py", strategy, "8GiB", 1);
        assert!(finished.stdout.contains("shared\n"), "{strategy}: {}", finished.stdout);
        assert!(
            !finished.said().iter().any(|(severity, _)| "WE".contains(*severity)),
            "{}",
            finished.stderr
        );
        assert_eq!(
            finished.inspect_all().len(),
            2,
            "{strategy}: two processes use the device"
        );
    }
}

tests! {
    cuda_bindings => under_every_strategy("cuda_bindings_client.py", "8GiB", 2);
    numba => under_every_strategy("numba_client.py", "8GiB", 1);
}

#[test]
fn a_strategy_chosen_in_the_program() {
    let preloaded = ["libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"].into_iter();
    let job = preloaded.fold(job_of(python()), |job, name| job.preload(simulated(name)));
    let finished = job.args([script("late_strategy.py")]).run().ok();
    assert_says(&finished.stderr, "Using Naive Best Fit allocation strategy");
    assert_eq!(start_lines(&finished), 1);
}

#[test]
fn importing_torch_starts_nothing() {
    let code = "import torch, os; print(len(os.listdir('/proc/self/task')), torch.__version__)";
    let [with, without] = [true, false].map(|with| {
        let job = job_of(python())
            .without("LD_LIBRARY_PATH")
            .env("FLAGS_allocator_strategy", "auto_growth");
        let job = if with { job } else { job.alone() };
        let finished = job.args(["-c", code]).run().ok();
        let left = std::fs::read_dir(finished.folder.path()).unwrap().count();
        assert_eq!(left, 0, "a file was created");
        (finished.stdout, finished.stderr)
    });
    assert_eq!(with, without);
}

#[test]
fn the_real_runtimes_look_everything_up_through_the_library() {
    let site = environment().join("lib");
    let find = |major: &str| {
        let pattern = format!("libcudart.so.{major}");
        let output = Command::new("find")
            .arg(&site)
            .args(["-name", &pattern])
            .output()
            .unwrap();
        let paths = String::from_utf8_lossy(&output.stdout).into_owned();
        paths
            .lines()
            .next()
            .map(PathBuf::from)
            .unwrap_or_else(|| panic!("no {pattern} below {}", site.display()))
    };
    for major in ["12", "13"] {
        let job = job_of(python());
        let log = job.folder().join("look-ups");
        // The real runtime refuses the simulated driver after its look-ups, so only the look-ups are checked.
        let code = format!(
            "import ctypes; r = ctypes.CDLL({:?}); p = ctypes.c_void_p(); r.cudaMalloc(ctypes.byref(p), 4096)",
            find(major)
        );
        let finished = job.env("SIMGPU_LOOKUPS", &log).args(["-c", &code]).run();
        let log = std::fs::read_to_string(&log)
            .unwrap_or_else(|_| panic!("runtime {major} looked nothing up: {}", finished.stderr));
        let ours = library().to_string_lossy().into_owned();
        let asked: Vec<Vec<&str>> = log.lines().map(|line| line.split(' ').collect()).collect();
        assert!(asked.len() > 100, "runtime {major}: {} look-ups", asked.len());
        for look_up in &asked {
            assert_eq!(
                look_up[4], ours,
                "runtime {major} looked up without the library: {look_up:?}"
            );
        }
        for name in [
            "cuMemAlloc",
            "cuMemFree",
            "cuMemAllocAsync",
            "cuMemGetInfo",
            "cuArray3DCreate",
        ] {
            let found = asked.iter().any(|look_up| look_up[0] == name && look_up[3] == "0");
            assert!(found, "runtime {major} did not ask for {name}");
        }
    }
}

/// Three processes share one limit. nvidia-ml-py, torch.cuda.mem_get_info, `vramshim top` and the simulator agree.
#[test]
fn all_answers_agree_in_a_group_of_processes() {
    let limit = (2u64 << 30).to_string();
    for (strategy, moments) in [("passthrough", 50), ("naive_best_fit", 20), ("auto_growth", 50)] {
        run_with(&["group.py", &limit, &moments.to_string()], strategy, "16GiB", moments);
    }
}

/// The number after these words in a line of `traces`.
fn number_after(line: &str, words: &str) -> u64 {
    let (_, rest) = line.split_once(words).unwrap_or_else(|| panic!("no {words} in {line}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn the_model_reserves_for_recorded_requests_what_pytorch_did() {
    for name in ["sharded", "prefetching"] {
        let job = job_of(program())
            .alone()
            .without("LD_LIBRARY_PATH")
            .without("SIMGPU_MEMORY");
        let folder = job.folder().join("traces");
        let job = job.env("VRAMSHIM_SIMGPU", simulated("libcuda.so.1").parent().unwrap());
        let job = job
            .args(["run", "--sim", "80GiB", "--"])
            .args([python(), script("traces")]);
        let finished = job.args([folder.as_os_str(), name.as_ref()]).run().ok();
        let line = finished
            .stdout
            .lines()
            .find(|line| line.starts_with(name))
            .expect("a line");
        let trace = folder.join(format!("real_{name}.csv.gz"));
        let page = vramshim_with(&["replay", "--json", "--strategy", "torch"], [trace]).json();
        assert_eq!(page["peak_live"], number_after(line, "peak live "), "{name}");
        let reserved = number_after(line, "peak reserved ");
        assert_eq!(page["strategies"][0]["peak_reserved"], reserved, "{name}");
    }
}

/// `frameworks/traces/live.py` does the same for all jobs.
#[test]
fn live_jobs_reserve_what_replay_foretold() {
    for name in ["sharded", "beam_search"] {
        let job = job_of(python()).alone().without("LD_LIBRARY_PATH");
        let job = job.env("VRAMSHIM_SIMGPU", simulated("libcuda.so.1").parent().unwrap());
        let job = job.args([script("traces/live.py").as_os_str(), "--program".as_ref()]);
        let job = job.args([program()]).args(["--python".into(), python()]).args([name]);
        let finished = job.run().ok();
        assert!(finished.stdout.contains("1 of 1 jobs"), "{}", finished.stdout);
    }
}

#[test]
fn the_model_of_pytorchs_allocator_reserves_what_pytorch_did() {
    for (setting, model) in [
        ("expandable_segments:False", "torch"),
        ("expandable_segments:True", "torch_expandable"),
    ] {
        let preloaded = ["libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"].into_iter();
        let job = preloaded.fold(job_of(python()), |job, name| job.preload(simulated(name)));
        let pickle = job.folder().join("snapshot.pickle");
        let job = job
            .env("PYTORCH_ALLOC_CONF", setting)
            .env("PYTORCH_CUDA_ALLOC_CONF", setting);
        let finished = job.args([script("snapshot.py"), pickle.clone()]).run().ok();
        let counted = |name: &str| -> u64 {
            let line = finished
                .stdout
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .expect("a count");
            line.trim_start_matches(':').trim().parse().expect("a number")
        };
        let page = vramshim_with(&["replay", "--json"], [&pickle]).ok().json();
        assert_eq!(page["peak_live"], counted("peak live"), "{setting}");
        let rows = page["strategies"].list();
        let row = rows.iter().find(|row| row["name"] == model).expect("the model");
        assert_eq!(row["peak_reserved"], counted("peak reserved"), "{setting}");
    }
}
