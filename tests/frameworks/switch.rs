//! `vramshim run --torch`: jobs that are not changed, with the library as PyTorch's allocator or beside it.

mod recorded;

use serde_json::{Value, json};
use support::{Fields, Finished, Job, assert_fields, program, simulated};

use super::{STRATEGIES, job_of, python, script};

/// A job that `vramshim run --sim --torch MODE` starts.
pub fn under(mode: &str, strategy: &str, memory: &str, arguments: &[&str]) -> Job {
    with_options(&["--torch", mode, "--strategy", strategy], memory, arguments)
}

pub fn with_options(options: &[&str], memory: &str, arguments: &[&str]) -> Job {
    let simulator = simulated("libcuda.so.1");
    job_of(program())
        .alone()
        .without("LD_LIBRARY_PATH")
        .without("SIMGPU_MEMORY")
        .without("SIMGPU_DEVICES")
        .env("VRAMSHIM_SIMGPU", simulator.parent().unwrap())
        .args(["run"])
        .args(options)
        .args(["--sim", format!("2x{memory}").as_str(), "--"])
        .args([python()])
        .args(arguments)
}

fn path(name: &str) -> String {
    script(name).to_string_lossy().into_owned()
}

/// Lines on stderr of the Python part.
fn said(finished: &Finished) -> Vec<&str> {
    finished
        .stderr
        .lines()
        .filter(|line| line.starts_with("vramshim: ") && !line.starts_with("vramshim: journals go to "))
        .collect()
}

fn calls(finished: &Finished, api: &str) -> u64 {
    let jobs = finished.inspect_all();
    let apis = jobs.iter().flat_map(|job| job["apis"].list().clone());
    apis.filter(|one| one["api"] == api)
        .map(|one| one["calls"].number())
        .sum()
}

/// The figures of a run: what the script printed, without the number of waits. An allocator that learns from events
/// needs none.
fn figures(finished: &Finished) -> Vec<Value> {
    let mut moments = finished.json();
    for moment in &mut moments {
        moment["stats"]["num_sync_all_streams"] = json!(0);
    }
    moments
}

#[test]
fn pytorchs_functions_report_what_they_do_under_pytorchs_own_allocator() {
    let script = path("figures.py");
    let own = figures(&under("off", "passthrough", "8GiB", &[&script]).run().ok());
    assert_eq!(own.len(), 8, "{own:?}");
    for strategy in STRATEGIES {
        let finished = under("allocator", strategy, "8GiB", &[&script]).run().ok();
        assert!(
            calls(&finished, "vramshim_torch_alloc") > 300,
            "{strategy}: not the allocator"
        );
        for (own, told) in own.iter().zip(figures(&finished)) {
            assert_eq!(*own, told, "{strategy}");
        }
        assert!(said(&finished).is_empty(), "{strategy}: {}", finished.stderr);
    }
}

/// `memory_snapshot` has every byte once, also those of a tensor in a stitch.
#[test]
fn a_snapshot_has_each_byte_once() {
    let script = path("scattered.py");
    under("off", "passthrough", "8GiB", &[&script]).run().ok();
    for strategy in STRATEGIES {
        let finished = under("allocator", strategy, "8GiB", &[&script]).run().ok();
        let told = &finished.json()[0];
        if *strategy == "auto_growth" {
            assert_eq!(told["after"], told["before"], "no stitch was made");
        }
    }
}

/// What NVML shows falls when the job empties PyTorch's cache, also if a policy keeps what PyTorch's cache freed.
#[test]
fn emptying_the_cache_gives_memory_back_to_the_device() {
    for (mode, strategies) in [
        ("off", &["passthrough"][..]),
        ("record", STRATEGIES),
        ("allocator", STRATEGIES),
    ] {
        for strategy in strategies {
            // naive_best_fit keeps its first reservation only if there is a block in it.
            let finished = under(mode, strategy, "8GiB", &[&path("returned.py")]).run().ok();
            let told = &finished.json()[0];
            let used = |moment: &str| told[moment].number();
            assert!(
                used("emptied") + (400 << 20) < used("full"),
                "{mode} {strategy}: {told}"
            );
        }
    }
}

