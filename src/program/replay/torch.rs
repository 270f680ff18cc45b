//! A model of PyTorch's caching allocator (`c10/cuda/CUDACachingAllocator.cpp` of PyTorch 2.12), by default and with
//! expandable segments.
//!
//! Sizes are rounded up to multiples of 512 bytes, or as `roundup_power2_divisions` says. Small requests (up to 1 MiB) come
//! from segments of 2 MiB, large requests below 10 MiB from segments of 20 MiB. A request of 10 MiB or more makes a segment
//! of its size, rounded up to a multiple of 2 MiB. Each stream has one pool of free blocks for small and one for large
//! requests. A private pool, of a CUDA graph or of `torch.cuda.MemPool`, has streams of its own here. A request takes the
//! best fitting block of its pool (by size, then the one that was made first). In the large pool a block is split only if
//! more than 1 MiB remains, and if the request is below `max_split_size`. A free block of that size serves only requests of
//! that size that are less than 20 MiB smaller.
//!
//! A block that another stream has used is pending after its free. An event on that stream tells when the block is
//! free. Each request asks for the oldest event.
//!
//! If the driver has no memory, the allocator waits for the pending blocks, gives all segments without a live block
//! back with `cudaFree`, and asks the driver once more. Each `cudaFree` waits for the GPU. What private pools have stays: a
//! trace does not tell when their graphs end.
//!
//! With expandable segments each pool has one segment of 9/8 of the device's memory, and blocks are always split. A request
//! that no free block serves takes the lowest addresses where enough is free or without memory, and maps what lacks by handles
//! of 2 MiB (small) or 20 MiB (large): one call creates and one maps each handle, and one call gives access to
//! all of them. To give memory back, the allocator waits for the stream, and unmaps and releases each handle in which all is
//! free, wherever it lies.

use std::collections::VecDeque;

use base::cuda::DriverError;
use policy::device_memory::{DeviceMemory, EventId};

use super::blocks::{Blocks, End, PoolName, State};
use super::device::ModelDevice;
use super::requests::{Allocator, LastUse, TorchSettings, Way, is_private};
use crate::analysis::tensor_records::{LARGE_SEGMENT, SMALL_REQUEST as SMALL, SMALL_SEGMENT, segment_for};

const ROUND: u64 = 512;

pub struct CachingAllocator<'a> {
    device: &'a ModelDevice,
    expandable: bool,
    settings: &'a TorchSettings,
    blocks: Blocks,
    /// Freed blocks that another stream may still use, with the event that tells, in the order of the frees.
    pending: VecDeque<(EventId, u64)>,
}

/// The size of a handle of an expandable segment.
fn page(pool: PoolName) -> u64 {
    if pool.1 { SMALL_SEGMENT } else { LARGE_SEGMENT }
}

impl<'a> CachingAllocator<'a> {
    pub fn new(device: &'a ModelDevice, expandable: bool, settings: &'a TorchSettings) -> Self {
        CachingAllocator {
            device,
            expandable,
            settings,
            blocks: Blocks::by_age(),
            pending: VecDeque::new(),
        }
    }

    /// The bytes of the block that a request gets.
    fn rounded(&self, size: u64) -> Option<u64> {
        let divisions = self.settings.divisions(size);
        if divisions < 2 || size <= ROUND.saturating_mul(divisions) {
            return size.max(1).checked_next_multiple_of(ROUND);
        }
        size.checked_next_multiple_of((1 << size.ilog2() >> divisions.ilog2()).max(1))
    }

    /// A free block of the pool for `size` bytes. Blocks of `limit` and more are for requests of about their size alone.
    fn found(&self, size: u64, pool: PoolName, limit: u64) -> Option<u64> {
        let (found, at) = self.blocks.fitting(size, pool)?;
        let is_other = if size < limit {
            found >= limit
        } else {
            found - size >= LARGE_SEGMENT
        };
        (!is_other).then_some(at)
    }

    /// Obtains memory, so that a free block of at least `size` bytes is there. Returns its address.
    fn grow(&mut self, size: u64, pool: PoolName) -> Result<u64, DriverError> {
        if self.expandable {
            return self.expand(size, pool);
        }
        let bytes = segment_for(size).ok_or(DriverError::OUT_OF_MEMORY)?;
        let address = self.device.allocate(bytes)?;
        self.blocks.add_segment(address, bytes, pool, State::Free);
        Ok(address)
    }

    fn expand(&mut self, size: u64, pool: PoolName) -> Result<u64, DriverError> {
        let start = match self.blocks.growable(size, pool) {
            Some(start) => start,
            None => {
                let room = self.device.total.saturating_add(self.device.total / 8);
                let room = room.checked_next_multiple_of(page(pool));
                let room = room.filter(|&room| size <= room).ok_or(DriverError::OUT_OF_MEMORY)?;
                let start = self.device.reserve(room, 0)?;
                self.blocks.add_segment(start, room, pool, State::Unmapped);
                start
            }
        };
        let mut have = 0;
        while have < size {
            let next = start + have;
            let block = self.blocks.at(next).filter(|block| block.state != State::Live);
            let block = block.ok_or(DriverError::OUT_OF_MEMORY)?;
            if block.state == State::Unmapped {
                let more = (size - have).min(block.size).next_multiple_of(page(pool));
                self.device.add_pages(more / page(pool), page(pool))?;
                self.blocks.change(next, more, State::Free);
            }
            have = self.blocks.at(start).map_or(0, |block| block.size);
        }
        Ok(start)
    }

