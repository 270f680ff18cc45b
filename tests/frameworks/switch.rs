//! `vramshim run --torch`: jobs that are not changed, with the library as PyTorch's allocator or beside it.

mod recorded;
mod snapshots;

use serde_json::{Value, json};
use support::{Fields, Finished, Job, assert_fields, assert_says, program, simulated};

use super::jobs::forked;
use super::{STRATEGIES, job_of, path, python};

pub fn under(mode: &str, strategy: &str, memory: &str, arguments: &[&str]) -> Job {
    with_options(&["--torch", mode, "--strategy", strategy], memory, arguments)
}

pub fn with_options(options: &[&str], memory: &str, arguments: &[&str]) -> Job {
    behind(&[], options, memory, arguments)
}

/// As `with_options`, behind a command that starts Python.
fn behind(command: &[&str], options: &[&str], memory: &str, arguments: &[&str]) -> Job {
    let without = ["LD_LIBRARY_PATH", "SIMGPU_MEMORY", "SIMGPU_DEVICES"];
    let job = without.into_iter().fold(job_of(program()).alone(), Job::without);
    job.env("VRAMSHIM_SIMGPU", simulated("libcuda.so.1").parent().unwrap())
        .args(["run"])
        .args(options)
        .args(["--sim", format!("2x{memory}").as_str(), "--"])
        .args(command)
        .args([python()])
        .args(arguments)
}

/// Checks that the Python part said one line on stderr with each of these words, and no other line.
fn assert_said(finished: &Finished, expected: &[&str]) {
    let lines = finished.stderr.lines().filter(|line| line.starts_with("vramshim: "));
    let lines: Vec<&str> = lines.filter(|line| !line.contains(": journals go to ")).collect();
    let as_expected = lines.iter().zip(expected).all(|(line, words)| line.contains(words));
    let is_all = lines.len() == expected.len() && as_expected;
    assert!(is_all, "{}: {expected:?}: {}", finished.name, finished.stderr);
}

pub fn calls(finished: &Finished, api: &str) -> u64 {
    let jobs = finished.inspect_all();
    let apis = jobs.iter().flat_map(|job| job["apis"].list().clone());
    let calls = apis.filter(|one| one["api"] == api).map(|one| one["calls"].number());
    calls.sum()
}

fn assert_is_allocator(finished: &Finished) {
    let served = calls(finished, "vramshim_torch_alloc");
    assert!(served > 0, "{}: not the allocator", finished.name);
}

fn tensors(finished: &Finished) -> Value {
    let told = finished.inspect()["tensors"].clone();
    assert!(told.is_object(), "no tensors were recorded: {}", finished.stderr);
    told
}

/// What a script printed, without the number of waits. An allocator that learns from events needs none.
fn figures(mode: &str, strategy: &str, script: &str) -> (Vec<Value>, Finished) {
    let finished = forked(mode, strategy, "8GiB", &[&path(script)]).ok();
    let mut moments = finished.json();
    for moment in &mut moments {
        moment["stats"]["num_sync_all_streams"] = json!(0);
    }
    (moments, finished)
}

/// Figures at several moments, and questions that a job seldom asks: before its first tensor, with wrong arguments, about
/// out of memory and pools. Ours of the peak is no more than PyTorch's.
#[test]
fn pytorchs_functions_answer_as_under_pytorchs_own_allocator() {
    for (script, count) in [("figures.py", 8), ("corners.py", 100)] {
        let (own, _) = figures("off", "passthrough", script);
        assert!(own.len() >= count, "{own:?}");
        let one = &STRATEGIES[..1];
        for (mode, strategies) in [("allocator", STRATEGIES), ("record", one), ("state", one)] {
            for strategy in strategies {
                let (told, finished) = figures(mode, strategy, script);
                assert_eq!(own.len(), told.len(), "{mode} {strategy}");
                for (own, told) in own.iter().zip(told) {
                    assert_eq!(*own, told, "{mode} {strategy}");
                }
                if script == "figures.py" {
                    assert_said(&finished, &[]);
                    let most = own.iter().map(|moment| moment["peak"].number()).max();
                    let peak = finished.inspect()["devices"][0]["allocated"]["peak"].number();
                    assert!(mode == "allocator" || Some(peak) <= most, "{mode}: {peak} of {most:?}");
                }
                let is_allocator = calls(&finished, "vramshim_torch_alloc") > 0;
                assert_eq!(is_allocator, mode == "allocator", "{strategy}");
            }
        }
    }
}

/// `memory_snapshot` has every byte once, also those of a tensor in a stitch.
#[test]
fn a_snapshot_has_each_byte_once() {
    let script = path("scattered.py");
    forked("off", "passthrough", "8GiB", &[&script]).ok();
    for strategy in STRATEGIES {
        // A stitch is made where memory is short.
        let memory = if *strategy == "auto_growth" { "400MiB" } else { "8GiB" };
        let told = &forked("allocator", strategy, memory, &[&script]).ok().json()[0];
        let is_stitched = told["after"] == told["before"];
        assert!(is_stitched || *strategy != "auto_growth", "no stitch was made: {told}");
    }
}

