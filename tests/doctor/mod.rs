//! Runs `vramshim doctor` on simulated machines, healthy and faulty. Checks the findings, their severities, and that
//! the doctor leaves no process and no file behind.

mod library;
mod report;

use std::path::PathBuf;

use crate::dlsym::dlsym_version;
use report::Report;
use serde_json::Value;
use support::layer::{FORMS, Form, Habits};
use support::member::{Host, Member, member_client};
use support::{
    AUTO_GROWTH, Fields, GIB, Job, NAIVE_BEST_FIT_OF_ALL, PASSTHROUGH, Strategy, assert_says, client, left_out,
    library, program,
};

/// `vramshim doctor --json`. The dynamic loader finds the simulated driver.
fn doctor(arguments: &[&str]) -> Job {
    Job::new(program()).alone().args(["doctor", "--json"]).args(arguments)
}

/// Builds a driver with this fault as `libcuda.so.1` and returns its folder.
fn bad_driver(how: &str) -> PathBuf {
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", how];
    let built = client("doctor/bad_driver.c", "libcuda.so.1", &flags);
    built.parent().expect("a folder").to_owned()
}

// ---- the machine

#[test]
fn a_healthy_machine_has_nothing_worse_than_notes() {
    let report = Report::run(doctor(&[]));
    report
        .nothing_worse_than_notes()
        .has("library", "ok", "the loader takes it")
        .has("settings", "ok", "passthrough")
        .has("journal", "ok", "can be made")
        .has("driver", "ok", "the simulated driver of CUDA 13.0")
        .has("device", "ok", "device 1: Simulated GPU, 4.00 GiB")
        .has("vmm", "ok", "device 1: a granule of 2.00 MiB");
    let devices = report.page["driver"]["devices"].list();
    assert_eq!(devices.len(), 2, "{devices:?}");
    assert_eq!(devices[0]["total_memory"], 4u64 << 30);
    assert!(devices[1]["uuid"].text().starts_with("GPU-"), "{devices:?}");
}

#[test]
fn the_simulated_gpu_can_be_asked_for() {
    let job = doctor(&["--sim", "3x24GiB"]).without("LD_LIBRARY_PATH");
    Report::run(job)
        .nothing_worse_than_notes()
        .has("device", "ok", "device 2: Simulated GPU, 24.0 GiB");
}

#[test]
fn people_get_a_table_and_the_same_exit_codes() {
    let new = || Job::new(program()).alone().args(["doctor"]);
    let grows = new().env("VRAMSHIM_STRATEGY", "auto_growth");
    for (job, code, says) in [
        (new(), 0, "Nothing stands in a job's way.\n"),
        (grows.env("SIMGPU_VMM", "0"), 3, " warning "),
        (new().env("VRAMSHIM_DIR", "/proc/journals"), 4, "problem  journal"),
        (new().args(["--sim", "much"]), 2, ""),
        (new().args(["--timeout", "0"]), 2, ""),
    ] {
        let finished = job.run();
        let (ended, told) = (finished.status.code(), &finished.stdout);
        assert_eq!(ended, Some(code), "{}: {}", finished.name, finished.stderr);
        assert_says(told, says);
        assert!(!told.contains('\x1b'), "no escapes in a pipe: {told}");
    }
}

#[test]
fn no_driver_is_a_problem() {
    let report = Report::run(doctor(&[]).without("LD_LIBRARY_PATH"));
    if report.page["driver"]["path"] != Value::Null {
        return left_out("a machine without a driver: this one has a driver");
    }
    report.has("driver", "problem", "libcuda.so.1 cannot be loaded");
    assert!(report.all("device").is_empty() && report.all("vmm").is_empty());
}

#[test]
fn a_driver_that_fails_is_explained() {
    let within =
        |time: &str, how: &str| Report::run(doctor(&["--timeout", time]).env("LD_LIBRARY_PATH", bad_driver(how)));
    // A driver that does answer has the time to do so.
    let over = |how: &str| within("30s", how);
    within("2s", "-DHANGS").has("driver", "problem", "did not come back from cuInit within 2s");
    over("-DCRASHES").has("driver", "problem", "crashed with signal 6 in cuInit");
    over("-DLEAVES").has("driver", "problem", "ended the process in cuInit");
    for (code, name) in [(100, "CUDA_ERROR_NO_DEVICE"), (999, "CUDA_ERROR_UNKNOWN")] {
        let report = over(&format!("-DANSWERS={code}"));
        report.has("driver", "problem", name);
        assert_eq!(report.page["driver"]["init"], code);
    }
}

