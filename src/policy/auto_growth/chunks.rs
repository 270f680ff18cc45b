//! Growth in chunks, by the rules of Paddle's `auto_growth`.
//!
//! `auto_growth` grows in this way if the next layer has no virtual memory management. A request gets the tail of the
//! best fit, which is always split; blocks are joined within a chunk. On out of memory, the caller gives idle chunks
//! back, and tries the request once more.

use crate::Settings;
use crate::arena::{Arena, Cut, Region};
use crate::holdings::Block;
use crate::request::{Request, UNIT};
use crate::work::{Obtain, Return, Work};

/// A chunk for a request that wants to be aligned has at least so many bytes.
const PAGE_BYTES: u64 = 2 << 20;

pub fn find(arena: &mut Arena, request: &Request) -> Option<Block> {
    let found = arena.best(Region::Main, request)?;
    Some(arena.carve(found, request, Cut::Tail))
}

pub fn grow(settings: &Settings, arena: &mut Arena, request: &mut Request) -> Work {
    // Giving a chunk back waits for the device, which an open stream capture does not allow.
    if settings.free_when_no_cache_hit && !request.capturing && !request.has_given_back {
        request.has_given_back = true;
        if let Some(idle) = arena.release_idle(|_| true) {
            return Work::Return(Return {
                waits_for_nothing: true,
                ..idle
            });
        }
    }
    let size = request.rounded();
    // The next layer cuts small segments out of a page of its own, and does not align them as the request may want it.
    let page = if request.alignment > 1 { PAGE_BYTES } else { 0 };
    let least = settings.chunk_bytes.max(page);
    let least = least.checked_next_multiple_of(UNIT).unwrap_or(size);
    // A chunk of the size that was set is preferred, but one of the size of the request is enough.
    Work::Obtain(Obtain::new(least, size, false))
}
