//! Tests of how the library starts and what it prints then, and of processes that end, fork and exec under the library.

mod odd_processes;

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{
    AUTO_GROWTH, Finished, Job, NAIVE_BEST_FIT, PASSTHROUGH, Runs, assert_fields, assert_says, client, in_path,
    inspect, left_out, library, simulated,
};

const SCENES: &str = "support/clients/lifecycle.c";

fn scene(name: &str) -> Job {
    Job::new(client(SCENES, "lifecycle", &["libcuda.so.1"])).args([name])
}

fn start_lines(finished: &Finished) -> Vec<String> {
    let said = finished.said().into_iter();
    let of_start = said.filter(|(severity, words)| *severity == 'I' && words.contains("allocation strategy"));
    of_start.map(|(_, words)| words).collect()
}

const NAIVE_LINE: &str = "Using Naive Best Fit allocation strategy";
const GROWTH_LINE: &str = "Using Auto Growth allocation strategy";

fn in_order(finished: &Finished) -> Vec<Value> {
    let mut jobs = finished.inspect_all();
    jobs.sort_by_key(|job| job["start_time_ns"].as_u64());
    jobs
}

/// From a thread, a signal handler, a child or a child of `vfork`, whether the loader binds functions early or late.
#[test]
fn any_call_may_be_the_first_one() {
    let path = client("start/first_calls.c", "first_calls", &[]);
    for scene in ["crowd", "errno", "locked"] {
        Job::new(&path).args([scene]).run().ok();
        Job::new(&path).env("LD_BIND_NOW", "1").args([scene]).run().ok();
    }
}

/// The library is not preloaded: a program opens it. Then objects may be loaded and unloaded in front of it.
#[test]
fn a_program_may_open_the_library() {
    let program = client("start/opens.c", "opens", &[]);
    for arguments in [&[][..], &["in a namespace"]] {
        let job = Job::new(&program).alone().args([library()]).args(arguments);
        let told = job.run().ok().stdout;
        assert_eq!(told, "0.1.0\nvramshim_stat_names: yes\n", "{arguments:?}");
    }
}

/// A child has only the thread that forked. A lock that another thread of the parent held is never released there.
#[test]
fn a_child_starts_while_its_parents_threads_format_times() {
    let finished = scene("times").strategy(NAIVE_BEST_FIT).run().ok();
    assert!(start_lines(&finished).len() > 1, "{}", finished.stderr);
}

/// When it forks is a matter of chance, so the program runs often.
#[test]
fn a_child_starts_although_its_parent_was_starting() {
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        for _ in 0..20 {
            scene("starting").strategy(strategy).run().ok();
        }
    }
}

/// The thread-local variables of all libraries lie on these stacks too.
#[test]
fn the_library_starts_on_a_thread_with_a_small_stack() {
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        scene("small stacks").strategy(strategy).run().ok();
    }
}

#[test]
fn a_process_that_uses_cuda_says_its_strategy_once_and_which_value_is_bad() {
    let (naive, growth, nothing) = (Some(('I', NAIVE_LINE)), Some(('I', GROWTH_LINE)), None);
    let (unknown, other) = (Some(('E', "best_fit")), Some(('W', "thread_local")));
    for (name, variables, wanted, strategy) in [
        ("none", "VRAMSHIM_STRATEGY=naive_best_fit", nothing, ""),
        ("hold", "UNUSED=1", nothing, "passthrough"),
        ("hold", "VRAMSHIM_STRATEGY=naive_best_fit", naive, "naive_best_fit"),
        ("hold", "VRAMSHIM_STRATEGY=auto_growth", growth, "auto_growth"),
        (
            "hold",
            "VRAMSHIM_STRATEGY=naive_best_fit VRAMSHIM_LOG=error",
            nothing,
            "naive_best_fit",
        ),
        (
            "hold",
            "FLAGS_allocator_strategy=naive_best_fit",
            naive,
            "naive_best_fit",
        ),
        ("hold", "FLAGS_allocator_strategy=best_fit", unknown, "passthrough"),
        ("hold", "FLAGS_allocator_strategy=thread_local", other, "passthrough"),
    ] {
        let variables = variables.split(' ').map(|variable| variable.split_once('=').unwrap());
        let job = variables.fold(scene(name), |job, (name, value)| job.env(name, value));
        let finished = job.run().ok();
        let said = finished.said();
        assert_eq!(said.len(), finished.stderr.lines().count(), "{}", finished.stderr);
        assert_eq!(said.len(), usize::from(wanted.is_some()), "{strategy}: {said:?}");
        for ((severity, words), (wanted, part)) in said.iter().zip(wanted) {
            assert!(*severity == wanted && words.contains(part), "{strategy}: {said:?}");
        }
        match strategy {
            "" => assert!(!finished.folder.path().join("journals").exists()),
            strategy => assert_eq!(finished.inspect()["strategy"], strategy),
        }
    }
}

