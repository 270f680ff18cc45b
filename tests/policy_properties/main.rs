//! Policies under random requests, faults and captures, over a model device that knows what is still in use.

use proptest::prelude::*;
use vramshim::device_memory::DriverError;
use vramshim::policy::{Policy, Settings, Strategy as Kind, create};

mod branches;
mod model;
use model::{GRANULARITY, Model, TOTAL};

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    /// Bytes, used on the stream of this number.
    AllocateOn(u64, u64),
    /// On the stream that it was allocated for.
    Free(usize),
    /// Nobody knows which streams have used it.
    FreeUsedAnywhere(usize),
    FreeUnknown(u64),
    Capture(bool),
    ReleaseIdle,
}

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
        1 => any::<usize>().prop_map(Step::FreeUsedAnywhere),
        1 => any::<u64>().prop_map(Step::FreeUnknown),
        1 => any::<bool>().prop_map(Step::Capture),
        1 => Just(Step::ReleaseIdle),
    ]
}

fn policy() -> impl Strategy<Value = (Kind, Settings)> {
    let naive = (0u64..24, 0u64..8, 0.05f64..1.0).prop_map(|(initial, reallocate, fraction)| {
        let (initial_bytes, reallocate_bytes) = (initial << 20, reallocate << 20);
        (
            Kind::NaiveBestFit,
            Settings {
                initial_bytes,
                reallocate_bytes,
                fraction,
                ..Settings::default()
            },
        )
    });
    let growth = (prop_oneof![Just(0u64), 0u64..8], any::<bool>(), any::<bool>()).prop_map(
        |(chunk, free_idle_chunk, free_when_no_cache_hit)| {
            let settings = Settings {
                chunk_bytes: chunk << 20,
                free_idle_chunk,
                free_when_no_cache_hit,
                ..Settings::default()
            };
            (Kind::AutoGrowth, settings)
        },
    );
    prop_oneof![naive, growth]
}

struct Run {
    kind: Kind,
    model: Model,
    policy: Box<dyn Policy>,
    live: Vec<Live>,
}

#[derive(Clone, Copy)]
struct Live {
    address: u64,
    allocated: u64,
    requested: u64,
    stream: Option<u64>,
}

impl Run {
    fn take(&mut self, step: Step) {
        match step {
            Step::Allocate(size) => self.allocate(size, None),
            Step::AllocateOn(size, stream) => self.allocate(size, Some(stream)),
            Step::Free(which) | Step::FreeUsedAnywhere(which) if !self.live.is_empty() => {
                let block = self.live.swap_remove(which % self.live.len());
                let stream = block.stream.filter(|_| matches!(step, Step::Free(_)));
                self.model.in_use(block.address, block.allocated, stream);
                let freed = self.policy.free(&self.model, block.address, stream);
                let freed = freed.expect("a live block");
                assert_eq!((freed.address, freed.allocated), (block.address, block.allocated));
                assert_eq!(
                    self.policy.free(&self.model, block.address, stream),
                    None,
                    "freed twice"
                );
            }
            Step::Free(_) | Step::FreeUsedAnywhere(_) => {}
            Step::FreeUnknown(address) => {
                let before = self.policy.statistics();
                let inside = self
                    .live
                    .first()
                    .map_or(address, |block| block.address + 1 + address % (block.allocated - 1));
                assert_eq!(self.policy.free(&self.model, inside, None), None);
                assert_eq!(self.policy.statistics(), before);
            }
            Step::Capture(open) => self.model.capturing.set(open),
            Step::ReleaseIdle if self.model.capturing.get() => {}
            Step::ReleaseIdle => drop(self.policy.release_idle(&self.model)),
        }
        self.check();
    }

