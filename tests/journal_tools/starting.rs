//! `vramshim run`: how a job is started under the library.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Printed, Runs, assert_says};

use super::vramshim;

/// A library without any function. It cannot be executed.
fn make_library(path: &Path) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let made = Command::new(compiler)
        .args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o"])
        .arg(path)
        .status()
        .unwrap();
    assert!(made.success());
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
}

/// What stands in place of the library, which these tests do not need.
fn library(folder: &Path) -> PathBuf {
    let path = folder.join("libvramshim.so");
    make_library(&path);
    path.canonicalize().unwrap()
}

fn run(folder: &Path, arguments: &[&str], command: &[&str]) -> Printed {
    vramshim()
        .args(["run", "--library"])
        .arg(library(folder))
        .args(arguments)
        .arg("--")
        .args(command)
        .current_dir(folder)
        .printed()
}

#[test]
fn run_becomes_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $LD_PRELOAD; echo $VRAMSHIM_STRATEGY $VRAMSHIM_DIR; exit 7";
    let output = run(
        folder.path(),
        &["--strategy", "autogrow", "--dir", "out"],
        &["sh", "-c", script],
    );
    assert_eq!(output.code, Some(7));
    let told = output.text;
    let folder_path = folder.path().canonicalize().unwrap();
    assert_says(&told, folder_path.join("libvramshim.so").to_str().unwrap());
    assert!(told.contains("autogrow ") && told.contains("/out\n"), "{told}");

    assert_eq!(
        run(folder.path(), &[], &["sh", "-c", "kill -TERM $$"]).signal,
        Some(libc::SIGTERM)
    );
}

#[test]
fn run_refuses_what_cannot_work() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |output: Printed, wanted: &str| {
        assert_eq!(output.code, Some(2), "{}", output.said);
        assert_says(&output.said, wanted);
        assert_eq!(output.text, "");
    };
    refused(run(folder.path(), &[], &[]), "COMMAND");
    let output = vramshim()
        .args(["run", "--library", "/nowhere/lib.so", "--", "echo", "started"])
        .printed();
    refused(output, "/nowhere/lib.so");
    let output = vramshim()
        .env("VRAMSHIM_SIMGPU", "/nowhere")
        .args(["run", "--library"])
        .arg(library(folder.path()))
        .args(["--sim", "1GiB", "--", "echo", "started"])
        .printed();
    refused(output, "src/simgpu/build");
    let spaced = folder.path().join("a b");
    std::fs::create_dir(&spaced).unwrap();
    refused(run(&spaced, &[], &["echo", "started"]), "colon or a space");
}

#[test]
fn a_command_that_cannot_start_gives_the_exit_codes_of_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &[], &["no-such-command-at-all"]);
    assert_eq!(output.code, Some(127));
    assert_says(&output.said, "vramshim: no-such-command-at-all: command not found");
    let output = run(folder.path(), &[], &["./libvramshim.so"]);
    assert_eq!(output.code, Some(126), "{}", output.said);
}

#[test]
fn a_simulated_gpu_is_put_where_the_job_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = folder.path().join("sim");
    std::fs::create_dir(&simulator).unwrap();
    for name in [
        "libcuda.so.1",
        "libcudart.so.12",
        "libcudart.so.13",
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcudnn.so.9",
        "README",
    ] {
        make_library(&simulator.join(name));
    }
    let output = vramshim()
        .env("VRAMSHIM_SIMGPU", &simulator)
        .env("LD_LIBRARY_PATH", "/before")
        .env("LD_PRELOAD", "/before/other.so")
        .args(["run", "--sim", "3x2GiB", "--library"])
        .arg(library(folder.path()))
        .args(["--", "sh", "-c"])
        .arg("echo $SIMGPU_MEMORY $SIMGPU_DEVICES; echo $LD_LIBRARY_PATH; echo $LD_PRELOAD; echo x > $SIMGPU_STATE; cat $SIMGPU_STATE").printed();
    assert_eq!(output.code, Some(0), "{}", output.said);
    let told = output.text;
    let lines: Vec<&str> = told.lines().collect();
    let simulator = simulator.canonicalize().unwrap();
    let simulator = simulator.to_str().unwrap();
    assert_eq!(lines[0], "2147483648 3");
    assert_eq!(lines[1], format!("{simulator}:/before"));
    let preloads: Vec<&str> = lines[2].split(':').collect();
    assert!(preloads[0].ends_with("/libvramshim.so"));
    let stand_ins = [
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcudart.so.12",
        "libcudart.so.13",
        "libcudnn.so.9",
    ];
    let expected: Vec<String> = stand_ins.iter().map(|name| format!("{simulator}/{name}")).collect();
    assert_eq!(preloads[1..6], expected);
    assert_eq!(preloads[6], "/before/other.so");
    assert_eq!(lines[3], "x", "every process of the job finds the shared state");
}
