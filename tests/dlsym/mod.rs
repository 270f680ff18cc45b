//! Tests of the exported `dlsym` and `dlvsym`. Each test compiles small programs and libraries, and runs the programs
//! under the library.

mod sanitizers;

use std::path::PathBuf;
use std::process::Command;

use support::{AUTO_GROWTH, Finished, Job, PASSTHROUGH, client, library};

/// A flag for layers with a `dlsym` of their own: the version of glibc's.
pub fn dlsym_version() -> String {
    let version = if cfg!(target_arch = "aarch64") { "2.17" } else { "2.2.5" };
    format!("-DDLSYM_VERSION=\"GLIBC_{version}\"")
}

/// A temporary folder for the programs and libraries that a test compiles.
struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Self {
        Stage(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn compile(&self, source: &str, output: &str, flags: &str) -> &Self {
        let mut command = Command::new("cc");
        command.current_dir(self.0.path());
        command.args(["-O1", "-Wall", "-fPIC", "-fno-builtin", "-o", output]);
        command.arg(support::root().join("tests").join(source));
        let result = command.args(flags.split(' ')).arg("-ldl").output();
        let result = result.expect("a C compiler");
        let said = String::from_utf8_lossy(&result.stderr);
        assert!(result.status.success(), "{source}: {said}");
        self
    }

    fn driver(&self, name: &str, says: &str) -> &Self {
        let flags = format!("-shared -Wl,-soname,{name} -DDRIVER=\"{says}\"");
        self.compile("dlsym/driver.c", name, &flags)
    }

    fn app(&self) -> &Self {
        self.compile("dlsym/app.c", "app", "-pthread -fopenmp")
    }

    /// Layers that wrap cuMemAlloc, and find the next one by RTLD_NEXT or by a handle.
    fn layers(&self) -> &Self {
        let source = "support/clients/dlsym_layer.c";
        let flags = format!("-shared {}", dlsym_version());
        self.compile(source, "libnext.so", &flags);
        self.compile(source, "libhandle.so", &format!("{flags} -DBY_HANDLE"))
    }

    fn run(&self, preload: &[&str], arguments: &[&str]) -> Finished {
        let mut job = Job::new(self.path("app")).alone().args(arguments);
        job.command().current_dir(self.0.path());
        let job = job.env("LD_LIBRARY_PATH", self.0.path()).env("OMP_NUM_THREADS", "4");
        let job = job.env("MSAN_OPTIONS", sanitizers::MSAN_OPTIONS);
        let path = |&name: &&str| if name == "ours" { library() } else { self.path(name) };
        preload.iter().map(path).fold(job, Job::preload).run()
    }

    fn lines(&self, preload: &[&str], arguments: &[&str]) -> Vec<String> {
        let finished = self.run(preload, arguments).ok();
        finished.stdout.lines().map(str::to_owned).collect()
    }
}

const OURS: &str = "libvramshim.so";
/// What is said if the job's call reaches a layer behind the library, and the driver behind that.
const OVER_A_LAYER: [&str; 4] = [
    "app to libvramshim.so",
    "layer to libcuda.so.1",
    "driver allocates",
    "result 0",
];

#[test]
fn rtld_next_sees_the_true_caller() {
    let stage = Stage::new();
    let of_main = "-rdynamic -DMAIN -Wl,--no-as-needed -L. -lfirst -lsecond -llast";
    for (who, output, flags) in [
        ("last", "liblast.so", "-shared -DLAST"),
        ("second", "libsecond.so", "-shared"),
        ("first", "libfirst.so", "-shared"),
        ("main", "app", of_main),
    ] {
        stage.compile("dlsym/wrapper.c", output, &format!("-DWHO=\"{who}\" {flags}"));
    }
    let expected = ["main first second last world", "main first second last hello"];
    assert_eq!(stage.lines(&[], &[]), expected);
    assert_eq!(stage.lines(&["ours"], &[]), expected);
    assert_eq!(stage.lines(&["libfirst.so", "ours", "libsecond.so"], &[]), expected);
}

#[test]
fn a_missing_symbol_fails_as_without_the_library() {
    let stage = Stage::new();
    stage.app();
    let alone = stage.lines(&[], &["errors"]);
    assert!(alone[1].contains("nowhere, undefined symbol: "), "{alone:?}");
    assert_eq!(stage.lines(&["ours"], &["errors"]), alone);
}

#[test]
fn a_hooked_name_is_ours_through_every_handle() {
    let stage = Stage::new();
    stage.app().driver("libcuda.so.1", "driver");
    let expected = [
        "handle cuMemAlloc_v2: libvramshim.so, no error",
        "handle cuInit: libcuda.so.1, no error",
        "handle cuMemAllocX: libcuda.so.1, no error",
        "default cuMemAlloc_v2: libvramshim.so, no error",
        "next cuMemAlloc_v2: libvramshim.so, no error",
        "program cuMemAlloc_v2: libvramshim.so, no error",
    ];
    assert_eq!(stage.lines(&["ours"], &["present"]), expected);
}

#[test]
fn a_layer_stands_where_it_was_put() {
    let stage = Stage::new();
    stage.driver("libcuda.so.1", "driver").layers();
    stage.compile("dlsym/app.c", "app", "-pthread -DLINKED ./libcuda.so.1");
    for layer in ["libnext.so", "libhandle.so"] {
        for scene in ["linked", "allocate"] {
            let behind = stage.lines(&["ours", layer], &[scene]);
            assert_eq!(behind, OVER_A_LAYER, "{layer} behind, {scene}");
            let in_front = stage.lines(&[layer, "ours"], &[scene]);
            let to_layer = format!("app to {layer}");
            let expected = [&*to_layer, "layer to libvramshim.so", "driver allocates", "result 0"];
            assert_eq!(in_front, expected, "{layer} in front, {scene}");
        }
    }
}

#[test]
fn a_layer_works_with_a_driver_that_only_it_loads() {
    let stage = Stage::new();
    stage.driver("libcuda.so.1", "driver").layers().app();
    assert_eq!(stage.lines(&["ours", "libhandle.so"], &["allocate"]), OVER_A_LAYER);
}

#[test]
fn a_driver_under_another_name_is_the_one_that_is_called() {
    let stage = Stage::new();
    stage.app().driver("libprivate.so", "private");
    let path = stage.path("libprivate.so").display().to_string();
    let expected = ["app to libvramshim.so", "private allocates", "result 0"];
    assert_eq!(stage.lines(&["ours"], &["allocate", &path]), expected);
}

fn runtime(stage: &Stage, number: u32) {
    let name = format!("libcudart.so.{number}");
    let script = stage.path("versions");
    std::fs::write(&script, format!("{name} {{ global: *; }};")).expect("a version script");
    let script = script.display();
    let flags = format!("-shared -Wl,-soname,{name} -Wl,--version-script={script} -DNUMBER={number}");
    stage.compile("dlsym/runtime.c", &name, &flags);
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
    for (output, flags) in [
        ("libcuda.so.1", "-DDRIVER -shared -Wl,-soname,libcuda.so.1"),
        (
            "libcudart.so.12",
            "-DRUNTIME -shared -Wl,-soname,libcudart.so.12 ./libcuda.so.1",
        ),
        ("app", "./libcudart.so.12 ./libcuda.so.1"),
    ] {
        stage.compile("dlsym/internal.c", output, flags);
    }
    let expected = [
        ("12080 cuCtxSynchronize", OURS, "waits for the current context"),
        ("13000 cuCtxSynchronize", OURS, "waits for a context"),
        ("12020 cuGraphAddNode", OURS, "adds a node"),
        ("12080 cuGraphAddNode", OURS, "adds a node with edges"),
        ("13040 cuGraphAddNode", OURS, "adds a node as since 13.4"),
        ("13050 cuGraphAddNode", "libcuda.so.1", "adds a node in a later way"),
        ("runtime cuCtxSynchronize", OURS, "waits for the current context"),
    ];
    let expected = expected.map(|(name, home, reached)| [format!("{name}: {home}"), reached.to_owned()]);
    assert_eq!(stage.lines(&["ours"], &[]), expected.concat());
}

#[test]
fn a_runtime_layer_stands_where_it_was_put() {
    let stage = Stage::new();
    runtime(&stage, 98);
    let layer = "dlsym/runtime_layer.c";
    stage
        .app()
        .compile("dlsym/runtime_user.c", "libuser98.so", "-shared ./libcudart.so.98")
        .compile(layer, "libnext.so", "-shared")
        .compile(layer, "libhandle.so", "-shared -DBY_HANDLE -Wl,--hash-style=sysv");
    for (layer, scope) in [
        ("libnext.so", "global"),
        ("libhandle.so", "global"),
        ("libhandle.so", "local"),
    ] {
        for (order, next) in [(["ours", layer], "libcudart.so.98"), ([layer, "ours"], OURS)] {
            let told = stage.lines(&order, &["runtime", scope]);
            assert_eq!(told, [&*format!("layer to {next}"), "98"], "{order:?}, {scope}");
        }
    }
}

#[test]
fn each_handle_leads_to_its_own_runtime() {
    let stage = Stage::new();
    runtime(&stage, 98);
    runtime(&stage, 99);
    for scope in ["local", "global"] {
        let told = stage.app().lines(&["ours"], &["handles", scope]);
        assert_eq!(told, ["98 98", "98 98", "99 99"], "{scope}");
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
    stage.compile("dlsym/exit_layer.c", "liblayer.so", "-shared").app();
    for preload in [["ours", "liblayer.so"], ["liblayer.so", "ours"]] {
        for name in ["_exit", "_Exit"] {
            let finished = stage.run(&preload, &["end", name]);
            assert_eq!(finished.status.code(), Some(7), "{preload:?} {name}");
            assert_eq!(finished.stdout, format!("{name}\n"), "{preload:?} {name}");
        }
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
