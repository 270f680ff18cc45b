//! A subpool: the policy of one thread, on memory that it borrows from the pool of the context.
//!
//! Threads that would often wait for each other get a subpool each. A subpool borrows *slabs* from its parent pool,
//! cuts small requests from them by best fit, and gives free parts of them back. To the parent's policy, a slab is a
//! live block. A part of a slab can be given back too, so that a few small blocks do not keep a whole slab from large
//! requests.

use std::ops::Range;

use base::cuda::DriverError;

use crate::arena::{Arena, Cut, Region};
use crate::arena_policy::{ArenaPolicy, over_arena};
use crate::blocks::{Id, NONE};
use crate::device_memory::{Available, DeviceMemory, EventId, NoEvent};
use crate::policy::{After, Block, Policy, UsedBy};
use crate::request::{Request, UNIT};
use crate::serve::{Due, Growing, Holder, Shared, serve, work_off};
use crate::under_way::UnderWay;
use crate::work::{Obtain, Return, Smaller, Work};

/// Size of a slab in bytes: 32 requests of the largest size, so that the parent pool is locked rarely. A judgement, not
/// measured.
const SLAB_BYTES: u64 = 32 << 20;
/// Larger requests, in bytes, go to the parent pool: their calls are few, and they would waste the end of a slab.
pub const LARGEST_REQUEST_BYTES: u64 = 1 << 20;
/// Free parts of a slab are given back in multiples of this many bytes. No next layer maps less than this, so a smaller
/// part would be of no use to large requests.
const PIECE_BYTES: u64 = 2 << 20;

/// The policy of a new subpool. It must be called with a `ParentMemory`.
pub fn subpool() -> Box<dyn Policy> {
    over_arena(Subpool)
}

struct Subpool;

impl Subpool {
    /// The whole pieces of a free block: addresses. Empty if there are none.
    fn pieces(arena: &Arena, free_block: Id) -> Range<u64> {
        let start = arena.blocks.address(free_block);
        let end = start + u64::from(arena.blocks.units(free_block)) * UNIT;
        let from = match arena.blocks.prev(free_block) {
            NONE => start,
            _ => start.next_multiple_of(PIECE_BYTES),
        };
        let to = match arena.blocks.next(free_block) {
            NONE => end,
            _ => end / PIECE_BYTES * PIECE_BYTES,
        };
        from..to
    }
}

impl ArenaPolicy for Subpool {
    fn find(&mut self, arena: &mut Arena, request: &Request) -> Option<Block> {
        let found = arena.best(Region::Main, request)?;
        Some(arena.carve(found, request, Cut::Head))
    }

    fn grow(&mut self, _arena: &mut Arena, request: &mut Request) -> Result<Work, DriverError> {
        let size = request.rounded().max(SLAB_BYTES);
        Ok(Work::Obtain(Obtain::new(size, size, Smaller::Least)))
    }

    fn after_clean(&mut self, arena: &mut Arena, free_block: Id) {
        let blocks = &arena.blocks;
        let is_whole = blocks.prev(free_block) == NONE && blocks.next(free_block) == NONE;
        // One free slab is kept, because the next request would borrow it again.
        if is_whole && arena.free_bytes() >= 2 * SLAB_BYTES {
            let pieces = Self::pieces(arena, free_block);
            arena.give_back_now(free_block, pieces);
        }
    }

    fn has_idle(&self, arena: &Arena) -> bool {
        let mut free_blocks = arena.clean_blocks(Region::Main, 1);
        free_blocks.any(|free_block| !Self::pieces(arena, free_block).is_empty())
    }

    fn release_idle(&mut self, arena: &mut Arena) -> Vec<Work> {
        let free_blocks: Vec<Id> = arena.clean_blocks(Region::Main, 1).collect();
        let mut pieces = Vec::new();
        for free_block in free_blocks {
            let part = Self::pieces(arena, free_block);
            if !part.is_empty() {
                pieces.push(arena.take_out(free_block, part));
            }
        }
        match pieces.is_empty() {
            true => Vec::new(),
            false => vec![Work::Return(Return::of(pieces))],
        }
    }
}

