//! `vramshim run --stacks` with PyTorch, whose operators give up Python's lock before they allocate.

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

/// The innermost function of the job on a stack, and where the stack comes from.
fn innermost(stack: &Value) -> (&str, &str) {
    let mut frames = stack["frames"].list().iter();
    let frame = frames.find(|frame| frame["file"].text().ends_with("stacks.py"));
    let function = &frame.expect("a frame of the job")["function"];
    (stack["from"].text(), function.text())
}

#[test]
fn stacks_of_python_name_the_lines_of_a_pytorch_job() {
    let finished = run("python");
    let stacks = &finished.inspect()["stacks"];
    let largest = &stacks["live"][0];
    assert!(largest["bytes"].number() >= 256 << 20, "{stacks}");
    let (from, name) = innermost(&largest["stack"]);
    let is_line = name.contains("parameters") || name == "<listcomp>";
    assert!(from == "PyTorch" && is_line, "{stacks}");
    let failed = innermost(&stacks["last_out_of_memory"]["stack"]);
    assert_eq!(failed, ("PyTorch", "too_much"), "{stacks}");
    let with_stack = stacks["requested_with_stack_of_pytorch"].number();
    assert!(with_stack >= 288 << 20, "{stacks}");
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
        let expected = (kinds == "both", kinds == "python");
        assert_eq!((with_stack, without_lock), expected, "{stacks}");
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
    let page = run("off").told(&["inspect", "--json", "--leaks"]).ok().json();
    let marks = page["jobs"][0]["marks"].list().iter();
    let found: Vec<_> = marks.map(|mark| (mark["kind"].text(), mark["text"].text())).collect();
    let step = |text| [("begin", text), ("end", text)];
    assert_eq!(
        found,
        [&[("mark", "built")][..], &step("step 1"), &step("step 2")].concat()
    );
}
