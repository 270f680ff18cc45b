//! The largest holder at the peak and at the failure, in each view, is that of PyTorch's own snapshot of the same run.

use support::Fields;

use super::path;
use super::switch::with_options;

#[test]
fn the_largest_holder_is_that_of_pytorchs_own_snapshot() {
    let options = ["--stacks", "python", "--torch", "record"];
    let finished = with_options(&options, "24GiB", &[&path("largest.py")]).run();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let truth = finished.json();
    let functions = [&truth[0]["function"], &truth[1]["function"]];
    assert_eq!(functions, ["activations", "optimizer"]);
    let why = finished.told(&["why", "--json"]).json();
    let holder = &why["holders"][0];
    assert_eq!(holder["bytes"], truth[1]["bytes"], "{holder}");
    assert!(holder["what"].text().contains("optimizer"), "{holder}");
    // `inspect` tells of the tensors at their peak, and at the end, which is the failure.
    let job = finished.inspect();
    assert_eq!(job["stacks"]["live"][0]["bytes"], truth[1]["bytes"]);
    for (moment, truth) in ["peak", "end"].into_iter().zip(&truth) {
        let holder = &job["tensors"]["devices"][0][moment]["holders"][0];
        assert_eq!(holder["bytes"], truth["bytes"], "{moment}: {holder}");
        let mut frames = holder["stack"].list().iter();
        assert!(
            frames.any(|frame| frame["function"] == truth["function"]),
            "{moment}: {holder}"
        );
    }
}