/// What NVML shows falls when the job empties PyTorch's cache, also if a policy keeps what PyTorch's cache freed.
#[test]
fn emptying_the_cache_gives_memory_back_to_the_device() {
    for (mode, strategies) in [
        ("off", &STRATEGIES[..1]),
        ("record", STRATEGIES),
        ("allocator", STRATEGIES),
    ] {
        for strategy in strategies {
            // naive_best_fit keeps its first reservation only if there is a block in it.
            let told = &forked(mode, strategy, "8GiB", &[&path("returned.py")]).ok().json()[0];
            let [emptied, full] = ["emptied", "full"].map(|moment| told[moment].number());
            assert!(emptied + (400 << 20) < full, "{mode} {strategy}: {told}");
        }
    }
}

/// `--torch allocator` without a strategy is auto_growth, and one line says so. A chosen strategy stays.
#[test]
fn the_allocator_implies_a_policy() {
    let installs = "import vramshim.torch, torch; vramshim.torch.install(); t = torch.ones(1000, device='cuda'); \
                    assert torch.cuda.memory_allocated() == 4096 and vramshim.torch.is_in_force()";
    let code = "import torch; torch.ones(10, device='cuda')";
    let chosen = ["--strategy", "passthrough"];
    let remark = ["auto_growth serves"];
    for (mode, code, options, flag, strategy, said) in [
        ("allocator", code, &[][..], "", "auto_growth", &remark[..]),
        ("allocator", code, &chosen, "", "passthrough", &[]),
        ("allocator", code, &[], "naive_best_fit", "naive_best_fit", &[]),
        ("record", code, &[], "", "passthrough", &[]),
        ("off", installs, &[], "", "auto_growth", &remark),
        ("off", installs, &chosen, "", "passthrough", &[]),
    ] {
        let job = with_options(&[&["--torch", mode], options].concat(), "1GiB", &["-c", code]);
        let job = job.without("FLAGS_allocator_strategy").without("VRAMSHIM_STRATEGY");
        let flags = [("FLAGS_allocator_strategy", flag)];
        let finished = job.envs(&flags[flag.is_empty().into()..]).run().ok();
        assert_eq!(finished.inspect()["strategy"], strategy, "{mode} {options:?} {flag}");
        assert_said(&finished, said);
    }
}

/// A job that used CUDA, but of which no tensor was recorded, says why at its end, and `inspect` says it too.
#[test]
fn a_record_without_tensors_is_told() {
    let without_torch = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0); \
                         context = ctypes.c_void_p(); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); \
                         cuda.cuCtxSetCurrent(context); at = ctypes.c_uint64(); \
                         assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4096)) == 0";
    let no_tensor = "import torch; torch.cuda.init(); torch.cuda.mem_get_info()";
    let old = "import torch; del torch._C._cuda_record_memory_history; torch.__version__ = '1.13'; \
               from vramshim import record, startup; startup.when_torch_is_imported('record'); torch.cuda.mem_get_info()";
    for (mode, code, words, page_says) in [
        ("record", without_torch, &["has not imported PyTorch"][..], true),
        ("record", no_tensor, &["has made no tensor"], true),
        // The line of the start says it already.
        ("off", old, &["PyTorch 1.13 keeps no such memory history"], false),
        // A process that has not used CUDA has no journal, and says nothing.
        ("record", "import torch", &[], false),
    ] {
        let finished = under(mode, "auto_growth", "1GiB", &["-c", code]).run().ok();
        assert_said(&finished, words);
        let page = finished.told(&["inspect"]).text;
        assert_eq!(page.contains("No tensor of PyTorch was recorded"), page_says, "{page}");
    }
}

/// Under PyTorch's own allocator, whose tensors are recorded, and under the library's.
#[test]
fn a_batch_size_is_found() {
    for strategy in STRATEGIES {
        let found = |mode: &str| forked(mode, strategy, "2GiB", &[&path("finder.py")]).ok();
        let failed = tensors(&found("record"))["devices"][0]["out_of_memory"].number();
        assert!(failed > 0, "{strategy}: no failure was recorded");
        let finished = found("allocator");
        assert_is_allocator(&finished);
        assert!(finished.inspect()["failed_calls"].number() > 0, "{strategy}");
    }
}

#[test]
fn a_smaller_step_fits_after_one_that_ran_out_of_memory() {
    forked("allocator", "auto_growth", "8GiB", &[&path("after_failure.py")]).ok();
}

#[test]
fn torchrun_starts_two_processes_with_workers() {
    let script = path("ranks.py");
    let torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2";
    let arguments: Vec<&str> = torchrun.split(' ').chain([script.as_str()]).collect();
    for mode in ["allocator", "record"] {
        let finished = under(mode, "auto_growth", "8GiB", &arguments).run().ok();
        assert_said(&finished, &[]);
        assert_eq!(finished.inspect_all().len(), 2, "{mode}: one journal a rank");
        let is_allocator = calls(&finished, "vramshim_torch_alloc") > 20;
        assert_eq!(is_allocator, mode == "allocator", "{mode}");
    }
}

