//! The formats' own readers read what `vramshim export` wrote of a real PyTorch job: `_memory_viz.py` of the installed
//! PyTorch, DuckDB, pyarrow, and Perfetto's published protos.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use support::{Fields, Finished, Runs, root, vramshim_with};

use crate::formats::{check, check_all, export, import_as, ledger, snapshot};
use crate::frameworks::switch::with_options;

/// The Python of an environment: `formats` has the readers of the formats, `frameworks` has PyTorch.
pub fn python_of(environment: &str) -> PathBuf {
    let named = |variable| std::env::var_os(variable).map(PathBuf::from);
    let base = named("XDG_CACHE_HOME").unwrap_or_else(|| named("HOME").unwrap_or_default().join(".cache"));
    let cache = named("VRAMSHIM_CACHE").unwrap_or_else(|| base.join("vramshim"));
    let told = named("VRAMSHIM_FRAMEWORKS").filter(|_| environment == "frameworks");
    let python = told.unwrap_or_else(|| cache.join(environment)).join("bin/python");
    assert!(python.exists(), "{}: run scripts/ci/setup frameworks", python.display());
    python
}

/// Runs `job.py` under `vramshim run`. Returns what it printed, too.
fn job(options: &[&str], settings: &str, arguments: &[&str]) -> (Finished, Value) {
    let script = root().join("tests/formats/job.py");
    let job = with_options(options, "24GiB", &[&[script.to_str().unwrap()], arguments].concat());
    let finished = job.env("PYTORCH_CUDA_ALLOC_CONF", settings).run().ok();
    let told = finished.json().pop().expect("figures");
    (finished, told)
}