/// The report says whether the driver crashes or a layer before it.
#[test]
fn a_preloaded_library_that_breaks_the_driver_is_named() {
    let flags = ["-shared", "-fPIC", "-DCRASHES", &dlsym_version()];
    let layer = client("doctor/bad_driver.c", "bad-layer", &flags);
    let report = Report::run(doctor(&[]).preload(layer));
    report.has("driver", "problem", "without what LD_PRELOAD names it answers");
}

#[test]
fn a_layer_that_writes_much_is_no_fault() {
    let layer = client("doctor/bad_driver.c", "talking-layer", &["-shared", "-fPIC", "-DTALKS"]);
    let report = Report::run(doctor(&[]).preload(layer));
    report.has("driver", "ok", "");
    assert_eq!(report.page["driver"]["init"], 0);
}

/// The check `vmm` has what was seen, and the check `strategy` what follows.
#[test]
fn what_auto_growth_lacks_is_told() {
    let module = client("support/clients/peermem.c", "peermem", &["-shared", "-fPIC"]);
    let over = |strategy: &str, variable: &str, value: &str| doctor(&["--strategy", strategy]).env(variable, value);
    for (variable, value, words) in [
        ("SIMGPU_VMM", "0", "no virtual memory management"),
        // The attribute of the device is not trusted: the doctor tries the calls.
        ("SIMGPU_FAULTS", "cuMemMap:1+=801", "cuMemMap fails with 801"),
        ("SIMGPU_FAULTS", "cuMemMap:2=801", "memory can be mapped only once"),
        ("SIMGPU_DMABUF", "0", "nvidia_peermem cannot register mapped memory"),
    ] {
        let with_module = |strategy| Report::run(over(strategy, variable, value).preload_in_front(module.clone()));
        with_module("auto_growth").has("strategy", "warning", words);
        with_module("passthrough").nothing_worse_than_notes();
    }
    Report::run(over("auto_growth", "SIMGPU_DMABUF", "0")).nothing_worse_than_notes();
}

// ---- layers

#[test]
fn a_layer_is_noticed_in_both_forms() {
    for form in FORMS {
        let report = Report::run(doctor(&[]).over(form, "1GiB", &[]));
        report.nothing_worse_than_notes();
        match form {
            Form::Preloaded | Form::PreloadedWithoutVmm => {
                report.has("preload", "note", "liblayer.so is preloaded and takes calls of CUDA")
            }
            Form::Replacing => report.has("layer", "note", "not NVIDIA's own"),
        };
        // The report has the layer's figure, because the job can use that much.
        assert_eq!(report.page["driver"]["devices"][0]["free_memory"], GIB, "{form:?}");
    }
}

#[test]
fn layers_of_known_projects_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let known = folder.path().join("libvgpu.so");
    let nothing = client("support/clients/count_sync.c", "nothing.so", &["-shared", "-fPIC"]);
    std::fs::copy(nothing, &known).unwrap();
    let report = Report::run(doctor(&[]).preload(known));
    report.nothing_worse_than_notes().has("preload", "note", "HAMi-core");
    let copy = folder.path().join("copy.so");
    std::fs::copy(library(), &copy).unwrap();
    Report::run(doctor(&[]).preload(copy)).has("preload", "warning", "another copy of the library");
    let missing = folder.path().join("gone.so");
    Report::run(doctor(&[]).preload(missing)).has("preload", "warning", "cannot be read");
}

/// The report names the order of the library and the layer.
#[test]
fn the_order_of_library_and_layer_is_reported() {
    let flags = ["-shared", "-fPIC", &dlsym_version(), "-DBY_HANDLE", "-U_GNU_SOURCE"];
    let layer = client("support/clients/dlsym_layer.c", "dlsym-layer.so", &flags);
    for ours_first in [true, false] {
        let mut order = [layer.display().to_string(), library().display().to_string()];
        if ours_first {
            order.reverse();
        }
        let report = Report::run(doctor(&[]).env("LD_PRELOAD", order.join(":")));
        match ours_first {
            true => report.nothing_worse_than_notes(),
            // It takes cuMemAlloc, too.
            false => report.has("order", "problem", "stands before the library"),
        };
        order.reverse();
        let advised = |found: &&Value| found["advice"].text().contains(&order.join(":"));
        assert!(report.all("order").iter().all(advised));
    }
}

