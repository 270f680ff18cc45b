//! Large requests of a job that only grows get allocations of the driver.
//!
//! A large handle costs five times as much as `cuMemAlloc`, besides the price of the size (`prices.toml`). A job that loads
//! a model and keeps it pays that for nothing: only free memory is stitched. So its large requests of `cuMemAlloc` get a
//! *chunk* each. Tensors get none, because training also frees nothing until its first backward pass.
//!
//! No stitch can use a chunk. So a chunk serves requests of nearly its own size, and idle chunks go back before memory
//! grows, if the GPU has no work that this would wait for. If it has, chunks serve every request that nothing else serves.

use super::apart::LARGEST_SMALL;
use super::growing::{LITTLE_MEMORY, SPARED_SHARE, only_grows};
use super::memory::Memory;
use crate::arena::{Arena, Cut, Region};
use crate::policy::Block;
use crate::request::Request;
use crate::work::{Obtain, Return, Smaller, Work};

/// A large request has at least so many bytes. Smaller ones cost less in handles that several of them share.
const LEAST_LARGE: u64 = 64 << 20;
/// A chunk is longer than the request that it serves by at most this part of the request.
const CLOSE_FIT: u32 = 128;

impl Memory {
    /// A block of a chunk.
    pub(super) fn find_large(&self, arena: &mut Arena, request: &Request) -> Option<Block> {
        if !self.has_chunks || request.rounded() <= LARGEST_SMALL {
            return None;
        }
        let best = arena.best(Region::Large, request)?;
        let rest = arena.blocks.units(best) - request.units;
        let serves = request.has_given_back || rest <= request.units / CLOSE_FIT;
        serves.then(|| arena.carve(best, request, Cut::Head))
    }

    /// Work for a request that nothing serves: idle chunks are given back, or a chunk is obtained. `None` if the request is
    /// served by mapped memory.
    pub(super) fn grow_large(&mut self, arena: &mut Arena, request: &mut Request) -> Option<Work> {
        if self.has_chunks && !request.has_given_back && request.rounded() > LARGEST_SMALL {
            // After that, a chunk that was kept serves the request.
            request.has_given_back = true;
            let idle = match request.capturing {
                true => None,
                false => arena.release_idle_in(Region::Large),
            };
            return Some(Work::Return(idle.unwrap_or_else(Return::nothing).without_wait()));
        }
        self.wants_chunk(arena, request).then(|| {
            self.has_chunks = true;
            Work::Obtain(Obtain::new(request.rounded(), request.rounded(), Smaller::Least).of_region(Region::Large))
        })
    }

    fn wants_chunk(&self, arena: &Arena, request: &Request) -> bool {
        let bytes = request.rounded();
        let is_tensor = request.alignment == 1;
        !is_tensor
            && bytes >= LEAST_LARGE
            && arena.reserved() + bytes >= LITTLE_MEMORY
            && only_grows(arena)
            // A chunk leaves unused what is free.
            && arena.free_bytes() <= arena.reserved() / SPARED_SHARE
            && self.has_order()
            && !self.tight
            && !self.is_scarce
            && !request.capturing
    }
}
