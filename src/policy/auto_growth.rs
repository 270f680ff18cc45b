//! Paddle's `auto_growth` in chunks: grows with demand, best fit by (size, address), always splits, hands out the tail,
//! coalesces within a chunk only. On out of memory idle chunks go back to the driver, then one retry.

use super::arena::{ALIGNMENT, Arena, End, aligned};
use super::{Block, Plan, Settings};
use crate::device_memory::{DeviceMemory, DriverError};

pub struct AutoGrowth {
    settings: Settings,
}

impl AutoGrowth {
    pub fn new(settings: Settings) -> Self {
        AutoGrowth { settings }
    }
}

impl Plan for AutoGrowth {
    fn allocate(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, requested: u64) -> Result<Block, DriverError> {
        let size = aligned(requested)?;
        if let Some(block) = arena.take(memory, requested, size, End::Tail)? {
            return Ok(block);
        }
        // Freeing waits for the device, which a capture does not allow.
        if self.settings.free_when_no_cache_hit && memory.may_synchronise() {
            arena.release_idle(memory);
        }
        let least = self
            .settings
            .chunk_bytes
            .checked_next_multiple_of(ALIGNMENT)
            .unwrap_or(size);
        if let Err(problem) = arena.obtain(memory, size.max(least)) {
            if !memory.may_synchronise() {
                return Err(problem);
            }
            arena.release_idle(memory);
            // A chunk larger than the request is a wish; the request itself is what must fit.
            arena
                .obtain(memory, size.max(least))
                .or_else(|_| arena.obtain(memory, size))?;
        }
        arena
            .take(memory, requested, size, End::Tail)?
            .ok_or(DriverError::OUT_OF_MEMORY)
    }

    fn freed(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, segment: u64) {
        if self.settings.free_idle_chunk && memory.may_synchronise() {
            arena.release(memory, segment);
        }
    }
}
