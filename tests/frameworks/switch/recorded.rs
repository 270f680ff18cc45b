//! Tensors that `--torch record` records.

use super::*;

/// Runs holders.py, and compares what the journal's reader says of its tensors with PyTorch's own count.
fn holders(strategy: &str, arguments: &[&str]) -> (Finished, Value) {
    let script = path("holders.py");
    let finished = forked("record", strategy, "8GiB", &[&[script.as_str()], arguments].concat());
    let (told, own) = (tensors(&finished), &finished.json()[0]);
    assert_fields(&told, json!({"lost": 0, "damaged": 0}), "");
    let device = &told["devices"][0];
    assert_eq!(device["out_of_memory"], 1, "{told:#}");
    let peak = &device["peak"];
    let found = (&peak["bytes"], &peak["others"]);
    assert_eq!(found, (&own["peak"], &own["beside"]), "{told:#}");
    let holders = peak["holders"].list();
    for (holder, (function, tensors, mebibytes)) in holders.iter().zip([("weights", 10, 30), ("activations", 1, 7)]) {
        assert_eq!(holder["line"]["line"], own[function], "{told:#}");
        let expected = json!({"tensors": tensors, "bytes": mebibytes << 20});
        assert_fields(holder, expected, function);
    }
    assert_eq!((holders.len(), &holders[0]["line"]["file"]), (2, &script.into()));
    // The frames after these are those of jobs.py.
    for (depth, function) in ["activations", "<module>"].into_iter().enumerate() {
        assert_eq!(holders[1]["stack"][depth]["function"], function);
    }
    (finished, told)
}

#[test]
fn the_lines_that_hold_tensors_at_the_peak_are_named() {
    for strategy in STRATEGIES {
        let (finished, told) = holders(strategy, &[]);
        assert_eq!(told["recorded"], finished.json()[0]["allocations"], "{told:#}");
        // Each view has the same tensors.
        let (device, job) = (&told["devices"][0], finished.inspect());
        let together = device["peak"]["bytes"].number() + device["peak"]["others"].number();
        assert_eq!(job["devices"][0]["allocated"]["peak"], together);
        assert_eq!(device["end"]["bytes"], 0, "{strategy}");
        assert_said(&finished.ok(), &[]);
    }
}

#[test]
fn a_killed_job_loses_the_last_second_at_most() {
    let (finished, told) = holders("auto_growth", &["killed"]);
    assert_eq!(finished.status.code(), None, "{}", finished.stderr);
    assert!((310..=360).contains(&told["recorded"].number()), "{told:#}");
}

#[test]
fn a_job_that_records_pytorchs_history_itself_keeps_it() {
    let finished = forked("record", "auto_growth", "8GiB", &[&path("holders.py"), "history"]).ok();
    assert_said(&finished, &["records PyTorch's memory history itself"]);
}

/// The list has dropped 64 MiB. It becomes longer, which empties it, before anything else is done. Each tensor is recorded or
/// counted as lost, and no view takes the highest it knows for the peak, or what PyTorch obtained for another's.
#[test]
fn figures_that_lack_lost_tensors_are_told_as_the_least() {
    let finished = forked("record", "auto_growth", "8GiB", &[&path("burst.py")]).ok();
    let own = &finished.json()[0];
    assert!(own["before"].number() > 0 && own["after"] == own["before"], "{own}");
    let told = tensors(&finished);
    let lost = told["lost"].number();
    assert_eq!(own["made"], lost + told["recorded"].number());
    assert_eq!(finished.inspect()["peaks_are_at_least"], true);
    let missing = format!("{lost} tensors are missing");
    assert_says(&finished.told(&["inspect"]).text, &missing);
    let why = finished.told(&["why"]).text;
    assert_says(&why, "Holders at the highest that is known");
    assert!(!why.contains("PyTorch did not allocate"), "{why}");
}

/// A thread of autograd allocates without the interpreter's lock, also while the history is emptied.
#[test]
fn tensors_that_are_lost_are_counted() {
    let finished = forked("record", "auto_growth", "8GiB", &[&path("train.py"), "300"]).ok();
    let told = tensors(&finished);
    let [lost, recorded] = ["lost", "recorded"].map(|figure| told[figure].number());
    assert!(recorded > 20_000 && lost * 20 < recorded, "{told:#}");
}
