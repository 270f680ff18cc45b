//! `vramshim run --torch`: jobs that are not changed, with the library as PyTorch's allocator or beside it.

use serde_json::{Value, json};
use support::{Finished, Job, program, simulated};

use super::{STRATEGIES, python, script};

/// A job that `vramshim run --sim --torch MODE` starts.
pub fn under(mode: &str, strategy: &str, memory: &str, arguments: &[&str]) -> Job {
    let simulator = simulated("libcuda.so.1");
    Job::new(program())
        .alone()
        .without("LD_LIBRARY_PATH")
        .without("SIMGPU_MEMORY")
        .without("SIMGPU_DEVICES")
        .env("VRAMSHIM_SIMGPU", simulator.parent().unwrap())
        .args(["run", "--torch", mode, "--strategy", strategy])
        .args(["--sim", memory, "--sim-devices", "2", "--"])
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
        .filter(|line| line.starts_with("vramshim: "))
        .collect()
}

fn calls(finished: &Finished, api: &str) -> u64 {
    let jobs = finished.inspect_all();
    let apis = jobs.iter().flat_map(|job| job["apis"].as_array().unwrap().clone());
    apis.filter(|one| one["api"] == api)
        .map(|one| one["calls"].as_u64().unwrap())
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
    let arguments = ["-m", "torch.distributed.run", "--nproc-per-node", "2", &script];
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

/// Python's `-S` leaves site-packages out, and with them PyTorch. The hook does not act, and nothing fails.
#[test]
fn a_job_without_pytorch_runs_as_it_would() {
    let finished = under("allocator", "auto_growth", "1GiB", &["-S", "-c", "print(1 + 1)"])
        .run()
        .ok();
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("2\n", ""));
}

fn tensors(finished: &Finished) -> Value {
    let told = finished.inspect()["tensors"].clone();
    assert!(told.is_object(), "no tensors were recorded: {}", finished.stderr);
    told
}

/// Compares what the journal's reader says of the tensors of holders.py with PyTorch's own count.
fn assert_holders(finished: &Finished, lost_ones: bool) {
    let told = tensors(finished);
    let own = &finished.json()[0];
    assert_eq!((&told["lost"], &told["damaged"]), (&0.into(), &0.into()), "{told:#}");
    if !lost_ones {
        assert_eq!(told["recorded"], own["allocations"], "{told:#}");
    }
    let device = &told["devices"][0];
    let peak = &device["peak"];
    assert_eq!(peak["bytes"], own["peak"], "{told:#}");
    assert_eq!(peak["others"], own["beside"], "{told:#}");
    assert_eq!(device["out_of_memory"], 1, "{told:#}");
    let holders = peak["holders"].as_array().unwrap();
    let lines: Vec<_> = holders
        .iter()
        .map(|holder| (&holder["line"]["line"], &holder["tensors"]))
        .collect();
    assert_eq!(
        lines,
        [(&own["weights"], &10.into()), (&own["activations"], &1.into())],
        "{told:#}"
    );
    assert_eq!(holders[0]["line"]["file"], path("holders.py"));
    let stack = holders[1]["stack"].as_array().unwrap();
    let functions: Vec<_> = stack.iter().map(|frame| frame["function"].as_str().unwrap()).collect();
    assert_eq!(functions, ["activations", "<module>"]);
    if lost_ones {
        return;
    }
    // The segments of PyTorch are those of the journal.
    let linear = &finished.inspect()["devices"][0]["classes"][0];
    let together = peak["segments"].as_u64().unwrap() + peak["others"].as_u64().unwrap();
    assert_eq!(linear["requested"]["peak"], together, "{linear}");
}

#[test]
fn the_lines_that_hold_tensors_at_the_peak_are_named() {
    for strategy in STRATEGIES {
        let finished = under("record", strategy, "8GiB", &[&path("holders.py")]).run().ok();
        assert_holders(&finished, false);
        assert_eq!(tensors(&finished)["devices"][0]["end"]["bytes"], 0, "{strategy}");
        assert!(said(&finished).is_empty(), "{strategy}: {}", finished.stderr);
    }
}

#[test]
fn a_killed_job_loses_the_last_second_at_most() {
    let finished = under("record", "auto_growth", "8GiB", &[&path("holders.py"), "killed"]).run();
    assert_eq!(finished.status.code(), None, "{}", finished.stderr);
    assert_holders(&finished, true);
    let told = tensors(&finished);
    let recorded = told["recorded"].as_u64().unwrap();
    assert!((310..=360).contains(&recorded), "{told:#}");
}

#[test]
fn a_job_that_records_pytorchs_history_itself_keeps_it() {
    let finished = under("record", "auto_growth", "8GiB", &[&path("holders.py"), "history"])
        .run()
        .ok();
    let lines = said(&finished);
    assert!(
        lines.len() == 1 && lines[0].contains("records PyTorch's memory history itself"),
        "{}",
        finished.stderr
    );
}

#[test]
fn recording_changes_no_figure_and_counts_what_it_lost() {
    let script = path("figures.py");
    let own = figures(&under("off", "passthrough", "8GiB", &[&script]).run().ok());
    assert_eq!(
        own,
        figures(&under("record", "passthrough", "8GiB", &[&script]).run().ok())
    );
    // A thread of autograd allocates without the interpreter's lock, also while the history is emptied.
    let finished = under("record", "auto_growth", "8GiB", &[&path("train.py"), "300"])
        .run()
        .ok();
    let told = tensors(&finished);
    assert!(told["lost"].as_u64() < Some(100), "{told:#}");
    assert!(told["recorded"].as_u64() > Some(20_000), "{told:#}");
}
