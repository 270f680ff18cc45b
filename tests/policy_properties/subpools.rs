//! Subpools that borrow slabs from a parent pool.
//!
//! After any sequence of requests to the subpools and the parent, no byte is in two blocks, and every byte is accounted
//! for.

use std::sync::Mutex;

use base::cuda::DriverError;
use policy::device_memory::DeviceMemory;
use policy::{After, Block, Due, Holder, ParentMemory, Policy, Request, Settings, Shared, Strategy as Kind, UsedBy};
use proptest::prelude::*;

use crate::policy_properties::model::{GRANULARITY, Model, TOTAL};
use crate::policy_properties::run::Live;
use crate::policy_properties::with_each_fault;

#[derive(Clone, Debug)]
enum Step {
    /// A pool (a subpool, or `PARENT`) and bytes.
    Allocate(usize, u64),
    /// Frees a block. Whether work may still use it.
    Free(usize, bool),
    Wait,
    /// Frees an address at which no live block of this pool begins.
    FreeUnknown(usize, u64),
    Capture(bool),
    ReleaseIdle(usize),
}

const SUBPOOLS: usize = 2;
const PARENT: usize = SUBPOOLS;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..SUBPOOLS, 1u64..1 << 20).prop_map(|(of, size)| Step::Allocate(of, size)),
        2 => (1u64..16 << 20).prop_map(|size| Step::Allocate(PARENT, size)),
        6 => any::<(usize, bool)>().prop_map(|(which, dirty)| Step::Free(which, dirty)),
        1 => Just(Step::Wait),
        1 => (0..=PARENT, any::<u64>()).prop_map(|(of, address)| Step::FreeUnknown(of, address)),
        1 => any::<bool>().prop_map(Step::Capture),
        1 => (0..=PARENT).prop_map(Step::ReleaseIdle),
    ]
}

/// The slabs that a subpool has, as was told: first address and bytes.
#[derive(Default)]
struct Borrowed(Mutex<Vec<(u64, u64)>>);

impl Borrowed {
    fn borrowed(&self, address: u64, size: u64) {
        self.0.lock().unwrap().push((address, size));
    }

    fn returned(&self, address: u64, size: u64) {
        let mut slabs = self.0.lock().unwrap();
        let has = |&(start, bytes): &(u64, u64)| start <= address && address + size <= start + bytes;
        let whole = slabs.iter().position(has).expect("part of a slab");
        let (start, bytes) = slabs.swap_remove(whole);
        let end = start + bytes;
        let rest = [(start, address - start), (address + size, end - address - size)];
        slabs.extend(rest.into_iter().filter(|&(_, size)| size > 0));
    }
}

struct Run {
    model: Model,
    parent: Shared,
    subpools: Vec<(Shared, Borrowed)>,
    live: Vec<(usize, u64, u64)>,
}

impl Run {
    fn new(kind: Kind, virtual_memory: bool, fault_at: u64) -> Run {
        let model = Model::default();
        model.virtual_memory.set(virtual_memory);
        model.fault_at.set(fault_at);
        Run {
            model,
            parent: Shared::new(kind.create(&Settings::default()).expect("a policy")),
            subpools: (0..SUBPOOLS)
                .map(|_| (Shared::new(Policy::of_subpool()), Borrowed::default()))
                .collect(),
            live: Vec::new(),
        }
    }

    fn with<T>(&self, of: usize, work: impl FnOnce(&Shared, &dyn DeviceMemory) -> T) -> T {
        match self.subpools.get(of) {
            None => work(&self.parent, &self.model),
            Some((policy, borrowed)) => {
                let memory = ParentMemory {
                    parent: &self.parent,
                    memory: &self.model,
                    borrowed: &|address, size| borrowed.borrowed(address, size),
                    returned: &|address, size| borrowed.returned(address, size),
                };
                work(policy, &memory)
            }
        }
    }

    fn ask<T>(&self, of: usize, question: impl FnOnce(&mut Policy) -> T) -> T {
        let answer = self.with(of, |policy, _| policy.with_policy(|policy| Ok(question(policy))));
        answer.expect("a policy")
    }

