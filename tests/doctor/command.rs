//! Tests of what `vramshim doctor` reports about the library and about the command that it tries. No process or file of
//! the command is left behind.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::doctor::report::Report;
use crate::doctor::{doctor, doctor_of};
use support::{client, library, program};

#[test]
fn a_library_that_cannot_be_preloaded_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let with = |path: &Path| Report::run(doctor(&["--library"]).args([path]).args(["--", "true"]));
    with(&folder.path().join("none.so")).has("library", "problem", "none.so");
    let text = folder.path().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    with(&text).has("library", "problem", "no library");
    let spaced = folder.path().join("a b.so");
    std::fs::copy(library(), &spaced).unwrap();
    with(&spaced).has("library", "problem", "LD_PRELOAD cannot hold a path");
    let other = client("support/clients/count_sync.c", "nothing.so", &["-shared", "-fPIC"]);
    let report = with(&other);
    report.has("library", "problem", "another library");
    assert_eq!(
        report.page["trial"],
        Value::Null,
        "the command was tried without the library"
    );
}

#[test]
fn commands_that_the_library_cannot_be_loaded_into_are_reported() {
    doctor_true(&["no-such-program"]).has("command", "problem", "not found");
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);

    let static_one = client("doctor/sleeper.c", "static", &["-static"]);
    doctor_true(&[&static_one.display().to_string()]).has("command", "warning", "linked statically");

    let setuid = place("setuid");
    std::fs::copy(client("doctor/sleeper.c", "dynamic", &[]), &setuid).unwrap();
    // SAFETY: has no preconditions.
    let root = unsafe { libc::getuid() } == 0;
    if root {
        std::os::unix::fs::chown(&setuid, Some(65534), None).unwrap();
    }
    std::fs::set_permissions(&setuid, PermissionsExt::from_mode(0o4755)).unwrap();
    let severity = if root { "problem" } else { "warning" };
    doctor_true(&[&setuid.display().to_string()]).has("command", severity, "setuid");

    let script = place("script");
    std::fs::write(&script, "#!/usr/bin/env bash\nexit 0\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    doctor_true(&[&script.display().to_string()])
        .nothing_worse_than_notes()
        .has("command", "ok", "a script for /usr/bin/env bash: a dynamic program");

    let foreign = place("foreign");
    std::fs::write(&foreign, b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0\x01\0\0\0").unwrap();
    std::fs::set_permissions(&foreign, PermissionsExt::from_mode(0o755)).unwrap();
    doctor_true(&[&foreign.display().to_string()]).has("command", "problem", "32-bit x86");
}

fn doctor_true(command: &[&str]) -> Report {
    Report::run(doctor(&["--for", "5s", "--"]).args(command))
}

#[test]
fn a_command_that_fails_says_why() {
    let script = "echo some; echo the reason >&2; exit 9";
    let finished = doctor(&["--for", "5s", "--", "bash", "-c", script]).run();
    assert!(finished.stderr.contains("the reason"), "{}", finished.stderr);
    let report = Report::of(&finished);
    report.has("trial", "warning", "exit 9");
    assert_eq!(report.page["trial"]["exit_status"], 9);
    doctor_true(&["bash", "-c", "kill -SEGV $$"]).has("trial", "problem", "signal 11");
    doctor_true(&["true"])
        .nothing_worse_than_notes()
        .has("routes", "note", "did not load the driver");
}

#[test]
fn a_command_that_runs_out_of_memory_gets_the_verdict() {
    let growth = client("support/clients/growth.c", "growth", &["-DDLOPEN"]);
    let report = Report::run(doctor(&["--limit", "3GiB", "--"]).args([growth.as_os_str(), "textbook".as_ref()]));
    report.has("trial", "note", "Verdict: the limit: 0 B of 3.00 GiB are left");
}

// ---- whether calls reach the library

#[test]
fn calls_reach_the_library_however_they_are_looked_up() {
    let driver = ["1", "200", "1"].as_slice();
    for (source, name, flags, arguments) in [
        ("exercise.c", "linked", "libcuda.so.1", driver),
        ("exercise.c", "dlopen", "-DDLOPEN", driver),
        ("exercise.c", "proc", "-DPROC", driver),
        ("runtime.c", "runtime12", "libcudart.so.12", &["1", "20000"]),
    ] {
        let path = client(&format!("support/clients/{source}"), name, &[flags]);
        let report = Report::run(doctor_of(&path, arguments));
        report
            .nothing_worse_than_notes()
            .has("routes", "ok", "calls for memory reached the library");
        let process = report.process();
        assert!(process["calls"].as_u64() > Some(50), "{name}: {process}");
        if flags.contains("libcudart") {
            report.has("command", "ok", "linked to libcudart.so.12");
        }
    }
}

#[test]
fn processes_that_the_library_does_not_see_are_found() {
    let bypass = |scene: &str| {
        let path = client("doctor/bypass.c", "bypass-dlopen", &["-DDLOPEN"]);
        let job = doctor(&["--sim", "4GiB", "--for", "5s", "--"]).args([path]);
        Report::run(job.args([scene]))
    };
    bypass("tables").has("bypass", "note", "did not ask the library for memory");
    bypass("mixed").has("bypass", "warning", "was freed through it, once");
    bypass("child").has("bypass", "warning", "the library is not in it");
    bypass("plain").nothing_worse_than_notes();
}

// ---- nothing stays behind

fn alive(process: i32) -> bool {
    // In a container whose init reaps no children a dead process stays a zombie.
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn an_interrupted_doctor_leaves_no_process_behind() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("pids");
        // One child in the job's process group, one in a session of its own, and one that ignores SIGTERM.
        let script = "sleep 1000 & echo $!; setsid sleep 1000 & sleep 0.2; pgrep -P $$ -f 'sleep 1000'; \
                      (trap '' TERM; exec sleep 1000) & echo $!; echo $$; echo done; wait";
        let script = format!("exec > {}; {script}", list.display());
        let mut command = Command::new(program());
        command.args([
            "doctor", "--json", "--sim", "1GiB", "--for", "100s", "--", "bash", "-c", &script,
        ]);
        command
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        use std::os::unix::process::{CommandExt, ExitStatusExt};
        // The doctor leaves an ignored signal ignored, and SIGINT is ignored if a script runs this test in the
        // background.
        let heed = move || {
            // SAFETY: `signal` is async-signal-safe, so it may be called between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: `heed` makes one async-signal-safe call and allocates nothing.
        let child = unsafe { command.pre_exec(heed) }.spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let text = loop {
            let text = std::fs::read_to_string(&list).unwrap_or_default();
            if text.ends_with("done\n") {
                break text;
            }
            assert!(Instant::now() < end, "the command did not start: {text}");
            std::thread::sleep(Duration::from_millis(10));
        };
        let processes: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        assert!(
            processes.len() >= 3 && processes.iter().all(|process| alive(*process)),
            "{text}"
        );
        // SAFETY: `kill` touches no memory. The child was not waited for, so its process id is still its own.
        unsafe { libc::kill(child.id() as i32, signal) };
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(signal), "the doctor ends by the signal");
        assert!(output.stdout.is_empty(), "half a report");
        let left: Vec<_> = processes.into_iter().filter(|process| alive(*process)).collect();
        assert!(left.is_empty(), "{left:?} of {text}");
        let names: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        assert_eq!(names, ["pids"], "the temporary folder is gone");
    }
}

#[test]
fn children_of_the_command_end_when_the_time_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("pids");
    let script = format!(
        "setsid sleep 1000 & echo $! > {0}; echo $$ >> {0}; wait",
        list.display()
    );
    Report::run(doctor(&["--for", "5s", "--", "bash", "-c", &script])).has("trial", "ok", "was ended");
    let text = std::fs::read_to_string(&list).unwrap();
    let left: Vec<&str> = text.lines().filter(|line| alive(line.parse().unwrap())).collect();
    assert!(text.lines().count() == 2 && left.is_empty(), "{left:?} of {text}");
}