const PYTHON_JOB: &str = "
import ctypes, os, sys
cuda = ctypes.CDLL('libcuda.so.1')
def job():
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1000))
";

#[test]
fn python_may_choose_the_strategy_before_its_first_cuda_call() {
    if !in_path("python3") {
        return left_out("python3 is not installed");
    }
    let script = format!("{PYTHON_JOB}os.environ['FLAGS_allocator_strategy'] = 'naive_best_fit'\nassert job() == 0");
    let job = Job::new("python3").args(["-c", &script]);
    let finished = job.env("FLAGS_initial_gpu_memory_in_mb", "64").run().ok();
    assert_eq!(start_lines(&finished), [NAIVE_LINE]);
    let job = finished.inspect();
    assert_eq!(job["strategy"], "naive_best_fit");
    assert_eq!(job["devices"][0]["reserved"]["current"], 64 << 20);
}

fn run(arguments: &[&str]) -> Command {
    let mut command = Command::new(support::program());
    command.args(["run", "--sim", "1GiB", "--library"]).arg(library());
    command.args(arguments);
    command.env("VRAMSHIM_SIMGPU", simulated("libcuda.so.1").parent().unwrap());
    command
}

#[test]
fn run_refuses_a_bad_value_before_the_job_starts() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = run(&["--", "touch", "started"]);
    command.current_dir(folder.path()).env_remove("VRAMSHIM_STRATEGY");
    let output = command.env("FLAGS_allocator_strategy", "best_fit").printed();
    assert_eq!(output.code, Some(2), "{}", output.said);
    assert!(!folder.path().join("started").exists());
}

#[test]
fn strict_refuses_memory_after_a_bad_value() {
    let strict = |value: &str| {
        let job = scene("hold").env("FLAGS_allocator_strategy", value);
        job.env("VRAMSHIM_STRICT", "1").run().ok()
    };
    let refused = strict("best_fit");
    assert_eq!(refused.stdout, "allocate 1000: 800\nallocate 3000: 800\n");
    assert_says(&refused.stderr, "refusing");
    assert_eq!(strict("naive_best_fit").stdout, "allocate 1000: 0\nallocate 3000: 0\n");
}

/// A job that no limit holds takes what others were promised; any other typo costs no more than its own setting.
#[test]
fn strictness_for_limits_refuses_memory_after_a_bad_limit_alone() {
    let pod = |of: &str, variable: &str, value: &str| {
        let job = scene(of).strategy(NAIVE_BEST_FIT).env(variable, value);
        job.env("VRAMSHIM_STRICT", "limits").run().ok()
    };
    for (variable, value, accepted) in [
        ("VRAMSHIM_POD_LIMIT", "1.5m", "8192Mi"),
        ("VRAMSHIM_MEMORY_LIMIT", "many", "8GiB"),
        ("FLAGS_gpu_memory_limit_mb", "1g", "MiB"),
        ("VRAMSHIM_LIMIT_SCOPE", "pod", "group"),
    ] {
        let refused = pod("hold", variable, value);
        let code = "allocate 1000: 800\nallocate 3000: 800\n";
        assert_eq!(refused.stdout, code, "{variable}");
        let told = format!("{variable}=\"{value}\" is not accepted");
        for wanted in [&*told, accepted, "refusing"] {
            assert_says(&refused.stderr, wanted);
        }
        assert_eq!(pod("otherwise", variable, value).stdout, "800 800 800 800\n");
    }
    for (variable, value) in [
        ("VRAMSHIM_LOG", "verbose"),
        ("VRAMSHIM_JOURNAL_MAX", "4"),
        ("VRAMSHIM_MAX_REQUEST", "4"),
        ("VRAMSHIM_POD_LIMIT", "1G"),
    ] {
        let code = "allocate 1000: 0\nallocate 3000: 0\n";
        assert_eq!(pod("hold", variable, value).stdout, code, "{variable}");
        assert_eq!(pod("otherwise", variable, value).stdout, "0 0 0 0\n");
    }
}

