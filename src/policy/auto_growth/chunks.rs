//! Growth in chunks, by the rules of Paddle's `auto_growth`.
//!
//! `auto_growth` grows in this way if the next layer has no virtual memory management. A request gets the tail of the best
//! fit, which is always split; blocks are joined within a chunk. On out of memory, idle chunks go back to the next layer,
//! and the request is tried once more.

use base::cuda::DriverError;

use crate::arena::{Arena, Cut, Region, Request};
use crate::arena_policy::ArenaPolicy;
use crate::blocks::{Id, UNIT};
use crate::device_memory::DeviceMemory;
use crate::policy::Block;
use crate::settings::Settings;

pub struct Chunks {
    settings: Settings,
}

impl Chunks {
    pub fn new(settings: Settings) -> Self {
        Chunks { settings }
    }

    /// Obtains a new chunk, at least as large as the request.
    fn grow(&self, arena: &mut Arena, memory: &dyn DeviceMemory, request: &Request) -> Result<Id, DriverError> {
        let size = request.rounded();
        let least = self.settings.chunk_bytes.checked_next_multiple_of(UNIT).unwrap_or(size);
        arena.obtain(memory, size.max(least)).or_else(|problem| {
            if !memory.may_synchronise() {
                return Err(problem);
            }
            arena.release_idle(memory);
            // A chunk of the size that was set is preferred, but one of the size of the request is enough.
            arena
                .obtain(memory, size.max(least))
                .or_else(|_| arena.obtain(memory, size))
        })
    }
}

impl ArenaPolicy for Chunks {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError> {
        if let Some(found) = arena.best(memory, Region::Main, request)? {
            return Ok(arena.carve(found, request, Cut::Tail));
        }
        // Giving a chunk back waits for the device, which an open stream capture does not allow.
        if self.settings.free_when_no_cache_hit && memory.may_synchronise() {
            arena.release_idle(memory);
        }
        let chunk = self.grow(arena, memory, request)?;
        Ok(arena.carve(chunk, request, Cut::Tail))
    }

    fn after_free(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, free_block: Id) {
        if self.settings.free_idle_chunk && memory.may_synchronise() {
            arena.release(memory, free_block);
        }
    }
}
