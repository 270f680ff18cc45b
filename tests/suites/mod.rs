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
    let found: Vec<_> = suite["differences"]
        .list()
        .iter()
        .map(|one| {
            let name = one["test"].text().rsplit("::").next().unwrap();
            (one["strategy"].text(), name, one["with"].text())
        })
        .collect();
    let expected = [
        ("passthrough", "test_fails_under_passthrough", "failed"),
        ("naive_best_fit", "test_crashes_under_naive_best_fit", "crashed"),
        ("auto_growth", "test_hangs_under_auto_growth", "timed out"),
    ];
    assert_eq!(found, expected);
    let flaky = suite["flaky"].list();
    assert!(
        flaky.len() == 1 && flaky[0].text().ends_with("::test_flaky"),
        "{flaky:?}"
    );
    let unwritten: Vec<_> = suite["unwritten"].as_object().unwrap().iter().collect();
    let [(name, outcomes)] = &unwritten[..] else {
        panic!("{unwritten:?}")
    };
    assert!(name.ends_with("::test_reads_memory_that_nothing_wrote"), "{name}");
    assert_eq!(**outcomes, serde_json::json!({ "0": "passed", "165": "passed" }));
    for run in ["without", "passthrough", "naive_best_fit", "auto_growth"] {
        let tests = suite["runs"][run].as_object().unwrap();
        assert_eq!(tests.len(), 8, "{run} goes on after a crash: {tests:?}");
    }
}
