//! Single promises of the policies, each shown in as few requests as possible.

use policy::{Policy, Settings, Strategy as Kind, UsedBy};

use crate::model::{GRANULARITY, Model, TOTAL};
use crate::run::{Run, Step, run};
use program::replay::device::{Doing, ModelDevice};

fn block_of(policy: &mut dyn Policy, model: &Model, size: u64) -> u64 {
    policy.allocate(model, size, None).expect("a block").address
}

#[test]
fn a_wait_cleans_what_was_freed_before_it_began_and_no_more() {
    let settings = Settings {
        initial_bytes: 8 << 20,
        ..Settings::default()
    };
    let (model, mut policy) = (
        Model::default(),
        Kind::NaiveBestFit.create(&settings).expect("a policy"),
    );
    let blocks: Vec<u64> = (0..8).map(|_| block_of(policy.as_mut(), &model, 1 << 20)).collect();
    let free = |policy: &mut dyn Policy, block: u64| {
        policy.free(&model, block, UsedBy::Unknown).expect("a block");
        policy.begin_wait().expect("a wait")
    };
    let first = free(policy.as_mut(), blocks[0]);
    let second = free(policy.as_mut(), blocks[1]);
    let _third = free(policy.as_mut(), blocks[2]);
    policy.end_wait(&model, second);
    assert_eq!(block_of(policy.as_mut(), &model, 2 << 20), blocks[0]);
    policy.end_wait(&model, first);
    block_of(policy.as_mut(), &model, 1 << 20);
    assert_eq!(policy.statistics().segments, 2, "the third block is dirty");
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
        let (model, mut policy) = (Model::default(), kind.create(&settings).expect("a policy"));
        model.virtual_memory.set(virtual_memory);
        let block = block_of(policy.as_mut(), &model, 4 << 20);
        model.in_use(block, 4 << 20, UsedBy::Streams(&[0]));
        policy.free(&model, block, UsedBy::Streams(&[0]));
        let other = policy.allocate(&model, 4 << 20, stream).expect("a block");
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
        let (model, mut policy) = (Model::default(), kind.create(&settings).expect("a policy"));
        let block = block_of(policy.as_mut(), &model, 8 << 20);
        policy.free(&model, block, UsedBy::Nothing);
        let first = block_of(policy.as_mut(), &model, 1 << 20);
        model.capturing.set(true);
        policy.free(&model, first, UsedBy::Unknown);
        block_of(policy.as_mut(), &model, 6 << 20);
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
        let (model, mut policy) = (Model::default(), kind.create(&settings).expect("a policy"));
        let first = block_of(policy.as_mut(), &model, 1000);
        let second = block_of(policy.as_mut(), &model, 1000);
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
    let (model, mut policy) = (
        Model::default(),
        Kind::NaiveBestFit.create(&settings).expect("a policy"),
    );
    for _ in 0..4 {
        block_of(policy.as_mut(), &model, 1 << 20);
    }
    assert_eq!(policy.statistics().segments, 1, "one reservation serves them all");
    let large = block_of(policy.as_mut(), &model, 5 << 20);
    assert_eq!(policy.statistics().reserved, (4 << 20) + (5 << 20));
    policy.free(&model, large, UsedBy::Nothing);
    assert_eq!(policy.statistics().reserved, 4 << 20, "given back at once");
    block_of(policy.as_mut(), &model, 1 << 20);
    assert_eq!(
        policy.statistics().reserved,
        (4 << 20) + (2 << 20),
        "refilled by the later size"
    );
}

/// A free, and the end of the wait that it begins.
fn freed(which: usize) -> [Step; 2] {
    [Step::Free(which), Step::WaitEnds(0)]
}

/// The second half of one granule and the first of another are free, and all else is in use.
fn two_halves() -> Vec<Step> {
    let allocated = [1, 1, 2, 1, 1].map(|mebibytes| Step::Allocate(mebibytes << 20));
    // After `Free(1)`, the last block has the index 1.
    let freed = [1, 3].into_iter().flat_map(freed);
    allocated.into_iter().chain(freed).collect()
}

fn growing() -> Run {
    let model = Model::default();
    model.virtual_memory.set(true);
    Run::new(Kind::AutoGrowth, &Settings::default(), model)
}

#[test]
fn what_is_free_of_two_granules_serves_one_request() {
    let mut run = growing();
    for step in two_halves().into_iter().chain([Step::Allocate(2 << 20)]) {
        run.take(step);
    }
    assert_eq!(run.model.outstanding(), 6 << 20, "no new memory");
    assert_eq!(run.model.mappings.borrow().len(), 5, "two granules have two views");
    // The halves of both granules are side by side again, each granule in one of its views.
    for _ in 0..3 {
        freed(0).into_iter().for_each(|step| run.take(step));
    }
    run.take(Step::Allocate(5 << 20));
    assert_eq!(run.model.outstanding(), 6 << 20, "no new memory");
    run.end();
}

#[test]
fn memory_goes_to_other_streams_and_other_places_when_events_are_done() {
    let mut run = growing();
    for mebibytes in [6, 2, 6, 2] {
        run.take(Step::AllocateOn(mebibytes << 20, 0));
    }
    run.take(Step::Free(0));
    run.take(Step::AllocateOn(4 << 20, 0));
    assert_eq!(run.model.outstanding(), 16 << 20, "the stream itself needs no event");
    run.take(Step::Free(2));
    run.take(Step::Record);
    run.take(Step::StreamEnds(0));
    run.take(Step::AllocateOn(5 << 20, 1));
    assert_eq!(
        run.model.outstanding(),
        16 << 20,
        "another stream, when the work is done"
    );
    run.take(Step::Free(3));
    run.take(Step::Record);
    run.take(Step::StreamEnds(1));
    run.take(Step::AllocateOn(8 << 20, 1));
    assert_eq!(
        run.model.outstanding(),
        16 << 20,
        "mapped elsewhere, when the work is done"
    );
    run.end();
}