/// Runs every mode of PyTorch's own script on a snapshot.
fn assert_memory_viz_reads(path: &Path) {
    let python = python_of("frameworks");
    let folder = tempfile::tempdir().unwrap();
    // The script draws flame graphs with flamegraph.pl, which it would fetch.
    let cache = folder.path().join(".cache");
    std::fs::create_dir(&cache).unwrap();
    let drawer = cache.join("flamegraph.pl");
    std::fs::write(&drawer, "#!/bin/sh\ncat\n").unwrap();
    std::fs::set_permissions(&drawer, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let out = folder.path().join("out");
    let script = "import importlib.util, sys; \
        spec = importlib.util.find_spec('torch'); \
        print(spec.submodule_search_locations[0] + '/cuda/_memory_viz.py')";
    let found = Command::new(&python).args(["-c", script]).output().unwrap();
    let viz = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    let modes = "trace, stats, trace_plot, trace_plot --segments, trace_plot --filter_freed, segment_plot, segments, \
                 memory, compare";
    for mode in modes.split(", ") {
        let mode: Vec<&str> = mode.split(' ').collect();
        let mut command = Command::new(&python);
        command.env("HOME", folder.path()).arg(&viz).arg(mode[0]);
        match mode[0] {
            // The script reads whole snapshots and compares lists of segments, so its own snapshots fail, too. The
            // function is called with what it takes.
            "compare" => {
                let code = "import importlib.util as u, pickle, sys; \
                    spec = u.spec_from_file_location('viz', sys.argv[1]); viz = u.module_from_spec(spec); \
                    spec.loader.exec_module(viz); segments = pickle.load(open(sys.argv[2], 'rb'))['segments']; \
                    print(viz.compare(segments, segments[1:], format_flamegraph=str))";
                command = Command::new(&python);
                command.args(["-c", code, &viz]).arg(path);
            }
            _ => {
                command.arg(path).args(&mode[1..]);
                if !matches!(mode[0], "trace" | "stats") {
                    command.arg("-o").arg(&out);
                }
            }
        }
        let output = command.printed().ok();
        let is_drawn = !output.text.is_empty() || out.metadata().unwrap().len() > 100;
        assert!(is_drawn, "{mode:?}");
    }
}

#[test]
fn pytorchs_own_script_reads_snapshots_of_pytorch_jobs() {
    for (options, settings) in [
        (&["--torch", "record"][..], ""),
        (&["--torch", "record"], "expandable_segments:True"),
        (&["--torch", "allocator"], ""),
        (&[], "backend:cudaMallocAsync"),
    ] {
        let (finished, told) = job(options, settings, &[]);
        let journal = &finished.journals()[0];
        let (_folder, path) = export(journal, "torch-snapshot", &["--at", "peak"]);
        let at_peak = check(&path);
        assert_memory_viz_reads(&path);
        let reserved = &snapshot(journal, &[])["sums"]["0"]["reserved"];
        assert_eq!(*reserved, ledger(journal)["0"]["reserved"], "{options:?} {settings}");
        if options == ["--torch", "record"] {
            let mut live = at_peak["live"].list().iter();
            assert!(live.any(|block| block[2] == told["beside"]), "{settings}");
            // Equal stacks are written once: the kept tensors have one, those of the loop another.
            let of_line = &at_peak["lines"][told["line"].to_string()];
            let (entries, stacks) = (of_line[0].number(), of_line[1].number());
            assert!(entries > stacks && (1..=3).contains(&stacks), "{settings}: {of_line}");
        }
    }
}

#[test]
fn readers_of_each_format_agree_with_the_journal() {
    let python = python_of("formats");
    let (finished, told) = job(&["--torch", "record"], "", &[]);
    let journal = &finished.journals()[0];
    let folder = tempfile::tempdir().unwrap();
    for format in ["parquet", "perfetto", "csv"] {
        let path = folder.path().join(format!("out.{format}"));
        vramshim_with(&["export", "--to", format, "-o"], [&path, journal]).ok();
    }
    let mut command = Command::new(python);
    command.arg(root().join("tests/formats/readers.py")).arg(folder.path());
    let read = command.printed().ok().json();
    let text = std::fs::read_to_string(folder.path().join("out.csv")).unwrap();
    let rows = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let allocations = rows.filter(|row| row[2] == "allocate");
    let requested: u64 = allocations.map(|row| row[4].parse::<u64>().unwrap()).sum();
    let tables = &read["tables"];
    assert_eq!(tables["duckdb"], tables["pyarrow"]);
    assert_eq!(tables["duckdb"][1], requested);
    assert!(tables["lines"].list().contains(&told["line"]), "{tables}");
    let (_kept, collapsed) = export(journal, "collapsed", &[]);
    let stacks = std::fs::read_to_string(collapsed).unwrap();
    let held = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    let held: u64 = stacks.lines().map(held).sum();
    assert_eq!(read["perfetto"]["peaks"]["GPU 0 live"], held);
    let failed = "cudaMalloc of 32.0 TiB failed".into();
    assert!(read["perfetto"]["instants"].list().contains(&failed), "{read}");
}

#[test]
fn pytorchs_own_snapshot_becomes_a_journal_with_the_same_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let dumped = folder.path().join("own.pickle");
    let (_finished, told) = job(&[], "", &[dumped.to_str().unwrap()]);
    let journal = folder.path().join("own.vraj");
    import_as(&dumped, &journal).ok();
    let again = snapshot(&journal, &[]);
    let wanted = json!({"reserved": told["reserved"], "allocated": told["allocated"], "requested": told["now"]});
    assert_eq!(again["sums"]["0"], wanted);
    let blocks = &check_all(["--live", dumped.to_str().unwrap()])[0]["live"];
    assert!(blocks.list().len() >= 4);
    assert_eq!(again["live"], *blocks);
    let (_folder, path) = export(&journal, "collapsed", &[]);
    let text = std::fs::read_to_string(path).unwrap();
    let line = format!("job.py:{}", told["line"]);
    assert!(text.contains(&line), "{text}");
    let (_folder, path) = export(&journal, "torch-snapshot", &[]);
    assert_memory_viz_reads(&path);
}
