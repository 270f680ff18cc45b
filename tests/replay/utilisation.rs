//! What `auto_growth` pays where memory is ample, and what fits where it is short. PyTorch's cache is the measure, with the
//! prices of an H200.

use std::path::Path;

use policy::Settings;
use prices::Prices;
use program::replay::{Outcome, Setup, Trace, play};
use support::root;
use support::traces::{self, Action, Event, MIB};

/// On a device that is so many percent as large as the trace's live peak.
fn played(trace: &Trace, strategy: &str, percent: u64, repetitions: u64) -> Outcome {
    let setup = Setup {
        settings: Settings::default(),
        device_memory: (trace.peak_live / 100 * percent).max(trace.peak_live + 4 * MIB),
        prices: Prices::parse(include_str!("../gpu/h200.toml")).expect("prices"),
        lag_ns: 1_000_000,
        repetitions,
    };
    play(trace, strategy, &setup).expect("a strategy")
}

fn recorded(name: &str) -> Trace {
    let folder = root().join("tests/repeated_jobs/recorded");
    Trace::load(&folder.join(format!("{name}.csv.gz")), None).expect("a trace")
}

fn generated(events: &[Event]) -> Trace {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.csv");
    traces::write_csv(&path, events).expect("a trace");
    Trace::load(Path::new(&path), None).expect("a trace")
}

#[test]
fn recorded_jobs_cost_less_than_under_pytorchs_cache_and_fit_where_it_does_not() {
    let traces = ["adapters", "convolutions", "llama_variable", "prefetching", "sharded"].map(recorded);
    let torch = traces
        .each_ref()
        .map(|trace| played(trace, "torch", 4000, 6).bill().total_ns());
    for (percent, most) in [(400, 0.8), (130, 0.85)] {
        let outcomes = traces.each_ref().map(|trace| played(trace, "auto_growth", percent, 6));
        let times = outcomes.each_ref().map(|outcome| outcome.bill().total_ns());
        assert_eq!(outcomes.map(|outcome| outcome.failed), [0; 5], "{percent}%");
        for (&ns, torch) in times.iter().zip(torch) {
            assert!(ns <= torch.max(5_000_000), "{percent}%: {times:?} ns");
        }
        let [ours, torch] = [times, torch].map(|times| times.iter().sum::<u64>() as f64);
        assert!(ours <= most * torch, "{percent}%: {times:?} ns");
    }
    let small = traces.map(|trace| played(&trace, "auto_growth", 110, 6).failed);
    assert_eq!(small, [0; 5]);
}

#[test]
fn hard_sequences_fit_a_device_that_is_a_third_larger() {
    for (name, events) in [
        ("full_16mib", traces::full(16, 16 * MIB, 20_000)),
        ("full_64mib", traces::full(64, 64 * MIB, 16_000)),
        ("rmm_4mib", traces::rmm(1_010_000, 4 * MIB, 10_000)),
        ("rmm_64mib", traces::rmm(2_001_000, 64 * MIB, 1_000)),
        ("rmm_1024mib", traces::rmm(4_001_000, 1024 * MIB, 1_000)),
        ("tiny", traces::tiny(1)),
        ("pipeline", traces::pipeline(1)),
        ("comb", traces::comb(1)),
        ("growing", traces::growing(1)),
        ("inference_bursts", traces::inference_bursts(1)),
        ("model_switching", traces::model_switching(1)),
        ("variable_lengths", traces::variable_lengths(1)),
    ] {
        let trace = generated(&events);
        assert_eq!(played(&trace, "auto_growth", 133, 1).failed, 0, "{name}");
    }
}

/// Unused memory costs a small job nothing, but it shares the device.
#[test]
fn a_small_job_reserves_little() {
    for (largest, events) in [(MIB, 1_000), (MIB, 10_000), (4 * MIB, 1_000)] {
        let trace = generated(&traces::rmm(events as u64, largest, events));
        let [ours, torch] = ["auto_growth", "torch"].map(|name| played(&trace, name, 10_000, 1).peak_reserved);
        let most = (trace.peak_live / 10 * 11 + 8 * MIB).max(torch);
        assert!(ours <= most, "{ours} of {most} for {}", trace.peak_live);
    }
}

/// A job that only grows asks often: its handles grow with it.
#[test]
fn growth_by_small_requests_makes_few_calls() {
    let request = |id| Event {
        action: Action::Allocate,
        id,
        size: 2 * MIB,
    };
    let events: Vec<Event> = (0..20 << 10).map(request).collect();
    let trace = generated(&events);
    let calls = played(&trace, "auto_growth", 200, 1).bill().memory_calls();
    assert!(calls < trace.peak_live / (16 * MIB), "{calls} calls");
}
