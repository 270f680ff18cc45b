//! The policies under random requests, faults and stream captures.
//!
//! They run over a model of a device (`model`), which knows where every byte is mapped and which work may still use it.
//! `run` plays steps through one policy, `subpools` through a pool and its subpools, and checks everything after each
//! step. `cases` shows single promises in few requests.

use policy::{Settings, Strategy as Kind};
use proptest::prelude::*;

mod adversary;
mod cases;
mod interleaved;
mod mapped;
mod model;
mod pins;
mod run;
mod subpools;
use model::TOTAL;
use run::{Step, run};

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 1u64..200_000,
        4 => 1u64..8 << 20,
        1 => 1u64..40 << 20,
        1 => prop_oneof![Just(0), Just(u64::MAX), Just(1 << 50), Just(TOTAL)],
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => size().prop_map(Step::Allocate),
        6 => (size(), 0u64..3).prop_map(|(size, stream)| Step::AllocateOn(size, stream)),
        7 => any::<usize>().prop_map(Step::Free),
        1 => (any::<usize>(), 0u64..3).prop_map(|(which, stream)| Step::FreeUsedOn(which, stream)),
        1 => any::<usize>().prop_map(Step::FreeUsedAnywhere),
        3 => (0u64..3).prop_map(Step::StreamEnds),
        4 => any::<usize>().prop_map(Step::WaitEnds),
        6 => Just(Step::Record),
        1 => any::<u64>().prop_map(Step::FreeUnknown),
        1 => any::<bool>().prop_map(Step::Capture),
        1 => Just(Step::ReleaseIdle),
    ]
}

fn policies() -> Vec<Kind> {
    let has_policy = |kind: &Kind| kind.create(&Settings::default()).is_some();
    Kind::ALL.iter().copied().filter(has_policy).collect()
}

fn settings() -> impl Strategy<Value = Settings> {
    let sizes = (0u64..24, 0u64..8, 0u64..8);
    (sizes, 0.05f64..1.0, any::<bool>(), any::<bool>()).prop_map(
        |((initial, reallocate, chunk), fraction, free_idle_chunk, free_when_no_cache_hit)| Settings {
            initial_bytes: initial << 20,
            reallocate_bytes: reallocate << 20,
            chunk_bytes: chunk << 20,
            fraction: Some(fraction),
            free_idle_chunk,
            free_when_no_cache_hit,
            ..Settings::default()
        },
    )
}

/// Plays without a fault, and then once for each driver call, which fails. `play` returns how many it made.
fn with_each_fault(play: impl Fn(u64) -> u64) {
    let calls = play(0);
    for fault_at in 1..=calls {
        play(fault_at);
    }
}

fn policy() -> impl Strategy<Value = (Kind, Settings)> {
    (prop::sample::select(policies()), settings())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_requests(
        (kind, settings) in policy(),
        virtual_memory in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        run(kind, &settings, virtual_memory, 0, &steps);
    }

    #[test]
    fn a_fault_at_any_driver_call_loses_no_byte(
        (kind, settings) in policy(),
        virtual_memory in any::<bool>(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        with_each_fault(|fault_at| run(kind, &settings, virtual_memory, fault_at, &steps));
    }
}
