//! Tests of the exported `dlsym` and `dlvsym`. Each test compiles small programs and libraries, and runs the programs
//! under the library.

mod sanitizers;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::{AUTO_GROWTH, Job, PASSTHROUGH, client, library};

const DLSYM_VERSION: &str = if cfg!(target_arch = "aarch64") {
    "GLIBC_2.17"
} else {
    "GLIBC_2.2.5"
};

/// A temporary folder for the programs and libraries that a test compiles.
struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Self {
        Stage(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn compile(&self, source: &str, output: &str, arguments: &[&str]) -> &Self {
        let mut command = Command::new("cc");
        command
            .current_dir(self.0.path())
            .args(["-O1", "-Wall", "-fPIC", "-fno-builtin", "-o", output]);
        command
            .arg(support::root().join("tests").join(source))
            .args(arguments)
            .arg("-ldl");
        let result = command.output().expect("a C compiler");
        assert!(
            result.status.success(),
            "{source}: {}",
            String::from_utf8_lossy(&result.stderr)
        );
        self
    }

    fn driver(&self, name: &str, says: &str) -> &Self {
        let (soname, says) = (format!("-Wl,-soname,{name}"), format!("-DDRIVER=\"{says}\""));
        self.compile("dlsym/driver.c", name, &["-shared", &soname, &says])
    }

    fn app(&self) -> &Self {
        self.compile("dlsym/app.c", "app", &["-pthread", "-fopenmp"])
    }

    /// Runs the program with these libraries preloaded. The name `ours` stands for the library under test.
    fn run(&self, preload: &[&str], program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Output {
        let paths: Vec<String> = preload
            .iter()
            .map(|&name| {
                if name == "ours" { library() } else { self.path(name) }
                    .display()
                    .to_string()
            })
            .collect();
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env("LD_LIBRARY_PATH", self.0.path());
        command.env("OMP_NUM_THREADS", "4").env("LD_PRELOAD", paths.join(":"));
        command.env("MSAN_OPTIONS", sanitizers::MSAN_OPTIONS);
        within(Duration::from_secs(120), command)
    }

    fn lines(&self, preload: &[&str], arguments: &[&str]) -> Vec<String> {
        let output = self.run(preload, self.path("app"), arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{preload:?} {arguments:?}: {}\n{text}{errors}",
            output.status
        );
        text.lines().map(str::to_owned).collect()
    }
}

/// Runs the command. The test fails if the command does not end within the limit.
fn within(limit: Duration, mut command: Command) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a start");
    let end = Instant::now() + limit;
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > end {
            child.kill().ok();
            panic!("{command:?} did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output")
}

const OURS: &str = "libvramshim.so";

#[test]
fn rtld_next_sees_the_true_caller() {
    let stage = Stage::new();
    stage
        .compile(
            "dlsym/wrapper.c",
            "liblast.so",
            &["-shared", "-DWHO=\"last\"", "-DLAST"],
        )
        .compile("dlsym/wrapper.c", "libsecond.so", &["-shared", "-DWHO=\"second\""])
        .compile("dlsym/wrapper.c", "libfirst.so", &["-shared", "-DWHO=\"first\""])
        .compile(
            "dlsym/wrapper.c",
            "app",
            &[
                "-rdynamic",
                "-DMAIN",
                "-DWHO=\"main\"",
                "-Wl,--no-as-needed",
                "-L.",
                "-lfirst",
                "-lsecond",
                "-llast",
            ],
        );
    let expected = ["main first second last world", "main first second last hello"];
    assert_eq!(stage.lines(&[], &[]), expected);
    assert_eq!(stage.lines(&["ours"], &[]), expected);
    assert_eq!(stage.lines(&["libfirst.so", "ours", "libsecond.so"], &[]), expected);
}

#[test]
fn names_that_only_begin_like_ours_are_left_alone() {
    let stage = Stage::new();
    stage.app().compile("dlsym/names.c", "libnames.so", &["-shared"]);
    assert_eq!(stage.lines(&["ours"], &["names", "libnames.so"]), ["1234567"]);
}

#[test]
fn a_missing_symbol_fails_as_without_the_library() {
    let stage = Stage::new();
    stage.app();
    let alone = stage.lines(&[], &["errors"]);
    assert!(
        alone
            .iter()
            .skip(1)
            .all(|line| line.contains("nowhere, undefined symbol: ")),
        "{alone:?}"
    );
    assert_eq!(stage.lines(&["ours"], &["errors"]), alone);
}

#[test]
fn a_hooked_name_is_ours_through_every_handle() {
    let stage = Stage::new();
    stage.app().driver("libcuda.so.1", "driver");
    let expected = [
        format!("handle cuMemAlloc_v2: {OURS}, no error"),
        "handle cuInit: libcuda.so.1, no error".to_owned(),
        format!("default cuMemAlloc_v2: {OURS}, no error"),
        format!("next cuMemAlloc_v2: {OURS}, no error"),
        format!("program cuMemAlloc_v2: {OURS}, no error"),
    ];
    assert_eq!(stage.lines(&["ours"], &["present"]), expected);
}

fn chain(expected: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = expected.iter().map(|&line| line.to_owned()).collect();
    lines.push("result 0".to_owned());
    lines
}

#[test]
fn a_layer_stands_where_it_was_put() {
    let stage = Stage::new();
    let version = format!("-DDLSYM_VERSION=\"{DLSYM_VERSION}\"");
    stage
        .driver("libcuda.so.1", "driver")
        .compile("support/clients/dlsym_layer.c", "libnext.so", &["-shared", &version])
        .compile(
            "support/clients/dlsym_layer.c",
            "libhandle.so",
            &["-shared", &version, "-DBY_HANDLE"],
        )
        .compile("dlsym/app.c", "app", &["-pthread", "-DLINKED", "./libcuda.so.1"]);
    for (layer, scene) in [
        ("libnext.so", "linked"),
        ("libhandle.so", "linked"),
        ("libnext.so", "allocate"),
        ("libhandle.so", "allocate"),
    ] {
        let app_to_layer = format!("app to {layer}");
        assert_eq!(
            stage.lines(&["ours", layer], &[scene]),
            chain(&["app to libvramshim.so", "layer to libcuda.so.1", "driver allocates"]),
            "{layer} behind, {scene}"
        );
        assert_eq!(
            stage.lines(&[layer, "ours"], &[scene]),
            chain(&[&app_to_layer, "layer to libvramshim.so", "driver allocates"]),
            "{layer} in front, {scene}"
        );
    }
}

#[test]
fn a_layer_works_with_a_driver_that_only_it_loads() {
    let stage = Stage::new();
    let version = format!("-DDLSYM_VERSION=\"{DLSYM_VERSION}\"");
    stage.driver("libcuda.so.1", "driver").app();
    stage.compile(
        "support/clients/dlsym_layer.c",
        "libhandle.so",
        &["-shared", &version, "-DBY_HANDLE"],
    );
    assert_eq!(
        stage.lines(&["ours", "libhandle.so"], &["allocate"]),
        chain(&["app to libvramshim.so", "layer to libcuda.so.1", "driver allocates"])
    );
}

#[test]
fn a_driver_under_another_name_is_the_one_that_is_called() {
    let stage = Stage::new();
    stage.app().driver("libprivate.so", "private");
    let path = stage.path("libprivate.so").display().to_string();
    assert_eq!(
        stage.lines(&["ours"], &["allocate", &path]),
        chain(&["app to libvramshim.so", "private allocates"])
    );
}

fn runtime(stage: &Stage, number: u32) {
    let name = format!("libcudart.so.{number}");
    let script = stage.path("versions");
    std::fs::write(&script, format!("{name} {{ global: *; }};")).expect("a version script");
    let script = format!("-Wl,--version-script={}", script.display());
    let (soname, define) = (format!("-Wl,-soname,{name}"), format!("-DNUMBER={number}"));
    stage.compile("dlsym/runtime.c", &name, &["-shared", &soname, &script, &define]);
}

#[test]
fn the_next_layer_decides_whether_a_version_exists() {
    let stage = Stage::new();
    runtime(&stage, 98);
    let expected = [
        "cudaMalloc@libcudart.so.98: libvramshim.so, no error",
        "cudaUnhooked@libcudart.so.98: libcudart.so.98, no error",
        "cudaMalloc@libcudart.so.1: nowhere, undefined symbol: cudaMalloc, version libcudart.so.1",
        "cudaNothing@libcudart.so.98: nowhere, undefined symbol: cudaNothing, version libcudart.so.98",
        "cudaMalloc@libcudart.so.98: nowhere, undefined symbol: cudaMalloc, version libcudart.so.98",
        "result 0, runtime 98",
    ];
    assert_eq!(stage.app().lines(&["ours"], &["versions", "libcudart.so.98"]), expected);
}

/// Runtimes before CUDA 13 call cuCtxSynchronize without an argument. The later function would take what lies in a
/// register for a context.
#[test]
fn an_address_that_the_driver_does_not_export_is_routed_to_the_function_that_it_is() {
    let stage = Stage::new();
    let source = "dlsym/internal.c";
    stage
        .compile(
            source,
            "libcuda.so.1",
            &["-DDRIVER", "-shared", "-Wl,-soname,libcuda.so.1"],
        )
        .compile(
            source,
            "libcudart.so.12",
            &["-DRUNTIME", "-shared", "-Wl,-soname,libcudart.so.12", "./libcuda.so.1"],
        )
        .compile(source, "app", &["./libcudart.so.12", "./libcuda.so.1"]);
    let ours = [OURS, OURS, OURS, OURS, OURS, "libcuda.so.1", OURS];
    let names = [
        "12080 cuCtxSynchronize",
        "13000 cuCtxSynchronize",
        "12020 cuGraphAddNode",
        "12080 cuGraphAddNode",
        "13040 cuGraphAddNode",
        "13050 cuGraphAddNode",
        "runtime cuCtxSynchronize",
    ];
    let reached = [
        "waits for the current context",
        "waits for a context",
        "adds a node",
        "adds a node with edges",
        "adds a node as since 13.4",
        "adds a node in a later way",
        "waits for the current context",
    ];
    let lines = std::iter::zip(names, ours).map(|(name, home)| format!("{name}: {home}"));
    let expected: Vec<String> = std::iter::zip(lines, reached)
        .flat_map(|(line, reached)| [line, reached.to_owned()])
        .collect();
    assert_eq!(stage.lines(&["ours"], &[]), expected);
}

fn runtime_user(stage: &Stage, number: u32) {
    runtime(stage, number);
    let (which, linked) = (format!("-DWHICH=which{number}"), format!("./libcudart.so.{number}"));
    stage.compile(
        "dlsym/runtime_user.c",
        &format!("libuser{number}.so"),
        &["-shared", &which, &linked],
    );
}

#[test]
fn a_runtime_layer_stands_where_it_was_put() {
    let stage = Stage::new();
    runtime_user(&stage, 98);
    stage
        .app()
        .compile("dlsym/runtime_layer.c", "libnext.so", &["-shared"])
        .compile(
            "dlsym/runtime_layer.c",
            "libhandle.so",
            &["-shared", "-DBY_HANDLE", "-Wl,--hash-style=sysv"],
        );
    for (layer, scope) in [
        ("libnext.so", "global"),
        ("libhandle.so", "global"),
        ("libhandle.so", "local"),
    ] {
        assert_eq!(
            stage.lines(&["ours", layer], &["runtime", scope]),
            ["layer to libcudart.so.98", "98"],
            "{layer} behind, {scope}"
        );
        assert_eq!(
            stage.lines(&[layer, "ours"], &["runtime", scope]),
            ["layer to libvramshim.so", "98"],
            "{layer} in front, {scope}"
        );
    }
}

#[test]
fn each_caller_gets_its_own_runtime() {
    let stage = Stage::new();
    runtime_user(&stage, 98);
    runtime_user(&stage, 99);
    assert_eq!(
        stage.app().lines(&["ours"], &["runtimes"]),
        ["98", "98 99", "98 99", "98 99"]
    );
}

#[test]
fn each_handle_leads_to_its_own_runtime() {
    let stage = Stage::new();
    runtime(&stage, 98);
    runtime(&stage, 99);
    for scope in ["local", "global"] {
        assert_eq!(
            stage.app().lines(&["ours"], &["handles", scope]),
            ["98 98", "98 98", "99 99"],
            "{scope}"
        );
    }
}

#[test]
fn threads_and_vfork_children_do_not_wait_for_each_other() {
    let stage = Stage::new();
    stage.app().driver("libcuda.so.1", "driver");
    assert_eq!(stage.lines(&["ours"], &["threads"]), ["6400"]);
    assert_eq!(stage.lines(&["ours"], &["vfork"]), ["0 1"]);
}

/// Another preloaded tool writes its trace at `_exit`. It is reached whether it comes before our library or behind it.
#[test]
fn the_end_of_a_process_is_passed_on() {
    let stage = Stage::new();
    stage.compile("dlsym/exit_layer.c", "liblayer.so", &["-shared"]).app();
    for preload in [["ours", "liblayer.so"], ["liblayer.so", "ours"]] {
        for name in ["_exit", "_Exit"] {
            let output = stage.run(&preload, stage.path("app"), &["end", name]);
            assert_eq!(output.status.code(), Some(7), "{preload:?} {name}");
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                format!("{name}\n"),
                "{preload:?} {name}"
            );
        }
    }
}

#[test]
fn programs_without_cuda_notice_nothing() {
    let stage = Stage::new();
    stage.compile("dlsym/names.c", "static", &["-static", "-Dcu=main"]);
    assert_eq!(stage.run(&["ours"], stage.path("static"), &[]).status.code(), Some(7));
    let mut programs = vec![
        ("sh", vec!["-c", "ls / | sort | tail -3; echo $((6*7))"]),
        ("bash", vec!["-c", "type cd; enable -a | head -3; (exit 5); echo $?"]),
    ];
    if Command::new("python3").arg("-V").output().is_ok() {
        let script = "import threading, ctypes, socket, ssl, json; t = threading.Thread(target=print, args=('in',)); \
                      t.start(); t.join(); print(ctypes.CDLL(None).getpid() > 0)";
        programs.push(("python3", vec!["-c", script]));
    }
    for (program, arguments) in programs {
        let (alone, under) = (
            stage.run(&[], program, &arguments),
            stage.run(&["ours"], program, &arguments),
        );
        assert_eq!(alone, under, "{program}");
    }
}

/// The library keeps addresses of what it calls. So it keeps the objects, too.
#[test]
fn a_driver_whose_handle_the_job_closes_stays_loaded() {
    let path = client("dlsym/closes.c", "closes", &[]);
    let alone = Job::new(&path).alone().run().ok();
    assert_eq!(alone.stdout.lines().count(), 4, "{}", alone.stdout);
    for strategy in [PASSTHROUGH, AUTO_GROWTH] {
        let finished = Job::new(&path).strategy(strategy).run().ok();
        assert_eq!(finished.stdout, alone.stdout, "{strategy:?}");
    }
}
