//! The guard of host memory, `libvramshim_hostguard.so`.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Printed, Runs, assert_says, client, left_out, library, program, vramshim};

use crate::exports::exported;

pub fn guard() -> PathBuf {
    library().with_file_name("libvramshim_hostguard.so")
}

pub fn guarded(job: &Path, scene: &str, bound: &str) -> Printed {
    let mut command = Command::new(job);
    command.arg(scene).env("LD_PRELOAD", guard());
    command.env("VRAMSHIM_HOST_GUARD", bound).printed()
}

pub fn host() -> PathBuf {
    client("guards/host.c", "guard-host", &["-rdynamic", "-fno-builtin"])
}

#[test]
fn each_function_refuses_what_is_too_large_and_the_job_goes_on() {
    let text = guarded(&host(), "refused", "64MiB").ok().said;
    for words in [
        "vramshim host guard: malloc of 268435456 bytes (256 MiB) refused (request 1, process ",
        "VRAMSHIM_HOST_GUARD is 67108864 bytes, so the caller gets ENOMEM",
        "calloc of 268435456",
    ] {
        assert_says(&text, words);
    }
    // The stack begins with the job's code.
    let first = text.lines().nth(1).unwrap_or_default();
    assert!(first.ends_with("(ask_for_a_lot)"), "the stack: {text}");
    assert_eq!(text.matches("vramshim host guard: ").count(), 4, "{text}");
}

#[test]
fn reservations_and_what_is_small_are_served() {
    assert_eq!(guarded(&host(), "allowed", "64MiB").ok().said, "");
    // With no bound, and with a text that is no size, nothing is refused.
    for (bound, fault) in [("0", ""), ("", ""), ("much", "not a size"), ("64", "less than 1 MiB")] {
        let said = guarded(&host(), "touch", bound).ok().said;
        let told = format!(
            "vramshim host guard: VRAMSHIM_HOST_GUARD=\"{bound}\" is {fault}, so no request is refused; give a size \
             such as 256GiB\n"
        );
        assert_eq!(said, if fault.is_empty() { "" } else { &told });
    }
}

#[test]
fn sizes_are_written_as_for_the_other_variables() {
    for bound in ["64M", "64 MiB", "64mib", "67108864", "0.0625G"] {
        guarded(&host(), "refused", bound).ok();
    }
}

/// malloc(3) is no cancellation point. Who walks a stack takes a lock of the loader's, which stays locked in a child that is
/// forked while another thread has it.
#[test]
fn a_refusal_in_an_odd_place_is_told_as_far_as_it_can_be() {
    for (scene, told) in [
        ("handler", "not told in a signal handler"),
        ("cancelled", ""),
        ("forked", "not told in a forked process"),
    ] {
        let output = guarded(&host(), scene, "64MiB").ok();
        assert_says(&output.said, "malloc of 268435456 bytes");
        assert_says(&output.said, told);
    }
}

#[test]
fn a_job_whose_standard_error_takes_nothing_goes_on() {
    for scene in ["unread", "limited"] {
        let output = guarded(&host(), scene, "64MiB").ok();
        assert_eq!(output.text, "went on\n", "{scene}");
    }
}

#[test]
fn what_would_fill_the_memory_does_not() {
    let peak = |bound: &str| -> u64 {
        let output = guarded(&host(), "touch", bound);
        output.text.trim().parse().expect("a number")
    };
    let (free, held) = (peak("0"), peak("64MiB"));
    assert!(free >= 256 << 10, "the kernel grants the request: {free} KiB");
    assert!(held < 64 << 10, "{held} KiB");
}

/// The runtime of a sanitizer asks for memory before the program, and before the loader can serve variables of threads.
#[test]
fn programs_of_sanitizers_run_with_the_guard_before_and_behind_the_library() {
    let folder = tempfile::tempdir().unwrap();
    for sanitizer in ["thread", "address", "undefined"] {
        let program = folder.path().join(sanitizer);
        let compiled = Command::new("gcc")
            .arg(format!("-fsanitize={sanitizer}"))
            .args(["-O1", "-fno-builtin", "-pthread", "-o"])
            .arg(&program)
            .arg(support::root().join("tests/guards/sanitized.c"))
            .output();
        if !compiled.is_ok_and(|output| output.status.success()) {
            left_out(&format!("gcc has no -fsanitize={sanitizer}"));
            continue;
        }
        let [ours, guard] = [library(), guard()].map(|path| path.display().to_string());
        for preload in [format!("{ours}:{guard}"), format!("{guard}:{ours}"), guard.clone()] {
            let mut command = Command::new(&program);
            command.env("LD_PRELOAD", &preload).env("VRAMSHIM_HOST_GUARD", "1GiB");
            // Its runtime refuses to come after a preloaded library, and need not come first for this program.
            command.env("ASAN_OPTIONS", "verify_asan_link_order=0:allocator_may_return_null=1");
            let told = command.printed().ok().text;
            assert_eq!(told, "4096000 4096000\n", "{sanitizer}, {preload}");
        }
    }
}

#[test]
fn without_the_option_nothing_of_malloc_is_touched() {
    // The list of what libvramshim.so exports has none of these: see `exports`.
    let functions = "aligned_alloc calloc malloc memalign mmap mmap64 posix_memalign realloc reallocarray";
    assert!(exported(&guard()).iter().eq(functions.split(' ')));
    let preload = |arguments: &[&str], variable: &str| {
        let mut run = Command::new(program());
        run.arg("run").args(arguments).args(["--library"]).arg(library());
        run.args(["--", "printenv", "LD_PRELOAD"]);
        run.env("VRAMSHIM_HOST_GUARD", variable)
            .printed()
            .ok()
            .text
            .contains("/libvramshim_hostguard.so")
    };
    assert!(!preload(&[], "") && !preload(&[], "0"));
    assert!(preload(&["--host-guard", "256GiB"], "") && preload(&[], "256GiB"));
}

#[test]
fn a_bound_that_is_no_size_is_refused() {
    for bound in ["much", "64", "1 giga", "1KiB", "1048575B"] {
        let told = vramshim(&["run", "--host-guard", bound, "--", "true"]);
        assert_eq!(told.code, Some(2), "{told:?}");
    }
}

/// A request of a size that the kernel grants takes all the memory that the job may have: 1024 MiB are asked for and 300 are
/// needed, within a limit of 1200.
#[test]
fn a_granted_request_takes_the_address_space_of_the_work() {
    let mut free = Command::new(host());
    let free = free.args(["fills", "1024", "300", "1200"]).printed();
    // The exit code says that the job's own work gets no memory.
    assert_eq!((&*free.text, free.code), ("the request: granted\n", Some(3)));
    let mut held = Command::new(host());
    held.env("LD_PRELOAD", guard()).env("VRAMSHIM_HOST_GUARD", "512MiB");
    let held = held.args(["fills", "1024", "300", "1200"]).printed().ok();
    assert_eq!(held.text, "the request: ENOMEM\nthe work: done\n");
    assert_says(&held.said, "malloc of 1073741824 bytes (1 GiB) refused");
}
