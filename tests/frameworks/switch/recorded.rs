//! Tensors that `--torch record` records.

use super::*;

/// Compares what the journal's reader says of the tensors of holders.py with PyTorch's own count.
fn assert_holders(finished: &Finished, lost_ones: bool) {
    let told = tensors(finished);
    let own = &finished.json()[0];
    assert_fields(&told, json!({"lost": 0, "damaged": 0}), "");
    if !lost_ones {
        assert_eq!(told["recorded"], own["allocations"], "{told:#}");
    }
    let device = &told["devices"][0];
    let peak = &device["peak"];
    assert_eq!(peak["bytes"], own["peak"], "{told:#}");
    assert_eq!(peak["others"], own["beside"], "{told:#}");
    assert_eq!(device["out_of_memory"], 1, "{told:#}");
    let holders = peak["holders"].list();
    let lines: Vec<_> = holders
        .iter()
        .map(|holder| (&holder["line"]["line"], &holder["tensors"]))
        .collect();
    assert_eq!(
        lines,
        [(&own["weights"], &10.into()), (&own["activations"], &1.into())],
        "{told:#}"
    );
    assert_eq!(holders[0]["line"]["file"], path("holders.py"));
    let stack = holders[1]["stack"].list();
    let functions: Vec<_> = stack.iter().map(|frame| frame["function"].text()).collect();
    assert_eq!(functions, ["activations", "<module>"]);
    if lost_ones {
        return;
    }
    // The segments of PyTorch are those of the journal.
    let linear = &finished.inspect()["devices"][0]["classes"][0];
    let together = peak["segments"].number() + peak["others"].number();
    assert_eq!(linear["requested"]["peak"], together, "{linear}");
}

#[test]
fn the_lines_that_hold_tensors_at_the_peak_are_named() {
    for strategy in STRATEGIES {
        let finished = under("record", strategy, "8GiB", &[&path("holders.py")]).run().ok();
        assert_holders(&finished, false);
        assert_eq!(tensors(&finished)["devices"][0]["end"]["bytes"], 0, "{strategy}");
        assert!(said(&finished).is_empty(), "{strategy}: {}", finished.stderr);
    }
}

#[test]
fn a_killed_job_loses_the_last_second_at_most() {
    let finished = under("record", "auto_growth", "8GiB", &[&path("holders.py"), "killed"]).run();
    assert_eq!(finished.status.code(), None, "{}", finished.stderr);
    assert_holders(&finished, true);
    let told = tensors(&finished);
    let recorded = told["recorded"].number();
    assert!((310..=360).contains(&recorded), "{told:#}");
}

#[test]
fn a_job_that_records_pytorchs_history_itself_keeps_it() {
    let finished = under("record", "auto_growth", "8GiB", &[&path("holders.py"), "history"])
        .run()
        .ok();
    let lines = said(&finished);
    assert!(
        lines.len() == 1 && lines[0].contains("records PyTorch's memory history itself"),
        "{}",
        finished.stderr
    );
}

#[test]
fn recording_changes_no_figure_and_counts_what_it_lost() {
    let script = path("figures.py");
    let own = figures(&under("off", "passthrough", "8GiB", &[&script]).run().ok());
    assert_eq!(
        own,
        figures(&under("record", "passthrough", "8GiB", &[&script]).run().ok())
    );
    // A thread of autograd allocates without the interpreter's lock, also while the history is emptied.
    let finished = under("record", "auto_growth", "8GiB", &[&path("train.py"), "300"])
        .run()
        .ok();
    let told = tensors(&finished);
    let [lost, recorded] = ["lost", "recorded"].map(|figure| told[figure].as_u64().expect(figure));
    assert!(recorded > 20_000 && lost * 20 < recorded, "{told:#}");
}
