//! `vramshim run`: how a job is started under the library.

use std::path::Path;

use support::{Printed, Runs, assert_says, library, simulated};

use super::vramshim;

fn run(folder: &Path, arguments: &[&str], command: &[&str]) -> Printed {
    let mut run = vramshim();
    run.args(["run", "--library"]).arg(library()).args(arguments);
    run.arg("--").args(command).current_dir(folder).printed()
}

#[test]
fn run_becomes_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $LD_PRELOAD; echo $VRAMSHIM_STRATEGY $VRAMSHIM_DIR; exit 7";
    let options = ["--strategy", "autogrow", "--dir", "out"];
    let output = run(folder.path(), &options, &["sh", "-c", script]);
    assert_eq!(output.code, Some(7));
    let told = output.text;
    assert_says(&told, library().canonicalize().unwrap().to_str().unwrap());
    assert!(told.contains("autogrow ") && told.contains("/out\n"), "{told}");
}

#[test]
fn a_command_that_cannot_start_gives_the_exit_codes_of_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &[], &["no-such-command-at-all"]);
    assert_eq!(output.code, Some(127));
    assert_says(&output.said, "vramshim: no-such-command-at-all: command not found");
    std::fs::write(folder.path().join("plain"), "").unwrap();
    let output = run(folder.path(), &[], &["./plain"]);
    assert_eq!(output.code, Some(126), "{}", output.said);
    assert_eq!(run(folder.path(), &[], &[]).code, Some(2));
}

#[test]
fn a_simulated_gpu_is_put_where_the_job_finds_it() {
    let simulator = simulated("libcuda.so.1").canonicalize().unwrap();
    let simulator = simulator.parent().unwrap().to_str().unwrap();
    let script = "echo $SIMGPU_MEMORY $SIMGPU_DEVICES; echo $LD_LIBRARY_PATH; echo $LD_PRELOAD; echo x > $SIMGPU_STATE; \
                  cat $SIMGPU_STATE";
    let output = vramshim()
        .env("VRAMSHIM_SIMGPU", simulator)
        .env("LD_LIBRARY_PATH", "/before")
        .env("LD_PRELOAD", "/before/other.so")
        .args(["run", "--sim", "3x2GiB", "--library"])
        .arg(library())
        .args(["--", "sh", "-c", script])
        .current_dir(tempfile::tempdir().unwrap().path())
        .printed()
        .ok();
    let lines: Vec<&str> = output.text.lines().collect();
    assert_eq!(lines[..2], ["2147483648 3", &format!("{simulator}:/before")]);
    let preloads: Vec<&str> = lines[2].split(':').collect();
    assert!(preloads[0].ends_with("/libvramshim.so"));
    let (other, stand_ins) = preloads[1..].split_last().unwrap();
    assert_eq!(*other, "/before/other.so");
    assert!(stand_ins.is_sorted() && stand_ins.iter().all(|path| path.starts_with(simulator)));
    for name in "cublas.so.12 cublasLt.so.12 cudart.so.12 cudart.so.13 cudnn.so.9".split(' ') {
        assert!(stand_ins.contains(&&*format!("{simulator}/lib{name}")), "{stand_ins:?}");
    }
    assert!(!lines[2].contains("libcuda.so"), "the job links with it, or opens it");
    assert_eq!(lines[3], "x", "every process of the job finds the shared state");
}

#[test]
fn a_library_without_its_python_part_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("lib/libvramshim.so");
    std::fs::create_dir(folder.path().join("lib")).unwrap();
    std::fs::copy(library(), &alone).unwrap();
    let started = |arguments: &[&str]| {
        let mut run = vramshim();
        run.args(["run", "--library"]).arg(&alone).args(arguments);
        run.args(["--", "true"]).current_dir(folder.path()).printed().ok().said
    };
    let said = started(&[]);
    let told: Vec<&str> = said.lines().filter(|line| line.contains("Python part")).collect();
    let [told] = told[..] else { panic!("{said}") };
    for words in [
        "lib/libvramshim.so or one folder above",
        "the lines of code that hold PyTorch's memory are not known",
    ] {
        assert_says(told, words);
    }
    assert_eq!(started(&["--quiet"]), "");
    let mut doctor = vramshim();
    doctor
        .args(["doctor", "--library"])
        .arg(&alone)
        .current_dir(folder.path());
    assert_says(&doctor.printed().text, "Python part");
    // With the part, nothing is said.
    assert!(!run(folder.path(), &[], &["true"]).said.contains("Python part"));
}
