//! Stacks of requests. The stacks that Python itself sees are compared with those in the journal, in each
//! Python that is installed.

mod marks;
mod recorder;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use journal::format::{Event, NoStack, Record, Stack, StackKind};
use journal::reader::{Journal, Stacks};
use serde_json::Value;
use support::{Fields, Finished, Job, Printed, client, left_out, program};

/// The Pythons of this machine: that of PATH, and those of pyenv. `VRAMSHIM_PYTHONS` can name others, separated by colons.
fn all_pythons() -> Vec<PathBuf> {
    let named = std::env::var_os("VRAMSHIM_PYTHONS").unwrap_or_default();
    let mut found: Vec<PathBuf> = std::env::split_paths(&named).filter(|path| path.is_file()).collect();
    found.push("/usr/bin/python3".into());
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let versions = std::fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten();
    found.extend(versions.flatten().map(|version| version.path().join("bin/python")));
    found.sort();
    found
}

/// Those whose frames the library reads.
fn pythons() -> Vec<PathBuf> {
    let mut found = all_pythons();
    found.retain(|python| says(python, "True"));
    if found.is_empty() {
        left_out("no CPython 3.9 to 3.14 is installed");
    }
    found
}

/// Whether a Python answers like this: `True` if the library reads its frames, `free` if it is built without the lock.
fn says(python: &Path, answer: &str) -> bool {
    let program = "import sys, sysconfig; print('free' if sysconfig.get_config_var('Py_GIL_DISABLED') else \
                   sys.implementation.name == 'cpython' and (3, 9) <= sys.version_info < (3, 15))";
    let output = Command::new(python).args(["-c", program]).output();
    output.is_ok_and(|output| Printed::from(output).text.trim() == answer)
}

fn scene(python: &Path, name: &str, kinds: &str) -> Job {
    let script = support::root().join("tests/stacks/scenes.py");
    Job::new(python)
        .args([script.as_os_str(), name.as_ref()])
        .env("VRAMSHIM_STACKS", kinds)
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

fn native() -> PathBuf {
    client("stacks/native.c", "stacks_native", &["libcuda.so.1"])
}

fn natively(kinds: &str, arguments: &[&str]) -> Finished {
    let job = Job::new(native()).args(arguments).env("VRAMSHIM_STACKS", kinds);
    job.run().ok()
}

/// The requests and marks of a journal, and its stacks.
fn read(journal: &Path) -> (Vec<Record>, Stacks) {
    let opened = Journal::open(journal).expect("a journal");
    let records = opened.records().map(|record| record.expect("a record")).collect();
    let stacks = Stacks::beside(journal).expect("readable stacks");
    (records, stacks.unwrap_or_default())
}

fn only(finished: &Finished) -> (Vec<Record>, Stacks) {
    let journals = finished.journals();
    assert_eq!(journals.len(), 1, "{}", finished.stderr);
    read(&journals[0])
}

fn played(python: &Path, name: &str, kinds: &str) -> (Finished, Vec<Record>, Stacks) {
    let finished = scene(python, name, kinds).run().ok();
    let (records, stacks) = only(&finished);
    (finished, records, stacks)
}

fn by_size(records: &[Record]) -> BTreeMap<u64, Vec<Result<u32, NoStack>>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for record in records {
        if let Event::Alloc(one) = record.event {
            let all = found.entry(one.requested).or_default();
            all.push(NoStack::stack(record.stack));
        }
    }
    found
}

fn shown(stack: &Stack) -> Vec<(String, u64, String)> {
    let shown = |frame: &journal::format::Frame| (frame.file.to_string(), frame.line, frame.function.to_string());
    stack.frames.iter().map(shown).collect()
}

/// What the client printed of the stacks that Python sees, by size. At most `depth` frames of each.
fn truths(lines: &[Value], depth: usize) -> BTreeMap<u64, Vec<(String, u64, String)>> {
    let frame = |frame: &Value| {
        let text = |place: usize| frame[place].text().to_owned();
        (text(0), frame[1].number(), text(2))
    };
    let of = |line: &Value| {
        let frames = line["stack"].list().iter().take(depth).map(frame).collect();
        (line["size"].number(), frames)
    };
    lines.iter().map(of).collect()
}

fn assert_stacks_are_true(python: &Path, records: &[Record], stacks: &Stacks, lines: &[Value], depth: usize) {
    let (found, truths) = (by_size(records), truths(lines, depth));
    assert!(!truths.is_empty() && found.len() == truths.len(), "{python:?}");
    for (size, truth) in truths {
        let stack = found[&size][0].and_then(|number| stacks.get(number).ok_or(NoStack::Failed));
        let stack = stack.unwrap_or_else(|reason| panic!("{python:?}: {size}: {reason:?}, but {truth:?}"));
        assert_eq!(stack.kind, StackKind::Python, "{python:?}");
        assert_eq!(shown(stack), truth, "{python:?}: {size}");
    }
    assert_eq!(stacks.damaged, 0);
}

