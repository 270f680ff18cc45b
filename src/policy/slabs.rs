//! A subpool: the policy of one thread, on memory that it borrows from the pool of the context.
//!
//! Threads that would often wait for each other get a subpool each. A subpool borrows *slabs* from its parent pool,
//! cuts small requests from them by best fit, and gives free parts of them back. To the parent's policy, a slab is a
//! live block. A part of a slab can be given back too, so that a few small blocks do not keep a whole slab from large
//! requests.

use std::ops::Range;

use crate::arena::{Arena, Cut, Region};
use crate::blocks::{Id, NONE};
use crate::holdings::Block;
use crate::request::Request;
use crate::work::{Obtain, Return, Work};

/// Size of a slab in bytes: 32 requests of the largest size, so that the parent pool is locked rarely. A judgement, not
/// measured.
const SLAB_BYTES: u64 = 32 << 20;
/// Larger requests, in bytes, go to the parent pool: their calls are few, and they would waste the end of a slab.
pub const LARGEST_REQUEST_BYTES: u64 = 1 << 20;
/// Free parts of a slab are given back in multiples of this many bytes. No next layer maps less than this, so a smaller
/// part would be of no use to large requests.
pub(crate) const PIECE_BYTES: u64 = 2 << 20;

/// The whole pieces of a free block: addresses. Empty if there are none.
fn pieces(arena: &Arena, free_block: Id) -> Range<u64> {
    let Range { start, end } = arena.blocks.range(free_block);
    let from = match arena.blocks[free_block].prev {
        NONE => start,
        _ => start.next_multiple_of(PIECE_BYTES),
    };
    let to = match arena.blocks[free_block].next {
        NONE => end,
        _ => end / PIECE_BYTES * PIECE_BYTES,
    };
    from..to
}

#[inline]
pub(crate) fn find(arena: &mut Arena, request: &Request) -> Option<Block> {
    let found = arena.best(Region::Main, request)?;
    Some(arena.carve(found, request, Cut::Head))
}

pub(crate) fn grow(request: &Request) -> Work {
    let size = request.rounded().max(SLAB_BYTES);
    Work::Obtain(Obtain::new(size, size, false))
}

/// Gives a slab back that is wholly free now. One free slab is kept, because the next request would borrow it again.
pub(crate) fn give_back_spare(arena: &mut Arena, free_block: Id) {
    let blocks = &arena.blocks;
    let is_whole = blocks[free_block].prev == NONE && blocks[free_block].next == NONE;
    if is_whole && arena.free_bytes() >= 2 * SLAB_BYTES {
        let pieces = pieces(arena, free_block);
        arena.give_back_now(free_block, pieces);
    }
}

pub(crate) fn has_idle(arena: &Arena) -> bool {
    let mut free_blocks = arena.clean_blocks(Region::Main, 1);
    free_blocks.any(|free_block| !pieces(arena, free_block).is_empty())
}

pub(crate) fn release_idle(arena: &mut Arena) -> Option<Work> {
    let free_blocks: Vec<Id> = arena.clean_blocks(Region::Main, 1).collect();
    let idle = free_blocks.into_iter().filter_map(|free_block| {
        let part = pieces(arena, free_block);
        (!part.is_empty()).then(|| arena.take_out(free_block, part))
    });
    Return::of_pieces(idle.collect()).map(Work::Return)
}
