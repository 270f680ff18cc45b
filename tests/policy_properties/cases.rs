//! Single promises of the policies, each shown in as few requests as possible.

use std::cell::RefCell;

use policy::device_memory::DeviceMemory;
use policy::{Block, Policy, Request, Settings, Strategy as Kind, UsedBy};

use crate::policy_properties::model::Model;
use prices::Prices;
use program::replay::device::{Doing, ModelDevice};

type Cell = RefCell<Box<Policy>>;

fn make(kind: Kind, settings: &Settings) -> Cell {
    RefCell::new(kind.create(settings).expect("a policy"))
}

fn block_on(policy: &Cell, memory: &dyn DeviceMemory, size: u64, stream: Option<u64>) -> Block {
    let request = Request::new(size).expect("a size").on(stream);
    policy::serve(policy, memory, request, |_| ()).expect("a block")
}

fn block_of(policy: &Cell, memory: &dyn DeviceMemory, size: u64) -> u64 {
    block_on(policy, memory, size, None).address
}

#[test]
fn a_wait_cleans_what_was_freed_before_it_began_and_no_more() {
    let settings = Settings {
        initial_bytes: 8 << 20,
        ..Settings::default()
    };
    let (model, policy) = (Model::default(), make(Kind::NaiveBestFit, &settings));
    let blocks: Vec<u64> = (0..8).map(|_| block_of(&policy, &model, 1 << 20)).collect();
    let free = |block: u64| {
        policy::free(&policy, &model, block, UsedBy::Unknown).expect("a block");
        policy.borrow_mut().begin_wait().expect("a wait")
    };
    let first = free(blocks[0]);
    let second = free(blocks[1]);
    let _third = free(blocks[2]);
    policy.borrow_mut().end_wait(second);
    assert_eq!(block_of(&policy, &model, 2 << 20), blocks[0]);
    policy.borrow_mut().end_wait(first);
    block_of(&policy, &model, 1 << 20);
    assert_eq!(policy.borrow().statistics().segments, 2, "the third block is dirty");
}

#[test]
fn new_memory_serves_where_only_dirty_memory_is_free() {
    for (kind, virtual_memory, stream) in [
        (Kind::NaiveBestFit, false, None),
        (Kind::AutoGrowth, false, None),
        (Kind::AutoGrowth, true, None),
        (Kind::AutoGrowth, true, Some(1)),
    ] {
        let settings = Settings {
            initial_bytes: 4 << 20,
            reallocate_bytes: 4 << 20,
            ..Settings::default()
        };
        let (model, policy) = (Model::default(), make(kind, &settings));
        model.virtual_memory.set(virtual_memory);
        let block = block_of(&policy, &model, 4 << 20);
        model.in_use(block, 4 << 20, UsedBy::Streams(&[0]));
        policy::free(&policy, &model, block, UsedBy::Streams(&[0]));
        let other = block_on(&policy, &model, 4 << 20, stream);
        assert!(!model.is_busy(other.address, 4 << 20, stream), "{kind:?}");
        assert_eq!(model.outstanding(), 8 << 20, "{kind:?}");
    }
}

#[test]
fn a_block_that_is_freed_makes_no_clean_neighbour_dirty() {
    let settings = Settings {
        initial_bytes: 8 << 20,
        ..Settings::default()
    };
    for kind in [Kind::NaiveBestFit, Kind::AutoGrowth] {
        let (model, policy) = (Model::default(), make(kind, &settings));
        let block = block_of(&policy, &model, 8 << 20);
        policy::free(&policy, &model, block, UsedBy::Nothing);
        let first = block_of(&policy, &model, 1 << 20);
        model.capturing.set(true);
        policy::free(&policy, &model, first, UsedBy::Unknown);
        block_of(&policy, &model, 6 << 20);
        assert_eq!(model.outstanding(), 8 << 20, "{kind:?}: no new memory");
    }
}