/// `--torch allocator` without a strategy is auto_growth, and one line says so. A chosen strategy stays.
#[test]
fn the_allocator_implies_a_policy() {
    let code = "import torch; torch.ones(10, device='cuda')";
    let run = |job: Job| {
        let finished = job.run().ok();
        let remarks = said(&finished)
            .into_iter()
            .filter(|line| line.contains("without a strategy"));
        (finished.inspect()["strategy"].clone(), remarks.count())
    };
    let chosen = ["--torch", "allocator", "--strategy", "passthrough"];
    let job = |options: &[&str]| {
        let job = with_options(options, "1GiB", &["-c", code]).without("FLAGS_allocator_strategy");
        job.without("VRAMSHIM_STRATEGY")
    };
    assert_eq!(run(job(&chosen[..2])), ("auto_growth".into(), 1));
    assert_eq!(run(job(&chosen)), ("passthrough".into(), 0));
    let by_flag = job(&chosen[..2]).env("FLAGS_allocator_strategy", "naive_best_fit");
    assert_eq!(run(by_flag), ("naive_best_fit".into(), 0));
    assert_eq!(run(job(&["--torch", "record"])), ("passthrough".into(), 0));
}

/// A job that used CUDA, but of which no tensor was recorded, says why at its end, and `inspect` says it too.
#[test]
fn a_record_without_tensors_is_told() {
    let without_torch = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0); \
                         context = ctypes.c_void_p(); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); \
                         cuda.cuCtxSetCurrent(context); at = ctypes.c_uint64(); \
                         assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4096)) == 0";
    let no_tensor = "import torch; torch.cuda.init(); torch.cuda.mem_get_info()";
    for (code, words) in [
        (without_torch, "has not imported PyTorch"),
        (no_tensor, "has made no tensor"),
    ] {
        let finished = under("record", "auto_growth", "1GiB", &["-c", code]).run().ok();
        let lines = said(&finished);
        assert!(lines.len() == 1 && lines[0].contains(words), "{}", finished.stderr);
        let page = finished.told(&["inspect"]).text;
        assert!(page.contains("No tensor of PyTorch was recorded"), "{page}");
    }
    // The line of the start says it already.
    let old = "import torch; del torch._C._cuda_record_memory_history; torch.__version__ = '1.13'; \
               from vramshim import record, startup; startup.when_torch_is_imported('record'); torch.cuda.mem_get_info()";
    let finished = under("off", "auto_growth", "1GiB", &["-c", old]).run().ok();
    let lines = said(&finished);
    let words = "PyTorch 1.13 keeps no such memory history";
    assert!(lines.len() == 1 && lines[0].contains(words), "{}", finished.stderr);
    // A process that has not used CUDA has no journal, and says nothing.
    let finished = under("record", "auto_growth", "1GiB", &["-c", "import torch"])
        .run()
        .ok();
    assert!(said(&finished).is_empty(), "{}", finished.stderr);
}

#[test]
fn a_training_script_reads_the_same_peaks_under_both_switches() {
    let script = path("peaks.py");
    let own = under("off", "passthrough", "8GiB", &[&script]).run().ok().json();
    assert_eq!(own.len(), 4, "{own:?}");
    for strategy in STRATEGIES {
        let recorded = under("record", strategy, "8GiB", &[&script]).run().ok();
        assert_eq!(recorded.json(), own, "{strategy}");
        let served = under("allocator", strategy, "8GiB", &[&script]).run().ok();
        assert!(calls(&served, "vramshim_torch_alloc") > 100, "{strategy}");
        assert_eq!(served.json(), own, "{strategy}");
    }
}

