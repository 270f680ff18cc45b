//! Models of Paddle's two allocators (`paddle/phi/core/memory/allocation/`). One model serves all streams. The models
//! share no code with our policies `auto_growth` and `naive_best_fit`, which may do better.
//!
//! `auto_growth` (`auto_growth_best_fit_allocator.cc`): sizes are multiples of 256 bytes. A request gets the tail of
//! the best fitting free block (by size, then address). Free blocks are joined only within a chunk. A chunk has the
//! size of the request, or `FLAGS_auto_growth_chunk_size_in_mb` if the flag is larger. If the device has no memory,
//! idle chunks are given back and the chunk is requested once more. `FLAGS_free_idle_chunk` and
//! `FLAGS_free_when_no_cache_hit` are off, as by default.
//!
//! `naive_best_fit` (`buddy_allocator.cc`, `gpu_info.cc`): the first chunk has the size
//! `FLAGS_initial_gpu_memory_in_mb`, a later chunk `FLAGS_reallocate_gpu_memory_in_mb`, but at least the size of the
//! request. If a flag is 0, the size is the share `FLAGS_fraction_of_gpu_memory_to_use` of 95% of the available memory.
//! A request gets the head of the best fitting free block. Free blocks are joined only within a chunk. A request above
//! the larger of both sizes at first use gets a segment of its own, which is given back at the free. Chunks are never
//! given back. If the device has less free memory than a chunk, that memory cannot be used.

use std::collections::BTreeSet;

use base::cuda::DriverError;
use policy::Settings;
use policy::device_memory::DeviceMemory;

use super::blocks::{Blocks, End, PoolName, State};
use super::device::ModelDevice;
use super::requests::{Allocator, LastUse, Way};

/// The size of every block is a multiple of this.
const GRANULE: u64 = 256;
/// Bytes that naive_best_fit adds to each request for a descriptor (`MemoryBlock::Desc`). Paddle sets these bytes aside
/// on a GPU, too, although the descriptor lies in host memory there.
const DESCRIPTOR: u64 = 64;
/// The share of the available memory that naive_best_fit does not use.
const UNUSED_SHARE: f64 = 0.05;

/// The only pool.
const POOL: PoolName = (0, false);

/// Takes bytes of a free block, whose rest stays free.
fn take(blocks: &mut Blocks, size: u64, end: End) -> Option<u64> {
    let (_, found) = blocks.fitting(size, POOL)?;
    blocks.take(found, size, end, |_| true)
}

/// `size + more` bytes, rounded up to whole granules.
fn granules(size: u64, more: u64) -> Result<u64, DriverError> {
    let size = size.max(1).checked_add(more);
    size.and_then(|size| size.checked_next_multiple_of(GRANULE))
        .ok_or(DriverError::OUT_OF_MEMORY)
}

pub struct AutoGrowth<'a> {
    device: &'a ModelDevice,
    chunk: u64,
    blocks: Blocks,
}

impl<'a> AutoGrowth<'a> {
    pub fn new(device: &'a ModelDevice, settings: &Settings) -> Self {
        AutoGrowth {
            device,
            chunk: settings
                .chunk_bytes
                .checked_next_multiple_of(GRANULE)
                .unwrap_or(settings.chunk_bytes),
            blocks: Blocks::default(),
        }
    }
}

impl Allocator for AutoGrowth<'_> {
    fn allocate(&mut self, size: u64, _way: Way) -> Result<u64, DriverError> {
        let size = granules(size, 0)?;
        if let Some(address) = take(&mut self.blocks, size, End::Tail) {
            return Ok(address);
        }
        let chunk = size.max(self.chunk);
        let address = self.device.allocate(chunk).or_else(|_| {
            for (_, _, idle) in self.blocks.idle() {
                self.blocks.remove_segment(idle);
                // The model device always accepts its own segments.
                let _ = self.device.give_back(idle);
            }
            self.device.allocate(chunk)
        })?;
        self.blocks.add_segment(address, chunk, POOL, State::Free);
        take(&mut self.blocks, size, End::Tail).ok_or(DriverError::OUT_OF_MEMORY)
    }

    fn free(&mut self, handle: u64, _last_use: LastUse) {
        self.blocks.put_back(handle);
    }
}

pub struct NaiveBestFit<'a> {
    device: &'a ModelDevice,
    settings: Settings,
    blocks: Blocks,
    /// The largest request that is served from a chunk; known after the first request.
    largest: Option<u64>,
    alone: BTreeSet<u64>,
}

impl<'a> NaiveBestFit<'a> {
    pub fn new(device: &'a ModelDevice, settings: &Settings) -> Self {
        NaiveBestFit {
            device,
            settings: settings.clone(),
            blocks: Blocks::default(),
            largest: None,
            alone: BTreeSet::new(),
        }
    }

    /// The size of a new chunk for the value of a flag. Out of memory, if that is more than 95% of the available
    /// memory.
    fn chunk(&self, flag: u64) -> Result<u64, DriverError> {
        let free = self.device.available()?.free;
        let usable = free - (free as f64 * UNUSED_SHARE) as u64;
        let chunk = match flag {
            0 => (usable as f64 * self.settings.share()) as u64,
            bytes => bytes,
        };
        if usable < GRANULE || chunk > usable {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        Ok(chunk)
    }
}

impl Allocator for NaiveBestFit<'_> {
    fn allocate(&mut self, size: u64, _way: Way) -> Result<u64, DriverError> {
        let size = granules(size, DESCRIPTOR)?;
        let largest = match self.largest {
            Some(largest) => largest,
            None => self
                .chunk(self.settings.initial_bytes)?
                .max(self.chunk(self.settings.reallocate_bytes)?),
        };
        self.largest = Some(largest);
        if size > largest {
            let address = self.device.allocate(size)?;
            self.alone.insert(address);
            return Ok(address);
        }
        if let Some(address) = take(&mut self.blocks, size, End::Head) {
            return Ok(address);
        }
        let flag = if self.blocks.is_empty() {
            self.settings.initial_bytes
        } else {
            self.settings.reallocate_bytes
        };
        let chunk = self.chunk(flag)?.max(size);
        let address = self.device.allocate(chunk)?;
        self.blocks.add_segment(address, chunk, POOL, State::Free);
        take(&mut self.blocks, size, End::Head).ok_or(DriverError::OUT_OF_MEMORY)
    }

    fn free(&mut self, handle: u64, _last_use: LastUse) {
        if self.alone.remove(&handle) {
            let _ = self.device.give_back(handle);
        } else {
            self.blocks.put_back(handle);
        }
    }
}
