//! Rules over an arena, made into a `Policy`.
//!
//! All policies keep their segments and blocks in an `Arena`. They differ in how they make room for a request and in
//! what they do with a block that has become clean. A policy's file implements `ArenaPolicy` for that; `over_arena` adds the rest.

use base::cuda::DriverError;

use crate::arena::{Arena, Request};
use crate::blocks::Id;
use crate::device_memory::DeviceMemory;
use crate::policy::{Backing, Block, Policy, Recorded, Statistics, UsedBy, VirtualMemory, WaitTicket, WantedEvents};

/// The part of a policy that is its own.
pub trait ArenaPolicy: Send {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError>;

    /// Called after a freed block has become clean and was joined with its clean neighbours to `free_block`.
    fn after_clean(&mut self, _arena: &mut Arena, _memory: &dyn DeviceMemory, _free_block: Id) {}

    fn release_idle(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) -> u64 {
        arena.release_idle(memory)
    }

    /// The granules behind a block; `None` if it is in a segment.
    fn granules_behind(&self, _arena: &Arena, _block: &Block) -> Option<Backing> {
        None
    }

    fn virtual_memory(&self, _arena: &Arena) -> VirtualMemory {
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
    fn allocate(&mut self, memory: &dyn DeviceMemory, size: u64, stream: Option<u64>) -> Result<Block, DriverError> {
        let request = Request::new(size, stream)?;
        let (arena, policy) = (&mut self.arena, &mut self.policy);
        arena.look_at_events(memory, &request, |arena, clean| {
            policy.after_clean(arena, memory, clean)
        });
        let reserved = arena.reserved();
        let result = policy.allocate(arena, memory, &request);
        if arena.reserved() > reserved {
            arena.expect_events();
            arena.want_all_events();
        }
        result
    }

    fn free(&mut self, memory: &dyn DeviceMemory, address: u64, used_by: UsedBy) -> Option<Block> {
        let (block, free_block) = self.arena.free(memory, address, used_by)?;
        if used_by == UsedBy::Nothing {
            self.policy.after_clean(&mut self.arena, memory, free_block);
        }
        Some(block)
    }

    fn begin_wait(&mut self) -> Option<WaitTicket> {
        self.arena.begin_wait()
    }

    fn end_wait(&mut self, memory: &dyn DeviceMemory, ticket: WaitTicket) {
        let policy = &mut self.policy;
        self.arena
            .end_wait(memory, ticket, |arena, clean| policy.after_clean(arena, memory, clean));
    }

    fn all_clean(&self) -> bool {
        self.arena.all_clean()
    }

    fn want_events(&mut self) {
        self.arena.want_all_events();
    }

    fn take_wanted_events(&mut self) -> Vec<WantedEvents> {
        match self.arena.wants_events() {
            true => self.arena.take_wanted_events(),
            false => Vec::new(),
        }
    }

    fn events_recorded(&mut self, memory: &dyn DeviceMemory, wanted: WantedEvents, recorded: Recorded) {
        self.arena.events_recorded(memory, wanted, recorded);
    }

    fn find(&self, address: u64) -> Option<Block> {
        self.arena.find(address)
    }

    fn backing(&self, block: &Block) -> Option<Backing> {
        self.policy
            .granules_behind(&self.arena, block)
            .or_else(|| self.arena.segment_of(block.address))
    }

    fn owns(&self, address: u64) -> bool {
        self.arena.owns(address)
    }

    fn statistics(&self) -> Statistics {
        let mut statistics = self.arena.statistics();
        self.policy.add_statistics(&mut statistics);
        statistics
    }

    fn live(&self) -> Vec<Block> {
        self.arena.blocks.each_live().collect()
    }

    fn split_live(&mut self, address: u64) {
        self.arena.split_live(address);
    }

    fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64 {
        self.policy.release_idle(&mut self.arena, memory)
    }

    fn virtual_memory(&self) -> VirtualMemory {
        self.policy.virtual_memory(&self.arena)
    }
}
