//! One policy over the model device, step by step.
//!
//! After each step, the statistics of the policy, its blocks and what it reported are compared with what the device
//! knows.

use base::cuda::DriverError;
use policy::{After, Block, Decision, Policy, Request, Settings, Strategy as Kind, UsedBy, WaitTicket, Work};

use crate::policy_properties::model::{GRANULARITY, Model, alignment_of};

#[derive(Clone, Debug)]
pub enum Step {
    Allocate(u64),
    /// Bytes, and the stream that the request names.
    AllocateOn(u64, u64),
    /// Frees a live block that only the stream has used that its request named. If the request named none, any stream may
    /// have, and a wait begins, unless a capture is open.
    Free(usize),
    /// Frees a live block that this stream has used as well.
    FreeUsedOn(usize, u64),
    /// Frees a live block that any stream may have used, without a wait.
    FreeUsedAnywhere(usize),
    StreamEnds(u64),
    WaitEnds(usize),
    Record,
    /// Frees an address at which no live block begins.
    FreeUnknown(u64),
    Capture(bool),
    ReleaseIdle,
    /// Other processes hold so many bytes of the device from now on.
    Others(u64),
}

pub struct Run {
    kind: Kind,
    pub model: Model,
    pub policy: Box<Policy>,
    pub live: Vec<Live>,
    /// The waits that have begun, and what the model needs to end them.
    waits: Vec<(WaitTicket, u64)>,
    wanted: Vec<Work>,
}

pub struct Live {
    pub block: Block,
    pub stream: Option<u64>,
}

impl Live {
    /// The request that obtained such a block: with a stream it is for a tensor, otherwise it comes from `cuMemAlloc`.
    pub fn request(size: u64, stream: Option<u64>) -> Result<Request, DriverError> {
        Request::new(size).map(|request| match stream {
            Some(_) => request.on(stream),
            None => request.aligned_like_the_driver(),
        })
    }
}

impl Run {
    pub fn new(kind: Kind, settings: &Settings, model: Model) -> Run {
        Run {
            kind,
            model,
            policy: kind.create(settings).expect("a policy"),
            live: Vec::new(),
            waits: Vec::new(),
            wanted: Vec::new(),
        }
    }

    pub fn take(&mut self, step: Step) {
        match step {
            Step::Allocate(size) => self.allocate(size, None),
            Step::AllocateOn(size, stream) => self.allocate(size, Some(stream)),
            Step::Free(which) | Step::FreeUsedOn(which, _) | Step::FreeUsedAnywhere(which) if !self.live.is_empty() => {
                let Live { block, stream } = self.live.swap_remove(which % self.live.len());
                let mut streams: Vec<u64> = stream.into_iter().collect();
                if let Step::FreeUsedOn(_, other) = step {
                    streams.push(other);
                }
                streams.sort_unstable();
                streams.dedup();
                let used_by = match step {
                    Step::FreeUsedAnywhere(_) => UsedBy::Unknown,
                    _ if stream.is_none() && self.model.capturing.get() => UsedBy::Unknown,
                    _ if stream.is_none() => UsedBy::Awaited,
                    _ => UsedBy::Streams(&streams),
                };
                self.free(block, used_by);
                if used_by == UsedBy::Awaited {
                    let freed = self.model.wait_begins();
                    let ticket = self.policy.begin_wait();
                    self.waits.extend(ticket.map(|ticket| (ticket, freed)));
                }
            }
            Step::Free(_) | Step::FreeUsedOn(..) | Step::FreeUsedAnywhere(_) => {}
            Step::StreamEnds(stream) => self.model.stream_ends(stream),
            Step::WaitEnds(which) if !self.waits.is_empty() => {
                let (ticket, freed) = self.waits.swap_remove(which % self.waits.len());
                self.model.wait_ends(freed);
                self.policy.end_wait(ticket);
                self.work_off(After::Free);
            }
            Step::WaitEnds(_) => {}
            Step::Record => self.record(),
            Step::Others(bytes) => self.model.others.set(bytes),
            Step::FreeUnknown(address) => {
                let before = self.policy.statistics();
                let inside = self.live.first().map_or(address, |Live { block, .. }| {
                    block.address + 1 + address % (block.allocated - 1)
                });
                assert_eq!(self.policy.free(inside, UsedBy::Unknown), None);
                assert_eq!(self.policy.statistics(), before);
            }
            Step::Capture(open) => self.model.capturing.set(open),
            Step::ReleaseIdle if self.model.capturing.get() => {}
            Step::ReleaseIdle => self.release_idle(),
        }
        self.check();
    }