    fn serve(&self, of: usize, size: u64) -> Result<Block, DriverError> {
        let request = Request::new(size)?.aligned_like_the_driver();
        self.with(of, |policy, memory| policy::serve(policy, memory, request, |_| ()))
    }

    fn free(&self, of: usize, address: u64, used_by: UsedBy) -> Option<Block> {
        self.with(of, |policy, memory| policy::free(policy, memory, address, used_by))
    }

    fn release_idle(&self, of: usize) {
        self.with(of, |policy, memory| policy::release_idle(policy, memory, u64::MAX));
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Allocate(of, size) => self.allocate(of, size),
            Step::Free(which, dirty) if !self.live.is_empty() => {
                let (of, address, size) = self.live.swap_remove(which % self.live.len());
                let used_by = if dirty { UsedBy::Unknown } else { UsedBy::Nothing };
                if dirty {
                    self.model.in_use(address, size, used_by);
                }
                let freed = self.free(of, address, used_by);
                let freed = freed.map(|block| (block.address, block.allocated));
                assert_eq!(freed, Some((address, size)));
            }
            Step::Free(..) => {}
            Step::Wait if self.model.capturing.get() => {}
            Step::Wait => self.wait(),
            Step::FreeUnknown(of, address) => {
                let inside = self
                    .live
                    .first()
                    .map_or(address, |&(_, block, size)| block + 1 + address % (size - 1));
                assert_eq!(self.free(of, inside, UsedBy::Unknown), None);
            }
            Step::Capture(open) => self.model.capturing.set(open),
            Step::ReleaseIdle(_) if self.model.capturing.get() => {}
            Step::ReleaseIdle(of) => self.release_idle(of),
        }
        self.check();
    }

    fn allocate(&mut self, of: usize, size: u64) {
        match self.serve(of, size) {
            Ok(block) => {
                let request = Live::request(size, None).expect("a size");
                self.model.assert_usable(&block, &request);
                self.live.push((of, block.address, block.allocated));
            }
            Err(DriverError::OUT_OF_MEMORY) if !self.model.capturing.get() && self.model.fault_at.get() == 0 => {
                // As the engine does: it waits, the subpools give back what is free in their slabs, and the parent tries
                // again.
                self.wait();
                for subpool in 0..SUBPOOLS {
                    self.release_idle(subpool);
                }
                if let Ok(block) = self.serve(PARENT, size) {
                    self.live.push((PARENT, block.address, block.allocated));
                } else if self.model.virtual_memory.get() {
                    let needed = size.div_ceil(GRANULARITY);
                    let free = self.free_granules();
                    assert!(needed > free, "{free} free granules would have served {size}");
                }
            }
            Err(_) => {}
        }
    }

    fn wait(&self) {
        let begin = |pool| self.ask(pool, |policy| policy.begin_wait());
        let tickets: Vec<_> = (0..=PARENT).map(begin).collect();
        self.model.wait_ends(self.model.wait_begins());
        for (pool, ticket) in tickets.into_iter().enumerate() {
            let Some(ticket) = ticket else { continue };
            self.with(pool, |holder, memory| {
                let due = holder.with_policy(|policy| {
                    policy.end_wait(ticket);
                    Ok(Due::next(holder, policy, After::Free))
                });
                policy::work_off(holder, memory, due.expect("a policy"));
            });
        }
    }

    /// How many granules, created or not, contain no byte of a live block.
    fn free_granules(&self) -> u64 {
        let live = self.live.iter().map(|&(_, address, size)| (address, size));
        self.model.free_granules(live) + (TOTAL - self.model.outstanding()) / GRANULARITY
    }

    fn check(&self) {
        let statistics = |of| self.ask(of, |policy| policy.statistics());
        let subpools: Vec<_> = (0..SUBPOOLS).map(statistics).collect();
        let parent = statistics(PARENT);
        let of = |who: usize| {
            let its = self.live.iter().filter(move |(of, ..)| *of == who);
            its.map(|(_, _, size)| size)
        };
        for (number, statistics) in subpools.iter().enumerate() {
            assert_eq!(statistics.allocated, of(number).sum::<u64>());
            assert_eq!(statistics.free, statistics.reserved - statistics.allocated);
            let slabs = self.subpools[number].1.0.lock().unwrap();
            assert_eq!(statistics.reserved, slabs.iter().map(|(_, size)| size).sum::<u64>());
        }
        assert_eq!(parent.reserved, self.model.outstanding());
        let lent: u64 = subpools.iter().map(|statistics| statistics.reserved).sum();
        assert_eq!(parent.allocated, lent + of(PARENT).sum::<u64>());
        for (who, address, size) in self.live.clone() {
            let found = self.ask(who, |policy| policy.find(address + size / 2));
            assert_eq!(found.map(|block| block.address), Some(address));
        }
        self.model
            .assert_apart(self.live.iter().map(|&(_, address, size)| (address, size)));
    }

    fn end(mut self) {
        self.model.capturing.set(false);
        self.model.fault_at.set(0);
        for (of, address, _) in std::mem::take(&mut self.live) {
            assert!(self.free(of, address, UsedBy::Unknown).is_some());
        }
        self.wait();
        for of in 0..=PARENT {
            self.release_idle(of);
        }
        self.check();
        assert_eq!(self.model.outstanding(), 0, "every byte goes back");
    }
}

