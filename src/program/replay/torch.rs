//! A model of PyTorch's caching allocator (`c10/cuda/CUDACachingAllocator.cpp`), by default and with expandable
//! segments.
//!
//! Sizes are rounded up to multiples of 512 bytes. Small requests (up to 1 MiB) come from segments of 2 MiB, large
//! requests below 10 MiB from segments of 20 MiB. A request of 10 MiB or more makes a segment of its size, rounded up
//! to a multiple of 2 MiB. Each stream has one pool of free blocks for small and one for large requests. A request
//! takes the best fitting block of its pool (by size, then address). In the large pool a block is split only if more
//! than 1 MiB remains.
//!
//! A block that another stream has used is pending after its free. An event on that stream tells when the block is
//! free. Each request asks for the oldest event.
//!
//! If the driver has no memory, the allocator waits for the pending blocks, gives all segments without a live block
//! back with `cudaFree`, and asks the driver once more. Each `cudaFree` waits for the GPU.
//!
//! With expandable segments each pool has one segment, and blocks are always split. The segment grows at its end by
//! handles of 2 MiB (small) or 20 MiB (large): one call creates and one maps each handle, and one call gives access to
//! all of them. Before handles are unmapped and released one by one, the allocator waits for the stream. This model
//! gives back the free handles at the end of a segment; PyTorch also gives back those in the middle.

use std::collections::{HashMap, VecDeque};

use base::cuda::DriverError;
use policy::device_memory::{DeviceMemory, EventId};

use super::blocks::{Blocks, End, PoolName};
use super::device::ModelDevice;
use super::requests::{Allocator, LastUse, Way};

const ROUND: u64 = 512;
const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
const OWN_SEGMENT_FROM: u64 = 10 << 20;

pub struct CachingAllocator<'a> {
    device: &'a ModelDevice,
    expandable: bool,
    /// An expandable segment has the size that is mapped so far.
    blocks: Blocks,
    /// First address and mapped bytes of the expandable segment of each pool.
    expanding: HashMap<PoolName, (u64, u64)>,
    /// Freed blocks that another stream may still use, with the event that tells, in the order of the frees.
    pending: VecDeque<(EventId, u64)>,
}

/// The size of a handle of an expandable segment.
fn page(pool: PoolName) -> u64 {
    if pool.1 { SMALL_SEGMENT } else { LARGE_SEGMENT }
}

impl<'a> CachingAllocator<'a> {
    pub fn new(device: &'a ModelDevice, expandable: bool) -> Self {
        CachingAllocator {
            device,
            expandable,
            blocks: Blocks::default(),
            expanding: HashMap::new(),
            pending: VecDeque::new(),
        }
    }

    fn grow(&mut self, size: u64, pool: PoolName) -> Result<(), DriverError> {
        if self.expandable {
            return self.expand(size, pool);
        }
        let bytes = match size {
            _ if size <= SMALL => SMALL_SEGMENT,
            _ if size < OWN_SEGMENT_FROM => LARGE_SEGMENT,
            _ => size
                .checked_next_multiple_of(SMALL_SEGMENT)
                .ok_or(DriverError::OUT_OF_MEMORY)?,
        };
        let address = self.device.allocate(bytes)?;
        self.blocks.extend(address, bytes, pool);
        Ok(())
    }

    /// Maps handles at the end of the pool's segment, so that a free block of at least `size` bytes is there.
    fn expand(&mut self, size: u64, pool: PoolName) -> Result<(), DriverError> {
        let (start, mapped) = match self.expanding.get(&pool) {
            Some(&known) => known,
            None => {
                let room = self.device.total().saturating_add(self.device.total() / 8);
                (self.device.reserve(room, 0)?, 0)
            }
        };
        self.expanding.insert(pool, (start, mapped));
        let tail = self.blocks.free_end(start, start + mapped);
        let have = tail.map_or(0, |(_, block)| block.size);
        let more = (size - have.min(size))
            .checked_next_multiple_of(page(pool))
            .ok_or(DriverError::OUT_OF_MEMORY)?;
        self.device.add_pages(more / page(pool), page(pool))?;
        self.blocks.extend(start, more, pool);
        self.expanding.insert(pool, (start, mapped + more));
        Ok(())
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

    /// Gives cached memory back to the device: segments that are entirely free, or free pages at the end of expandable
    /// segments.
    fn give_back_cache(&mut self) {
        if !self.expandable {
            for idle in self.blocks.take_idle() {
                let _ = self.device.give_back(idle);
            }
            return;
        }
        for (start, size) in self.blocks.segments() {
            let Some((address, block)) = self.blocks.free_end(start, start + size) else {
                continue;
            };
            let page = page(block.pool);
            let keep = (address - start).next_multiple_of(page);
            if keep < size {
                self.device.wait();
                self.blocks.cut(start, keep);
                self.device.give_pages((size - keep) / page, page);
                self.expanding.insert(block.pool, (start, keep));
            }
        }
    }
}

impl Allocator for CachingAllocator<'_> {
    fn allocate(&mut self, size: u64, way: Way) -> Result<u64, DriverError> {
        let size = size
            .max(1)
            .checked_next_multiple_of(ROUND)
            .ok_or(DriverError::OUT_OF_MEMORY)?;
        self.free_what_is_done();
        let stream = match way {
            Way::Driver | Way::Tensor(None) => 0,
            Way::Tensor(Some(stream)) => stream,
        };
        let pool = (stream, size <= SMALL);
        if !self.blocks.fits(size, pool) && self.grow(size, pool).is_err() {
            self.wait_for_pending();
            self.give_back_cache();
            self.grow(size, pool)?;
        }
        let split = |rest| {
            if pool.1 || self.expandable {
                rest >= ROUND
            } else {
                rest > SMALL
            }
        };
        let taken = self.blocks.take(size, pool, End::Head, split);
        taken.ok_or(DriverError::OUT_OF_MEMORY)
    }

    fn free(&mut self, handle: u64, last_use: LastUse) {
        let used_elsewhere = matches!(last_use, LastUse::TwoStreams(..) | LastUse::Unknown);
        if used_elsewhere && let Ok(event) = self.device.record_event(0) {
            self.pending.push_back((event, handle));
        } else {
            self.blocks.put_back(handle);
        }
    }
}
