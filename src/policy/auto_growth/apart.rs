//! Small requests stay out of large handles.
//!
//! A handle goes back to the next layer as a whole. A small block that stays, such as a loss that the job keeps, would
//! hold back all of a large one, and the next request of the size that the handle was made for would not fit. So a small
//! request gets memory of a region of its own instead. PyTorch's allocator keeps requests apart by the same size
//! (`kSmallSize`). If the device has no more memory, every free block serves.

use super::mapping::{For, NewHandle, Stage};
use super::memory::Memory;
use crate::arena::{Arena, Cut, Region};
use crate::blocks::Id;
use crate::holdings::Block;
use crate::request::{Request, UNIT};
use crate::work::Work;

/// The most bytes of a small request.
pub(super) const LARGEST_SMALL: u64 = 1 << 20;
/// A free block in a large handle that has at most this part of `Handles::largest_common` is the rest that a large request
/// has left.
const SHARE_OF_REST: u64 = 4;
/// A handle for small requests has this part of the reserved memory, and at most so many bytes.
const SHARE_OF_SMALL: u64 = 1024;
const LARGEST_HANDLE_OF_SMALL: u64 = 64 << 20;

impl Memory {
    /// A block of the region of small requests.
    pub(super) fn find_small(&self, arena: &mut Arena, request: &Request) -> Option<Block> {
        let is_small = self.has_small_region && request.rounded() <= LARGEST_SMALL;
        let best = is_small.then(|| arena.best(Region::Small, request)).flatten();
        best.map(|best| arena.carve(best, request, Cut::Head))
    }

    fn may_be_apart(&self, request: &Request) -> bool {
        request.rounded() <= LARGEST_SMALL
            && self.handles.has_large()
            && self.may_part
            && !self.is_scarce
            && !request.capturing
    }

    /// Whether the request is not served by this block, because that is free memory of a large handle.
    pub(super) fn is_too_good(&self, arena: &Arena, request: &Request, block: Id) -> bool {
        let address = arena.blocks.address(block);
        let bytes = arena.blocks.bytes(block);
        let reach = request.rounded() + u64::from(request.alignment) * UNIT;
        self.may_be_apart(request)
            && bytes > self.handles.largest_common / SHARE_OF_REST
            && self.handles.has_large_in(address..address + reach)
    }

    /// Work that makes room for the request in the region of small ones; `None` if it is served as others are.
    pub(super) fn grow_apart(&mut self, arena: &mut Arena, request: &Request) -> Option<Work> {
        let is_passed_over = |best| self.is_too_good(arena, request, best);
        let is_apart = self.may_be_apart(request)
            && (!self.is_irregular(arena) || arena.best(Region::Main, request).is_some_and(is_passed_over));
        if !is_apart {
            return None;
        }
        let least = request.rounded().next_multiple_of(self.granule);
        let share = self.share(arena, SHARE_OF_SMALL).min(LARGEST_HANDLE_OF_SMALL);
        let bytes = share.max(2 * LARGEST_SMALL).next_multiple_of(self.granule).max(least);
        let holes = arena.holes(Region::Small, (bytes / UNIT) as u32);
        let Some(hole) = holes.min_by_key(|&hole| arena.blocks.address(hole)) else {
            return Some(self.reserve(For::SmallHome, bytes));
        };
        let new = NewHandle {
            home: arena.blocks.address(hole),
            bytes,
            least,
            name: 0,
            stage: Stage::Absent,
        };
        Some(self.work(arena, Some(hole), vec![new], None, false))
    }
}
