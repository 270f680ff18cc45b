//! Runs tests of other projects without the library and under each strategy, and checks that no outcome differs.
//! Needs the environments of `scripts/ci/setup suites cuda-python numba-cuda`.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use support::Fields;

fn compare(arguments: &[&str]) -> (Output, Value) {
    let artifacts = support::library();
    let simulator = support::simulated("libcuda.so.1");
    let output = Command::new(support::root().join("tests/suites/compare.py"))
        .env("VRAMSHIM_ARTIFACTS", artifacts.parent().unwrap_or(Path::new(".")))
        .env("VRAMSHIM_SIMGPU", simulator.parent().unwrap_or(Path::new(".")))
        .arg("--json")
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let value = serde_json::from_str(&said).unwrap_or_else(|error| {
        panic!("{error}: {said}\n{}", String::from_utf8_lossy(&output.stderr));
    });
    (output, value)
}

#[test]
fn no_outcome_differs_under_the_library() {
    let (output, told) = compare(&["--quick", "--test-seconds", "300"]);
    let suites = told.list();
    let differences: Vec<_> = suites.iter().map(|suite| &suite["differences"]).collect();
    assert_eq!(output.status.code(), Some(0), "{differences:?}");
    // Tests that fail without the library show little, so enough of them must pass.
    for (suite, least) in suites.iter().zip([("cuda-python", 55), ("numba-cuda", 180)]) {
        assert_eq!(suite["suite"], least.0);
        let passed = suite["outcomes_without"]["passed"].number();
        assert!(passed >= least.1, "{passed} tests of {} passed", least.0);
    }
}

#[test]
fn the_comparison_sees_differences() {
    let (output, told) = compare(&["--self-test", "--test-seconds", "20"]);
    assert_eq!(output.status.code(), Some(1));
    let suite = &told[0];
    let name = |test: &str| test.rsplit("::").next().unwrap().to_owned();
    let found = suite["differences"].list().iter();
    let found = found.map(|one| (one["strategy"].text(), name(one["test"].text()), one["with"].text()));
    let expected = [
        ("passthrough", "test_fails_under_passthrough".to_owned(), "failed"),
        (
            "naive_best_fit",
            "test_crashes_under_naive_best_fit".to_owned(),
            "crashed",
        ),
        ("auto_growth", "test_hangs_under_auto_growth".to_owned(), "timed out"),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let flaky: Vec<String> = suite["flaky"].list().iter().map(|test| name(test.text())).collect();
    assert_eq!(flaky, ["test_flaky"]);
    let unwritten = suite["unwritten"].as_object().unwrap().iter();
    let unwritten: Vec<_> = unwritten
        .map(|(test, outcomes)| (name(test), outcomes.to_string()))
        .collect();
    let outcomes = r#"{"0":"passed","165":"passed"}"#;
    let test = "test_reads_memory_that_nothing_wrote";
    assert_eq!(unwritten, [(test.to_owned(), outcomes.to_owned())]);
    for run in ["without", "passthrough", "naive_best_fit", "auto_growth"] {
        let tests = suite["runs"][run].as_object().unwrap();
        assert_eq!(tests.len(), 8, "{run} goes on after a crash: {tests:?}");
    }
}
