//! A policy: an arena, and the rules by which a strategy uses it.
//!
//! All policies keep their segments and blocks in an `Arena`. They differ in how they make room for a request, and
//! `auto_growth` has blocks beside the arena: those in stitches, whose addresses lie outside of the arena's segments.

use base::cuda::CudaResult;

use crate::arena::{Arena, Region};
use crate::auto_growth::{AutoGrowth, Memory};
use crate::blocks::{Id, Kind};
use crate::holdings::{After, Backing, Block, Statistics, UsedBy, VirtualMemory, WaitTicket};
use crate::naive_best_fit::NaiveBestFit;
use crate::request::Request;
use crate::slabs;
use crate::work::{Obtain, Work};
use crate::{Settings, Strategy};

/// What a policy does about a request now.
#[derive(Debug)]
pub enum Decision {
    Block(Block),
    /// This has to be done first. After the commit the policy is asked again.
    First(Work),
    /// No memory that the policy has can serve the request. The caller must be the only one that makes the policy grow
    /// (`Holder::growing`), and then asks again with `Request::may_grow`.
    Grow,
}

/// No method calls the driver. What needs a call is work, which the caller carries out while it does not use the policy;
/// see `serve`.
pub struct Policy {
    arena: Arena,
    rules: Rules,
}

enum Rules {
    NaiveBestFit(NaiveBestFit),
    AutoGrowth(AutoGrowth),
    /// Those of a subpool.
    Slabs,
}

impl Rules {
    /// A block for the request from the memory that the policy has, if that serves it.
    #[inline]
    fn find(&mut self, arena: &mut Arena, request: &Request) -> Option<Block> {
        match self {
            Rules::NaiveBestFit(_) => NaiveBestFit::find(arena, request),
            Rules::AutoGrowth(rules) => rules.find(arena, request),
            Rules::Slabs => slabs::find(arena, request),
        }
    }

    /// Work that makes room for a request that `find` does not serve. The caller alone makes the policy grow until the
    /// work is committed. Rules that are asked again for the same request must not give the same work for ever.
    fn grow(&mut self, arena: &mut Arena, request: &mut Request) -> CudaResult<Work> {
        match self {
            Rules::NaiveBestFit(rules) => Ok(rules.grow(request)),
            Rules::AutoGrowth(rules) => rules.grow(arena, request),
            Rules::Slabs => Ok(slabs::grow(request)),
        }
    }

    /// A segment was obtained, and is a free block of the arena now, or was not. An error is the answer to the request.
    fn obtained(&mut self, obtain: &Obtain, result: CudaResult<Id>) -> CudaResult {
        match (self, result) {
            (Rules::NaiveBestFit(rules), Ok(_)) => rules.reserved |= obtain.region == Region::Main,
            (Rules::AutoGrowth(rules), Ok(_)) => rules.obtained(),
            (Rules::AutoGrowth(rules), Err(problem)) => return rules.not_obtained(obtain, problem),
            (_, result) => return result.map(drop),
        }
        Ok(())
    }

    /// A freed block has become clean, and was joined with its clean neighbours to `free_block`.
    #[inline]
    fn after_clean(&self, arena: &mut Arena, free_block: Id) {
        if let Rules::Slabs = self {
            slabs::give_back_spare(arena, free_block);
        }
    }

    /// The memory that `auto_growth` maps itself.
    #[inline]
    fn mapped_memory(&self) -> Option<&Memory> {
        match self {
            Rules::AutoGrowth(rules) => rules.memory.as_deref(),
            Rules::NaiveBestFit(_) | Rules::Slabs => None,
        }
    }

    fn mapped_memory_mut(&mut self) -> Option<&mut Memory> {
        match self {
            Rules::AutoGrowth(rules) => rules.memory.as_deref_mut(),
            Rules::NaiveBestFit(_) | Rules::Slabs => None,
        }
    }
}

