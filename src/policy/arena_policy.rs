//! Rules over an arena, made into a `Policy`.
//!
//! All policies keep their segments and blocks in an `Arena`. They differ in how they make room for a request and in
//! what they do with a block that has become clean. A policy's file implements `ArenaPolicy` for that; `over_arena` adds the rest.

use base::cuda::DriverError;

use crate::arena::{Arena, Region};
use crate::blocks::Id;
use crate::policy::{After, Backing, Block, Decision, Policy, Statistics, UsedBy, VirtualMemory, WaitTicket};
use crate::request::Request;
use crate::work::{Obtain, Work};

/// The part of a policy that is its own.
pub trait ArenaPolicy: Send {
    /// A block for the request from the memory that the policy has. `None` if that does not serve it.
    fn find(&mut self, arena: &mut Arena, request: &Request) -> Option<Block>;

    /// Work that makes room for a request that `find` does not serve. The caller alone makes the policy grow until the
    /// work is committed. A policy that is asked again for the same request must not give the same work for ever.
    fn grow(&mut self, arena: &mut Arena, request: &mut Request) -> Result<Work, DriverError>;

    /// The work has obtained a segment, which is a free block of the arena now.
    fn obtained(&mut self, _arena: &mut Arena, _obtain: &Obtain) {}

    /// The work has obtained no segment. An error is the answer to the request.
    fn not_obtained(&mut self, _obtain: &Obtain, problem: DriverError) -> Result<(), DriverError> {
        Err(problem)
    }

    /// What a work of the kinds `Ask`, `Map` and `Unmap` achieved.
    fn commit(&mut self, _arena: &mut Arena, _work: Work) -> Result<(), DriverError> {
        Ok(())
    }

    /// Whether the segment at this address is given back as soon as no block in it is live. Only a free that
    /// waits does that, because the next layer waits.
    fn is_given_back(&self, _segment: u64) -> bool {
        false
    }

    /// Called after a freed block has become clean and was joined with its clean neighbours to `free_block`.
    fn after_clean(&mut self, _arena: &mut Arena, _free_block: Id) {}

    /// See `Policy::has_last_resort`.
    fn has_last_resort(&self) -> bool {
        false
    }

    /// Whether `release_idle` may find memory.
    fn has_idle(&self, arena: &Arena) -> bool {
        arena.has_idle_of(|_| true)
    }

    fn release_idle(&mut self, arena: &mut Arena) -> Vec<Work> {
        arena.release_idle().map(Work::Return).into_iter().collect()
    }

    // The blocks of stitches: their addresses lie outside of the arena's segments.

    fn free_elsewhere(&mut self, _arena: &mut Arena, _address: u64, _used_by: UsedBy) -> Option<Block> {
        None
    }

    fn find_elsewhere(&self, _address: u64) -> Option<Block> {
        None
    }

    fn owns_elsewhere(&self, _address: u64) -> bool {
        false
    }

    fn live_elsewhere(&self) -> Vec<Block> {
        Vec::new()
    }

    fn split_elsewhere(&mut self, _arena: &mut Arena, _address: u64) {}

    /// Whether a wait would let something be given back although every free block is clean.
    fn wants_wait(&self, _arena: &Arena) -> bool {
        false
    }

    /// The handles behind a block; `None` if it is in a segment.
    fn handles_behind(&self, _block: &Block) -> Option<Backing> {
        None
    }

    fn virtual_memory(&self) -> VirtualMemory {
        VirtualMemory::default()
    }

    /// Adds what the arena does not know to its statistics.
    fn add_statistics(&self, _statistics: &mut Statistics) {}
}

struct OverArena<P> {
    arena: Arena,
    policy: P,
}

/// A complete policy with an arena of its own.
pub fn over_arena(policy: impl ArenaPolicy + 'static) -> Box<dyn Policy> {
    Box::new(OverArena {
        arena: Arena::new(),
        policy,
    })
}

