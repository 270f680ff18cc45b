//! Requests that get allocations of the driver: large ones of a job that only grows, and those that nothing else serves.
//!
//! A large handle costs five times as much as `cuMemAlloc`, besides the price of the size (`prices.toml`). A job that loads
//! a model and keeps it pays that for nothing: only free memory is stitched. So its large requests of `cuMemAlloc` get a
//! *chunk* each, which goes back when the job frees it. Tensors get none, because training also frees nothing until its
//! first backward pass, and `vramshim_torch_free` must not wait as giving a chunk back does.

use base::cuda::{CudaResult, DriverError};

use super::growing::{LITTLE_MEMORY, SPARED_SHARE, only_grows};
use super::memory::Memory;
use crate::arena::Arena;
use crate::request::{LastResort, Request};
use crate::work::{Obtain, Work};

/// A large request has at least so many bytes. Smaller ones cost less in handles that several of them share.
const LEAST_LARGE: u64 = 64 << 20;

impl Memory {
    /// Work that obtains a chunk for the request; `None` if it is served by mapped memory.
    pub(super) fn grow_large(&self, arena: &Arena, request: &Request) -> Option<Work> {
        let bytes = request.rounded();
        let is_tensor = request.alignment == 1;
        let gets_chunk = !is_tensor
            && bytes >= LEAST_LARGE
            && arena.reserved + bytes >= LITTLE_MEMORY
            && only_grows(arena)
            // A chunk leaves unused what is free.
            && arena.free_bytes() <= arena.reserved / SPARED_SHARE
            && self.has_order()
            && !self.tight
            && !self.is_scarce
            && !request.capturing;
        gets_chunk.then(|| Work::Obtain(Obtain::new(bytes, bytes, false).dedicated()))
    }

    /// The last work for a request that is out of memory otherwise: a chunk. The device may have memory, and the next layer
    /// refuse to create or map more of it: its limit may be for handles alone, or addresses may be used up.
    pub(super) fn grow_at_last(&mut self, request: &mut Request) -> CudaResult<Work> {
        if request.last_resort == LastResort::Tried {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        request.last_resort = LastResort::Tried;
        // No tighter place is looked for than the chunk.
        self.is_scarce = true;
        let bytes = request.rounded();
        Ok(Work::Obtain(Obtain::new(bytes, bytes, false).dedicated()))
    }
}