/// The next of a fixed sequence of pseudo-random numbers.
fn draw(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    *state >> 33
}

#[test]
fn a_job_that_repeats_itself_records_few_events() {
    let Run { model, mut policy, .. } = growing();
    let mut recorded = Vec::new();
    for _ in 0..1000 {
        let before = model.events_recorded.get();
        let (mut live, mut state) = (Vec::new(), 1u64);
        for step in 0..100 {
            let block = policy.allocate(&model, 512 * (1 + draw(&mut state) % 4096), Some(0));
            live.push(block.expect("a block").address);
            if step >= 10 {
                let victim = live.swap_remove((draw(&mut state) % 10) as usize);
                policy.free(&model, victim, UsedBy::Streams(&[0]));
            }
            if step == 99 {
                for block in live.drain(..) {
                    policy.free(&model, block, UsedBy::Streams(&[0]));
                }
            }
            for wanted in policy.take_wanted_events() {
                let events = wanted.record(&model);
                policy.events_recorded(&model, wanted, events);
            }
            model.stream_ends(0);
        }
        recorded.push(model.events_recorded.get() - before);
    }
    let rounds: Vec<u64> = recorded.chunks(20).map(|rounds| rounds.iter().sum()).collect();
    assert!(rounds[49] < 20 * 3, "events in each 20 rounds: {rounds:?}");
}

#[test]
fn granules_are_small_beside_the_device_however_large_they_are_wanted() {
    let settings = Settings {
        chunk_bytes: 5000 << 20,
        ..Settings::default()
    };
    let device = ModelDevice::new(4 << 30);
    let mut policy = Kind::AutoGrowth.create(&settings).expect("a policy");
    policy.allocate(&device, 1 << 20, None).expect("a block");
    assert_eq!(policy.statistics().reserved, 256 << 20);
    for _ in 0..15 {
        policy.allocate(&device, 256 << 20, None).expect("all of the device");
    }
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
        let device = ModelDevice::new(1 << 40);
        let mut policy = kind.create(&Settings::default()).expect("a policy");
        let (mut live, mut state) = (Vec::new(), 1u64);
        for _ in 0..REQUESTS {
            if live.len() as u64 == LIVE {
                let victim = live.swap_remove((draw(&mut state) % LIVE) as usize);
                policy.free(
                    &device,
                    victim,
                    stream
                        .as_slice()
                        .first()
                        .map_or(UsedBy::Nothing, |_| UsedBy::Streams(&[0])),
                );
            }
            device.requested(Doing::Allocates, 0);
            let block = policy.allocate(&device, 512 * (1 + draw(&mut state) % 2048), stream);
            live.push(block.expect("a block").address);
            for wanted in policy.take_wanted_events() {
                let events = wanted.record(&device);
                policy.events_recorded(&device, wanted, events);
            }
        }
        let examined = policy.statistics().examined;
        assert!(
            examined < 8 * REQUESTS,
            "{kind:?}, stream {stream:?}: {examined} examined for {REQUESTS} requests"
        );
    }
}

#[test]
fn a_fault_while_granules_are_mapped_twice_loses_no_byte() {
    let mut steps = two_halves();
    steps.push(Step::Allocate(2 << 20));
    steps.extend((0..2).flat_map(|_| {
        let rest = [Step::Allocate(3 << 20), Step::ReleaseIdle];
        freed(0).into_iter().chain(rest)
    }));
    let calls = run(Kind::AutoGrowth, &Settings::default(), true, 0, &steps);
    for fault_at in 1..=calls {
        run(Kind::AutoGrowth, &Settings::default(), true, fault_at, &steps);
    }
}

#[test]
fn new_memory_serves_where_free_granules_cannot_be_unmapped() {
    let mut run = growing();
    for step in [2, 2, 2].map(|mebibytes| Step::Allocate(mebibytes << 20)) {
        run.take(step);
    }
    freed(1).into_iter().for_each(|step| run.take(step));
    run.model.keeps_mappings.set(true);
    run.take(Step::Allocate(4 << 20));
    assert_eq!(run.live.len(), 3, "the device had memory");
    run.end();
}

#[test]
fn views_that_cannot_be_unmapped_do_not_become_ever_more() {
    let mut run = growing();
    run.model.keeps_mappings.set(true);
    let mut state = 1u64;
    for _ in 0..2000 {
        let drawn = draw(&mut state);
        match run.live.len() > 25 {
            true => freed(drawn as usize).into_iter().for_each(|step| run.take(step)),
            false => run.take(Step::Allocate(512 * (1 + drawn % 8192))),
        }
    }
    let views = run.model.mappings.borrow().len() as u64;
    assert!(views <= 2 * TOTAL / GRANULARITY, "{views} views");
    run.end();
}

#[test]
fn a_second_view_that_is_neither_accessible_nor_unmapped_stays_accounted_for() {
    for fault_after in 1..6 {
        let mut run = growing();
        for step in two_halves() {
            run.take(step);
        }
        run.model.keeps_mappings.set(true);
        run.model.fault_at.set(run.model.calls.get() + fault_after);
        run.take(Step::Allocate(2 << 20));
        run.end();
    }
}