#[test]
fn a_batch_size_is_found_under_pytorchs_own_allocator() {
    for strategy in STRATEGIES {
        let finished = under("record", strategy, "2GiB", &[&path("finder.py")]).run().ok();
        assert!(finished.stdout.contains("found "), "{strategy}: {}", finished.stdout);
        let failed = tensors(&finished)["devices"][0]["out_of_memory"].as_u64();
        assert!(failed > Some(0), "{strategy}: no failure was recorded");
    }
}

/// CUDA graphs and those of torch.compile, of tensors that are recorded.
#[test]
fn graphs_run_while_tensors_are_recorded() {
    for (what, says) in [("graphs", "reserved "), ("compile", "compiled (64, 64)")] {
        let script = path("graphs.py");
        let finished = under("record", "auto_growth", "8GiB", &[&script, what]).run().ok();
        assert!(finished.stdout.contains(says), "{what}: {}", finished.stdout);
        assert_eq!(tensors(&finished)["lost"], 0, "{what}");
        assert!(said(&finished).is_empty(), "{what}: {}", finished.stderr);
    }
}

#[test]
fn out_of_memory_is_raised_at_the_allocation() {
    for strategy in STRATEGIES {
        let finished = under("allocator", strategy, "2GiB", &[&path("finder.py")]).run().ok();
        assert!(finished.stdout.contains("found "), "{strategy}: {}", finished.stdout);
        assert!(
            calls(&finished, "vramshim_torch_alloc") > 0,
            "{strategy}: not the allocator"
        );
        let told = finished.inspect();
        assert!(told["failures"].as_u64() > Some(0), "{strategy}: {told}");
    }
}

#[test]
fn a_smaller_step_fits_after_one_that_ran_out_of_memory() {
    let script = path("after_failure.py");
    let finished = under("allocator", "auto_growth", "8GiB", &[&script]).run().ok();
    assert!(finished.stdout.contains("fits after 2 failures"), "{}", finished.stdout);
}

/// PyTorch's count, the ledger and the simulated GPU's table agree at every checkpoint.
#[test]
fn training_agrees_in_both_modes() {
    for mode in ["allocator", "record"] {
        for strategy in STRATEGIES {
            let finished = under(mode, strategy, "8GiB", &[&path("train.py")]).run().ok();
            let agreed = finished.stdout.lines().filter(|line| line.starts_with("agreed:"));
            assert_eq!(agreed.count(), 4, "{mode} {strategy}: {}", finished.stdout);
            let is_allocator = calls(&finished, "vramshim_torch_alloc") > 500;
            assert_eq!(is_allocator, mode == "allocator", "{mode} {strategy}");
        }
    }
}

#[test]
fn torchrun_starts_two_processes_with_workers() {
    let script = path("ranks.py");
    let arguments = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        &script,
    ];
    for mode in ["allocator", "record"] {
        let finished = under(mode, "auto_growth", "8GiB", &arguments).run().ok();
        for rank in ["rank 0 held ", "rank 1 held "] {
            assert!(finished.stdout.contains(rank), "{mode}: {}", finished.stdout);
        }
        assert!(said(&finished).is_empty(), "{mode}: {}", finished.stderr);
        let jobs = finished.inspect_all();
        assert_eq!(jobs.len(), 2, "{mode}: one journal a rank");
        let is_allocator = calls(&finished, "vramshim_torch_alloc") > 20;
        assert_eq!(is_allocator, mode == "allocator", "{mode}");
    }
}

#[test]
fn a_graphs_memory_comes_back_when_the_graph_is_gone() {
    for strategy in STRATEGIES {
        let script = path("graphs.py");
        let finished = under("allocator", strategy, "8GiB", &[&script, "graphs"]).run().ok();
        assert!(finished.stdout.contains("reserved "), "{}", finished.stdout);
        let mentions = finished.said().iter().any(|(_, words)| words.contains("CUDA graph"));
        assert!(!mentions, "{strategy}: {}", finished.stderr);
    }
}

#[test]
fn a_capture_that_fails_leaves_nothing() {
    for strategy in STRATEGIES {
        let script = path("graphs.py");
        let finished = under("allocator", strategy, "1GiB", &[&script, "failed"]).run().ok();
        assert!(finished.stdout.contains("reserved "), "{strategy}: {}", finished.stderr);
    }
}

