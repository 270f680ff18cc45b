//! Which memory that is there serves a request: the best fit among the requests of its region, and among all memory if it is
//! short; else a remembered stitch. Its place depends on little, so a job that repeats itself gets the same places again.

use super::memory::Memory;
use super::{pieces, tuned};
use crate::arena::{Arena, Cut, Region};
use crate::holdings::Block;
use crate::request::{LastResort, Request};

/// The region of a request. What small blocks leave free of a handle serves no large request, so they share handles with
/// blocks of about their size.
pub(super) fn region_of(request: &Request) -> Region {
    match request.rounded() {
        bytes if bytes <= tuned::LARGEST_SMALL => Region::Small,
        bytes if bytes <= tuned::LARGEST_MIDDLE => Region::Middle,
        _ => Region::Main,
    }
}

/// A block of a chunk: the job has freed it during a stream capture, or it was obtained for this request. A small block would
/// hold a larger chunk back.
fn find_dedicated(arena: &mut Arena, request: &Request) -> Option<Block> {
    let may_use = region_of(request) != Region::Small || request.last_resort == LastResort::Tried;
    let best = may_use.then(|| arena.best(Region::Dedicated, request)).flatten()?;
    Some(arena.carve(best, request, Cut::Head))
}

impl Memory {
    /// A block for the request; `None` if work must make room for it.
    #[inline]
    pub fn find(&mut self, arena: &mut Arena, request: &Request) -> Option<Block> {
        if let Some(address) = self.made.take()
            && let Some(block) = self.stitches.serve_at(arena, request, address)
        {
            return Some(block);
        }
        let most = tuned::LOOKS_PER_REQUEST * tuned::MOST_IDLE as u64;
        self.looks_left = (self.looks_left + tuned::LOOKS_PER_REQUEST).min(most);
        let region = region_of(request);
        let Some(best) = arena.best(region, request) else {
            return self.find_elsewhere(arena, request);
        };
        let free = arena.blocks.range(best);
        let start = self.start_in(arena, free.start, request);
        match free.start < start && start + request.rounded() <= free.end {
            true => arena.carve_run(start, request),
            false => Some(arena.carve(best, request, Cut::Head)),
        }
    }

    /// Where the block begins in free memory from this address on. As long as memory is not short, a large block begins not in
    /// the rest of a larger handle, which it would keep from all others.
    pub(super) fn start_in(&self, arena: &Arena, free: u64, request: &Request) -> u64 {
        if region_of(request) != Region::Main {
            return free;
        }
        let handle = self
            .handles
            .at(free)
            .filter(|(home, handle)| *home < free && handle.bytes > request.rounded());
        match handle.filter(|_| !self.is_short(arena, request)) {
            Some((home, handle)) => home + handle.bytes,
            None => free,
        }
    }

    fn find_elsewhere(&mut self, arena: &mut Arena, request: &Request) -> Option<Block> {
        let (own, is_short) = (region_of(request), self.is_short(arena, request));
        let serves = |region: Region| is_short || region == own;
        let mut regions = [Region::Small, Region::Middle, Region::Main].into_iter();
        if is_short && let Some(best) = regions.find_map(|region| arena.best(region, request)) {
            return Some(arena.carve(best, request, Cut::Head));
        }
        if let Some(block) = self.stitches.serve(arena, request) {
            return Some(block);
        }
        // With one stream, usable neighbours are joined.
        if !arena.has_one_stream() && request.stream.is_some() {
            let runs = pieces::runs(arena, &self.handles, request);
            let region_at = |address| arena.blocks.containing(address).map(|id| arena.region(id));
            let mut long = runs.iter().filter(|run| run.start + request.rounded() <= run.end);
            if let Some(run) = long.find(|run| region_at(run.start).is_some_and(serves)) {
                return arena.carve_run(run.start, request);
            }
        }
        find_dedicated(arena, request)
    }

    /// Whether memory is so short that every free block serves.
    pub(super) fn is_short(&self, arena: &Arena, request: &Request) -> bool {
        self.is_scarce || !self.may_part || self.headroom.is_short(arena.reserved, request.rounded())
    }

    /// Whether all handles may be looked at for the request. Counts the look.
    pub(super) fn may_look(&mut self, request: &Request) -> bool {
        if region_of(request) != Region::Small {
            return true;
        }
        let left = self.looks_left.checked_sub(self.handles.by_home.len() as u64);
        self.looks_left = left.unwrap_or(self.looks_left);
        left.is_some()
    }
}
