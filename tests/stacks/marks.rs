//! Marks of the job and of NVTX, and what `vramshim run` sets for them and for stacks.

use std::collections::BTreeMap;

use journal::format::{Event, MarkKind, Record};
use journal::reader::Stacks;
use support::{Job, assert_says, left_out, program, simulated, small_disk};

use super::{native, only};

fn marks(records: &[Record], stacks: &Stacks) -> Vec<(MarkKind, String)> {
    let text = |text| stacks.text(text).unwrap_or("?").to_owned();
    let mark = |record: &Record| match record.event {
        Event::Mark { text: number, kind } => Some((kind, text(number))),
        _ => None,
    };
    records.iter().filter_map(mark).collect()
}

#[test]
fn marks_are_records_with_texts() {
    let finished = Job::new(native()).args(["marks"]).run().ok();
    let (records, stacks) = only(&finished);
    let long = "x".repeat(256);
    let expected = ["epoch 1", "tab\tand\nline\\", "epoch 1", &long].map(|text| (MarkKind::Instant, text.to_owned()));
    assert_eq!(marks(&records, &stacks), expected);
    assert!(stacks.is_empty());
    // A mark alone starts nothing.
    let finished = Job::new(native()).args(["only_marks"]).run().ok();
    assert!(finished.journals().is_empty() && finished.stderr.is_empty());
}

#[test]
fn marks_are_bounded() {
    let finished = Job::new(native()).args(["marks", "200000"]).run().ok();
    let (records, stacks) = only(&finished);
    let kept = marks(&records, &stacks).len();
    // Whatever the second in which they are set, no more than two seconds' worth fit if the job takes less.
    assert!(kept < 200_004, "{kept}");
    let said = finished.said();
    let told = said.iter().filter(|(_, text)| text.contains("marks a second")).count();
    assert_eq!(told, 1, "{}", finished.stderr);
}

/// With a mark before, the file exists when the disk fills, and a line is written in part.
#[test]
fn marks_after_a_moment_of_full_disk_are_kept() {
    for before in [&[][..], &["before"]] {
        let job = Job::new(native());
        let disk = job.folder().join("journals");
        std::fs::create_dir(&disk).expect("a folder");
        let ballast = disk.join("ballast");
        let on_small_disk = || {
            let finished = job.args(["full"]).args([ballast]).args(before).run().ok();
            let (records, stacks) = only(&finished);
            let found = marks(&records, &stacks);
            let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
            assert!(texts.starts_with(before), "{texts:?}");
            assert!(texts.ends_with(&["epoch", "later", "epoch"]), "{texts:?}");
            assert!(texts.len() < 40 && stacks.damaged == 0, "{texts:?}");
            let told = finished.stderr.matches("stacks and marks are lost").count();
            assert_eq!(told, 1, "{}", finished.stderr);
        };
        if !small_disk(&disk, 3 << 10, on_small_disk) {
            return left_out("no permission to mount a small disk");
        }
    }
}

fn nvtx(job: Job) -> Job {
    job.args(["nvtx"]).env("NVTX_INJECTION64_PATH", support::library())
}

#[test]
fn ranges_and_marks_of_nvtx_are_marks() {
    let finished = nvtx(Job::new(native())).run().ok();
    let (records, stacks) = only(&finished);
    let found = marks(&records, &stacks);
    let (instant, begin, end) = (MarkKind::Instant, MarkKind::Begin, MarkKind::End);
    let expected = [
        (instant, "plain"),
        (instant, "attributes"),
        (instant, "wide ä"),
        (instant, ""),
        (begin, "long"),
        (begin, "outer"),
        (begin, "domain: registered"),
        (begin, "inner"),
        (end, "domain: registered"),
        (end, "inner"),
        (end, "outer"),
        (end, "long"),
    ];
    let texts = expected.map(|(kind, text)| (kind, text.to_owned()));
    assert_eq!(found[..texts.len()], texts);
    // The innermost 36 of 100 ranges are beyond the bound, and the last event has no text.
    let deep = &found[expected.len()..found.len() - 1];
    let wanted = [begin, end].map(|kind| vec![(kind, "deep".to_owned()); 64]).concat();
    assert_eq!(deep, wanted);
    // Without a call that concerns memory there is no journal.
    let finished = nvtx(Job::new(native())).env("ONLY_MARKS", "1").run().ok();
    assert!(finished.journals().is_empty() && finished.stderr.is_empty());
}

/// What `vramshim run` with these arguments and this variable sets for its job, and what it says.
fn environment(arguments: &[&str], (name, value): (&str, &str)) -> (Option<i32>, BTreeMap<String, String>, String) {
    let simulator = simulated("libcuda.so.1");
    let job = Job::new(program()).alone().env(name, value);
    let job = job.env("VRAMSHIM_SIMGPU", simulator.parent().unwrap());
    let finished = job.args([&["run"], arguments, &["--", "env"]].concat()).run();
    let variables = finished.stdout.lines().filter_map(|line| line.split_once('='));
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    (finished.status.code(), variables.collect(), finished.stderr)
}

#[test]
fn run_sets_the_variables_of_stacks_and_of_nvtx() {
    const NOTHING: (&str, &str) = ("UNUSED", "");
    for (arguments, stacks, torch) in [
        (&["--stacks", "both"][..], Some("both"), Some("record")),
        (&["--stacks", "native"], Some("native"), Some("off")),
        (&["--stacks", "python", "--torch", "off"], Some("python"), Some("off")),
        (&[], None, Some("state")),
    ] {
        let (_, variables, _) = environment(arguments, NOTHING);
        assert!(variables["NVTX_INJECTION64_PATH"].ends_with("libvramshim.so"));
        let set = ["VRAMSHIM_STACKS", "VRAMSHIM_TORCH"].map(|name| variables.get(name).map(String::as_str));
        assert_eq!(set, [stacks, torch], "{arguments:?}");
    }
    let (_, variables, _) = environment(&[], ("NVTX_INJECTION64_PATH", "/other.so"));
    assert_eq!(variables["NVTX_INJECTION64_PATH"], "/other.so");
    for (arguments, variable, words) in [
        (&["--stacks", "all"][..], NOTHING, "off, python, native, both"),
        (&[], ("VRAMSHIM_STACK_DEPTH", "0"), "VRAMSHIM_STACK_DEPTH"),
    ] {
        let (status, _, said) = environment(arguments, variable);
        assert_eq!(status, Some(2), "{said}");
        assert_says(&said, words);
    }
}
