//! Which memory that is there serves a request.
//!
//! The best fit at home serves most requests, a remembered stitch many of the others. Their places depend on little, so a
//! job that repeats itself gets the same ones again. If a job has not begun to repeat itself and has grown not long ago,
//! its larger requests get the `tight`est place, for which a stitch may be made although a free block is long enough.

use super::apart::LARGEST_SMALL;
use super::growing::{FAILURES_UNTIL_REFUSED, SHARE_OF_NEW_SIZES};
use super::memory::Memory;
use super::pieces;
use super::stitches::MOST_IDLE;
use super::tight::{Place, Tight};
use crate::arena::{Arena, Cut, Region};
use crate::blocks::Id;
use crate::holdings::Block;
use crate::request::{LastResort, Request, UNIT};

/// Requests of at most so many bytes get the best fit, which wastes little.
const LARGEST_BEST_FIT: u64 = 1 << 20;
/// A free block is taken as it is if it is longer by at most this part of the request.
const CLOSE_FIT: u32 = 256;
/// More stitches are made only for a job that finds no order. A job that repeats itself makes 10 to 200.
const MOST_STITCHES: u64 = 240;
/// So many are enough to tell if nearly all work that made room has made a stitch, because nothing that was freed fits.
const TELLING_STITCHES: u64 = 60;
const NEARLY_ALL: (u64, u64) = (3, 4);
/// For so many requests the tightest place is looked for after memory has grown by 1 / `FULL_GROWTH`, and for
/// proportionally fewer after less.
const SEARCHES_AFTER_GROWTH: u128 = 4000;
const FULL_GROWTH: u128 = 50;

/// A stitch is chosen by looking at all handles. For requests that get the best fit, so many handles are looked at for
/// each request on average; more memory comes in place of further stitches.
const LOOKS_PER_REQUEST: u64 = 16;
const MOST_LOOKS: u64 = 1 << 16;

/// A block of a chunk: the job has freed it during a stream capture, or it was obtained for this request. A small block would
/// hold a larger chunk back.
fn find_dedicated(arena: &mut Arena, request: &Request) -> Option<Block> {
    let may_use = request.rounded() > LARGEST_SMALL || request.last_resort == LastResort::Tried;
    let best = may_use.then(|| arena.best(Region::Dedicated, request)).flatten()?;
    Some(arena.carve(best, request, Cut::Head))
}

impl Memory {
    /// A block for the request; `None` if work must make room for it.
    #[inline]
    pub fn find(&mut self, arena: &mut Arena, request: &Request) -> Option<Block> {
        let block = self.place(arena, request)?;
        // Smaller requests get the best fit in any case.
        if request.rounded() > LARGEST_BEST_FIT {
            self.order.note(request.rounded());
        }
        Some(block)
    }

    fn place(&mut self, arena: &mut Arena, request: &Request) -> Option<Block> {
        if let Some(address) = self.made.take()
            && let Some(block) = self.stitches.serve_at(arena, request, address)
        {
            return Some(block);
        }
        self.looks_left = (self.looks_left + LOOKS_PER_REQUEST).min(MOST_LOOKS);
        self.cycles.note(arena.allocated, arena.reserved, arena.freed);
        if let Some(block) = self.find_small(arena, request) {
            return Some(block);
        }
        let best = if self.keeps_places(arena) {
            self.best_as_before(arena, request)
        } else {
            arena.best(Region::Main, request)
        };
        if best.is_some_and(|best| self.is_too_good(arena, request, best)) {
            return None;
        }
        let is_tight = self.is_tight(arena, request);
        // A chunk is part of no handle, so the search knows no place in it.
        let is_in_handle = |id: Id| self.handles.at(arena.blocks.address(id)).is_some();
        let is_close = |&id: &Id| {
            !is_tight || arena.blocks[id].units - request.units <= request.units / CLOSE_FIT || !is_in_handle(id)
        };
        if let Some(best) = best.filter(is_close) {
            return Some(arena.carve(best, request, Cut::Head));
        }
        // With one stream, usable neighbours are joined.
        let may_join = !arena.has_one_stream() && request.stream.is_some();
        if is_tight {
            let place = (best.is_some() || may_join).then(|| self.tightest(arena, request));
            return match place.flatten() {
                Some(Place::At(address)) => arena.carve_run(address, request),
                _ => None,
            };
        }
        if may_join {
            let runs = pieces::runs(arena, &self.handles, request);
            let mut long = runs.iter().filter(|run| run.start + request.rounded() <= run.end);
            if let Some(run) = long.next() {
                return arena.carve_run(run.start, request);
            }
        }
        let stitched = self.stitches.serve(arena, request);
        stitched.or_else(|| find_dedicated(arena, request))
    }