#[test]
fn naive_best_fit_hands_out_heads_and_chunks_tails() {
    let settings = Settings {
        initial_bytes: 1 << 20,
        chunk_bytes: 1 << 20,
        ..Settings::default()
    };
    for (kind, rest_first) in [(Kind::NaiveBestFit, false), (Kind::AutoGrowth, true)] {
        let (model, policy) = (Model::default(), make(kind, &settings));
        let first = block_of(&policy, &model, 1000);
        let second = block_of(&policy, &model, 1000);
        assert_eq!(second < first, rest_first, "{kind:?}");
    }
}

#[test]
fn naive_best_fit_reserves_once_and_leaves_larger_requests_to_the_driver() {
    let settings = Settings {
        initial_bytes: 4 << 20,
        reallocate_bytes: 2 << 20,
        ..Settings::default()
    };
    let (model, policy) = (Model::default(), make(Kind::NaiveBestFit, &settings));
    for _ in 0..4 {
        block_of(&policy, &model, 1 << 20);
    }
    assert_eq!(
        policy.borrow().statistics().segments,
        1,
        "one reservation serves them all"
    );
    let large = block_of(&policy, &model, 5 << 20);
    assert_eq!(policy.borrow().statistics().reserved, (4 << 20) + (5 << 20));
    policy::free(&policy, &model, large, UsedBy::Awaited);
    assert_eq!(policy.borrow().statistics().reserved, 4 << 20, "given back at once");
    block_of(&policy, &model, 1 << 20);
    assert_eq!(
        policy.borrow().statistics().reserved,
        (4 << 20) + (2 << 20),
        "refilled by the later size"
    );
}

/// The next of a fixed sequence of pseudo-random numbers.
pub fn draw(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    *state >> 33
}

#[test]
fn a_job_that_repeats_itself_records_few_events() {
    let (model, policy) = (Model::default(), make(Kind::AutoGrowth, &Settings::default()));
    let mut recorded = Vec::new();
    for _ in 0..1000 {
        let before = model.events_recorded.get();
        let (mut live, mut state) = (Vec::new(), 1u64);
        for step in 0..100 {
            let block = block_on(&policy, &model, 512 * (1 + draw(&mut state) % 4096), Some(0));
            live.push(block.address);
            if step >= 10 {
                let victim = live.swap_remove((draw(&mut state) % 10) as usize);
                policy::free(&policy, &model, victim, UsedBy::Streams(&[0]));
            }
            if step == 99 {
                for block in live.drain(..) {
                    policy::free(&policy, &model, block, UsedBy::Streams(&[0]));
                }
            }
            model.stream_ends(0);
        }
        recorded.push(model.events_recorded.get() - before);
    }
    let rounds: Vec<u64> = recorded.chunks(20).map(|rounds| rounds.iter().sum()).collect();
    assert!(rounds[49] < 20 * 3, "events in each 20 rounds: {rounds:?}");
}

/// A test cannot rely on a clock, so the time of a request is measured by how many free blocks it examines.
#[test]
fn a_request_examines_few_of_many_free_blocks() {
    const LIVE: u64 = 20_000;
    const REQUESTS: u64 = 6 * LIVE;
    for (kind, stream) in [
        (Kind::NaiveBestFit, None),
        (Kind::AutoGrowth, None),
        (Kind::AutoGrowth, Some(0)),
    ] {
        let device = ModelDevice::new(1 << 40, Prices::default(), 0);
        let policy = make(kind, &Settings::default());
        let (mut live, mut state) = (Vec::new(), 1u64);
        for _ in 0..REQUESTS {
            if live.len() as u64 == LIVE {
                let victim = live.swap_remove((draw(&mut state) % LIVE) as usize);
                policy::free(
                    &policy,
                    &device,
                    victim,
                    stream
                        .as_slice()
                        .first()
                        .map_or(UsedBy::Nothing, |_| UsedBy::Streams(&[0])),
                );
            }
            device.requested(Doing::Allocates, 0);
            let block = block_on(&policy, &device, 512 * (1 + draw(&mut state) % 2048), stream);
            live.push(block.address);
        }
        let examined = policy.borrow().statistics().examined;
        assert!(
            examined < 8 * REQUESTS,
            "{kind:?}, stream {stream:?}: {examined} examined for {REQUESTS} requests"
        );
    }
}