#[test]
fn memory_that_dies_in_a_capture_serves_it_again() {
    for strategy in STRATEGIES {
        let script = path("graphs.py");
        let finished = under("allocator", strategy, "1GiB", &[&script, "dead"]).run().ok();
        assert!(finished.stdout.contains("reserved "), "{strategy}: {}", finished.stderr);
    }
}

/// Questions that a job seldom asks: before its first tensor, with wrong arguments, about out of memory and pools.
#[test]
fn rare_questions_have_pytorchs_answers() {
    let script = path("corners.py");
    let own = under("off", "passthrough", "8GiB", &[&script]).run().ok().json();
    assert!(own.len() > 100, "{own:?}");
    for strategy in STRATEGIES {
        let told = under("allocator", strategy, "8GiB", &[&script]).run().ok().json();
        assert_eq!(own.len(), told.len(), "{strategy}");
        for (own, told) in own.iter().zip(told) {
            assert_eq!(*own, told, "{strategy}");
        }
    }
}

#[test]
fn an_allocator_of_the_jobs_own_serves_its_tensors() {
    let script = path("own_allocator.py");
    for (mode, lines_said) in [("off", 0), ("allocator", 1)] {
        let finished = under(mode, "auto_growth", "1GiB", &[&script]).run().ok();
        assert_eq!(finished.stdout, "served\n", "{mode}");
        let lines = said(&finished);
        assert_eq!(lines.len(), lines_said, "{mode}: {}", finished.stderr);
        assert!(
            lines.iter().all(|line| line.contains("an allocator of its own")),
            "{lines:?}"
        );
        assert_eq!(calls(&finished, "vramshim_torch_alloc"), 0, "{mode}");
    }
}

/// The limit of tensors in PyTorch's variable holds. A line names the settings that only PyTorch's cache heeds.
#[test]
fn the_settings_of_pytorchs_allocator_are_heeded_or_named() {
    let code = "import torch; torch.ones(1, device='cuda'); print(torch.cuda.get_per_process_memory_fraction() < 0.01)\n\
                try: torch.empty(50 << 20, device='cuda')\n\
                except torch.OutOfMemoryError: print('refused')";
    let settings = "roundup_power2_divisions:[256:1,512:2], per_process_memory_fraction:0.001,max_split_size_mb:99,\
                    expandable_segments:False";
    for (mode, lines_said) in [("off", 0), ("allocator", 1)] {
        let job = under(mode, "auto_growth", "8GiB", &["-c", code]);
        let finished = job.env("PYTORCH_CUDA_ALLOC_CONF", settings).run().ok();
        assert_eq!(finished.stdout, "True\nrefused\n", "{mode}");
        let lines = said(&finished);
        assert_eq!(lines.len(), lines_said, "{mode}: {}", finished.stderr);
        let words = "max_split_size_mb, roundup_power2_divisions in PYTORCH_CUDA_ALLOC_CONF have no effect";
        assert!(lines.iter().all(|line| line.contains(words)), "{lines:?}");
    }
}

#[test]
fn pytorchs_own_allocator_takes_over_where_only_it_serves() {
    for (what, reason) in [("pools", "memory pools"), ("compile", "the graphs of torch.compile")] {
        let script = path("graphs.py");
        let finished = under("allocator", "auto_growth", "8GiB", &[&script, what]).run().ok();
        let lines = said(&finished);
        assert!(
            lines.len() == 1 && lines[0].contains(reason) && lines[0].contains("PyTorch's own allocator serves"),
            "{what}: {}",
            finished.stderr
        );
        assert!(
            calls(&finished, "vramshim_torch_alloc") > 0,
            "{what}: not the allocator before"
        );
    }
}