/// A graph's memory comes back when the graph is gone, and after a capture that fails. Memory that dies in a capture serves
/// it again. Where only PyTorch's own allocator serves, it takes over.
#[test]
fn graphs_have_their_memory_and_give_it_back() {
    let auto_growth = &STRATEGIES[2..];
    let of_pools = ["pools of PyTorch: PyTorch's own allocator serves"];
    let of_compile = ["reduce-overhead\"): PyTorch's own allocator serves"];
    for (mode, what, memory, strategies, said) in [
        ("record", "graphs", "8GiB", auto_growth, &[][..]),
        ("record", "compile", "8GiB", auto_growth, &[]),
        ("allocator", "graphs", "8GiB", STRATEGIES, &[]),
        ("allocator", "failed", "1GiB", STRATEGIES, &[]),
        ("allocator", "dead", "1GiB", STRATEGIES, &[]),
        ("allocator", "pools", "8GiB", auto_growth, &of_pools),
        ("allocator", "compile", "8GiB", auto_growth, &of_compile),
    ] {
        for strategy in strategies {
            let finished = forked(mode, strategy, memory, &[&path("graphs.py"), what]).ok();
            let mentions = finished.said().iter().any(|(_, words)| words.contains("CUDA graph"));
            assert!(what != "graphs" || !mentions, "{strategy}: {}", finished.stderr);
            assert_said(&finished, said);
            if mode == "record" {
                assert_eq!(tensors(&finished)["lost"], 0, "{what}");
            } else {
                assert_is_allocator(&finished);
            }
        }
    }
}

#[test]
fn an_allocator_of_the_jobs_own_serves_its_tensors() {
    for (mode, said) in [("off", &[][..]), ("allocator", &["an allocator of its own"])] {
        let finished = forked(mode, "auto_growth", "1GiB", &[&path("own_allocator.py")]).ok();
        assert_said(&finished, said);
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
    let words = "max_split_size_mb, roundup_power2_divisions in PYTORCH_CUDA_ALLOC_CONF have no effect";
    for (mode, said) in [("off", &[][..]), ("allocator", &[words])] {
        let job = under(mode, "auto_growth", "8GiB", &["-c", code]);
        let finished = job.env("PYTORCH_CUDA_ALLOC_CONF", settings).run().ok();
        assert_eq!(finished.stdout, "True\nrefused\n", "{mode}");
        assert_said(&finished, said);
    }
}

/// The hook's folder hides another `sitecustomize`, which must run too.
#[test]
fn a_hidden_sitecustomize_runs_as_well() {
    let code = "import sys; print('torch' in sys.modules)";
    let job = under("allocator", "auto_growth", "1GiB", &["-c", code]);
    std::fs::write(job.folder().join("sitecustomize.py"), "print('the hidden one')\n").unwrap();
    let folder = job.folder().to_owned();
    let finished = job.env("PYTHONPATH", folder).run().ok();
    assert_eq!(finished.stdout, "the hidden one\nFalse\n");
}

/// With some options of Python the hook does not run. The library then starts what still can begin.
#[test]
fn a_job_whose_python_hides_the_hook_is_recorded_all_the_same() {
    let code = "import torch; kept = torch.ones(1000, device='cuda')";
    for (mode, option) in [("state", "-I"), ("record", "-E")] {
        let finished = under(mode, "auto_growth", "1GiB", &[option, "-c", code]).run().ok();
        assert_fields(&tensors(&finished), json!({"recorded": 1, "from": mode}), option);
        assert_said(&finished, &[]);
    }
    let finished = under("allocator", "auto_growth", "1GiB", &["-I", "-c", code])
        .run()
        .ok();
    assert_said(&finished, &["--torch allocator does not act"]);
    assert_eq!(calls(&finished, "vramshim_torch_alloc"), 0);
}

/// A search for the largest batch raises many errors. Each is recorded, but not each costs a reading of all tensors.
#[test]
fn many_errors_of_out_of_memory_are_recorded_at_little_cost() {
    let code = "import torch, time\n\
                kept = [torch.ones(1, device='cuda') for _ in range(10)]\n\
                from vramshim import record\n\
                drains, original = [], record._History._drain\n\
                record._History._drain = lambda self, failure: (drains.append(1), original(self, failure))[1]\n\
                begin = time.monotonic()\n\
                for _ in range(60):\n    \
                    try: torch.empty(1 << 40, device='cuda')\n    \
                    except torch.OutOfMemoryError: pass\n\
                passed = time.monotonic() - begin\n\
                assert len(drains) <= 2 + 3 * passed, (len(drains), passed)";
    let finished = forked("record", "auto_growth", "8GiB", &["-c", code]).ok();
    let failures = &tensors(&finished)["devices"][0]["out_of_memory"];
    assert_eq!(*failures, 60, "{}", finished.stderr);
}

/// A worker that loads data, or one of a pool, says nothing of tensors that it has not made.
#[test]
fn workers_are_quiet_about_what_they_did_not_record() {
    for (kind, said) in [("daemon", &[][..]), ("process", &["has made no tensor"])] {
        let finished = forked("record", "auto_growth", "1GiB", &[&path("quiet_worker.py"), kind]).ok();
        assert_said(&finished, said);
    }
}