#[test]
fn stacks_are_those_that_python_sees() {
    for python in pythons() {
        let (finished, records, stacks) = played(&python, "lines", "python");
        assert_stacks_are_true(&python, &records, &stacks, &finished.json(), 32);
        let share = &finished.inspect()["stacks"];
        assert_eq!(share["requested_without_stack"], serde_json::json!({}), "{python:?}");
    }
}

/// No request of a scene has a frame of Python, for this reason. Native frames stand in for them.
fn assert_native_alone(python: &Path, name: &str, reason: NoStack, word: &str) {
    let (finished, records, stacks) = played(python, name, "python");
    let all: Vec<_> = by_size(&records).into_values().flatten().collect();
    let is_so = !all.is_empty() && all.iter().all(|stack| *stack == Err(reason));
    assert!(is_so && stacks.is_empty(), "{python:?}: {all:?}");
    let share = &finished.inspect()["stacks"]["requested_without_stack"];
    assert!(share[word].number() > 0, "{share}");
    let (_, records, stacks) = played(python, name, "both");
    for stack in by_size(&records).values().flatten() {
        let stack = stacks.get(stack.expect("a stack")).unwrap();
        assert_eq!(stack.kind, StackKind::Native, "{python:?}");
    }
}

/// A build without the lock is left out, and the journal says why. The job is as it is without stacks.
#[test]
fn a_python_without_the_lock_is_left_out_and_told() {
    let mut found = all_pythons();
    found.retain(|python| says(python, "free"));
    if found.is_empty() {
        left_out("no free-threaded CPython is installed (VRAMSHIM_PYTHONS can name one)");
    }
    for python in found {
        assert_native_alone(&python, "lines", NoStack::Unsupported, "unsupported");
        played(&python, "threads", "python");
    }
}

#[test]
fn the_depth_is_bounded() {
    for python in pythons().into_iter().take(1) {
        let job = scene(&python, "lines", "python").env("VRAMSHIM_STACK_DEPTH", "5");
        let finished = job.run().ok();
        let (records, stacks) = only(&finished);
        assert_stacks_are_true(&python, &records, &stacks, &finished.json(), 5);
    }
    let finished = natively("native", &["deep", "300"]);
    let (records, stacks) = only(&finished);
    let stack = by_size(&records)[&(1 << 20)][0].unwrap();
    assert_eq!(stacks.get(stack).unwrap().frames.len(), 32);
}

#[test]
fn a_call_without_the_lock_says_so() {
    for python in pythons() {
        assert_native_alone(&python, "released", NoStack::NoLock, "no_lock");
    }
}

#[test]
fn sub_interpreters_are_left_out_and_the_main_one_is_not() {
    for python in pythons() {
        let (finished, mut records, stacks) = played(&python, "interpreters", "python");
        let other = by_size(&records).remove(&8192).expect("its request");
        // Before 3.12 a sub-interpreter's thread looks as if it did not hold the lock.
        let reasons = [Err(NoStack::Unsupported), Err(NoStack::NoLock)];
        assert!(other.len() == 1 && reasons.contains(&other[0]), "{python:?}: {other:?}");
        records.retain(|record| !matches!(record.event, Event::Alloc(one) if one.requested == 8192));
        assert_stacks_are_true(&python, &records, &stacks, &finished.json(), 32);
    }
}

#[test]
fn an_error_that_is_set_stays_set() {
    let flags = ["-shared", "-fPIC", "libcuda.so.1"];
    let helper = client("stacks/helper.c", "stacks_helper.so", &flags);
    for python in pythons() {
        let finished = scene(&python, "error", "both").args([&helper]).run().ok();
        let (records, stacks) = only(&finished);
        let numbers = &by_size(&records)[&(1 << 20)];
        assert_eq!(numbers.len(), 3);
        for (place, number) in numbers.iter().enumerate() {
            let stack = stacks.get(number.unwrap()).unwrap();
            assert_eq!(stack.kind, StackKind::Both);
            let first = &stack.frames[0];
            assert!(first.function.starts_with("stacks_helper.so+0x"), "{first:?}");
            let frame = &stack.frames[stack.native];
            let expected = (format!("error-{place}"), "?");
            assert_eq!((frame.file.to_string(), &*frame.function), expected, "{python:?}");
        }
    }
}

#[test]
fn threads_keep_their_own_stacks() {
    for python in pythons() {
        let (_, records, stacks) = played(&python, "threads", "python");
        for number in 0..8u64 {
            for stack in &by_size(&records)[&((number + 1) << 12)] {
                let frames = shown(stacks.get(stack.unwrap()).unwrap());
                assert_eq!(frames[0].2, "raw", "{python:?}");
                let own = (format!("thread-{number}"), 2, format!("own_{number}"));
                assert_eq!(frames[1], own, "{python:?}");
            }
        }
    }
}

