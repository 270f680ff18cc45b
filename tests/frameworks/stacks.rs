//! `vramshim run --stacks` with PyTorch, whose operators give up Python's lock before they allocate.

use journal::format::{Event, MarkKind};
use journal::reader::{Journal, Stacks};
use serde_json::Value;
use support::{Fields, Finished};

use super::jobs::forked_with;
use super::switch::with_options;
use super::{agreed, path};

fn run(kinds: &str) -> Finished {
    with_options(&["--stacks", kinds], "4GiB", &[&path("stacks.py")])
        .run()
        .ok()
}

/// The functions of a stack's Python frames, and where the stack comes from.
fn functions(stack: &Value) -> (String, Vec<String>) {
    let frames = stack["frames"].list();
    let of_job = frames
        .iter()
        .filter(|frame| frame["file"].text().ends_with("stacks.py"));
    let names = of_job.map(|frame| frame["function"].text().to_owned());
    (stack["from"].text().to_owned(), names.collect())
}

#[test]
fn stacks_of_python_name_the_lines_of_a_pytorch_job() {
    let finished = run("python");
    let stacks = &finished.inspect()["stacks"];
    let largest = &stacks["live"][0];
    assert!(largest["bytes"].as_u64() >= Some(256 << 20), "{stacks}");
    let (from, names) = functions(&largest["stack"]);
    assert_eq!(from, "PyTorch");
    assert!(names[0].contains("parameters") || names[0] == "<listcomp>", "{names:?}");
    let (from, names) = functions(&stacks["last_out_of_memory"]["stack"]);
    assert_eq!((from.as_str(), names[0].as_str()), ("PyTorch", "too_much"), "{stacks}");
    assert!(
        stacks["requested_with_stack_of_pytorch"].as_u64() >= Some(288 << 20),
        "{stacks}"
    );
}

/// PyTorch's operators give Python's lock up before they allocate, and the library never takes it. So the journal says why
/// these tensors have no frames of Python; frames of native code they have.
#[test]
fn tensors_that_the_library_serves_have_native_stacks_alone() {
    for kinds in ["python", "both"] {
        let environment = [("VRAMSHIM_STRATEGY", "auto_growth"), ("VRAMSHIM_STACKS", kinds)];
        let finished = forked_with("allocator", &environment, "4GiB", &[&path("stacks.py"), "held"]);
        let stacks = &finished.ok().inspect()["stacks"];
        let of_tensors = |bytes: &Value| bytes.as_u64() >= Some(256 << 20);
        let with_stack = of_tensors(&stacks["requested_with_stack"]);
        let without_lock = of_tensors(&stacks["requested_without_stack"]["no_lock"]);
        assert_eq!(
            (with_stack, without_lock),
            (kinds == "both", kinds == "python"),
            "{stacks}"
        );
    }
}

/// Threads of autograd allocate while another thread waits for Python's lock, and the other way round.
#[test]
fn training_with_stacks_of_python_comes_to_its_end() {
    let environment = [("VRAMSHIM_STRATEGY", "auto_growth"), ("VRAMSHIM_STACKS", "python")];
    let finished = forked_with("allocator", &environment, "8GiB", &[&path("train.py")]).ok();
    assert_eq!(agreed(&finished), 4, "{}", finished.stdout);
}

#[test]
fn native_stacks_reach_through_pytorch() {
    let stacks = run("native").inspect()["stacks"].clone();
    assert_eq!(stacks["requested_without_stack"], serde_json::json!({}), "{stacks}");
    let frames = stacks["live"][0]["stack"]["frames"].list().clone();
    let has = |text: &str| frames.iter().any(|frame| frame["function"].text().contains(text));
    assert!(has("CachingAllocator") && has("at::"), "{frames:?}");
    // With both, the Python frames of PyTorch's own record say more.
    let stacks = run("both").inspect()["stacks"].clone();
    assert_eq!(stacks["live"][0]["stack"]["from"], "PyTorch", "{stacks}");
    assert_eq!(stacks["requested_without_stack"], serde_json::json!({}), "{stacks}");
}

#[test]
fn marks_of_nvtx_in_pytorch_are_marks() {
    let finished = run("off");
    let journal = finished.journals().remove(0);
    let stacks = Stacks::beside(&journal).unwrap().unwrap();
    let opened = Journal::open(&journal).unwrap();
    let records = opened.records().map(Result::unwrap);
    let marks = records.filter_map(|record| match record.event {
        Event::Mark { text, kind } => Some((kind, stacks.text(text).unwrap())),
        _ => None,
    });
    let expected = [
        (MarkKind::Instant, "built"),
        (MarkKind::Begin, "step 1"),
        (MarkKind::End, "step 1"),
        (MarkKind::Begin, "step 2"),
        (MarkKind::End, "step 2"),
    ];
    assert_eq!(marks.collect::<Vec<_>>(), expected);
}