    pub fn take_all(&mut self, steps: impl IntoIterator<Item = Step>) {
        steps.into_iter().for_each(|step| self.take(step));
    }

    fn free(&mut self, block: Block, used_by: UsedBy) {
        self.model.in_use(block.address, block.allocated, used_by);
        assert_eq!(self.policy.free(block.address, used_by), Some(block));
        assert_eq!(self.policy.free(block.address, used_by), None, "freed twice");
        self.model.may_wait.set(used_by == UsedBy::Awaited);
        self.work_off(After::free(used_by));
        self.model.may_wait.set(false);
    }

    /// Does the work that is due, but records no events.
    fn work_off(&mut self, after: After) {
        while let Some(mut work) = self.policy.next_work(after) {
            match work {
                Work::Record(_) => self.wanted.push(work),
                _ => {
                    work.carry_out(&self.model);
                    self.policy.commit(work).expect("no request");
                }
            }
        }
    }

    fn record(&mut self) {
        for mut work in std::mem::take(&mut self.wanted) {
            work.carry_out(&self.model);
            self.policy.commit(work).expect("no request");
        }
        self.work_off(After::Free);
    }

    pub fn release_idle(&mut self) {
        for mut work in self.policy.release_idle(u64::MAX) {
            work.carry_out(&self.model);
            self.policy.commit(work).expect("no request");
        }
    }

    /// One request, without a wait.
    fn serve(&mut self, request: Request) -> Result<Block, DriverError> {
        let mut request = request.during_capture(self.model.capturing.get());
        let answer = loop {
            match self.policy.decide(&mut request) {
                Ok(Decision::Block(block)) => break Ok(block),
                Ok(Decision::Grow) => request.may_grow = true,
                Ok(Decision::First(mut work)) => {
                    work.carry_out(&self.model);
                    if let Err(problem) = self.policy.commit(work) {
                        break Err(problem);
                    }
                }
                Err(problem) => break Err(problem),
            }
        };
        self.work_off(After::Request);
        answer
    }

    /// Waits for all work, as the library does before it reports out of memory.
    pub fn wait(&mut self) {
        let ticket = self.policy.begin_wait();
        self.model.wait_ends(self.model.wait_begins());
        if let Some(ticket) = ticket {
            self.policy.end_wait(ticket);
        }
        self.work_off(After::Free);
        assert!(self.policy.begin_wait().is_none(), "all is clean");
    }

    fn allocate(&mut self, size: u64, stream: Option<u64>) {
        let request = Live::request(size, stream);
        let alignment = if stream.is_some() { 512 } else { alignment_of(size) };
        let mut result = request.and_then(|request| self.serve(request));
        if result == Err(DriverError::OUT_OF_MEMORY) && !self.model.capturing.get() {
            self.wait();
            self.release_idle();
            result = request.and_then(|request| self.serve(request));
        }
        let largest = self.policy.statistics().largest_free_block;
        let room = self.model.room();
        match result {
            Ok(block) => {
                assert!(size > 0 && block.address.is_multiple_of(256));
                self.model.assert_usable(&block, &request.expect("a request"));
                self.live.push(Live { block, stream });
            }
            Err(DriverError::OUT_OF_MEMORY)
                if size > 0 && self.model.fault_at.get() == 0 && !self.model.capturing.get() =>
            {
                let rounded = size.checked_next_multiple_of(512).unwrap_or(u64::MAX);
                let (new, needed) = (room / GRANULARITY, rounded.div_ceil(GRANULARITY));
                if self.model.keeps_mappings.get() {
                    assert!(needed > new, "{new} new granules would have served {size}");
                    return;
                }
                let fits = rounded.saturating_add(alignment - 512) <= largest;
                assert!(!fits, "a free block of {largest} would have served {size}");
                if self.model.virtual_memory.get() && self.kind == Kind::AutoGrowth {
                    let granules = self.free_granules() + new;
                    assert!(needed > granules, "{granules} free granules would have served {size}");
                } else {
                    assert!(rounded > room, "the device had {room} bytes for {size}");
                }
            }
            Err(problem) => assert!(size > 0 || problem == DriverError::INVALID_VALUE),
        }
    }

