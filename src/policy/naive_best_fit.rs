//! Paddle's `naive_best_fit`: one contiguous reservation at first use, cut by best fit, the head of a free block handed
//! out. What the layer below sees is a handful of large requests, then silence.
//!
//! Sizes follow Paddle (`paddle/phi/core/platform/device/gpu/gpu_info.cc`): the first reservation is
//! `FLAGS_initial_gpu_memory_in_mb`, later ones `FLAGS_reallocate_gpu_memory_in_mb`, each at least the request; where a
//! size is 0, `FLAGS_fraction_of_gpu_memory_to_use` of what is available less 5%. A request above the largest such
//! size goes to the driver alone. Unlike Paddle, a reservation that the device cannot grant is halved, down to the
//! request, before out of memory is reported.

use std::collections::BTreeSet;

use super::arena::{Arena, End, Region, Request};
use super::blocks::{Id, UNIT};
use super::{Block, Plan, Settings};
use crate::device_memory::{DeviceMemory, DriverError};

/// Share of the available memory that Paddle leaves alone.
const LEFT_ALONE: f64 = 0.05;

pub struct NaiveBestFit {
    settings: Settings,
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
            alone: BTreeSet::new(),
            largest_chunk: None,
            refilled: false,
        }
    }

    fn share_of_available(&self, memory: &dyn DeviceMemory) -> u64 {
        let free = memory.available().map_or(0, |available| available.free);
        let share = free as f64 * (1.0 - LEFT_ALONE) * self.settings.fraction;
        share as u64 / UNIT * UNIT
    }

    fn sized(&self, memory: &dyn DeviceMemory, bytes: u64) -> u64 {
        match bytes.checked_next_multiple_of(UNIT) {
            None | Some(0) => self.share_of_available(memory),
            Some(bytes) => bytes,
        }
    }

    /// Makes room for `size` bytes with a reservation, the largest of `wanted`, its halves, and `size` itself that the
    /// device grants.
    fn refill(arena: &mut Arena, memory: &dyn DeviceMemory, wanted: u64, size: u64) -> Result<Id, DriverError> {
        let mut chunk = wanted.max(size);
        loop {
            match arena.obtain(memory, chunk) {
                Err(DriverError::OUT_OF_MEMORY) if chunk > size => {
                    chunk = (chunk / 2 / UNIT * UNIT).max(size);
                }
                result => return result,
            }
        }
    }

    /// As `refill`, with idle segments given back and one more try where the device has no room.
    fn make_room(arena: &mut Arena, memory: &dyn DeviceMemory, wanted: u64, size: u64) -> Result<Id, DriverError> {
        Self::refill(arena, memory, wanted, size).or_else(|problem| {
            if !memory.may_synchronise() || arena.release_idle(memory) == 0 {
                return Err(problem);
            }
            Self::refill(arena, memory, wanted, size)
        })
    }
}

impl Plan for NaiveBestFit {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError> {
        if let Some(found) = arena.best(memory, Region::Main, request)? {
            return Ok(arena.carve(found, request, End::Head));
        }
        let size = request.rounded();
        let initial = self.sized(memory, self.settings.initial_bytes);
        let later = self.sized(memory, self.settings.reallocate_bytes);
        let largest = *self.largest_chunk.get_or_insert(initial.max(later));
        let segment = if size > largest {
            let segment = Self::make_room(arena, memory, size, size)?;
            self.alone.insert(arena.blocks.address(segment));
            segment
        } else {
            let wanted = if self.refilled { later } else { initial };
            let segment = Self::make_room(arena, memory, wanted, size)?;
            self.refilled = true;
            segment
        };
        Ok(arena.carve(segment, request, End::Head))
    }

    fn freed(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, run: Id) {
        // Where the driver cannot take it back now, it stays a segment like any other.
        if self.alone.remove(&arena.blocks.address(run)) && memory.may_synchronise() {
            arena.release(memory, run);
        }
    }
}
