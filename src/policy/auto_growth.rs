//! Paddle's `auto_growth` in chunks: grows with demand, best fit by (size, address), always splits, hands out the tail,
//! coalesces within a chunk only. On out of memory idle chunks go back to the driver, then one retry.

use super::arena::{Arena, End, aligned};
use super::{Block, Policy, Settings, Statistics};
use crate::device_memory::{DeviceMemory, DriverError};

pub struct AutoGrowth {
    settings: Settings,
    arena: Arena,
}

impl AutoGrowth {
    pub fn new(settings: Settings) -> Self {
        AutoGrowth {
            settings,
            arena: Arena::new(),
        }
    }

    fn grow(&mut self, memory: &dyn DeviceMemory, size: u64) -> Result<(), DriverError> {
        let address = memory.allocate(size)?;
        self.arena.add_segment(address, size);
        Ok(())
    }
}

impl Policy for AutoGrowth {
    fn allocate(&mut self, memory: &dyn DeviceMemory, requested: u64) -> Result<Block, DriverError> {
        let size = aligned(requested)?;
        if let Some(block) = self.arena.take(memory, requested, size, End::Tail)? {
            return Ok(block);
        }
        // Freeing waits for the device, which a capture does not allow.
        if self.settings.free_when_no_cache_hit && memory.may_synchronise() {
            self.arena.release_idle(memory);
        }
        let least = self
            .settings
            .chunk_bytes
            .checked_next_multiple_of(super::arena::ALIGNMENT)
            .unwrap_or(size);
        if let Err(problem) = self.grow(memory, size.max(least)) {
            if !memory.may_synchronise() {
                return Err(problem);
            }
            self.arena.release_idle(memory);
            // A chunk larger than the request is a wish; the request itself is what must fit.
            self.grow(memory, size.max(least))
                .or_else(|_| self.grow(memory, size))?;
        }
        self.arena
            .take(memory, requested, size, End::Tail)?
            .ok_or(DriverError::OUT_OF_MEMORY)
    }

    fn free(&mut self, memory: &dyn DeviceMemory, address: u64) -> Option<Block> {
        let (block, segment) = self.arena.free(address)?;
        if self.settings.free_idle_chunk && memory.may_synchronise() {
            self.arena.release(memory, segment);
        }
        Some(block)
    }

    fn find(&self, address: u64) -> Option<Block> {
        self.arena.find(address)
    }

    fn owns(&self, address: u64) -> bool {
        self.arena.owns(address)
    }

    fn statistics(&self) -> Statistics {
        self.arena.statistics()
    }

    fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64 {
        self.arena.release_idle(memory)
    }
}
