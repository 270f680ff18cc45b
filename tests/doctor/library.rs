//! Tests of what `vramshim doctor` reports about the library, and that no process of it is left behind.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::doctor::report::Report;
use crate::doctor::{bad_driver, doctor};
use support::{client, library, program};

#[test]
fn a_library_that_cannot_be_preloaded_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let with = |path: &Path| Report::run(doctor(&["--library"]).args([path]));
    with(&folder.path().join("none.so")).has("library", "problem", "none.so");
    let text = folder.path().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    with(&text).has("library", "problem", "cannot be preloaded");
    let spaced = folder.path().join("a b.so");
    std::fs::copy(library(), &spaced).unwrap();
    with(&spaced).has("library", "problem", "LD_PRELOAD cannot hold a path");
    let other = client("support/clients/count_sync.c", "nothing.so", &["-shared", "-fPIC"]);
    with(&other).has("library", "problem", "another library");
}

// ---- nothing stays behind

#[test]
fn an_interrupted_doctor_leaves_no_process_behind() {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    let driver = bad_driver("-DHANGS");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut command = Command::new(program());
        command.args(["doctor", "--json", "--timeout", "100s"]);
        command.env("LD_LIBRARY_PATH", &driver).stdout(Stdio::piped());
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
        // The child of the doctor that asks the driver.
        let asks = loop {
            let children = format!("/proc/{0}/task/{0}/children", child.id());
            let children = std::fs::read_to_string(children).unwrap_or_default();
            let asks = children.split_ascii_whitespace().find(|pid| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                line.split(|byte| *byte == 0).any(|word| word == b"doctor-probe")
            });
            if let Some(pid) = asks {
                break pid.to_owned();
            }
            assert!(Instant::now() < end, "the driver was not asked: {children}");
            std::thread::sleep(Duration::from_millis(10));
        };
        // SAFETY: `kill` touches no memory. The child was not waited for, so its process id is still its own.
        unsafe { libc::kill(child.id() as i32, signal) };
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(signal), "the doctor ends by the signal");
        assert!(output.stdout.is_empty(), "half a report");
        assert!(!Path::new("/proc").join(&asks).exists(), "{asks} is left");
    }
}
