//! Settings that would have no effect without a word: `run` refuses them, and the library tells them.

use std::process::Command;

use support::{Job, Printed, Runs, client, program};

const SIMULATED: &str = "GPU-51585f66-6d74-7b82-8990-979ea5acb3ba";

/// `vramshim run` with these options and variables, for a command that prints `started`.
fn run(options: &[&str], variables: &[(&str, &str)]) -> Printed {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program());
    command.arg("run").args(options).args(["--", "echo", "started"]);
    command.env_remove("CUDA_VISIBLE_DEVICES").current_dir(folder.path());
    command.envs(variables.iter().copied()).printed()
}

fn refused(options: &[&str], variables: &[(&str, &str)], wanted: &str) {
    let output = run(options, variables);
    let said = &output.said;
    assert_eq!(output.code, Some(2), "{options:?} {variables:?}: {said}");
    assert!(output.text.is_empty(), "{options:?} {variables:?}");
    assert!(said.contains(wanted), "{options:?} {variables:?}: {said}");
}

#[test]
fn run_refuses_a_folder_in_which_no_journal_can_be_written() {
    refused(
        &["--sim", "1GiB", "--dir", "/proc/nowhere/x"],
        &[],
        "--dir /proc/nowhere/x: no folder can be made in /proc",
    );
    refused(
        &["--dir", "/dev/null/x"],
        &[],
        "--dir /dev/null/x: /dev/null is not a folder",
    );
    let variable = [("VRAMSHIM_DIR", "/proc/nowhere")];
    refused(
        &[],
        &variable,
        "VRAMSHIM_DIR /proc/nowhere: no folder can be made in /proc",
    );
    // A folder that can be made is made by the library, and without journals none is needed.
    let without = [variable[0], ("VRAMSHIM_JOURNAL_MAX", "0")];
    for (options, variables) in [(&["--dir", "a/b"][..], &[][..]), (&[], &without)] {
        run(options, variables).ok();
    }
}

#[test]
fn run_refuses_a_limit_that_would_hold_for_nothing() {
    let two = &["--sim", "2x1GiB", "--limit"][..];
    let with = |limit| [two, &[limit]].concat();
    refused(
        &with("GPU-dead=1GiB"),
        &[],
        &format!("there is no device GPU-dead, only {SIMULATED}, GPU-"),
    );
    refused(
        &with("2=1GiB"),
        &[],
        "--limit 2=1GiB: there is no device 2, only devices 0 to 1",
    );
    let one_visible = [("CUDA_VISIBLE_DEVICES", "1")];
    refused(
        &with("1=1GiB"),
        &one_visible,
        "CUDA_VISIBLE_DEVICES=1 leaves the job one device, which is its device 0",
    );
    refused(&with(""), &[], "--limit \"\": give a limit");
    let variable = [("VRAMSHIM_MEMORY_LIMIT", "5=8GiB")];
    refused(
        &["--sim", "1GiB"],
        &variable,
        "VRAMSHIM_MEMORY_LIMIT=5=8GiB: there is no device 5, only device 0",
    );
    // What names a device that is there, or nobody knows of, is accepted.
    let uuid = format!("{SIMULATED}=1GiB");
    for (options, variables) in [
        (with("1=1GiB"), &[][..]),
        (with("0=1GiB"), &one_visible),
        (with(&uuid[..]), &[]),
        (with("GPU-51=1GiB"), &[]),
        (with("MIG-1234=1GiB"), &[]),
    ] {
        let output = run(&options, variables);
        assert_eq!(output.text, "started\n", "{options:?}: {}", output.said);
    }
}

#[test]
fn run_refuses_small_numbers_without_a_unit_and_names_that_nothing_reads() {
    let refused = |name, value, wanted| refused(&[], &[(name, value)], wanted);
    refused(
        "VRAMSHIM_MEMORY_LIMIT",
        "8",
        "VRAMSHIM_MEMORY_LIMIT=\"8\" is not accepted",
    );
    refused("VRAMSHIM_MEMORY_LIMIT", "0=8", "a size with a unit");
    refused(
        "VRAMSHIM_MEMORY_LIMIT",
        "0=150%",
        "is not accepted: 150% is more than the device; give at most 100%; accepted: ",
    );
    refused(
        "VRAMSHIM_MEMORY_LIMIT",
        "0=1GiB,1=1GiB,00=2GiB",
        "is not accepted: it has two limits for device 0; give one; accepted: ",
    );
    refused(
        "VRAMSHIM_JOURNAL_MAX",
        "4",
        "VRAMSHIM_JOURNAL_MAX=\"4\" is not accepted; accepted: a number with a unit",
    );
    refused(
        "VRAMSHIM_STRATGY",
        "auto_growth",
        "VRAMSHIM_STRATGY is no variable of vramshim; `vramshim variables` lists them",
    );
    for fine in [("VRAMSHIM_JOURNAL_MAX", "0"), ("VRAMSHIM_MEMORY_LIMIT", "2000000")] {
        let output = run(&[], &[fine]);
        assert_eq!(output.text, "started\n", "{fine:?}");
    }
}

#[test]
fn run_says_where_it_records_unless_it_shall_be_quiet() {
    let said = |options: &[&str], variables: &[(&str, &str)]| run(options, variables).said;
    assert!(said(&[], &[]).starts_with("vramshim: journals go to ./vramshim-echo (programs of other names"));
    assert!(said(&["--dir", "/tmp/j"], &[]).starts_with("vramshim: journals go to /tmp/j\n"));
    assert_eq!(said(&["--quiet"], &[]), "");
    assert_eq!(said(&[], &[("VRAMSHIM_JOURNAL_MAX", "0")]), "");
}

#[test]
fn the_library_tells_what_has_no_effect() {
    let training = client("support/clients/training.c", "training", &[]);
    let job = Job::new(training).sim("4GiB", 1).args(["2"]);
    let job = job.env("VRAMSHIM_MEMORY_LIMIT", "5=8GiB,80GiB,GPU-dead=1GiB");
    let finished = job.env("VRAMSHIM_STRATGY", "auto_growth").run();
    let said: Vec<String> = finished.said().into_iter().map(|(_, words)| words).collect();
    for wanted in [
        "VRAMSHIM_STRATGY is no variable of vramshim; `vramshim variables` lists them",
        "the limit of device 0, 80.0 GiB (VRAMSHIM_MEMORY_LIMIT), is more than the device has, 4.00 GiB: it refuses nothing",
        "the limit for device 5 holds for nothing: this process has device 0 alone",
        "the limit for device GPU-dead holds for nothing: this process has device 0 alone",
    ] {
        assert_eq!(
            said.iter().filter(|line| line.as_str() == wanted).count(),
            1,
            "{wanted}: {said:#?}"
        );
    }
}