    /// Whether the order of the job's requests repeats, or its sizes do and few stitches serve it.
    pub(super) fn has_order(&self) -> bool {
        let (part, of) = NEARLY_ALL;
        let stitches = self.stitches.made();
        let only_stitches = stitches >= TELLING_STITCHES && stitches * of >= self.sizes.noted() * part;
        let sizes_are_known = self.sizes.repeat() || self.order.is_foreseen();
        self.order.repeats() || sizes_are_known && stitches < MOST_STITCHES && !only_stitches
    }

    /// Whether the job has not begun to repeat itself.
    pub(super) fn is_irregular(&self, arena: &Arena) -> bool {
        !self.has_order() && !self.cycles.repeat(arena.reserved)
    }

    /// Whether the sizes of the job do not repeat, but the job itself does. What its blocks leave free is small then, and
    /// memory that comes beside it in one step would give each block another place in the next step.
    pub(super) fn keeps_places(&self, arena: &Arena) -> bool {
        !self.sizes.repeat() && self.cycles.repeat(arena.reserved)
    }

    /// The best fit that would have served the request in the last step, too, if there was one: the end of the memory, where
    /// memory grows, only if no other block serves the request, and no stitch that is older than this memory.
    fn best_as_before(&self, arena: &Arena, request: &Request) -> Option<Id> {
        let best = arena.best_before_last(Region::Main, request)?;
        let older_stitch = || {
            let end = arena.blocks.address(best) + request.rounded();
            let (_, last) = self.handles.at(end - UNIT)?;
            let (number, _) = self.stitches.oldest(arena, request)?;
            (number <= last.newest_stitch).then_some(number)
        };
        let is_taken = !arena.is_last(best) || older_stitch().is_none();
        is_taken.then_some(best)
    }

    /// Whether all handles may be looked at for the request. Counts the look.
    pub(super) fn may_look(&mut self, request: &Request) -> bool {
        if request.rounded() > LARGEST_BEST_FIT {
            return true;
        }
        let left = self.looks_left.checked_sub(self.handles.by_home.len() as u64);
        self.looks_left = left.unwrap_or(self.looks_left);
        left.is_some()
    }

    /// Whether the request gets the tightest place.
    pub(super) fn is_tight(&self, arena: &Arena, request: &Request) -> bool {
        self.searches_left > 0
            && request.rounded() > LARGEST_BEST_FIT
            // Tensors need no more than the places of a search have.
            && request.alignment == 1
            && !request.capturing
            && !self.is_scarce
            && self.may_stitch
            && self.stitch_failures < FAILURES_UNTIL_REFUSED
            && self.stitches.idle() < 2 * MOST_IDLE
            && self.is_irregular(arena)
    }

    pub(super) fn tightest(&self, arena: &Arena, request: &Request) -> Option<Place> {
        let usual = self.share(arena, SHARE_OF_NEW_SIZES);
        Tight::new(arena, &self.handles, request, usual).choose(request.rounded(), !self.skips_stitch)
    }

    /// Memory has grown by so many bytes for a request, or a stitch was made.
    pub(super) fn note_search(&mut self, arena: &Arena, grown: u64) {
        let reserved = u128::from(arena.reserved).max(1);
        let more = SEARCHES_AFTER_GROWTH * (u128::from(grown) * FULL_GROWTH).min(reserved) / reserved;
        let left = u128::from(self.searches_left.saturating_sub(1)) + more;
        self.searches_left = left.min(SEARCHES_AFTER_GROWTH) as u32;
    }
}
