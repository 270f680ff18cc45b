//! The largest holder at the peak and at the failure, in each view, is that of PyTorch's own snapshot of the same run.

use serde_json::Value;
use support::Fields;

use super::switch::with_options;

/// The numbers whose differences are in the data of the report.
fn sums(differences: &Value) -> Vec<i64> {
    let differences = differences.list().iter().map(|number| number.as_i64().unwrap());
    differences
        .scan(0, |sum, difference| {
            *sum += difference;
            Some(*sum)
        })
        .collect()
}

/// The functions of a stack of the report, and the bytes of the largest group at a moment with a name.
fn largest_of_report(report: &Value, kind: &str) -> (Vec<String>, u64) {
    let holdings = &report["processes"][0]["holdings"];
    let named = holdings["named"].list();
    let moment = named.iter().find(|named| named["kind"] == kind).unwrap()["moment"]
        .as_i64()
        .unwrap();
    let at = |group: &Value| {
        let known = sums(&group["moments"]).partition_point(|&changed| changed <= moment);
        known
            .checked_sub(1)
            .map_or(0, |place| sums(&group["bytes"])[place] as u64)
    };
    let groups = holdings["groups"].list();
    let largest = groups.iter().max_by_key(|group| at(group)).unwrap();
    let stack = report["stacks"][largest["stack"].number() as usize].list();
    let functions = stack.iter().map(|frame| {
        let name = report["frames"][frame.number() as usize][2].number();
        report["texts"][name as usize].text().to_owned()
    });
    (functions.collect(), at(largest))
}

#[test]
fn the_largest_holder_is_that_of_pytorchs_own_snapshot() {
    let script = super::script("largest.py");
    let options = ["--stacks", "python", "--torch", "record"];
    let finished = with_options(&options, "24GiB", &[script.to_str().unwrap()]).run();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let truth = finished.json();
    let [peak, failure] = &truth[..] else {
        panic!("{truth:?}")
    };
    assert_eq!(
        (&peak["function"], &failure["function"]),
        (&"activations".into(), &"optimizer".into())
    );
    // `why` is about the failure.
    let why = finished.told(&["why", "--json"]).json();
    let holder = &why["holders"][0];
    assert_eq!(holder["bytes"], failure["bytes"], "{holder}");
    let function = failure["function"].text();
    assert!(holder["what"].text().contains(function), "{holder}");
    // `inspect` tells of the tensors at their peak, and at the end, which is the failure.
    let job = finished.inspect();
    let tensors = &job["tensors"]["devices"][0];
    for (moment, truth) in [("peak", peak), ("end", failure)] {
        let holder = &tensors[moment]["holders"][0];
        assert_eq!(holder["bytes"], truth["bytes"], "{moment}: {holder}");
        let frames = holder["stack"].list();
        assert!(
            frames.iter().any(|frame| frame["function"] == truth["function"]),
            "{moment}: {holder}"
        );
    }
    let holder = &job["stacks"]["live"][0];
    assert_eq!(holder["bytes"], failure["bytes"], "{holder}");
    // The report has both moments.
    let report = finished.told(&["report", "--json"]).json();
    for (moment, truth) in [("peak", peak), ("failure", failure)] {
        let (functions, bytes) = largest_of_report(&report, moment);
        assert_eq!(bytes, truth["bytes"].number(), "{moment}");
        let function = truth["function"].text();
        assert!(functions.iter().any(|name| name == function), "{moment}: {functions:?}");
    }
}
