//! Settings that would have no effect without a word: `run` refuses them, and the library tells them.

use std::process::Command;

use support::{Job, Printed, Runs, assert_says, client, program};

const SIMULATED: &str = "GPU-51585f66-6d74-7b82-8990-979ea5acb3ba";

/// `vramshim run` with these variables and options, for a command that prints `started`. `''` stands for an empty word.
fn run(words: &str) -> Printed {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program());
    command.arg("run").current_dir(folder.path());
    command.env_remove("CUDA_VISIBLE_DEVICES");
    for word in words.split_whitespace() {
        match word.split_once('=') {
            Some((name, value)) if word.starts_with(|letter: char| letter.is_uppercase()) && name.contains('_') => {
                command.env(name, value)
            }
            _ => command.arg(word.trim_matches('\'')),
        };
    }
    command.args(["--", "echo", "started"]).printed()
}

#[test]
fn run_refuses_what_would_have_no_effect() {
    for row in [
        "--sim 1GiB --dir /proc/nowhere/x => --dir /proc/nowhere/x: no folder can be made in /proc",
        "--dir /dev/null/x => --dir /dev/null/x: /dev/null is not a folder",
        "VRAMSHIM_DIR=/proc/nowhere => VRAMSHIM_DIR /proc/nowhere: no folder can be made in /proc",
        "--strategy fastest => naive_best_fit",
        "--sim lots => 80GiB",
        "--sim 0x2GiB => --sim",
        "--sim 1GiB VRAMSHIM_SIMGPU=/nowhere => src/simgpu/build",
        "--sim 24 => 24 is 24 bytes; type 24GiB for GiB, or 24B",
        "--limit 8 => --limit \"8\" is not accepted: 8 is less than 1 MiB; type 8GiB; accepted: ",
        "--limit 0=5,1=1GiB => 5 is less than 1 MiB; type 5GiB",
        "--limit 2000 => 2000 is less than 1 MiB; type 2000MiB",
        "--limit 8B => --limit \"8B\" is not accepted: 8B is less than 1 MiB; accepted: ",
        "--limit 1=512Ki => 512Ki is less than 1 MiB",
        "VRAMSHIM_POD_LIMIT=0=3000 => VRAMSHIM_POD_LIMIT=\"0=3000\" is not accepted: 3000 is less than 1 MiB; type 3000MiB",
        "VRAMSHIM_POD_LIMIT=1500m => a quantity of Kubernetes",
        "--limit '' => --limit \"\": give a value",
        "--sim 2x1GiB --limit GPU-dead=1GiB => there is no device GPU-dead, only GPU-51585f66-6d74-7b82-8990-979ea5acb3ba, GPU-",
        "--sim 2x1GiB --limit 2=1GiB => --limit 2=1GiB: there is no device 2, only devices 0 to 1",
        "--sim 1GiB --limit 3=1GiB => --limit 3=1GiB: there is no device 3, only device 0",
        "--sim 2x1GiB --limit 1=1GiB CUDA_VISIBLE_DEVICES=1,9,0 => leaves the job 1 device, numbered from 0",
        "--sim 2x1GiB --limit 0=1GiB CUDA_VISIBLE_DEVICES=GPU-bbbb,1 => leaves the job 0 devices, numbered from 0",
        "--sim 1GiB VRAMSHIM_MEMORY_LIMIT=5=8GiB => VRAMSHIM_MEMORY_LIMIT=5=8GiB: there is no device 5, only device 0",
        "VRAMSHIM_MEMORY_LIMIT=8 => VRAMSHIM_MEMORY_LIMIT=\"8\" is not accepted",
        "VRAMSHIM_MEMORY_LIMIT=0=8 => a size with a unit",
        "VRAMSHIM_MEMORY_LIMIT=0=150% => 150% is more than the device; give at most 100%; accepted: ",
        "VRAMSHIM_MEMORY_LIMIT=0=1GiB,1=1GiB,00=2GiB => it has two limits for device 0; give one; accepted: ",
        "VRAMSHIM_JOURNAL_MAX=4 => VRAMSHIM_JOURNAL_MAX=\"4\" is not accepted; accepted: a number with a unit",
        "VRAMSHIM_STRATGY=auto_growth => VRAMSHIM_STRATGY is no variable of vramshim; `vramshim variables` lists them",
        "FLAGS_free_idle_chunk=perhaps => FLAGS_free_idle_chunk",
    ] {
        let (words, wanted) = row.split_once(" => ").unwrap();
        let output = run(words);
        assert_eq!((output.code, &*output.text), (Some(2), ""), "{words}: {}", output.said);
        assert_says(&output.said, wanted);
    }
    // A folder that can be made is made by the library, and without journals none is needed. A limit may name a device
    // that is there. If it cannot be known which devices there are, a limit may name any.
    for words in [
        "--dir a/b",
        "VRAMSHIM_DIR=/proc/nowhere VRAMSHIM_JOURNAL_MAX=0",
        "--limit 0",
        "--limit 8Gi",
        "--limit 2000000",
        "--limit 8GiB VRAMSHIM_POD_LIMIT=8G VRAMSHIM_STRICT=limits",
        "--sim 2x1GiB --limit 1=1GiB",
        "--sim 2x1GiB --limit 0=1GiB CUDA_VISIBLE_DEVICES=1",
        "--sim 2x1GiB --limit 1=1GiB CUDA_VISIBLE_DEVICES=GPU-51,1",
        "--sim 2x1GiB --limit GPU-51=1GiB",
        "--sim 2x1GiB --limit MIG-1234=1GiB",
        &format!("--sim 2x1GiB --limit {SIMULATED}=1GiB"),
        "VRAMSHIM_MEMORY_LIMIT=2000000",
    ] {
        let output = run(words).ok();
        assert_eq!(output.text, "started\n", "{words}: {}", output.said);
    }
}

#[test]
fn run_says_where_it_records_unless_it_shall_be_quiet() {
    for (words, place) in [
        ("", "./vramshim-echo (programs of other names"),
        ("--dir /tmp/j", "/tmp/j\n"),
    ] {
        let begin = format!("vramshim: journals go to {place}");
        assert!(run(words).said.starts_with(&begin), "{words}");
    }
    assert_eq!(run("--quiet").said + &run("VRAMSHIM_JOURNAL_MAX=0").said, "");
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
        let times = said.iter().filter(|line| line.as_str() == wanted).count();
        assert_eq!(times, 1, "{wanted}: {said:#?}");
    }
}