#[test]
fn a_child_that_uses_cuda_first_is_a_job_of_its_own() {
    let finished = scene("fork before").strategy(NAIVE_BEST_FIT).run();
    let expected = "allocate 4096: 0\nchild: exit 3\nallocate 8192: 0\n";
    assert_eq!(finished.stdout, expected, "{}", finished.stderr);
    assert_eq!(finished.status.code(), Some(4));
    assert_eq!(start_lines(&finished), [NAIVE_LINE, NAIVE_LINE]);
    let jobs = in_order(&finished);
    assert_eq!(jobs.len(), 2);
    assert_eq!(jobs[0]["parent_pid"], jobs[1]["pid"]);
    for (job, (size, status)) in jobs.iter().zip([(4096, 3), (8192, 4)]) {
        assert_fields(job, json!({"ended": "exit", "exit_status": status}), "");
        assert_eq!(job["devices"][0]["requested"]["current"], size);
    }
}

#[test]
fn a_child_of_a_job_leaves_its_parents_journal_alone() {
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        let finished = scene("fork after").strategy(strategy).run();
        let expected = "allocate 8192: 0\nchild allocates: 3\nchild: exit 3\nallocate 100: 0\n";
        assert_eq!(finished.stdout, expected, "{}", finished.stderr);
        let jobs = in_order(&finished);
        assert_eq!(jobs.len(), 2, "{strategy:?}");
        let (parent, child) = (&jobs[0], &jobs[1]);
        assert_eq!(child["parent_pid"], parent["pid"]);
        assert_eq!((&parent["exit_status"], &child["exit_status"]), (&4.into(), &3.into()));
        assert_eq!(
            (&parent["failed_calls"], &child["failed_calls"]),
            (&0.into(), &1.into())
        );
        assert_eq!(parent["devices"][0]["requested"]["current"], 8292);
        assert_eq!(parent["anomalies"], 0);
    }
}

#[test]
fn an_idle_child_does_not_end_its_parents_journal() {
    for name in ["fork idle", "vfork"] {
        let finished = scene(name).run();
        assert!(finished.status.code().is_none(), "{name} did not end by a signal");
        let job = finished.inspect();
        assert_eq!(job["ended"], "without_exit", "{name}");
        assert_eq!(job["devices"][0]["requested"]["current"], 8192, "{name}");
    }
}

#[test]
fn forks_in_the_middle_of_calls_do_not_hang() {
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT] {
        let job = scene("storm").strategy(strategy).env("VRAMSHIM_LOG", "error");
        assert_eq!(job.run().ok().journals().len(), 201);
    }
}

#[test]
fn an_execed_process_is_a_new_one() {
    let finished = scene("exec").strategy(NAIVE_BEST_FIT).run().ok();
    let expected = "allocate 8192: 0\nallocate 1000: 0\nallocate 3000: 0\n";
    assert_eq!(finished.stdout, expected);
    assert_eq!(start_lines(&finished), [NAIVE_LINE, NAIVE_LINE]);
    let jobs = in_order(&finished);
    assert_eq!(jobs.len(), 2);
    assert_eq!(jobs[0]["pid"], jobs[1]["pid"]);
    assert_ne!(jobs[0]["ended"], "running");
    assert_eq!(jobs[1]["ended"], "exit");
    for (job, held) in jobs.iter().zip([8192, 4000]) {
        assert_eq!(job["devices"][0]["requested"]["current"], held);
    }
}