    fn allocate(&mut self, size: u64, stream: Option<u64>) {
        let largest = self.policy.statistics().largest_free_block;
        let room = TOTAL - self.model.outstanding();
        match self.policy.allocate(&self.model, size, stream) {
            Ok(block) => {
                assert!(size > 0 && block.requested == size && block.allocated >= size);
                assert_eq!(block.address % 256, 0);
                // What is captured runs later, whatever stream it is captured from.
                let in_order = stream.filter(|_| !self.model.capturing.get());
                let dirty = self.model.is_busy(block.address, block.allocated, in_order);
                assert!(!dirty, "a block was handed out while earlier work could still touch it");
                self.live.push(Live {
                    address: block.address,
                    allocated: block.allocated,
                    requested: size,
                    stream,
                });
            }
            Err(DriverError::OUT_OF_MEMORY)
                if size > 0 && self.model.fault_at.get() == 0 && !self.model.capturing.get() =>
            {
                let rounded = size.checked_next_multiple_of(512).unwrap_or(u64::MAX);
                if self.model.keeps_mappings.get() {
                    let new = room / GRANULARITY;
                    assert!(
                        rounded.div_ceil(GRANULARITY) > new,
                        "{new} new granules would have served {size}"
                    );
                    return;
                }
                assert!(rounded > largest, "a free block of {largest} would have served {size}");
                if self.model.virtual_memory.get() && self.kind == Kind::AutoGrowth {
                    let granules = self.free_granules() + room / GRANULARITY;
                    let needed = rounded.div_ceil(GRANULARITY);
                    assert!(needed > granules, "{granules} free granules would have served {size}");
                } else {
                    assert!(rounded > room, "the device had {room} bytes for {size}");
                }
            }
            Err(problem) => assert!(size > 0 || problem == DriverError::INVALID_VALUE),
        }
    }

    /// Granules that no live block has a byte of.
    fn free_granules(&self) -> u64 {
        let live = self.live.iter().map(|block| (block.address, block.allocated));
        self.model.free_granules(live)
    }

    fn check(&self) {
        let told = self.policy.statistics();
        let model = &self.model;
        assert_eq!(told.reserved, model.outstanding(), "reserved");
        let segments: u64 = model.segments.borrow().values().sum();
        assert_eq!(
            model.told() + segments,
            model.outstanding(),
            "what the account was told"
        );
        let allocated = self.live.iter().map(|block| block.allocated).sum::<u64>();
        assert_eq!(told.allocated, allocated, "allocated");
        assert_eq!(told.free, told.reserved - told.allocated);
        assert_eq!(told.live_blocks, self.live.len());
        let mut blocks = self.live.clone();
        blocks.sort_unstable_by_key(|block| block.address);
        model.assert_apart(blocks.iter().map(|block| (block.address, block.allocated)));
        self.check_remains();
        if model.physical.borrow().is_empty() {
            self.check_chunks(&blocks);
        }
        for block in &blocks {
            let found = self
                .policy
                .find(block.address + block.allocated / 2)
                .expect("an interior address leads to its block");
            assert_eq!((found.address, found.requested), (block.address, block.requested));
            assert!(self.policy.owns(block.address));
        }
    }

    /// What is left for its owner to give back is what the device knows of.
    fn check_remains(&self) {
        let mut remains = self.policy.remains();
        remains.mapped.sort_unstable();
        remains.ranges.sort_unstable();
        let mapped = self.model.mappings.borrow();
        let mapped: Vec<_> = mapped.iter().map(|(&start, &(bytes, ..))| (start, bytes)).collect();
        assert_eq!(remains.mapped, mapped, "mapped");
        let handles: Vec<u64> = self.model.physical.borrow().keys().copied().collect();
        assert_eq!(remains.handles, handles, "handles");
        let ranges: Vec<_> = self.model.ranges.borrow().clone().into_iter().collect();
        assert_eq!(remains.ranges, ranges, "reserved address space");
    }

    /// With chunks alone it is known what the largest free block must be.
    fn check_chunks(&self, blocks: &[Live]) {
        let told = self.policy.statistics();
        let segments = self.model.segments.borrow();
        let mut free_runs = Vec::new();
        for (&start, &size) in segments.iter() {
            let mut at = start;
            for block in blocks
                .iter()
                .filter(|block| (start..start + size).contains(&block.address))
            {
                free_runs.push(block.address - at);
                at = block.address + block.allocated;
            }
            assert!(at <= start + size, "a block reaches out of its segment");
            free_runs.push(start + size - at);
        }
        let largest = free_runs.into_iter().max().unwrap_or(0);
        assert_eq!(told.largest_free_block, largest, "largest free block");
    }