impl<P: ArenaPolicy> Policy for OverArena<P> {
    fn decide(&mut self, request: &mut Request) -> Result<Decision, DriverError> {
        let (arena, policy) = (&mut self.arena, &mut self.policy);
        arena.note_request(request);
        if let Some(look) = arena.look_for(request) {
            return Ok(Decision::First(Work::Look(look)));
        }
        if let Some(block) = policy.find(arena, request) {
            return Ok(Decision::Block(block));
        }
        match request.may_grow {
            true => policy.grow(arena, request).map(Decision::First),
            false => Ok(Decision::Grow),
        }
    }

    fn free(&mut self, address: u64, used_by: UsedBy) -> Option<Block> {
        let (arena, policy) = (&mut self.arena, &mut self.policy);
        let Some((block, free_block)) = arena.free(address, used_by) else {
            return policy.free_elsewhere(arena, address, used_by);
        };
        let goes_back =
            || arena.region(free_block) == Region::Dedicated || policy.is_given_back(arena.segment_base(free_block));
        if used_by == UsedBy::Awaited && goes_back() {
            arena.give_back_when_idle(free_block);
        } else if used_by == UsedBy::Nothing {
            policy.after_clean(arena, free_block);
        }
        Some(block)
    }

    fn next_work(&mut self, after: After) -> Option<Work> {
        self.arena.next_work(after)
    }

    fn commit(&mut self, work: Work) -> Result<(), DriverError> {
        let (arena, policy) = (&mut self.arena, &mut self.policy);
        let reserved = arena.reserved();
        match work {
            Work::Look(look) => arena.looked(look, |arena, clean| policy.after_clean(arena, clean)),
            Work::Record(record) => arena.recorded(record),
            Work::Forget(events) => arena.forget(events),
            Work::Return(given_back) => arena.given_back(given_back),
            Work::Obtain(obtain) => match arena.obtained(&obtain) {
                Ok(_) => policy.obtained(arena, &obtain),
                Err(problem) => policy.not_obtained(&obtain, problem)?,
            },
            Work::Ask(_) | Work::Map(_) | Work::Unmap(_) => policy.commit(arena, work)?,
        }
        if arena.reserved() > reserved {
            arena.expect_events();
            arena.want_all_events();
        }
        Ok(())
    }

    fn begin_wait(&mut self) -> Option<WaitTicket> {
        let helps = !self.arena.all_clean() || self.policy.wants_wait(&self.arena);
        helps.then(|| self.arena.begin_wait())
    }

    fn end_wait(&mut self, ticket: WaitTicket) {
        let policy = &mut self.policy;
        self.arena
            .end_wait(ticket, |arena, clean| policy.after_clean(arena, clean));
    }

    fn all_clean(&self) -> bool {
        self.arena.all_clean()
    }

    fn want_events(&mut self) {
        self.arena.want_all_events();
    }

    fn find(&self, address: u64) -> Option<Block> {
        let found = self.arena.find(address);
        found.or_else(|| self.policy.find_elsewhere(address))
    }

    fn backing(&self, block: &Block) -> Option<Backing> {
        self.policy
            .handles_behind(block)
            .or_else(|| self.arena.segment_of(block.address))
    }

    fn owns(&self, address: u64) -> bool {
        self.arena.owns(address) || self.policy.owns_elsewhere(address)
    }

    fn statistics(&self) -> Statistics {
        let mut statistics = self.arena.statistics();
        self.policy.add_statistics(&mut statistics);
        statistics
    }

    fn live(&self) -> Vec<Block> {
        let elsewhere = self.policy.live_elsewhere();
        self.arena.blocks.each_live().chain(elsewhere).collect()
    }

    fn stitched(&self) -> Vec<(u64, u64)> {
        self.arena.blocks.each_part().collect()
    }

    fn split_live(&mut self, address: u64) {
        self.arena.split_live(address);
        self.policy.split_elsewhere(&mut self.arena, address);
    }

    fn has_idle(&self) -> bool {
        self.policy.has_idle(&self.arena)
    }

    fn has_last_resort(&self) -> bool {
        self.policy.has_last_resort()
    }

    fn release_idle(&mut self) -> Vec<Work> {
        self.policy.release_idle(&mut self.arena)
    }

    fn virtual_memory(&self) -> VirtualMemory {
        self.policy.virtual_memory()
    }
}