fn run(kind: Kind, virtual_memory: bool, fault_at: u64, steps: &[Step]) -> u64 {
    let mut run = Run::new(kind, virtual_memory, fault_at);
    for step in steps {
        run.take(step.clone());
    }
    let calls = run.model.calls.get();
    run.end();
    calls
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(crate::policy_properties::policies())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_requests_to_a_pool_and_its_subpools(
        kind in kind(),
        virtual_memory in any::<bool>(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        run(kind, virtual_memory, 0, &steps);
    }

    #[test]
    fn a_fault_below_a_parent_pool_loses_no_byte(
        kind in kind(),
        virtual_memory in any::<bool>(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        with_each_fault(|fault_at| run(kind, virtual_memory, fault_at, &steps));
    }
}

/// A request finds that the work of freed blocks is done. Slabs that are free then go back to the parent at once, because
/// the job may never free a block again.
#[test]
fn a_request_gives_clean_slabs_back() {
    const STREAM: u64 = 7;
    const SIZE: u64 = 1 << 20;
    let run = Run::new(Kind::AutoGrowth, true, 0);
    let on_stream = || {
        let request = Request::new(SIZE).expect("a size").on(Some(STREAM));
        run.with(0, |policy, memory| policy::serve(policy, memory, request, |_| ()))
    };
    let blocks: Vec<Block> = (0..62).map(|_| on_stream().expect("memory")).collect();
    let reserved = || run.ask(0, |policy| policy.statistics().reserved);
    let all = reserved();
    for block in blocks {
        let used_by = UsedBy::Streams(&[STREAM]);
        run.model.in_use(block.address, block.allocated, used_by);
        run.free(0, block.address, used_by);
    }
    assert_eq!(reserved(), all, "the work is not done");
    run.model.stream_ends(STREAM);
    on_stream().expect("memory");
    assert!(reserved() < all, "{} of {all} are still borrowed", reserved());
}

/// One small block keeps a slab, but not what is free in it.
#[test]
fn the_free_pieces_of_a_slab_are_idle() {
    let mut run = Run::new(Kind::NaiveBestFit, false, 0);
    for _ in 0..30 {
        run.take(Step::Allocate(0, 1 << 20));
    }
    assert!(!run.ask(1, |policy| policy.has_idle()), "it has no memory");
    while run.live.len() > 1 {
        run.take(Step::Free(1, false));
    }
    assert!(run.ask(0, |policy| policy.has_idle()));
    assert!(run.serve(PARENT, 28 << 20).is_err(), "the slab is in the way");
    run.take(Step::ReleaseIdle(0));
    assert!(!run.ask(0, |policy| policy.has_idle()));
    let rest = run.serve(PARENT, 28 << 20);
    assert!(rest.is_ok(), "all but a piece of the slab is free");
}