#[test]
fn the_allocator_is_installed_from_code() {
    let code = "import vramshim.torch, torch; vramshim.torch.install(); t = torch.ones(1000, device='cuda'); \
                print(torch.cuda.memory_allocated(), vramshim.torch.is_in_force())";
    let finished = under("off", "auto_growth", "1GiB", &["-c", code]).run().ok();
    assert_eq!(finished.stdout.trim(), "4096 True");
    // Without a strategy it is the one that `--torch allocator` implies.
    let job = with_options(&["--torch", "off"], "1GiB", &["-c", code]);
    let finished = job
        .without("FLAGS_allocator_strategy")
        .without("VRAMSHIM_STRATEGY")
        .run()
        .ok();
    assert_eq!(finished.stdout.trim(), "4096 True");
    assert_eq!(finished.inspect()["strategy"], "auto_growth", "{}", finished.stderr);
    let lines = said(&finished);
    assert!(
        lines.len() == 1 && lines[0].contains("auto_growth serves"),
        "{}",
        finished.stderr
    );
}

/// The hook's folder hides another `sitecustomize`, which must run too.
#[test]
fn a_hidden_sitecustomize_runs_as_well() {
    let job = under(
        "allocator",
        "auto_growth",
        "1GiB",
        &["-c", "import sys; print('torch' in sys.modules)"],
    );
    std::fs::write(job.folder().join("sitecustomize.py"), "print('the hidden one')\n").unwrap();
    let folder = job.folder().to_owned();
    let finished = job.env("PYTHONPATH", folder).run().ok();
    assert_eq!(finished.stdout, "the hidden one\nFalse\n");
}

/// With some options of Python the hook does not run. Nothing fails, and `run` says that the switch will not act.
#[test]
fn a_job_whose_python_hides_the_hook_runs_as_it_would() {
    for (mode, option, code) in [
        ("allocator", "-S", "print(1 + 1)"),
        ("allocator", "-I", "print('vramshim' in __import__('sys').modules or 2)"),
        ("record", "-E", "print('vramshim' in __import__('sys').modules or 2)"),
    ] {
        let finished = under(mode, "auto_growth", "1GiB", &[option, "-c", code]).run().ok();
        assert_eq!(finished.stdout, "2\n", "{mode} {option}");
        let lines = said(&finished);
        let words = format!("--torch {mode} will not act, because python {option}");
        assert!(lines.len() == 1 && lines[0].contains(&words), "{}", finished.stderr);
    }
}

/// A search for the largest batch raises many errors. Each is recorded, but not each costs a reading of all tensors.
#[test]
fn many_errors_of_out_of_memory_are_recorded_at_little_cost() {
    let code = "import torch, time\n\
                kept = [torch.ones(1, device='cuda') for _ in range(10)]\n\
                from vramshim import record\n\
                drains, original = [], record._Recorder._drain\n\
                record._Recorder._drain = lambda self: (drains.append(1), original(self))[1]\n\
                begin = time.monotonic()\n\
                for _ in range(60):\n    \
                    try: torch.empty(1 << 40, device='cuda')\n    \
                    except torch.OutOfMemoryError: pass\n\
                passed = time.monotonic() - begin\n\
                assert len(drains) <= 2 + 3 * passed, (len(drains), passed)";
    let finished = under("record", "auto_growth", "8GiB", &["-c", code]).run().ok();
    assert_eq!(
        tensors(&finished)["devices"][0]["out_of_memory"],
        60,
        "{}",
        finished.stderr
    );
}

/// A worker that loads data, or one of a pool, says nothing of tensors that it has not made.
#[test]
fn workers_are_quiet_about_what_they_did_not_record() {
    let script = path("quiet_worker.py");
    for (kind, lines_said) in [("daemon", 0), ("process", 1)] {
        let finished = under("record", "auto_growth", "1GiB", &[&script, kind]).run().ok();
        assert_eq!(said(&finished).len(), lines_said, "{kind}: {}", finished.stderr);
    }
}

fn tensors(finished: &Finished) -> Value {
    let told = finished.inspect()["tensors"].clone();
    assert!(told.is_object(), "no tensors were recorded: {}", finished.stderr);
    told
}