impl Strategy {
    /// A new policy for one context; `None` if the strategy forwards each call and needs none.
    pub fn create(self, settings: &Settings) -> Option<Box<Policy>> {
        Some(Policy::with(match self {
            Strategy::Passthrough => return None,
            Strategy::NaiveBestFit => Rules::NaiveBestFit(NaiveBestFit::new(settings)),
            Strategy::AutoGrowth => Rules::AutoGrowth(AutoGrowth::new(settings)),
        }))
    }
}

impl Policy {
    /// Boxed, because a pool is also made on threads with small stacks.
    fn with(rules: Rules) -> Box<Policy> {
        let arena = Arena::new();
        Box::new(Policy { arena, rules })
    }

    /// The policy of a new subpool. It must be called with a `ParentMemory`.
    pub fn of_subpool() -> Box<Policy> {
        Policy::with(Rules::Slabs)
    }

    /// The next step of a request. Waits for nothing.
    pub fn decide(&mut self, request: &mut Request) -> CudaResult<Decision> {
        let Policy { arena, rules } = self;
        arena.note_request(request);
        if let Some(look) = arena.look_for(request) {
            return Ok(Decision::First(Work::Look(look)));
        }
        if let Some(block) = rules.find(arena, request) {
            return Ok(Decision::Block(block));
        }
        if !request.may_grow {
            return Ok(Decision::Grow);
        }
        rules.grow(arena, request).map(Decision::First)
    }

    /// Frees the live block that begins at `address`. If there is none, returns `None` and changes nothing.
    pub fn free(&mut self, address: u64, used_by: UsedBy) -> Option<Block> {
        let Policy { arena, rules } = self;
        let Some((block, free_block)) = arena.free(address, used_by) else {
            return rules.mapped_memory_mut()?.stitches.free(arena, address, used_by);
        };
        let goes_back = || {
            let is_chunk = matches!(&*rules, Rules::AutoGrowth(rules) if rules.gives_idle_chunks_back());
            is_chunk || arena.region(free_block) == Region::Dedicated
        };
        // Only a free that waits gives the segment back, because the next layer waits.
        if used_by == UsedBy::Awaited && goes_back() {
            arena.give_back_when_idle(free_block);
        } else if used_by == UsedBy::Nothing {
            rules.after_clean(arena, free_block);
        }
        Some(block)
    }

    /// Work that is due, beside all requests: events to be recorded, or memory to be given back. The caller asks
    /// each time it has changed the policy, before it unlocks it. It asks again after each commit, until no work is due.
    #[inline]
    pub fn next_work(&mut self, after: After) -> Option<Work> {
        self.arena.next_work(after)
    }

    /// What the work achieved becomes part of the books, and what it did not use is free again. An error is the answer to
    /// the request that the work was done for.
    pub fn commit(&mut self, work: Work) -> CudaResult {
        let Policy { arena, rules } = self;
        let reserved = arena.reserved;
        match work {
            Work::Look(look) => arena.looked(look, |arena, clean| rules.after_clean(arena, clean)),
            Work::Record(record) => arena.recorded(record),
            Work::Forget(left) => arena.forgotten.extend(left),
            Work::Return(given_back) => arena.given_back(given_back),
            Work::Obtain(obtain) => {
                let Obtain { size, region, .. } = obtain;
                let added = obtain
                    .address
                    .map(|address| arena.add_segment(address, size, Kind::Free, region));
                rules.obtained(&obtain, added)?;
            }
            Work::Ask(_) | Work::Map(_) | Work::Unmap(_) => match rules {
                Rules::NaiveBestFit(rules) => rules.commit(work),
                Rules::AutoGrowth(rules) => rules.commit(arena, work)?,
                Rules::Slabs => {}
            },
        }
        if arena.reserved > reserved {
            arena.expect_events();
        }
        Ok(())
    }

    /// Called before a wait for all work that may use the memory. The blocks that are dirty now are clean when the wait
    /// has ended. `None` if a wait changes nothing. Other requests may come during the wait.
    pub fn begin_wait(&mut self) -> Option<WaitTicket> {
        let memory = self.rules.mapped_memory();
        let helps = !self.arena.all_clean() || memory.is_some_and(|memory| memory.stitches.wants_wait(&self.arena));
        helps.then(|| self.arena.begin_wait())
    }

