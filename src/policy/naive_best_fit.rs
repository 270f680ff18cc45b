//! Paddle's `naive_best_fit`: one contiguous reservation at first use, cut by best fit.
//!
//! A request gets the head of a free block. The next layer sees a few large requests, and then none.
//!
//! Sizes follow Paddle (`paddle/phi/core/platform/device/gpu/gpu_info.cc`). The first reservation has
//! `FLAGS_initial_gpu_memory_in_mb`, later ones have `FLAGS_reallocate_gpu_memory_in_mb`, and each is at least as large
//! as the request. If a size is 0, it is `FLAGS_fraction_of_gpu_memory_to_use` of 95% of the available memory. A
//! request that is larger than both sizes gets a segment of its own. There is one difference to Paddle: a reservation
//! that the device cannot grant is halved, down to the size of the request, before out of memory is reported.

use std::collections::BTreeSet;

use base::cuda::DriverError;

use crate::arena::{Arena, Cut, Region, Request};
use crate::arena_policy::ArenaPolicy;
use crate::blocks::{Id, UNIT};
use crate::device_memory::DeviceMemory;
use crate::policy::Block;

/// The share of the available memory that Paddle never reserves.
const UNRESERVED_SHARE: f64 = 0.05;

pub struct NaiveBestFit {
    /// The share of the available memory that a reservation has if no size was set.
    fraction: f64,
    /// Size of the first reservation; 0 if none was set.
    initial_bytes: u64,
    /// Size of later reservations; 0 if none was set.
    reallocate_bytes: u64,
    /// First addresses of the segments that serve a single request. They are given back when it is freed.
    dedicated: BTreeSet<u64>,
    /// Size of the largest reservation, set by the first request. A larger request gets a dedicated segment.
    largest_reservation: Option<u64>,
    /// Whether the first reservation was made.
    reserved: bool,
}

impl NaiveBestFit {
    pub fn new(fraction: f64, initial_bytes: u64, reallocate_bytes: u64) -> Self {
        NaiveBestFit {
            fraction,
            initial_bytes,
            reallocate_bytes,
            dedicated: BTreeSet::new(),
            largest_reservation: None,
            reserved: false,
        }
    }

    fn share_of_available(&self, memory: &dyn DeviceMemory) -> u64 {
        let free = memory.available().map_or(0, |available| available.free);
        let share = free as f64 * (1.0 - UNRESERVED_SHARE) * self.fraction;
        share as u64 / UNIT * UNIT
    }

    /// A size that was set, rounded up; if none was set, the share of the available memory.
    fn reservation_size(&self, memory: &dyn DeviceMemory, bytes: u64) -> u64 {
        match bytes.checked_next_multiple_of(UNIT) {
            None | Some(0) => self.share_of_available(memory),
            Some(bytes) => bytes,
        }
    }

    /// Obtains a segment of `wanted` bytes, but at least `size`. If the device has no room, halves it down to `size`.
    fn obtain_halving(arena: &mut Arena, memory: &dyn DeviceMemory, wanted: u64, size: u64) -> Result<Id, DriverError> {
        let mut reservation = wanted.max(size);
        loop {
            match arena.obtain(memory, reservation) {
                Err(DriverError::OUT_OF_MEMORY) if reservation > size => {
                    reservation = (reservation / 2 / UNIT * UNIT).max(size);
                }
                result => return result,
            }
        }
    }
}

impl ArenaPolicy for NaiveBestFit {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError> {
        if let Some(found) = arena.best(memory, Region::Main, request) {
            return Ok(arena.carve(found, request, Cut::Head));
        }
        let size = request.rounded();
        let initial = self.reservation_size(memory, self.initial_bytes);
        let later = self.reservation_size(memory, self.reallocate_bytes);
        let largest = *self.largest_reservation.get_or_insert(initial.max(later));
        let segment = if size > largest {
            let segment = Self::obtain_halving(arena, memory, size, size)?;
            self.dedicated.insert(arena.blocks.address(segment));
            segment
        } else {
            let wanted = if self.reserved { later } else { initial };
            let segment = Self::obtain_halving(arena, memory, wanted, size)?;
            self.reserved = true;
            segment
        };
        Ok(arena.carve(segment, request, Cut::Head))
    }

    fn after_clean(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, free_block: Id) {
        // While a stream capture is open the segment cannot be given back. It is then kept and used like any other.
        if self.dedicated.remove(&arena.blocks.address(free_block)) && !memory.is_capturing() {
            arena.release(memory, free_block);
        }
    }
}