#[test]
fn the_journal_records_how_a_process_ended() {
    for (name, ended, status) in [("status", "exit", 33), ("_exit", "exit", 9), ("use", "exit", 0)] {
        let job = scene(name).run().inspect();
        assert_fields(&job, json!({"ended": ended, "exit_status": status}), name);
    }
    let job = scene("abort").run().inspect();
    assert_eq!(job["ended"], "without_exit");
    assert!(job.get("exit_status").is_none());
}

/// `_exit` may be called in a signal handler, and so in the middle of a call that holds a lock of the library.
#[test]
fn a_handler_may_end_the_process_while_the_journal_grows() {
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT] {
        let finished = scene("handler").strategy(strategy).run();
        assert_eq!(finished.status.code(), Some(7), "{}", finished.stderr);
        let job = finished.inspect();
        assert_fields(&job, json!({"ended": "exit", "exit_status": 7}), "");
    }
}

/// `vramshim run` ends with the job's exit code, or by the job's signal.
#[test]
fn run_passes_on_how_the_job_ended() {
    let path = client(SCENES, "lifecycle", &["libcuda.so.1"]);
    for (name, code) in [("status", Some(33)), ("abort", None)] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = run(&["--dir"]);
        let output = command.arg(folder.path()).arg("--").arg(&path).arg(name).printed();
        assert_eq!(output.code, code, "{}", output.said);
        let job = &inspect(folder.path())[0];
        assert_eq!(job["devices"][0]["requested"]["current"], 1000);
    }
}

/// If no folder is given, the journal is in a folder with the job's name. The journal can be read while the job runs.
#[test]
fn a_running_job_can_be_inspected_in_the_folder_with_its_name() {
    use std::io::{BufRead, BufReader};

    let path = client("support/clients/training.c", "training", &[]);
    let (mut child, folder) = Job::new(path).without("VRAMSHIM_DIR").args(["20", "--pause"]).start();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("step 20")));
    let jobs = inspect(&folder.path().join("vramshim-training"));
    assert_eq!((jobs.len(), &jobs[0]["ended"]), (1, &"running".into()));
    assert!(jobs[0]["devices"][0]["reserved"]["current"].as_u64() > Some(0));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(inspect(&folder.path().join("vramshim-training"))[0]["ended"], "exit");
}

/// What `vramshim run` says may go nowhere: a full disk, or a pipe whose reader has ended.
#[test]
fn the_job_starts_although_nobody_reads_what_run_says() {
    let folder = tempfile::tempdir().unwrap();
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let targets: [&dyn Fn() -> Stdio; 2] = [&closed, &full];
    for (command, code) in [("true", 0), ("no-such-command", 127)] {
        for stderr in targets {
            // Without a folder for journals `run` says where they are.
            let mut run = run(&["--", command]);
            run.current_dir(folder.path()).stderr(stderr());
            assert_eq!(run.status().unwrap().code(), Some(code), "{command}");
        }
    }
}

/// A service of systemd ignores SIGPIPE; what a shell starts does not.
#[test]
fn the_job_takes_sigpipe_as_run_got_it() {
    let ignored = |before: libc::sighandler_t, through: &[&str]| {
        let words = [through, &["grep", "SigIgn", "/proc/self/status"]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        // SAFETY: the closure makes one system call, which is allowed between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::signal(libc::SIGPIPE, before);
                Ok(())
            });
        }
        command.printed().text
    };
    let (program, library) = (support::program(), library());
    let [program, library] = [&program, &library].map(|path| path.to_str().unwrap());
    let run = [program, "run", "-q", "--library", library, "--"];
    for before in [libc::SIG_IGN, libc::SIG_DFL] {
        let bare = ignored(before, &[]);
        assert!(bare.starts_with("SigIgn"), "{bare}");
        assert_eq!(ignored(before, &run), bare);
    }
}
