//! Growth in chunks, by the rules of Paddle's `auto_growth`: best fit by size, always splits, hands out the tail,
//! coalesces within a chunk only. On out of memory idle chunks go back to the driver, then one retry.
//!
//! What `auto_growth` falls back to where the layer below has no virtual memory management.

use super::arena::{Arena, End, Region, Request};
use super::blocks::{Id, UNIT};
use super::{Block, Plan, Settings};
use crate::device_memory::{DeviceMemory, DriverError};

pub struct Chunks {
    settings: Settings,
}

impl Chunks {
    pub fn new(settings: Settings) -> Self {
        Chunks { settings }
    }

    /// A new chunk of at least the request.
    pub fn grow(&self, arena: &mut Arena, memory: &dyn DeviceMemory, request: &Request) -> Result<Id, DriverError> {
        let size = request.rounded();
        let least = self.settings.chunk_bytes.checked_next_multiple_of(UNIT).unwrap_or(size);
        arena.obtain(memory, size.max(least)).or_else(|problem| {
            if !memory.may_synchronise() {
                return Err(problem);
            }
            arena.release_idle(memory);
            // A chunk larger than the request is a wish; the request itself is what must fit.
            arena
                .obtain(memory, size.max(least))
                .or_else(|_| arena.obtain(memory, size))
        })
    }
}

impl Plan for Chunks {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError> {
        if let Some(found) = arena.best(memory, Region::Main, request)? {
            return Ok(arena.carve(found, request, End::Tail));
        }
        // Freeing waits for the device, which a capture does not allow.
        if self.settings.free_when_no_cache_hit && memory.may_synchronise() {
            arena.release_idle(memory);
        }
        let chunk = self.grow(arena, memory, request)?;
        Ok(arena.carve(chunk, request, End::Tail))
    }

    fn freed(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, run: Id) {
        if self.settings.free_idle_chunk && memory.may_synchronise() {
            arena.release(memory, run);
        }
    }
}
