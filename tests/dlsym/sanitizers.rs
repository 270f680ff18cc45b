//! Programs under a sanitizer, and under a library that wraps `dl_iterate_phdr` as sanitizers do. The runtime of a
//! sanitizer is linked into the program, and asks `dlsym` for the next `dl_iterate_phdr` at the first call.

use std::process::Command;

use support::left_out;

use super::{OURS, Stage};

/// MemorySanitizer takes memory from `malloc` for unwritten until instrumented code writes to it. So it would report what
/// the library reads of its own memory, as it does for each library that was built without it. This switches that off.
pub const MSAN_OPTIONS: &str = "poison_in_malloc=0:poison_in_free=0";

/// Runs the scenes of app.c with the library in front of the wrapper and behind it. The program must say the same as
/// with the library alone, and what it says of errors must be as without the library.
fn runs_in_both_orders(stage: &Stage) {
    stage
        .compile("dlsym/lazy_phdr.c", "liblazy.so", "-shared")
        .driver("libcuda.so.1", "driver");
    for scene in ["allocate", "errors"] {
        let without_wrapper = stage.lines(&["ours"], &[scene]);
        match scene {
            "errors" => assert_eq!(without_wrapper, stage.lines(&[], &[scene])),
            _ => assert_eq!(without_wrapper[0], format!("app to {OURS}")),
        }
        for preload in [["ours", "liblazy.so"], ["liblazy.so", "ours"]] {
            assert_eq!(stage.lines(&preload, &[scene]), without_wrapper, "{preload:?}");
        }
    }
}

/// The wrapper asks our `dlsym` for the next `dl_iterate_phdr`. If our answer called the wrapper, neither would return.
#[test]
fn a_lazy_wrapper_of_the_loaders_list_is_not_called_while_dlsym_answers() {
    let stage = Stage::new();
    stage.app();
    runs_in_both_orders(&stage);
}

#[test]
fn a_program_under_thread_sanitizer_runs() {
    let stage = Stage::new();
    let compiled = Command::new("cc")
        .args(["-fsanitize=thread", "-O1", "-o"])
        .arg(stage.path("app"))
        .arg(support::root().join("tests/dlsym/app.c"))
        .args(["-ldl", "-pthread"])
        .output()
        .expect("a C compiler");
    if !compiled.status.success() {
        return left_out("the C compiler has no ThreadSanitizer");
    }
    runs_in_both_orders(&stage);
}

#[test]
fn a_program_under_memory_sanitizer_runs() {
    let stage = Stage::new();
    stage.compile("dlsym/app.c", "scene.o", "-c -Dmain=scene");
    let compiled = Command::new("rustc")
        .current_dir(stage.path(""))
        // Rust's stable compiler has the runtime of MemorySanitizer, and accepts `-Z` with this variable.
        .env("RUSTC_BOOTSTRAP", "1")
        .args(["--edition=2024", "-O", "-Zsanitizer=memory", "-Clink-arg=scene.o"])
        .args(["-Cunsafe-allow-abi-mismatch=sanitizer", "-o", "app"])
        .arg(support::root().join("tests/dlsym/msan.rs"))
        .output()
        .expect("the Rust compiler");
    if !compiled.status.success() {
        let said = String::from_utf8_lossy(&compiled.stderr);
        return left_out(&format!("the Rust compiler has no MemorySanitizer: {said}"));
    }
    runs_in_both_orders(&stage);
}
