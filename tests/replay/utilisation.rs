//! `auto_growth` uses its memory tightly, whatever a job asks for.
//!
//! The figures are peak live / peak reserved, a little below what was measured. Each sequence is hard in another way, and
//! a handle or a place of the wrong size costs each several percent.

use std::path::Path;

use policy::Settings;
use program::replay::{Outcome, Setup, Trace, play};
use support::root;
use support::traces::{self, Action, Event, MIB};

fn played(events: &[Event], repetitions: u64) -> (Trace, Outcome) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.csv");
    traces::write_csv(&path, events).expect("a trace");
    played_file(&path, repetitions)
}

fn played_file(path: &Path, repetitions: u64) -> (Trace, Outcome) {
    let trace = Trace::load(path, None).expect("a trace");
    let setup = Setup {
        settings: Settings::default(),
        device_memory: 80 << 30,
        prices: Default::default(),
        lag_ns: 0,
        repetitions,
    };
    let outcome = play(&trace, "auto_growth", &setup).expect("a strategy");
    (trace, outcome)
}

/// What is wrong with the sequences.
fn faults(floors: Vec<(&str, f64, u64, Vec<Event>)>) -> Vec<String> {
    let told = floors.into_iter().filter_map(|(name, floor, repetitions, events)| {
        let (trace, outcome) = played(&events, repetitions);
        let used = trace.peak_live as f64 / outcome.peak_reserved as f64;
        let is_good = used >= floor && outcome.failed == 0;
        (!is_good).then(|| format!("{name}: {used:.4} instead of {floor}, {} failed", outcome.failed))
    });
    told.collect()
}

#[test]
fn random_sizes_leave_little_unused() {
    let told = faults(vec![
        ("full_1mib", 0.780, 1, traces::full(1, MIB, 20_000)),
        ("full_16mib", 0.948, 1, traces::full(16, 16 * MIB, 20_000)),
        ("rmm_4mib_1000", 0.962, 1, traces::rmm(1_001_000, 4 * MIB, 1_000)),
        ("rmm_4mib_10000", 0.963, 1, traces::rmm(1_010_000, 4 * MIB, 10_000)),
        ("rmm_64mib_1000", 0.996, 1, traces::rmm(2_001_000, 64 * MIB, 1_000)),
        ("rmm_256mib_1000", 0.999, 1, traces::rmm(3_001_000, 256 * MIB, 1_000)),
        ("rmm_1024mib_1000", 0.999, 1, traces::rmm(4_001_000, 1024 * MIB, 1_000)),
        ("rmm_4096mib_1000", 0.999, 1, traces::rmm(5_001_000, 4096 * MIB, 1_000)),
        ("tiny", 0.997, 1, traces::tiny(1)),
        ("pipeline", 0.998, 1, traces::pipeline(1)),
    ]);
    assert!(told.is_empty(), "{told:#?}");
}

#[test]
fn orders_that_are_hard_leave_little_unused() {
    let told = faults(vec![
        ("comb", 0.998, 1, traces::comb(1)),
        ("growing", 0.998, 1, traces::growing(1)),
        ("inference_bursts", 0.991, 1, traces::inference_bursts(1)),
        ("model_switching", 0.999, 1, traces::model_switching(1)),
        ("variable_lengths", 0.998, 1, traces::variable_lengths(1)),
    ]);
    assert!(told.is_empty(), "{told:#?}");
}

/// More stitches are made than are remembered. Memory must not grow in their place.
#[test]
fn a_job_that_makes_many_stitches_reserves_no_more_when_it_repeats() {
    let told = faults(vec![("full_64mib", 0.98, 2, traces::full(64, 64 * MIB, 16_000))]);
    assert!(told.is_empty(), "{told:#?}");
}

/// A recorded PyTorch job, repeated. It makes some stitches, and handles as large as before would be in use in part.
#[test]
fn a_job_of_several_adapters_leaves_little_unused() {
    let (trace, outcome) = played_file(&root().join("tests/repeated_jobs/recorded/adapters.csv.gz"), 6);
    let used = trace.peak_live as f64 / outcome.peak_reserved as f64;
    let driver_ms = outcome.bill().driver_ns / 1_000_000;
    assert!(used >= 0.979 && driver_ms < 20, "{used:.4} in {driver_ms} ms");
}

/// A job that only grows asks often, and finds order all the same: its handles grow with it.
#[test]
fn growth_by_small_requests_makes_few_calls() {
    let request = |id| Event {
        action: Action::Allocate,
        id,
        size: 2 * MIB,
    };
    let events: Vec<Event> = (0..20 << 10).map(request).collect();
    let (trace, outcome) = played(&events, 1);
    let calls = outcome.bill().memory_calls();
    assert!(calls < trace.peak_live / (16 * MIB), "{calls} calls");
}