    fn end(mut self) {
        self.model.capturing.set(false);
        self.model.fault_at.set(0);
        self.model.keeps_mappings.set(false);
        for block in std::mem::take(&mut self.live) {
            assert!(self.policy.free(&self.model, block.address, block.stream).is_some());
        }
        self.policy.release_idle(&self.model);
        assert_eq!(self.model.outstanding(), 0, "every byte goes back");
        let left = self.policy.statistics();
        assert_eq!(
            (left.reserved, left.allocated, left.free, left.live_blocks),
            (0, 0, 0, 0)
        );
        assert_eq!(left.synchronisations, self.model.synchronisations.get());
    }
}

fn run(kind: Kind, settings: &Settings, virtual_memory: bool, fault_at: u64, steps: &[Step]) -> u64 {
    let model = Model::default();
    model.virtual_memory.set(virtual_memory);
    model.fault_at.set(fault_at);
    let mut run = Run {
        kind,
        model,
        policy: create(kind, settings).expect("a policy"),
        live: Vec::new(),
    };
    for step in steps {
        run.take(step.clone());
    }
    let calls = run.model.calls.get();
    run.end();
    calls
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

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
        let calls = run(kind, &settings, virtual_memory, 0, &steps);
        for fault_at in 1..=calls {
            run(kind, &settings, virtual_memory, fault_at, &steps);
        }
    }
}

fn block_of(policy: &mut dyn Policy, model: &Model, size: u64) -> u64 {
    policy.allocate(model, size, None).expect("a block").address
}

#[test]
fn a_freed_block_costs_one_synchronisation_when_it_is_reused_and_covers_all_freed_before() {
    let settings = Settings {
        initial_bytes: 8 << 20,
        ..Settings::default()
    };
    let (model, mut policy) = (
        Model::default(),
        create(Kind::NaiveBestFit, &settings).expect("a policy"),
    );
    let blocks: Vec<u64> = (0..8).map(|_| block_of(policy.as_mut(), &model, 1 << 20)).collect();
    assert_eq!(model.synchronisations.get(), 0, "memory never used is clean");
    for &block in &blocks {
        policy.free(&model, block, None);
    }
    assert_eq!(model.synchronisations.get(), 0, "freeing alone waits for nothing");
    for _ in 0..8 {
        block_of(policy.as_mut(), &model, 1 << 20);
    }
    assert_eq!(model.synchronisations.get(), 1);
}

#[test]
fn nothing_waits_where_no_free_block_would_be_long_enough() {
    let settings = Settings {
        initial_bytes: 8 << 20,
        ..Settings::default()
    };
    for (kind, stream) in [
        (Kind::NaiveBestFit, None),
        (Kind::AutoGrowth, None),
        (Kind::AutoGrowth, Some(0)),
    ] {
        let (model, mut policy) = (Model::default(), create(kind, &settings).expect("a policy"));
        let allocate = |policy: &mut dyn Policy, mebibytes: u64| {
            let block = policy.allocate(&model, mebibytes << 20, stream);
            block.expect("a block").address
        };
        let blocks: Vec<u64> = (0..8).map(|_| allocate(policy.as_mut(), 1)).collect();
        for &block in blocks.iter().step_by(2) {
            policy.free(&model, block, stream);
        }
        allocate(policy.as_mut(), 2);
        assert_eq!(model.synchronisations.get(), 0, "{kind:?}, stream {stream:?}");
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
        let (model, mut policy) = (Model::default(), create(kind, &settings).expect("a policy"));
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
        create(Kind::NaiveBestFit, &settings).expect("a policy"),
    );
    for _ in 0..4 {
        block_of(policy.as_mut(), &model, 1 << 20);
    }
    assert_eq!(policy.statistics().segments, 1, "one reservation serves them all");
    let large = block_of(policy.as_mut(), &model, 5 << 20);
    assert_eq!(policy.statistics().reserved, (4 << 20) + (5 << 20));
    policy.free(&model, large, None);
    assert_eq!(policy.statistics().reserved, 4 << 20, "given back at once");
    block_of(policy.as_mut(), &model, 1 << 20);
    assert_eq!(
        policy.statistics().reserved,
        (4 << 20) + (2 << 20),
        "refilled by the later size"
    );
}

/// The second half of one granule and the first of another are free, and all else is in use.
fn two_halves() -> Vec<Step> {
    let allocated = [1, 1, 2, 1, 1].map(|mebibytes| Step::Allocate(mebibytes << 20));
    // The last one takes the place of the one that was freed.
    allocated.into_iter().chain([Step::Free(1), Step::Free(3)]).collect()
}

