//! Why PyTorch ran out of memory: what its cache held free is told apart from its tensors.

use serde_json::Value;
use support::{Fields, Finished, run_to_shortage};

use super::jobs::forked;
use super::path;

/// Runs a script under `--torch record` until it dies. Returns its output, and what `why` says, with its exit code.
fn dies(memory: &str, arguments: &[&str]) -> (Finished, Value, Option<i32>) {
    let script = path(arguments[0]);
    let arguments = [&[script.as_str()], &arguments[1..]].concat();
    let finished = run_to_shortage(|| forked("record", "passthrough", memory, &arguments));
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let told = finished.told(&["why", "--json"]);
    (finished, told.json(), told.code)
}

#[test]
fn a_cache_in_pieces_is_told_by_pytorchs_own_figures() {
    let (finished, page, code) = dies("24GiB", &["fragmented.py"]);
    let figures: Vec<u64> = finished
        .stdout
        .split_whitespace()
        .filter_map(|figure| figure.parse().ok())
        .collect();
    let [allocated, reserved] = figures[..] else {
        panic!("{}", finished.stdout)
    };
    assert_eq!(page["why"]["verdict"], "cached_but_unusable", "{page:#}");
    assert_eq!(code, Some(14));
    let ledger = &page["why"]["ledger"];
    assert_eq!(
        (&ledger["live"], &ledger["cached"]),
        (&allocated.into(), &(reserved - allocated).into())
    );
    assert_eq!(ledger["unknown"], 0);
    assert_eq!(page["why"]["failure"]["tries"], 2);
    // The holders are tensors, and not segments.
    let holders = page["holders"].list();
    let held: u64 = holders.iter().map(|holder| holder["bytes"].number()).sum();
    assert_eq!(held, allocated, "{holders:#?}");
}

/// The report says the same as `why`.
fn verdict_of_report(finished: &Finished) -> Value {
    finished.told(&["report", "--json"]).json()["processes"][0]["verdict"]["name"].clone()
}

#[test]
fn a_leak_of_tensors_is_seen_inside_the_segments() {
    let (finished, page, code) = dies("4GiB", &["dying.py", "leak"]);
    assert_eq!(
        (&page["why"]["verdict"], code),
        (&"growth".into(), Some(13)),
        "{page:#}"
    );
    let what = page["holders"][0]["what"].text();
    assert!(what.contains("keep"), "{what}");
    assert_eq!(verdict_of_report(&finished), "growth");
}

#[test]
fn the_limit_of_pytorch_itself_is_named() {
    let (finished, page, code) = dies("2GiB", &["dying.py", "fraction"]);
    assert_eq!((&page["why"]["verdict"], code), (&"limit".into(), Some(16)), "{page:#}");
    let text = page["why"]["text"].text();
    assert!(text.contains("set_per_process_memory_fraction"), "{text}");
    assert!(text.contains("refused 1.00 GiB"), "{text}");
    assert_eq!(verdict_of_report(&finished), "limit");
}
