//! Growth in chunks, by the rules of Paddle's `auto_growth`.
//!
//! `auto_growth` grows in this way if the next layer has no virtual memory management. A request gets the tail of the
//! best fit, which is always split; blocks are joined within a chunk. On out of memory, the caller gives idle chunks
//! back, and tries the request once more.

use base::cuda::DriverError;

use crate::arena::{Arena, Cut, Region};
use crate::arena_policy::ArenaPolicy;
use crate::policy::Block;
use crate::request::{Request, UNIT};
use crate::work::{Obtain, Smaller, Work};

/// A chunk for a request that wants to be aligned has at least so many bytes.
const PAGE_BYTES: u64 = 2 << 20;

/// What was set for chunks.
pub struct ChunkRules {
    /// Size of a chunk for requests that are smaller; 0 if none was set.
    pub least_bytes: u64,
    /// Whether a chunk is given back as soon as no block in it is live.
    pub release_when_idle: bool,
    /// Whether idle chunks are given back before a new one is obtained.
    pub release_before_growth: bool,
}

pub struct Chunks {
    rules: ChunkRules,
}

impl Chunks {
    pub fn new(rules: ChunkRules) -> Self {
        Chunks { rules }
    }
}

impl ArenaPolicy for Chunks {
    fn find(&mut self, arena: &mut Arena, request: &Request) -> Option<Block> {
        let found = arena.best(Region::Main, request)?;
        Some(arena.carve(found, request, Cut::Tail))
    }

    fn grow(&mut self, arena: &mut Arena, request: &mut Request) -> Result<Work, DriverError> {
        // Giving a chunk back waits for the device, which an open stream capture does not allow.
        if self.rules.release_before_growth && !request.capturing && !request.has_given_back {
            request.has_given_back = true;
            if let Some(idle) = arena.release_idle() {
                return Ok(Work::Return(idle.without_wait()));
            }
        }
        let size = request.rounded();
        // The next layer cuts small segments out of a page of its own, and does not align them as the request may want it.
        let page = if request.alignment > 1 { PAGE_BYTES } else { 0 };
        let least = self.rules.least_bytes.max(page);
        let least = least.checked_next_multiple_of(UNIT).unwrap_or(size);
        // A chunk of the size that was set is preferred, but one of the size of the request is enough.
        Ok(Work::Obtain(Obtain::new(least, size, Smaller::Least)))
    }

    fn is_given_back(&self, _segment: u64) -> bool {
        self.rules.release_when_idle
    }
}