#[test]
fn a_forked_child_has_a_file_of_its_own() {
    for python in pythons() {
        let finished = scene(&python, "forks", "both").run().ok();
        let journals = finished.journals();
        assert_eq!(journals.len(), 2, "{python:?}: {}", finished.stderr);
        let failed = |record: &Record| matches!(record.event, Event::AllocFailed { requested: 777, .. });
        let all = journals.iter().map(|journal| read(journal));
        let (of_child, of_parent): (Vec<_>, Vec<_>) = all.partition(|(records, _)| records.iter().any(failed));
        let (records, stacks) = &of_parent[0];
        let truths = truths(&finished.json(), 32);
        assert_eq!(by_size(records).len(), 2);
        for (size, numbers) in by_size(records) {
            let stack = stacks.get(numbers[0].unwrap()).unwrap();
            assert_eq!(shown(stack)[stack.native..], truths[&size], "{python:?}");
        }
        let (records, stacks) = &of_child[0];
        let stack = stacks.get(records[0].stack).expect("the child's stack");
        let functions = stack.frames[stack.native..].iter().map(|frame| &*frame.function);
        let expected = ["raw", "fails_in_child", "forks", "<module>"];
        assert!(functions.eq(expected), "{python:?}: {stack:?}");

        let (finished, records, stacks) = played(&python, "forks_first", "python");
        assert_stacks_are_true(&python, &records, &stacks, &finished.json(), 32);
    }
}

#[test]
fn what_a_killed_job_recorded_is_there() {
    for python in pythons().into_iter().take(1) {
        let finished = scene(&python, "killed", "python").run();
        assert!(!finished.status.success());
        let (records, stacks) = only(&finished);
        assert_stacks_are_true(&python, &records, &stacks, &finished.json(), 32);
    }
}

#[test]
fn a_full_table_is_a_reason_and_no_failure() {
    for python in pythons().into_iter().take(1) {
        let (_, records, stacks) = played(&python, "many", "python");
        let all: Vec<_> = by_size(&records).into_values().flatten().collect();
        let full = all.iter().filter(|stack| **stack == Err(NoStack::Full)).count();
        let is_known = |stack: &&Result<u32, NoStack>| stack.is_ok_and(|number| stacks.get(number).is_some());
        let known = all.iter().filter(is_known).count();
        let is_so = full > 0 && known > 40_000 && full + known == all.len();
        assert!(is_so, "{full} {known} {}", all.len());
    }
}

#[test]
fn inspect_names_the_line_of_a_failure() {
    for python in pythons().into_iter().take(1) {
        for kinds in ["python", "both"] {
            let finished = scene(&python, "fails", kinds).run().ok();
            let failure = finished.inspect()["stacks"]["last_out_of_memory"].clone();
            assert_eq!(failure["requested"], 1u64 << 50, "{failure}");
            let frames = failure["stack"]["frames"].list();
            let names: Vec<&str> = frames.iter().map(|frame| frame["function"].text()).collect();
            assert!(names.ends_with(&["raw", "fails", "<module>"]), "{names:?}");
        }
    }
}

#[test]
fn native_frames_get_their_names_from_the_file_of_the_program() {
    let finished = natively("native", &["deep", "4"]);
    let held = &finished.inspect()["stacks"]["live"][0];
    let frames = held["stack"]["frames"].list();
    let names: Vec<&str> = frames.iter().map(|frame| frame["function"].text()).collect();
    let recursions = ["recurse"; 5];
    let expected = [&["allocate", "innermost", "middle"], &recursions[..], &["main"]].concat();
    assert_eq!(names[..expected.len()], expected);
    assert!(frames[0]["file"].text().ends_with("stacks/native.c") && frames[0]["line"].as_u64() > Some(0));
}

#[test]
fn native_frames_of_another_file_keep_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("program");
    std::fs::copy(native(), &copy).unwrap();
    let job = Job::new(&copy).args(["deep", "4"]).env("VRAMSHIM_STACKS", "native");
    let finished = job.run().ok();
    std::fs::copy(program(), &copy).unwrap();
    let frame = finished.inspect()["stacks"]["live"][0]["stack"]["frames"][0].clone();
    assert!(frame["function"].text().starts_with("program+0x"), "{frame}");
}

#[test]
fn threads_and_strange_stacks_are_walked_within_their_bounds() {
    let finished = natively("native", &["threads"]);
    let (records, stacks) = only(&finished);
    let numbers = &by_size(&records)[&(1 << 20)];
    assert_eq!(numbers.len(), 8);
    // allocate, innermost, middle, six of recurse, in_thread
    let depth = |number: &Result<u32, NoStack>| stacks.get(number.unwrap()).unwrap().frames.len();
    assert!(numbers.iter().all(|number| depth(number) >= 10));
    let finished = natively("native", &["stacks"]);
    assert_eq!(by_size(&only(&finished).0)[&(1 << 20)], [Err(NoStack::NoFrame)]);
}

#[test]
fn a_job_without_python_says_so_and_no_stacks_are_the_default() {
    let finished = natively("python", &["deep", "1"]);
    assert_eq!(by_size(&only(&finished).0)[&(1 << 20)], [Err(NoStack::NoPython)]);
    let finished = Job::new(native()).args(["deep", "1"]).run().ok();
    assert_eq!(by_size(&only(&finished).0)[&(1 << 20)], [Err(NoStack::Off)]);
    assert!(!Stacks::path(&finished.journals()[0]).exists());
    assert_eq!(finished.inspect()["stacks"], Value::Null);
}
