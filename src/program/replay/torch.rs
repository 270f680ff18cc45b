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

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use base::cuda::DriverError;
use policy::device_memory::{DeviceMemory, EventId};

use super::allocator::Allocator;
use super::device::ModelDevice;
use super::requests::{LastUse, Way};

const ROUND: u64 = 512;
const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
const OWN_SEGMENT_FROM: u64 = 10 << 20;

/// Names a pool of free blocks: the stream, and whether the pool serves small requests.
type PoolName = (u64, bool);

#[derive(Clone, Copy)]
struct Block {
    size: u64,
    segment: u64,
    pool: PoolName,
    free: bool,
}

pub struct CachingAllocator<'a> {
    device: &'a ModelDevice,
    expandable: bool,
    /// All blocks by address.
    blocks: BTreeMap<u64, Block>,
    free: HashMap<PoolName, BTreeSet<(u64, u64)>>,
    /// Sizes of segments by first address. An expandable segment has the size that is mapped so far.
    segments: HashMap<u64, u64>,
    expanding: HashMap<PoolName, u64>,
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
            blocks: BTreeMap::new(),
            free: HashMap::new(),
            segments: HashMap::new(),
            expanding: HashMap::new(),
            pending: VecDeque::new(),
        }
    }

    fn add_free(&mut self, address: u64, size: u64, segment: u64, pool: PoolName) {
        self.blocks.insert(
            address,
            Block {
                size,
                segment,
                pool,
                free: true,
            },
        );
        self.free.entry(pool).or_default().insert((size, address));
    }

    fn remove_free(&mut self, address: u64) -> Option<Block> {
        let block = *self.blocks.get(&address).filter(|block| block.free)?;
        self.blocks.remove(&address);
        self.free.get_mut(&block.pool)?.remove(&(block.size, address));
        Some(block)
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
        self.segments.insert(address, bytes);
        self.add_free(address, bytes, address, pool);
        Ok(())
    }

    /// Maps handles at the end of the pool's segment, so that a free block of at least `size` bytes is there.
    fn expand(&mut self, size: u64, pool: PoolName) -> Result<(), DriverError> {
        let start = match self.expanding.get(&pool) {
            Some(&start) => start,
            None => {
                let room = self.device.total().saturating_add(self.device.total() / 8);
                let start = self.device.reserve(room, 0)?;
                self.expanding.insert(pool, start);
                start
            }
        };
        let mapped = self.segments.get(&start).copied().unwrap_or(0);
        let end = start + mapped;
        let last = self
            .blocks
            .range(..end)
            .next_back()
            .map(|(&address, &block)| (address, block));
        let tail = last.filter(|(_, block)| block.segment == start && block.free && mapped > 0);
        let have = tail.map_or(0, |(_, block)| block.size);
        let more = (size - have.min(size))
            .checked_next_multiple_of(page(pool))
            .ok_or(DriverError::OUT_OF_MEMORY)?;
        self.device.add_pages(more / page(pool), page(pool))?;
        self.segments.insert(start, mapped + more);
        let at = match tail {
            Some((address, _)) => {
                self.remove_free(address);
                address
            }
            None => end,
        };
        self.add_free(at, have + more, start, pool);
        Ok(())
    }

    /// Unmaps and releases the handles of a segment from `keep` bytes on.
    fn shrink(&mut self, start: u64, keep: u64, page: u64) {
        self.device.wait();
        let mapped = self.segments.get(&start).copied().unwrap_or(0);
        self.device.give_pages(mapped.saturating_sub(keep) / page, page);
        self.segments.insert(start, keep);
    }

    /// Frees the pending blocks whose events are done. Looks at the oldest events only, up to the first that is not
    /// done.
    fn free_what_is_done(&mut self) {
        while let Some(&(event, address)) = self.pending.front()
            && self.device.event_is_done(event)
        {
            self.pending.pop_front();
            self.device.forget_event(event);
            self.free_block(address);
        }
    }

    fn wait_for_pending(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.device.wait();
        for (event, address) in std::mem::take(&mut self.pending) {
            self.device.forget_event(event);
            self.free_block(address);
        }
    }

    /// Gives cached memory back to the device: segments that are entirely free, or free pages at the end of expandable
    /// segments.
    fn give_back_cache(&mut self) {
        let mut segments: Vec<(u64, u64)> = self.segments.iter().map(|(&start, &size)| (start, size)).collect();
        segments.sort_unstable();
        for (start, size) in segments {
            if !self.expandable {
                if self
                    .blocks
                    .get(&start)
                    .is_some_and(|block| block.free && block.size == size)
                {
                    self.remove_free(start);
                    self.segments.remove(&start);
                    let _ = self.device.give_back(start);
                }
                continue;
            }
            let tail = self
                .blocks
                .range(start..start + size)
                .next_back()
                .map(|(&address, &block)| (address, block));
            let Some((address, block)) = tail.filter(|(_, block)| block.free) else {
                continue;
            };
            let keep = (address - start).next_multiple_of(page(block.pool));
            if keep < size {
                self.remove_free(address);
                if start + keep > address {
                    self.add_free(address, start + keep - address, start, block.pool);
                }
                self.shrink(start, keep, page(block.pool));
            }
        }
    }

    /// Puts a block back into its pool, joined with its free neighbours.
    fn free_block(&mut self, handle: u64) {
        let Some(block) = self.blocks.remove(&handle) else {
            return;
        };
        let (mut start, mut size) = (handle, block.size);
        let same = |other: &Block| other.free && other.segment == block.segment;
        if self.blocks.get(&(start + size)).is_some_and(same)
            && let Some(next) = self.remove_free(start + size)
        {
            size += next.size;
        }
        let before = self
            .blocks
            .range(..start)
            .next_back()
            .map(|(&address, &block)| (address, block));
        if let Some((address, left)) = before
            && same(&left)
            && address + left.size == start
        {
            self.remove_free(address);
            start = address;
            size += left.size;
        }
        self.add_free(start, size, block.segment, block.pool);
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
        let fitting = |free: &HashMap<PoolName, BTreeSet<(u64, u64)>>| {
            free.get(&pool).and_then(|free| free.range((size, 0)..).next().copied())
        };
        if fitting(&self.free).is_none() && self.grow(size, pool).is_err() {
            self.wait_for_pending();
            self.give_back_cache();
            self.grow(size, pool)?;
        }
        let (_, address) = fitting(&self.free).ok_or(DriverError::OUT_OF_MEMORY)?;
        let block = self.remove_free(address).ok_or(DriverError::OUT_OF_MEMORY)?;
        let rest = block.size - size;
        let split = if pool.1 || self.expandable {
            rest >= ROUND
        } else {
            rest > SMALL
        };
        let taken = if split { size } else { block.size };
        if split {
            self.add_free(address + size, rest, block.segment, pool);
        }
        self.blocks.insert(
            address,
            Block {
                size: taken,
                free: false,
                ..block
            },
        );
        Ok(address)
    }

    fn free(&mut self, handle: u64, last_use: LastUse) {
        let used_elsewhere = matches!(last_use, LastUse::TwoStreams(..) | LastUse::Unknown);
        if used_elsewhere && let Ok(event) = self.device.record_event(0) {
            self.pending.push_back((event, handle));
        } else {
            self.free_block(handle);
        }
    }
}
