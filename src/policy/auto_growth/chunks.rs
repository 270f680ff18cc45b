//! Growth in chunks, by the rules of Paddle's `auto_growth`.
//!
//! `auto_growth` grows in this way if the next layer has no virtual memory management. A request gets the tail of the
//! best fit, which is always split; blocks are joined within a chunk. On out of memory, the caller gives idle chunks
//! back, and tries the request once more.

use base::cuda::DriverError;

use crate::arena::{Arena, Cut, Region, Request};
use crate::arena_policy::ArenaPolicy;
use crate::blocks::{Id, UNIT};
use crate::device_memory::DeviceMemory;
use crate::policy::Block;

/// What was set for chunks.
pub struct ChunkRules {
    /// Size of a chunk for requests that are smaller; 0 if none was set.
    pub least_bytes: u64,
    /// Whether a chunk is given back as soon as no block in it is live.
    pub release_when_idle: bool,
    /// Whether idle chunks are given back before a new one is obtained.
    pub release_before_growth: bool,
}

pub struct Chunks {
    rules: ChunkRules,
}

impl Chunks {
    pub fn new(rules: ChunkRules) -> Self {
        Chunks { rules }
    }

    /// Obtains a new chunk, at least as large as the request.
    fn grow(&self, arena: &mut Arena, memory: &dyn DeviceMemory, request: &Request) -> Result<Id, DriverError> {
        let size = request.rounded();
        let least = self.rules.least_bytes.checked_next_multiple_of(UNIT).unwrap_or(size);
        // A chunk of the size that was set is preferred, but one of the size of the request is enough.
        arena
            .obtain(memory, size.max(least))
            .or_else(|_| arena.obtain(memory, size))
    }
}

impl ArenaPolicy for Chunks {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError> {
        if let Some(found) = arena.best(memory, Region::Main, request) {
            return Ok(arena.carve(found, request, Cut::Tail));
        }
        // Giving a chunk back waits for the device, which an open stream capture does not allow.
        if self.rules.release_before_growth && !memory.is_capturing() {
            arena.release_idle(memory);
        }
        let chunk = self.grow(arena, memory, request)?;
        Ok(arena.carve(chunk, request, Cut::Tail))
    }

    fn after_clean(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, free_block: Id) {
        if self.rules.release_when_idle && !memory.is_capturing() {
            arena.release(memory, free_block);
        }
    }
}
