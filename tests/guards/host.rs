//! The guard of host memory, `libvramshim_hostguard.so`.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Printed, Runs, assert_says, client, in_path, left_out, library, program, root, scratch, vramshim};

pub fn guard() -> PathBuf {
    library().with_file_name("libvramshim_hostguard.so")
}

/// Runs a program under the guard alone.
pub fn guarded(job: &Path, scene: &str, bound: &str) -> Printed {
    let mut command = Command::new(job);
    command
        .arg(scene)
        .env("LD_PRELOAD", guard())
        .env("VRAMSHIM_HOST_GUARD", bound);
    command.printed()
}

pub fn host() -> PathBuf {
    client("guards/host.c", "guard-host", &["-rdynamic", "-fno-builtin"])
}

pub fn error_text(output: &Printed) -> String {
    output.said.clone()
}

#[test]
fn each_function_refuses_what_is_too_large_and_the_job_goes_on() {
    let output = guarded(&host(), "refused", "64MiB");
    let text = error_text(&output);
    assert!(output.code == Some(0), "{text}");
    assert_says(
        &text,
        "vramshim host guard: malloc of 268435456 bytes (256 MiB) refused (request 1, process ",
    );
    assert_says(
        &text,
        "VRAMSHIM_HOST_GUARD is 67108864 bytes, so the caller gets ENOMEM",
    );
    // The stack begins with the job's code.
    let first = text.lines().nth(1).unwrap_or_default();
    assert!(first.ends_with("(ask_for_a_lot)"), "the stack: {text}");
    // Of ten requests the first, second, fourth and eighth are told.
    assert_eq!(text.matches("vramshim host guard: ").count(), 4, "{text}");
    assert!(text.contains("calloc of 268435456"), "{text}");
}

#[test]
fn reservations_and_what_is_small_are_served() {
    let output = guarded(&host(), "allowed", "64MiB");
    assert!(
        output.code == Some(0) && output.said.is_empty(),
        "{}",
        error_text(&output)
    );
    // With no bound, and with a text that is no size, nothing is refused.
    for (bound, told) in [
        ("0", ""),
        ("", ""),
        (
            "much",
            "vramshim host guard: VRAMSHIM_HOST_GUARD=\"much\" is not a size, so no request is refused; give a size \
             such as 256GiB\n",
        ),
        (
            "64",
            "vramshim host guard: VRAMSHIM_HOST_GUARD=\"64\" is less than 1 MiB, so no request is refused; give a size such \
             as 256GiB\n",
        ),
    ] {
        let output = guarded(&host(), "touch", bound).ok();
        assert_eq!(error_text(&output), told);
    }
}

#[test]
fn sizes_are_written_as_for_the_other_variables() {
    for bound in ["64M", "64 MiB", "64mib", "67108864", "0.0625G"] {
        guarded(&host(), "refused", bound).ok();
    }
}

#[test]
fn a_signal_handler_with_a_small_stack_is_refused() {
    let output = guarded(&host(), "handler", "64MiB");
    let text = error_text(&output);
    assert_eq!((output.code, output.signal), (Some(0), None), "{text}");
    assert!(text.contains("malloc of 268435456 bytes"), "{text}");
    assert!(text.contains("not told in a signal handler"), "{text}");
}

#[test]
fn a_job_whose_standard_error_takes_nothing_goes_on() {
    for scene in ["unread", "limited"] {
        let output = guarded(&host(), scene, "64MiB").ok();
        assert_eq!(output.text, "went on\n", "{scene}");
    }
}

/// malloc(3) is no cancellation point.
#[test]
fn a_refusal_cancels_no_thread() {
    let output = guarded(&host(), "cancelled", "64MiB").ok();
    assert!(error_text(&output).contains("malloc of 268435456 bytes"));
}

/// Who walks a stack takes a lock of the loader's, which stays locked in such a child.
#[test]
fn a_forked_child_is_refused_and_waits_for_no_lock() {
    let output = guarded(&host(), "forked", "64MiB");
    let text = error_text(&output);
    assert!(output.code == Some(0), "{text}");
    assert!(text.contains("malloc of 268435456 bytes"), "{text}");
    assert!(text.contains("not told in a forked process"), "{text}");
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

#[test]
fn a_damaged_length_in_cpp_is_bad_alloc() {
    if !in_path("c++") {
        return left_out("C++, because c++ is not installed");
    }
    let job = scratch("guard-message").join("message");
    let source = root().join("tests/guards/message.cpp");
    std::fs::create_dir_all(job.parent().unwrap()).expect("a folder");
    let built = Command::new("c++").args(["-O1", "-o"]).arg(&job).arg(source).status();
    assert!(built.expect("c++").success());
    let output = guarded(&job, "", "256GiB");
    let text = error_text(&output);
    assert!(output.code == Some(0), "{text}");
    assert!(output.text.contains("survived 2"), "{text}");
    assert_says(&text, "malloc of 962174058496 bytes (896 GiB) refused");
}

/// The names of the functions that a library exports.
fn exports(library: &Path) -> Vec<String> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library)
        .printed();
    let output = output.ok();
    let text = output.text;
    text.lines()
        .filter_map(|line| line.split(['@', ' ']).next())
        .map(str::to_owned)
        .collect()
}

const FUNCTIONS: [&str; 9] = [
    "aligned_alloc",
    "calloc",
    "malloc",
    "memalign",
    "mmap",
    "mmap64",
    "posix_memalign",
    "realloc",
    "reallocarray",
];

#[test]
fn without_the_option_nothing_of_malloc_is_touched() {
    let mut own = exports(&guard());
    own.sort();
    assert_eq!(own, FUNCTIONS);
    let of_library = exports(&library());
    for name in FUNCTIONS
        .iter()
        .chain(&["free", "valloc", "pvalloc", "mremap", "brk", "sbrk"])
    {
        assert!(
            !of_library.iter().any(|own| own == name),
            "libvramshim.so exports {name}"
        );
    }
    let preload = |arguments: &[&str], variable: &str| {
        let mut run = Command::new(program());
        run.arg("run").args(arguments).args(["--library"]).arg(library());
        run.args(["--", "printenv", "LD_PRELOAD"])
            .env("VRAMSHIM_HOST_GUARD", variable);
        let output = run.printed().ok();
        output.text
    };
    assert!(!preload(&[], "").contains("hostguard"));
    assert!(!preload(&[], "0").contains("hostguard"));
    assert!(
        preload(&["--host-guard", "256GiB"], "")
            .trim()
            .ends_with("/libvramshim_hostguard.so")
    );
    assert!(preload(&[], "256GiB").contains("hostguard"));
}

#[test]
fn a_bound_that_is_no_size_is_refused() {
    for bound in ["much", "64", "1 giga", "1KiB", "1048575B"] {
        let told = vramshim(&["run", "--host-guard", bound, "--", "true"]);
        assert_eq!(told.code, Some(2), "{told:?}");
        assert!(told.said.contains("--host-guard"), "{told:?}");
    }
}