fn growing() -> Run {
    let model = Model::default();
    model.virtual_memory.set(true);
    Run {
        kind: Kind::AutoGrowth,
        model,
        policy: create(Kind::AutoGrowth, &Settings::default()).expect("a policy"),
        live: Vec::new(),
    }
}

#[test]
fn what_is_free_of_two_granules_serves_one_request() {
    let mut run = growing();
    for step in two_halves().into_iter().chain([Step::Allocate(2 << 20)]) {
        run.take(step);
    }
    assert_eq!(run.model.outstanding(), 6 << 20, "no new memory");
    assert_eq!(run.model.mappings.borrow().len(), 5, "two granules have two places");
    // Both halves of both granules are side by side again, in whichever place.
    for _ in 0..3 {
        run.take(Step::Free(0));
    }
    run.take(Step::Allocate(5 << 20));
    assert_eq!(run.model.outstanding(), 6 << 20, "no new memory");
    run.end();
}

#[test]
fn a_stream_waits_for_others_and_for_memory_that_has_to_be_mapped() {
    let mut run = growing();
    for mebibytes in [6, 2, 6, 2] {
        run.take(Step::AllocateOn(mebibytes << 20, 0));
    }
    run.take(Step::Free(0));
    run.take(Step::AllocateOn(4 << 20, 0));
    assert_eq!(run.model.synchronisations.get(), 0, "its own memory serves it");
    run.take(Step::Free(2));
    run.take(Step::AllocateOn(5 << 20, 1));
    assert_eq!(run.model.synchronisations.get(), 1, "another stream may use it still");
    assert_eq!(run.model.outstanding(), 16 << 20, "no new memory");
    run.take(Step::Free(3));
    run.take(Step::AllocateOn(8 << 20, 1));
    assert_eq!(
        run.model.synchronisations.get(),
        2,
        "nothing is moved while work may use it"
    );
    assert_eq!(run.model.outstanding(), 16 << 20, "no new memory");
    run.end();
}

/// The next of a sequence of numbers that is the same each time.
fn draw(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    *state >> 33
}

#[test]
fn a_job_that_grows_no_more_seldom_waits() {
    let Run { model, mut policy, .. } = growing();
    let (mut live, mut state, mut waited) = (Vec::new(), 1u64, Vec::new());
    for _ in 0..20 {
        let before = model.synchronisations.get();
        for _ in 0..1000 {
            let drawn = draw(&mut state) as usize;
            if live.len() == 16 {
                policy.free(&model, live.swap_remove(drawn % 16), Some(0));
            }
            let block = policy.allocate(&model, 512 * (2048 + drawn as u64 % 4096), Some(0));
            live.push(block.expect("a block").address);
        }
        waited.push(model.synchronisations.get() - before);
    }
    assert!(
        waited[19] * 4 < waited[0],
        "synchronisations in each thousand: {waited:?}"
    );
}

#[test]
fn a_fault_while_granules_are_mapped_twice_loses_no_byte() {
    let mut steps = two_halves();
    steps.push(Step::Allocate(2 << 20));
    steps.extend((0..2).flat_map(|_| [Step::Free(0), Step::Allocate(3 << 20), Step::ReleaseIdle]));
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
    run.take(Step::Free(1));
    run.model.keeps_mappings.set(true);
    run.take(Step::Allocate(4 << 20));
    assert_eq!(run.live.len(), 3, "the device had memory");
    run.end();
}

#[test]
fn places_that_cannot_be_unmapped_do_not_become_ever_more() {
    let mut run = growing();
    run.model.keeps_mappings.set(true);
    let mut state = 1u64;
    for _ in 0..2000 {
        let drawn = draw(&mut state);
        run.take(match run.live.len() > 25 {
            true => Step::Free(drawn as usize),
            false => Step::Allocate(512 * (1 + drawn % 8192)),
        });
    }
    let places = run.model.mappings.borrow().len() as u64;
    assert!(places <= 2 * TOTAL / GRANULARITY, "{places} places");
    run.end();
}

#[test]
fn a_second_place_that_is_neither_accessible_nor_unmapped_stays_on_the_books() {
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