// ---- settings, folder, limits

#[test]
fn settings_that_conflict_with_the_strategy_are_reported() {
    let with = |strategy: &str, variable: &str, value: &str| {
        Report::run(doctor(&["--strategy", strategy]).env(variable, value))
    };
    for (variable, value) in [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync"),
        ("FLAGS_use_virtual_memory_auto_growth", "true"),
        ("FLAGS_use_cuda_malloc_async_allocator", "1"),
        ("TF_GPU_ALLOCATOR", "cuda_malloc_async"),
    ] {
        let words = if value.contains(':') { value } else { variable };
        let report = with("auto_growth", variable, value);
        report.has("settings", "warning", words);
        assert_eq!(report.find("settings", words)["where"], variable);
        with("passthrough", variable, value)
            .nothing_worse_than_notes()
            .has("settings", "note", words);
    }
    with("auto_growth", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False").nothing_worse_than_notes();
    // PyTorch's own allocator does not act under `--torch allocator`, which implies a policy.
    let allocator = doctor(&["--torch", "allocator"]).env("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    let words = "has no effect, because the library is PyTorch's allocator";
    Report::run(allocator)
        .nothing_worse_than_notes()
        .has("settings", "note", words);
    with("auto_growth", "FLAGS_allocator_strategy", "naive_best_fit").has("settings", "warning", "on top of it");
    with("auto_growth", "XLA_PYTHON_CLIENT_MEM_FRACTION", ".9").has("settings", "warning", "JAX takes .9");
    let inherited = doctor(&[]).env("CUDA_DEVICE_MEMORY_LIMIT", "1g");
    let inherited = Report::run(inherited.env("VRAMSHIM_MEMORY_LIMIT", "inherit"));
    inherited.has("limit", "ok", "device 0: 1.00 GiB of 4.00 GiB for each process");
}

#[test]
fn each_setting_is_looked_at() {
    for (variables, check, severity) in [
        ("SIMGPU_FAULTS=cuDevicePrimaryCtxRetain:1+=2", "device", "problem"),
        ("SIMGPU_VMM=0", "vmm", "note"),
        ("VRAMSHIM_STRATEGY=best", "settings", "problem"),
        ("VRAMSHIM_IDLE_RELEASE=soon", "settings", "problem"),
        ("VRAMSHIM_NO_SUCH=8GiB", "settings", "warning"),
        ("CUDA_DEVICE_MEMORY_LIMIT=1g", "settings", "note"),
        ("VRAMSHIM_DIR=/proc/journals", "journal", "problem"),
        ("VRAMSHIM_DIR=/dev/null/journals", "journal", "problem"),
        ("VRAMSHIM_JOURNAL_MAX=0", "journal", "note"),
        ("VRAMSHIM_MEMORY_LIMIT=0=1GiB,7=2GiB", "limit", "problem"),
        ("VRAMSHIM_MEMORY_LIMIT=8GiB", "limit", "note"),
        ("VRAMSHIM_ACCOUNTS=/dev/null", "accounts", "problem"),
    ] {
        let (name, value) = variables.split_once('=').unwrap();
        let report = Report::run(doctor(&[]).env(name, value));
        let found: Vec<&str> = report.all(check).iter().map(|one| one["severity"].text()).collect();
        assert!(found.contains(&severity), "{variables}: {found:?}");
    }
}

#[test]
fn what_others_hold_is_told_by_their_names() {
    let host = Host::new("1GiB");
    let look = |strategy: &str| {
        let job = doctor(&["--strategy", strategy]).sim("1GiB", 1);
        Report::run(job.env("SIMGPU_STATE", host.folder.path().join("state")))
    };
    look("naive_best_fit").nothing_worse_than_notes();
    let mut holder = Member::start(host.job());
    let pid = holder.child.id();
    for (hold, severity, strategy, all) in [
        (200 << 20, "note", "naive_best_fit", 200),
        (500 << 20, "warning", "passthrough", 700),
    ] {
        assert_eq!(holder.allocate(hold), 0);
        let told = look(strategy);
        let words = format!("device 0: others hold {all}.0 MiB of 1.00 GiB: process {pid} member has {all}.0 MiB");
        told.has("device", severity, &words);
        assert_eq!(told.code, Some(3));
        if strategy == "naive_best_fit" {
            told.has("settings", "warning", "others have 200.0 MiB");
        }
    }
}

/// nvshare keeps a part of the device, which is nobody's.
#[test]
fn what_a_layer_keeps_is_not_called_others() {
    let habits = &[("LAYER_LINEAR", "managed"), ("LAYER_TOTAL", "device")];
    let told = Report::run(doctor(&[]).sim("4GiB", 1).over(Form::Preloaded, "3GiB", habits));
    told.has("device", "ok", "3.00 GiB free by the figures of ");
    let text = told.page["findings"].to_string();
    assert_says(&text, "a layer, which keeps or counts 1.00 GiB");
    assert!(!text.contains("others hold"), "{text}");
}

#[test]
fn limits_and_accounts_are_looked_at() {
    let accounts = tempfile::tempdir().unwrap();
    let look = || {
        let job = doctor(&[]).env("VRAMSHIM_MEMORY_LIMIT", "1GiB");
        Report::run(job.env("VRAMSHIM_ACCOUNTS", accounts.path()))
    };
    let of_all = "device 0: 1.00 GiB of 4.00 GiB for all processes together";
    look()
        .has("limit", "ok", of_all)
        .has("accounts", "ok", "accounts can be kept here");
    // The doctor left no file there.
    assert_eq!(std::fs::read_dir(accounts.path()).unwrap().count(), 0);
    let job = Job::new(member_client()).input("a 1\n");
    job.env("VRAMSHIM_ACCOUNTS", accounts.path()).run().ok();
    let mut files = std::fs::read_dir(accounts.path()).unwrap();
    let account = files.next().expect("an account").unwrap().path();
    std::fs::write(&account, "nothing of the kind").unwrap();
    look().has("accounts", "warning", "wrong size");
}

/// The doctor removes what it wrote to test the folder, and does not create the folder.
#[test]
fn nothing_is_left_in_the_folder() {
    let job = doctor(&[]);
    let folder = job.folder().to_owned();
    std::fs::create_dir(folder.join("kept")).unwrap();
    let finished = job.run();
    Report::of(&finished).nothing_worse_than_notes();
    let left = std::fs::read_dir(&folder).unwrap().flatten();
    assert_eq!(left.map(|entry| entry.file_name()).collect::<Vec<_>>(), ["kept"]);
}

#[test]
fn limits_on_address_space_and_file_size_are_reported() {
    let limited = |limit: &str| {
        let script = format!("ulimit {limit} && exec \"$0\" doctor --json");
        Report::run(Job::new("bash").alone().args(["-c", &script]).args([program()]))
    };
    limited("-v 33554432").has("limits", "warning", "address space is limited to 32.0 GiB");
    limited("-f 1048576").has("limits", "note", "files may grow to 1.00 GiB only");
}

/// `scripts/layers` compares the forecast with what jobs do.
#[test]
fn the_forecast_says_what_a_strategy_will_do() {
    let uncounted: Habits = &[("LAYER_VMM", "uncounted")];
    let over = |form: Form, habits: Habits, strategy: Strategy| {
        let job = Job::new(program()).alone().args(["doctor", "--json"]).sim("4GiB", 1);
        Report::run(job.strategy(strategy).over(form, "1GiB", habits))
    };
    for (form, habits, instead) in [
        (Form::Preloaded, &[][..], Value::Null),
        (Form::Preloaded, uncounted, "chunks".into()),
        (Form::Replacing, uncounted, "chunks".into()),
        (Form::PreloadedWithoutVmm, &[], "chunks".into()),
        (Form::Preloaded, &[("LAYER_VMM", "0")], "chunks".into()),
        (Form::Preloaded, &[("LAYER_VMM", "once")], "map_once".into()),
    ] {
        let told = over(form, habits, AUTO_GROWTH);
        assert_eq!(told.page["forecast"][0]["instead"], instead, "{form:?} {habits:?}");
    }
    over(Form::Preloaded, uncounted, AUTO_GROWTH).has("strategy", "warning", "its limit would not hold");
    over(Form::Preloaded, uncounted, PASSTHROUGH).nothing_worse_than_notes();
    let naive = over(Form::Preloaded, uncounted, NAIVE_BEST_FIT_OF_ALL);
    assert_eq!(naive.page["forecast"][0]["instead"], Value::Null);
}