    /// Frees the pending blocks whose events are done. Looks at the oldest events only, up to the first that is not
    /// done.
    fn free_what_is_done(&mut self) {
        while let Some(&(event, address)) = self.pending.front()
            && self.device.event_is_done(event)
        {
            self.pending.pop_front();
            self.device.forget_event(event);
            self.blocks.put_back(address);
        }
    }

    fn wait_for_pending(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.device.wait();
        for (event, address) in std::mem::take(&mut self.pending) {
            self.device.forget_event(event);
            self.blocks.put_back(address);
        }
    }

    /// With `max_split_size`, gives back whole segments of the pool that are larger: one that suffices for `size` bytes, or the
    /// largest ones. Returns whether they suffice.
    fn give_back_large(&mut self, size: u64, pool: PoolName, limit: u64) -> bool {
        let wanted = size.max(limit);
        let idle = self.blocks.idle().into_iter();
        let mut idle: Vec<(u64, u64)> = idle
            .filter_map(|(of, size, at)| (of == pool && size >= limit).then_some((size, at)))
            .collect();
        idle.sort_unstable();
        let first = idle.partition_point(|&(size, _)| size < wanted);
        idle.truncate(first + 1);
        let mut given = 0;
        for (size, at) in idle.into_iter().rev() {
            if given < wanted {
                self.give_segment_back(at);
                given += size;
            }
        }
        given >= wanted
    }

    fn give_segment_back(&mut self, at: u64) {
        self.blocks.remove_segment(at);
        // The model device always accepts its own segments.
        let _ = self.device.give_back(at);
    }

    /// Gives cached memory back to the device: segments that are entirely free, or the free handles of expandable segments.
    fn give_back_cache(&mut self) {
        if !self.expandable {
            for (pool, _, at) in self.blocks.idle() {
                if !is_private(pool.0) {
                    self.give_segment_back(at);
                }
            }
            return;
        }
        for (pool, size, at) in self.blocks.all_free() {
            let start = self.blocks.at(at).map_or(at, |block| block.segment);
            let page = page(pool);
            let first = start + (at - start).next_multiple_of(page);
            let end = at + size - (at + size - start) % page;
            if end > first && !is_private(pool.0) {
                self.device.wait();
                self.device.give_pages((end - first) / page, page);
                self.blocks.change(first, end - first, State::Unmapped);
                if let Some(size) = self.blocks.remove_unmapped(start) {
                    self.device.give_addresses_back(start, size);
                }
            }
        }
    }
}

impl Allocator for CachingAllocator<'_> {
    fn allocate(&mut self, size: u64, way: Way) -> Result<u64, DriverError> {
        if way == Way::Driver && self.settings.has_tensors {
            return self.device.allocate(size);
        }
        let size = self.rounded(size).ok_or(DriverError::OUT_OF_MEMORY)?;
        self.free_what_is_done();
        let stream = match way {
            Way::Driver | Way::Tensor(None) => 0,
            Way::Tensor(Some(stream)) => stream,
        };
        let pool = (stream, size <= SMALL);
        let limit = self
            .settings
            .max_split_size
            .filter(|_| !self.expandable)
            .unwrap_or(u64::MAX);
        let found = self.found(size, pool, limit);
        let found = found.map_or_else(|| self.grow(size, pool), Ok);
        let found = found.or_else(|refused| {
            if limit < u64::MAX && self.give_back_large(size, pool, limit) {
                return self.grow(size, pool);
            }
            Err(refused)
        });
        let found = found.or_else(|_| {
            self.empty_cache();
            self.grow(size, pool)
        })?;
        let split = |rest| {
            if pool.1 || self.expandable {
                rest >= ROUND
            } else {
                rest > SMALL && size < limit
            }
        };
        let taken = self.blocks.take(found, size, End::Head, split);
        taken.ok_or(DriverError::OUT_OF_MEMORY)
    }

    fn free(&mut self, handle: u64, last_use: LastUse) {
        let used_elsewhere = matches!(last_use, LastUse::TwoStreams(..) | LastUse::Unknown);
        if self.blocks.at(handle).is_none() {
            let _ = self.device.give_back(handle);
        } else if used_elsewhere && let Ok(event) = self.device.record_event(0) {
            self.pending.push_back((event, handle));
        } else {
            self.blocks.put_back(handle);
        }
    }

    fn empty_cache(&mut self) {
        self.wait_for_pending();
        self.give_back_cache();
    }
}
