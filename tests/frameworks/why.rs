//! Why PyTorch ran out of memory: what its cache held free is told apart from its tensors.

use serde_json::Value;
use support::{Fields, Finished, assert_says, run_to_shortage};

use super::jobs::forked;
use super::path;

/// Runs a script under `--torch record` until it dies of this. Returns its output, and what `why` says. The report says the
/// same.
fn dies(memory: &str, script: &str, argument: &str, verdict: &str, code: i32) -> (Finished, Value) {
    let finished = run_to_shortage(|| forked("record", "passthrough", memory, &[&path(script), argument]));
    assert!(matches!(finished.status.code(), Some(1 | 3)), "{}", finished.stderr);
    let told = finished.told(&["why", "--json"]);
    let page = told.json();
    let answer = (page["why"]["verdict"].text(), told.code);
    assert_eq!(answer, (verdict, Some(code)), "{page:#}");
    let report = finished.told(&["report", "--json"]).json();
    assert_eq!(report["processes"][0]["verdict"]["name"], verdict);
    (finished, page)
}

#[test]
fn a_cache_in_pieces_is_told_by_pytorchs_own_figures() {
    let (finished, page) = dies("24GiB", "fragmented.py", "", "cached_but_unusable", 14);
    let own = &finished.json()[0];
    let ledger = &page["why"]["ledger"];
    let figures = ["live", "cached", "unknown"].map(|name| ledger[name].number());
    let allocated = own["allocated"].number();
    assert_eq!(figures, [allocated, own["reserved"].number() - allocated, 0]);
    assert_eq!(page["why"]["failure"]["tries"], 2);
    assert_says(page["why"]["failure"]["asked_by"].text(), ".py:");
    // The holders are tensors, and not segments.
    let holders = page["holders"].list().iter();
    let held: u64 = holders.map(|holder| holder["bytes"].number()).sum();
    assert_eq!(held, allocated, "{page:#}");
}

#[test]
fn a_leak_of_tensors_is_seen_inside_the_segments() {
    let (_, page) = dies("2GiB", "advice.py", "leak", "growth", 13);
    assert!(page["holders"][0]["what"].text().contains("leak"), "{page:#}");
}

#[test]
fn the_limit_of_pytorch_itself_is_named() {
    let (_, page) = dies("2GiB", "advice.py", "fraction", "limit", 16);
    let text = page["why"]["text"].text();
    assert!(text.contains("set_per_process_memory_fraction"), "{text}");
    assert!(text.contains("refused 700.0 MiB"), "{text}");
}