/// Is told which slabs a subpool has. Nobody else uses the parent's policy during a call.
pub trait SlabObserver {
    fn borrowed(&self, address: u64, size: u64);
    fn returned(&self, address: u64, size: u64);
}

/// A parent that lends a slab at once or not at all. While another thread makes it grow, it may have room for a request
/// that it has none for a slab for, and then no request waits for the driver.
struct Lender<'a>(&'a Shared);

impl Holder for Lender<'_> {
    fn with_policy<T>(&self, step: impl FnOnce(&mut dyn Policy) -> Result<T, DriverError>) -> Result<T, DriverError> {
        self.0.with_policy(step)
    }

    fn growing(&self) -> Result<Growing<'_>, DriverError> {
        self.0.growing_at_once()
    }

    fn returns(&self) -> Option<&UnderWay> {
        self.0.returns()
    }
}

/// The parent pool, as the memory of a subpool: `allocate` borrows a slab, and `free` gives a part of one back.
pub struct ParentMemory<'a> {
    pub parent: &'a Shared,
    /// The memory of the parent.
    pub memory: &'a dyn DeviceMemory,
    pub observer: &'a dyn SlabObserver,
}

impl DeviceMemory for ParentMemory<'_> {
    fn allocate(&self, size: u64) -> Result<u64, DriverError> {
        // A slab has whole pieces, so that an address tells which policy it belongs to.
        let request = Request::new(size)?.aligned(PIECE_BYTES);
        let borrowed = |slab: &Block| self.observer.borrowed(slab.address, size);
        let slab = serve(&Lender(self.parent), self.memory, request, borrowed)?;
        Ok(slab.address)
    }

    fn free(&self, address: u64, size: u64) -> Result<(), DriverError> {
        let due = self.parent.with_policy(|parent| {
            parent.split_live(address);
            parent.split_live(address + size);
            // The observer comes first: after the free, the parent may hand the memory out at any moment.
            self.observer.returned(address, size);
            match parent.free(address, UsedBy::Nothing) {
                Some(_) => Ok(Due::next(self.parent, parent, After::Request)),
                None => Err(DriverError::INVALID_VALUE),
            }
        })?;
        work_off(self.parent, self.memory, due);
        Ok(())
    }

    fn is_capturing(&self) -> bool {
        self.memory.is_capturing()
    }

    fn record_event(&self, stream: u64) -> Result<EventId, NoEvent> {
        self.memory.record_event(stream)
    }

    fn record_all(&self) -> Result<Vec<EventId>, NoEvent> {
        self.memory.record_all()
    }

    fn event_is_done(&self, event: EventId) -> bool {
        self.memory.event_is_done(event)
    }

    fn forget_event(&self, event: EventId) {
        self.memory.forget_event(event);
    }

    fn available(&self) -> Result<Available, DriverError> {
        self.memory.available()
    }

    // A subpool uses no virtual memory management.

    fn granularity(&self) -> Option<u64> {
        None
    }

    fn reserve(&self, _size: u64, _alignment: u64) -> Result<u64, DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn create(&self, _size: u64) -> Result<u64, DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn release(&self, _handle: u64, _size: u64) -> Result<(), DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn map(&self, _address: u64, _size: u64, _handle: u64) -> Result<(), DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn unmap(&self, _address: u64, _size: u64) -> Result<(), DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn allow_access(&self, _address: u64, _size: u64) -> Result<(), DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn mapped(&self, _address: u64, _size: u64, _again: bool) {}

    fn unmapped(&self, _address: u64, _size: u64, _again: bool) {}

    fn no_virtual_memory(&self, _why: DriverError) {}
}
