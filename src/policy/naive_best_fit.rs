//! Paddle's `naive_best_fit`: one contiguous reservation at first use, cut by best fit, the head of a free block handed
//! out. What the layer below sees is a handful of large requests, then silence.
//!
//! Sizes follow Paddle (`paddle/phi/core/platform/device/gpu/gpu_info.cc`): the first reservation is
//! `FLAGS_initial_gpu_memory_in_mb`, later ones `FLAGS_reallocate_gpu_memory_in_mb`, each at least the request; where a
//! size is 0, `FLAGS_fraction_of_gpu_memory_to_use` of what is available less 5%. A request above the largest such
//! size goes to the driver alone. Unlike Paddle, a reservation that the device cannot grant is halved, down to the
//! request, before out of memory is reported.

use std::collections::BTreeSet;

use super::arena::{ALIGNMENT, Arena, End, aligned};
use super::{Block, Policy, Settings, Statistics};
use crate::device_memory::{DeviceMemory, DriverError};

/// Share of the available memory that Paddle leaves alone.
const LEFT_ALONE: f64 = 0.05;

pub struct NaiveBestFit {
    settings: Settings,
    arena: Arena,
    /// Segments that hold one request each, given back when it is freed.
    alone: BTreeSet<u64>,
    /// The largest reservation, known from the first request on.
    largest_chunk: Option<u64>,
    refilled: bool,
}

impl NaiveBestFit {
    pub fn new(settings: Settings) -> Self {
        NaiveBestFit {
            settings,
            arena: Arena::new(),
            alone: BTreeSet::new(),
            largest_chunk: None,
            refilled: false,
        }
    }

    fn share_of_available(&self, memory: &dyn DeviceMemory) -> u64 {
        let free = memory.available().map_or(0, |available| available.free);
        let share = free as f64 * (1.0 - LEFT_ALONE) * self.settings.fraction;
        share as u64 / ALIGNMENT * ALIGNMENT
    }

    fn sized(&self, memory: &dyn DeviceMemory, bytes: u64) -> u64 {
        match bytes.checked_next_multiple_of(ALIGNMENT) {
            None | Some(0) => self.share_of_available(memory),
            Some(bytes) => bytes,
        }
    }

    fn obtain(&mut self, memory: &dyn DeviceMemory, size: u64) -> Result<u64, DriverError> {
        let address = memory.allocate(size)?;
        self.arena.add_segment(address, size);
        Ok(address)
    }

    /// Makes room for `size` bytes with a reservation, the largest of `wanted`, its halves, and `size` itself that the
    /// device grants.
    fn refill(&mut self, memory: &dyn DeviceMemory, wanted: u64, size: u64) -> Result<u64, DriverError> {
        let mut chunk = wanted.max(size);
        loop {
            match self.obtain(memory, chunk) {
                Err(DriverError::OUT_OF_MEMORY) if chunk > size => {
                    chunk = (chunk / 2 / ALIGNMENT * ALIGNMENT).max(size);
                }
                result => return result,
            }
        }
    }

    /// As `refill`, with idle segments given back and one more try where the device has no room.
    fn make_room(&mut self, memory: &dyn DeviceMemory, wanted: u64, size: u64) -> Result<u64, DriverError> {
        self.refill(memory, wanted, size).or_else(|problem| {
            if !memory.may_synchronise() || self.release_idle(memory) == 0 {
                return Err(problem);
            }
            self.refill(memory, wanted, size)
        })
    }
}

impl Policy for NaiveBestFit {
    fn allocate(&mut self, memory: &dyn DeviceMemory, requested: u64) -> Result<Block, DriverError> {
        let size = aligned(requested)?;
        if let Some(block) = self.arena.take(memory, requested, size, End::Head)? {
            return Ok(block);
        }
        let initial = self.sized(memory, self.settings.initial_bytes);
        let later = self.sized(memory, self.settings.reallocate_bytes);
        let largest = *self.largest_chunk.get_or_insert(initial.max(later));
        if size > largest {
            let address = self.make_room(memory, size, size)?;
            self.alone.insert(address);
        } else {
            let wanted = if self.refilled { later } else { initial };
            self.make_room(memory, wanted, size)?;
            self.refilled = true;
        }
        self.arena
            .take(memory, requested, size, End::Head)?
            .ok_or(DriverError::OUT_OF_MEMORY)
    }

    fn free(&mut self, memory: &dyn DeviceMemory, address: u64) -> Option<Block> {
        let (block, segment) = self.arena.free(address)?;
        // Where the driver cannot take it back now, it stays a segment like any other.
        if self.alone.remove(&segment) && memory.may_synchronise() {
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
