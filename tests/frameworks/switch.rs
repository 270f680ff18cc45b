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

#[test]
fn torchrun_starts_two_processes_with_workers() {
    let script = path("ranks.py");
    let arguments = ["-m", "torch.distributed.run", "--nproc-per-node", "2", &script];
    for mode in ["allocator"] {
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
