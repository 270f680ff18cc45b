//! `vramshim frames` names the frames in a report of the host guard, after its process has ended.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use support::{Printed, Runs, assert_says, client, program, root, vramshim_with};

use crate::guards::host::{guarded, host};

fn named(log: &Path) -> Printed {
    vramshim_with(&["frames"], [log])
}

fn line_of(text: &str) -> usize {
    let source = fs::read_to_string(root().join("tests/guards/host.c")).expect("the source");
    source.lines().position(|line| line.contains(text)).expect("the line") + 1
}

/// Runs a client, keeps its report in a file, and returns the folder of the file.
fn log_of(job: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let output = guarded(job, "refused", "64MiB").ok();
    fs::write(folder.path().join("job.log"), output.said).expect("the log");
    folder
}

#[test]
fn other_text_is_copied_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("job.log");
    let text = "step 1\rstep 2\r\n\x1b[31mred\x1b[0m\n  /does/not/exist+0x10 [00ff] (f)\nno line feed";
    fs::write(&log, text).expect("the log");
    let output = named(&log);
    assert_eq!(output.text, text);
    assert_says(&output.said, "/does/not/exist: the file cannot be read");
}

#[test]
fn functions_and_lines_are_named_after_the_job_has_ended() {
    // The addresses in the file of a program that is not position-independent are those in memory.
    let flags = ["-rdynamic", "-fno-builtin", "-no-pie"];
    let fixed = client("guards/host.c", "guard-host-fixed", &flags);
    for job in [host(), fixed] {
        let folder = log_of(&job);
        let log = folder.path().join("job.log");
        let before = fs::read_to_string(&log).expect("the log");
        let output = named(&log).ok();
        let text = output.text;
        let asked = format!("host.c:{}\n", line_of("malloc(large)"));
        assert!(text.contains("  ask_for_a_lot at ") && text.contains(&asked), "{text}");
        // The function is static, and was inlined into `main`.
        let called = format!("host.c:{}\n", line_of("REFUSED(calloc(large / 16, 16))"));
        assert!(text.contains("  refused at ") && text.contains(&called), "{text}");
        assert!(!text.contains(&format!("{}+0x", job.display())), "{text}");
        // All else stays.
        for line in before.lines().filter(|line| line.starts_with("vramshim host guard: ")) {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
        let input = fs::File::open(&log).expect("the log");
        let mut from_input = Command::new(program());
        from_input.arg("frames").stdin(Stdio::from(input));
        assert_eq!(from_input.printed().text, text);
    }
}

#[test]
fn a_file_that_is_another_one_by_now_names_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let job = folder.path().join("job");
    fs::copy(host(), &job).expect("a copy");
    let log_folder = log_of(&job);
    let log = log_folder.path().join("job.log");
    let before = fs::read_to_string(&log).expect("the log");
    assert!(before.contains(&format!("  {}+0x", job.display())), "{before}");
    let other = client("guards/requests.c", "guard-requests", &["-DDLOPEN"]);
    fs::copy(other, &job).expect("another program");
    let output = named(&log).ok();
    let frames = |text: &str| text.lines().filter(|line| line.contains("/job+0x")).count();
    let text = &output.text;
    assert_eq!(frames(text), frames(&before), "{text}");
    assert_says(&output.said, "is not the one with the build id");
}

#[test]
fn a_log_that_is_missing_is_an_error() {
    let output = named(Path::new("/nowhere/job.log"));
    assert_eq!(output.code, Some(1));
    assert_says(&output.said, "/nowhere/job.log: No such file");
}
