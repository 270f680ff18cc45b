//! A subpool: the policy of one thread, on memory that it borrows from the pool of the context.
//!
//! Threads that would often wait for each other get a subpool each. A subpool borrows *slabs* from its parent pool,
//! cuts small requests from them by best fit, and gives free parts of them back. To the parent's policy, a slab is a
//! live block. A part of a slab can be given back too, so that a few small blocks do not keep a whole slab from large
//! requests.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use base::cuda::DriverError;

use crate::arena::{Arena, Cut, Region, Request};
use crate::arena_policy::{ArenaPolicy, over_arena};
use crate::blocks::{Id, NONE, UNIT};
use crate::device_memory::{Available, DeviceMemory, EventId, NoEvent};
use crate::policy::{Block, Policy, UsedBy};

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
    /// Gives a part of a free block back to the parent; returns bytes. Returns 0 if the part is empty or refused.
    fn give_back(arena: &mut Arena, memory: &dyn DeviceMemory, free_block: Id, part: Range<u64>) -> u64 {
        if part.is_empty() || memory.unmap(part.start, part.end - part.start).is_err() {
            return 0;
        }
        let size = part.end - part.start;
        arena.give_up(free_block, part.start, (size / UNIT) as u32);
        size
    }

    fn addresses(arena: &Arena, free_block: Id) -> Range<u64> {
        let start = arena.blocks.address(free_block);
        start..start + u64::from(arena.blocks.units(free_block)) * UNIT
    }

    /// Gives the whole pieces of a free block back.
    fn give_back_pieces(arena: &mut Arena, memory: &dyn DeviceMemory, free_block: Id) -> u64 {
        let Range { start, end } = Self::addresses(arena, free_block);
        let from = match arena.blocks.prev(free_block) {
            NONE => start,
            _ => start.next_multiple_of(PIECE_BYTES),
        };
        let to = match arena.blocks.next(free_block) {
            NONE => end,
            _ => end / PIECE_BYTES * PIECE_BYTES,
        };
        Self::give_back(arena, memory, free_block, from..to)
    }

    /// Borrows a slab. Its ends are given back at once, up to the first and from the last multiple of `PIECE_BYTES`. So
    /// no piece belongs to two policies, and an address tells which policy it belongs to.
    fn borrow(arena: &mut Arena, memory: &dyn DeviceMemory) -> Result<(), DriverError> {
        let slab = arena.obtain(memory, SLAB_BYTES)?;
        let Range { start, end } = Self::addresses(arena, slab);
        Self::give_back(arena, memory, slab, end / PIECE_BYTES * PIECE_BYTES..end);
        Self::give_back(arena, memory, slab, start..start.next_multiple_of(PIECE_BYTES));
        Ok(())
    }
}

impl ArenaPolicy for Subpool {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError> {
        let mut found = arena.best(memory, Region::Main, request);
        if found.is_none() {
            Self::borrow(arena, memory)?;
            found = arena.best(memory, Region::Main, request);
        }
        let free_block = found.ok_or(DriverError::OUT_OF_MEMORY)?;
        Ok(arena.carve(free_block, request, Cut::Head))
    }

    fn after_clean(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, free_block: Id) {
        let blocks = &arena.blocks;
        let is_whole = blocks.prev(free_block) == NONE && blocks.next(free_block) == NONE;
        // One free slab is kept, because the next request would borrow it again.
        if is_whole && arena.free_bytes() >= 2 * SLAB_BYTES {
            Self::give_back_pieces(arena, memory, free_block);
        }
    }

    fn release_idle(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) -> u64 {
        let free_blocks: Vec<Id> = arena.clean_blocks(Region::Main, 1).collect();
        free_blocks
            .into_iter()
            .map(|free_block| Self::give_back_pieces(arena, memory, free_block))
            .sum()
    }
}

/// Is told which slabs a subpool has. The parent pool is locked during each call.
pub trait SlabObserver {
    fn borrowed(&self, address: u64, size: u64);
    fn returned(&self, address: u64, size: u64);
}

/// The parent pool, as the memory of a subpool: `allocate` borrows a slab, and `unmap` gives a part of one back.
pub struct ParentMemory<'a> {
    pub parent: &'a Mutex<Option<Box<dyn Policy>>>,
    /// The memory of the parent.
    pub memory: &'a dyn DeviceMemory,
    pub observer: &'a dyn SlabObserver,
}

impl ParentMemory<'_> {
    fn with_parent<T>(&self, call: impl FnOnce(&mut dyn Policy) -> Result<T, DriverError>) -> Result<T, DriverError> {
        let mut parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner);
        call(parent.as_deref_mut().ok_or(DriverError::INVALID_CONTEXT)?)
    }
}

impl DeviceMemory for ParentMemory<'_> {
    fn allocate(&self, size: u64) -> Result<u64, DriverError> {
        self.with_parent(|parent| {
            let slab = parent.allocate(self.memory, size, None)?;
            self.observer.borrowed(slab.address, size);
            Ok(slab.address)
        })
    }

    fn unmap(&self, address: u64, size: u64) -> Result<(), DriverError> {
        self.with_parent(|parent| {
            parent.split_live(address);
            parent.split_live(address + size);
            // The observer comes first: after the free, the parent may hand the memory out at any moment.
            self.observer.returned(address, size);
            match parent.free(self.memory, address, UsedBy::Nothing) {
                Some(_) => Ok(()),
                None => Err(DriverError::INVALID_VALUE),
            }
        })
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

    // A subpool uses no virtual memory management, and gives slabs back by `unmap`.

    fn free(&self, _address: u64) -> Result<(), DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

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

    fn allow_access(&self, _address: u64, _size: u64) -> Result<(), DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn mapped(&self, _address: u64, _size: u64, _moved: bool) {}

    fn unmapped(&self, _address: u64, _size: u64, _moved: bool) {}

    fn no_virtual_memory(&self, _why: DriverError) {}
}