    /// How many granules contain no byte of a live block.
    fn free_granules(&self) -> u64 {
        let live = self
            .live
            .iter()
            .map(|Live { block, .. }| (block.address, block.allocated));
        self.model.free_granules(live)
    }

    fn check(&self) {
        let statistics = self.policy.statistics();
        let model = &self.model;
        assert_eq!(statistics.reserved, model.outstanding(), "reserved");
        let segments: u64 = model.segments.borrow().values().sum();
        let told = model.reported() + segments;
        assert_eq!(told, model.outstanding(), "reported to the account");
        let mut blocks: Vec<Block> = self.live.iter().map(|live| live.block).collect();
        let allocated = blocks.iter().map(|block| block.allocated).sum::<u64>();
        assert_eq!(statistics.allocated, allocated, "allocated");
        assert_eq!(statistics.free, statistics.reserved - statistics.allocated);
        assert_eq!(statistics.live_blocks, self.live.len());
        blocks.sort_unstable_by_key(|block| block.address);
        model.assert_apart(blocks.iter().map(|block| (block.address, block.allocated)));
        self.check_virtual_memory();
        if model.physical.borrow().is_empty() {
            self.check_chunks(&blocks);
        }
        for block in &blocks {
            let found = self.policy.find(block.address + block.allocated / 2);
            assert_eq!(found, Some(*block), "an interior address leads to its block");
            assert!(self.policy.owns(block.address));
        }
    }

    /// The policy lists exactly the mappings, handles and ranges that the device knows.
    fn check_virtual_memory(&self) {
        let mut held = self.policy.virtual_memory();
        held.mapped.sort_unstable();
        held.ranges.sort_unstable();
        let mapped = self.model.mappings.borrow();
        let mapped: Vec<_> = mapped.iter().map(|(&start, &(bytes, ..))| (start, bytes)).collect();
        assert_eq!(held.mapped, mapped, "mapped");
        let handles: Vec<u64> = self.model.physical.borrow().keys().copied().collect();
        assert_eq!(held.handles, handles, "handles");
        let ranges: Vec<_> = self.model.ranges.borrow().clone().into_iter().collect();
        assert_eq!(held.ranges, ranges, "reserved address space");
    }

    /// If all memory is in segments, the largest free block follows from the live ones.
    fn check_chunks(&self, blocks: &[Block]) {
        let statistics = self.policy.statistics();
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
        assert_eq!(statistics.largest_free_block, largest, "largest free block");
    }

    pub fn end(mut self) {
        self.model.capturing.set(false);
        self.model.fault_at.set(0);
        self.model.keeps_mappings.set(false);
        for live in std::mem::take(&mut self.live) {
            self.free(live.block, UsedBy::Unknown);
        }
        self.wait();
        self.record();
        assert!(self.model.events_kept() < 64, "events are forgotten");
        self.release_idle();
        self.record();
        assert_eq!(self.model.outstanding(), 0, "every byte goes back");
        let left = self.policy.statistics();
        let sums = (left.reserved, left.allocated, left.free, left.live_blocks);
        assert_eq!(sums, (0, 0, 0, 0));
    }
}

/// Plays all steps, with a fault at this driver call (0: none), and frees what is left. Returns how many driver calls
/// the steps made.
pub fn run(kind: Kind, settings: &Settings, virtual_memory: bool, fault_at: u64, steps: &[Step]) -> u64 {
    let model = Model::default();
    model.virtual_memory.set(virtual_memory);
    // In half of the runs, because the number of steps is random.
    model.context_events.set(steps.len().is_multiple_of(2));
    model.fault_at.set(fault_at);
    let mut run = Run::new(kind, settings, model);
    run.take_all(steps.iter().cloned());
    let calls = run.model.calls.get();
    run.end();
    calls
}