    /// The wait has ended, so the blocks that were dirty when it began are clean.
    pub fn end_wait(&mut self, ticket: WaitTicket) {
        let rules = &self.rules;
        self.arena
            .end_wait(ticket, |arena, clean| rules.after_clean(arena, clean));
    }

    /// Makes events due on all streams that may use dirty blocks.
    pub fn want_events(&mut self) {
        self.arena.want_all_events();
    }

    /// The live block that contains `address`.
    pub fn find(&self, address: u64) -> Option<Block> {
        let found = self.arena.find(address);
        found.or_else(|| self.rules.mapped_memory()?.stitches.find(address))
    }

    /// The memory behind a live block, or behind a part of one.
    pub fn backing(&self, block: &Block) -> Option<Backing> {
        let handles = self.rules.mapped_memory().and_then(|memory| memory.backing(block));
        handles.or_else(|| self.arena.blocks.segment_of(block.address))
    }

    /// Whether `address` is in memory that the policy holds, whether live or free.
    pub fn owns(&self, address: u64) -> bool {
        let memory = self.rules.mapped_memory();
        self.arena.owns(address) || memory.is_some_and(|memory| memory.stitches.owns(address))
    }

    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.arena.statistics();
        if let Some(memory) = self.rules.mapped_memory() {
            memory.add_statistics(&mut statistics);
        }
        statistics
    }

    pub fn live(&self) -> Vec<Block> {
        let memory = self.rules.mapped_memory().into_iter();
        let in_stitches = memory.flat_map(|memory| memory.stitches.live());
        self.arena.blocks.each_live().chain(in_stitches).collect()
    }

    /// The memory that blocks in stitches have at its home: first address and size of each piece.
    pub fn stitched(&self) -> Vec<(u64, u64)> {
        self.arena.blocks.each_part().collect()
    }

    /// Splits the live block that contains `address` in two; the second begins at `address`.
    pub fn split_live(&mut self, address: u64) {
        self.arena.split_live(address);
        if let Some(memory) = self.rules.mapped_memory_mut() {
            memory.stitches.split(&mut self.arena, address);
        }
    }

    /// Whether there is memory without a live block that could be given back.
    pub fn has_idle(&self) -> bool {
        let (arena, memory) = (&self.arena, self.rules.mapped_memory());
        let is_home = |address: u64| memory.is_some_and(|memory| memory.is_home(address));
        match self.rules {
            Rules::Slabs => slabs::has_idle(arena),
            _ => arena.has_idle(|address| !is_home(address)) || memory.is_some_and(|memory| memory.has_idle(arena)),
        }
    }

    /// Whether the policy may serve a request in another way (`Request::at_last`) before the answer is out of memory.
    pub fn has_last_resort(&self) -> bool {
        matches!(&self.rules, Rules::AutoGrowth(rules) if rules.has_last_resort())
    }

    /// Takes clean memory without a live block out of the lists; the work gives it back to the next layer. Of handles, not
    /// much more than `wanted` bytes.
    pub fn release_idle(&mut self, wanted: u64) -> Vec<Work> {
        let Policy { arena, rules } = self;
        if let Rules::Slabs = rules {
            return slabs::release_idle(arena).into_iter().collect();
        }
        let is_home = |address| rules.mapped_memory().is_some_and(|memory| memory.is_home(address));
        let segments = arena.release_idle(|address| !is_home(address)).map(Work::Return);
        let memory = rules.mapped_memory_mut();
        let mapped = memory.and_then(|memory| memory.release_idle(arena, wanted));
        segments.into_iter().chain(mapped).collect()
    }

    /// What must be given back separately after the context is destroyed.
    pub fn virtual_memory(&self) -> VirtualMemory {
        let memory = self.rules.mapped_memory();
        memory.map_or_else(VirtualMemory::default, Memory::virtual_memory)
    }
}
