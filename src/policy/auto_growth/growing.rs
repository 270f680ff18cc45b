//! How mapped memory grows: the work that makes room for a request, and what it has achieved.

use base::cuda::{CudaResult, DriverError};

use super::apart::LARGEST_SMALL;
use super::handles::{Handle, Left};
use super::mapping::{For, Grow, Map, NewHandle, NewStitch, Part, Reserve, Stage, Task};
use super::memory::{LARGEST_ALIGNMENT, LARGEST_RANGE, Memory};
use super::pieces::{self, Piece};
use super::stitches::{MOST_IDLE, Stitch};
use super::tight::Place;
use crate::arena::{Arena, Claim, Region};
use crate::blocks::{Id, Kind};
use crate::request::{Request, UNIT};
use crate::work::Work;

// How the shares below were chosen: see docs/strategies.md.

/// A new handle has at least this part of the reserved memory, so that a job that grows by small requests makes few calls.
const LEAST_SHARE: u64 = 1024;
/// The same for a job that has freed nearly nothing until now, and has at least `LITTLE_MEMORY` bytes.
const GROWING_SHARE: u64 = 78;
pub(super) const LITTLE_MEMORY: u64 = 1 << 30;
/// The same for such a job with at least `MUCH_MEMORY` bytes, whose calls cost most.
const GROWING_SHARE_OF_MUCH: u64 = 64;
const MUCH_MEMORY: u64 = 16 << 30;
/// A handle has at most this part of the reserved memory. More memory comes in several handles: a piece of a stitch ends
/// where a handle ends, so free memory within a handle that is too large serves no stitch.
const MOST_SHARE: u64 = 23;
/// The same for a job that has made some stitches, and so is likely to make more.
const SHARE_OF_SOME_STITCHES: u64 = 88;
const SOME_STITCHES: u64 = 52;
/// A handle has at most this part of the device's memory, also if a job only grows. A block that stays keeps its handle
/// from going back, and this bounds how much that is.
const MOST_SHARE_OF_DEVICE: u64 = 32;
/// If the device has refused a handle, the same memory is tried as smaller ones, at least so many. Their sizes are powers of
/// two, which fill what others leave.
const SPARING_HANDLES: u64 = 256;
/// No stitch is made to save less than this part of the reserved memory.
pub(super) const SPARED_SHARE: u64 = 48;
/// The same for a job whose requests keep making work.
const SPARED_SHARE_IF_WORK_GOES_ON: u64 = 128;
/// The same for a job that repeats itself with other sizes each time: no stitch of it serves twice.
const SPARED_SHARE_OF_NEARLY_SAME_SIZES: u64 = 24;
/// The same if the user has chosen to spare memory rather than driver calls. Handles have the size of new sizes' then.
const SPARED_SHARE_IF_TIGHT: u64 = 1024;
/// The least and the most part at once for handles of a job that has made many stitches: most handles are in use in part.
const SHARE_OF_MANY_STITCHES: u64 = 2048;
const MANY_STITCHES: u64 = 96;
/// The same for a job whose sizes do not repeat.
pub(super) const SHARE_OF_NEW_SIZES: u64 = 16384;
/// The same if the job itself repeats: its sizes are nearly the same every time.
const SHARE_OF_NEARLY_SAME_SIZES: u64 = 512;

/// A range of addresses for homes is this many times as large as the device's memory, one for stitches as many times that
/// much. Addresses cost nothing. What is given back leaves holes, which are filled again.
const RANGE_PER_DEVICE_MEMORY: u64 = 2;
const STITCHES_PER_HOME: u64 = 8;
/// The device's memory if it could not be asked, in bytes.
const UNKNOWN_MEMORY: u64 = 80 << 30;
/// After so many failures without a success, the next layer is taken to map no handle twice.
pub(super) const FAILURES_UNTIL_REFUSED: u32 = 3;

/// Whether the job has freed nearly nothing until now.
pub(super) fn only_grows(arena: &Arena) -> bool {
    arena.freed <= arena.reserved / 8
}

impl Memory {
    /// Work that makes room for a request that nothing serves.
    pub fn grow(&mut self, arena: &mut Arena, request: &Request) -> CudaResult<Work> {
        let bytes = request.rounded();
        if self.total > 0 && bytes > self.total {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        if let Some(work) = self.grow_apart(arena, request) {
            return Ok(work);
        }
        if let Some(work) = self.grow_large(arena, request) {
            return Ok(work);
        }
        let work = self.make_room(arena, request)?;
        if matches!(&work, Work::Map(map) if matches!(map.0, Task::Grow(_))) {
            self.sizes.note(bytes, only_grows(arena));
        }
        Ok(work)
    }

    fn make_room(&mut self, arena: &mut Arena, request: &Request) -> CudaResult<Work> {
        let bytes = request.rounded();
        let is_sparing = self.is_scarce;
        let is_irregular = self.is_irregular(arena);
        let may_unmap = !request.capturing && !self.unmaps_in_vain;
        if is_irregular
            && !is_sparing
            && may_unmap
            && let Some(released) = self.release_larger(arena, 2 * self.share(arena, SHARE_OF_NEW_SIZES))
        {
            return Ok(released);
        }
        let Some((hole, before)) = self.hole_for(arena, request) else {
            return Ok(self.reserve(For::Home, bytes));
        };
        let skips_stitch = std::mem::take(&mut self.skips_stitch) || self.stitch_failures >= FAILURES_UNTIL_REFUSED;
        let may_stitch = self.may_stitch && !skips_stitch;
        let spared = arena.free_bytes().saturating_sub(before);
        let mut pieces = Vec::new();
        let least_spared = match is_irregular || is_sparing {
            true => 0,
            false if self.tight => arena.reserved / SPARED_SHARE_IF_TIGHT,
            false if !self.sizes.repeat() => arena.reserved / SPARED_SHARE_OF_NEARLY_SAME_SIZES,
            false if self.sizes.keep_coming() => arena.reserved / SPARED_SHARE_IF_WORK_GOES_ON,
            false => arena.reserved / SPARED_SHARE,
        };
        let is_tight = may_stitch && self.is_tight(arena, request);
        if is_tight || may_stitch && spared > least_spared && (is_sparing || self.may_look(request)) {
            if self.stitches.idle() >= MOST_IDLE && may_unmap {
                if let Some(evict) = self.evict(arena) {
                    return Ok(evict);
                }
                arena.want_end();
            }
            let tightest = is_tight.then(|| self.tightest(arena, request)).flatten();
            pieces = match tightest {
                Some(Place::Stitch(pieces)) => pieces,
                _ => pieces::choose(&pieces::runs(arena, &self.handles, request), &self.handles, bytes),
            };
        }
        let is_extension = |pieces: &[Piece]| matches!(pieces, [piece] if piece.end() == arena.blocks.address(hole));
        let found: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        let has_room = self.stitches.idle() < 2 * MOST_IDLE;
        if found <= before || is_extension(&pieces) || !has_room {
            let new = self.new_handles(arena, hole, bytes - before, is_sparing);
            return Ok(self.work(arena, Some(hole), new, None, is_sparing));
        }
        let mut new = Vec::new();
        let mut new_hole = None;
        if found < bytes {
            let Some(hole) = self.hole_of(arena, bytes - found) else {
                return Ok(self.reserve(For::Home, bytes));
            };
            new = self.new_handles(arena, hole, bytes - found, is_sparing);
            new_hole = Some(hole);
            self.add_new(&mut pieces, &new, bytes - found, u64::from(request.alignment) * UNIT);
        }
        let parts = self.parts_of(&pieces, &new);
        let room: u64 = parts.iter().map(|(part, _)| part.bytes).sum();
        let Some(address) = self.space.take(room) else {
            return Ok(self.reserve(For::Stitches, room));
        };
        let stitch = NewStitch {
            address,
            room,
            offset: pieces[0].address - parts[0].0.home,
            parts,
            mapped: 0,
            is_usable: false,
        };
        Ok(self.work(arena, new_hole, new, Some(stitch), is_sparing))
    }

    /// The holes that a handle fits into, in the order of addresses. If places must not change, the last hole comes first:
    /// what is free before it is the last choice.
    fn holes(&self, arena: &Arena) -> impl Iterator<Item = Id> {
        let mut holes: Vec<Id> = arena.holes(Region::Main, (self.granule / UNIT) as u32).collect();
        holes.sort_unstable_by_key(|&id| arena.blocks.address(id));
        if self.keeps_places(arena) {
            holes.reverse();
        }
        holes.into_iter()
    }

    /// Whether so many bytes of new memory fit into a hole.
    fn fit(&self, arena: &Arena, hole: Id, bytes: u64) -> bool {
        bytes.next_multiple_of(self.granule) <= arena.blocks.bytes(hole)
    }

    fn hole_of(&self, arena: &Arena, bytes: u64) -> Option<Id> {
        self.holes(arena).find(|&hole| self.fit(arena, hole, bytes))
    }

    /// The first hole in which new memory makes room for the request, and how many of its bytes the usable memory before
    /// the hole serves.
    fn hole_for(&self, arena: &Arena, request: &Request) -> Option<(Id, u64)> {
        let (bytes, alignment) = (request.rounded(), u64::from(request.alignment) * UNIT);
        self.holes(arena).find_map(|hole| {
            let address = arena.blocks.address(hole);
            let usable = arena.usable_around(address, request).start.next_multiple_of(alignment);
            let before = address.saturating_sub(usable).min(bytes - UNIT);
            self.fit(arena, hole, bytes - before).then_some((hole, before))
        })
    }

    /// This part of the reserved memory as whole granules, and at least one.
    pub(super) fn share(&self, arena: &Arena, of: u64) -> u64 {
        (arena.reserved / of / self.granule * self.granule).max(self.granule)
    }

    /// The new handles for `lacking` bytes, at the beginning of a hole.
    fn new_handles(&self, arena: &Arena, hole: Id, lacking: u64, is_sparing: bool) -> Vec<NewHandle> {
        let room = arena.blocks.bytes(hole) / self.granule * self.granule;
        let least = lacking.next_multiple_of(self.granule);
        // Memory of a job that has freed nearly nothing is in stitches least. Few calls matter if there is much of it.
        let repeats = self.has_order();
        let is_growth = repeats && only_grows(arena) && arena.reserved + least >= LITTLE_MEMORY;
        let (share, most_share) = match repeats {
            _ if self.tight => (SHARE_OF_NEW_SIZES, SHARE_OF_NEW_SIZES),
            true if is_growth && arena.reserved >= MUCH_MEMORY => (GROWING_SHARE_OF_MUCH, 1),
            true if is_growth => (GROWING_SHARE, 1),
            true if self.stitches.made() >= MANY_STITCHES => (SHARE_OF_MANY_STITCHES, SHARE_OF_MANY_STITCHES),
            true if self.stitches.made() >= SOME_STITCHES => (LEAST_SHARE, SHARE_OF_SOME_STITCHES),
            true => (LEAST_SHARE, MOST_SHARE),
            false if self.cycles.repeat(arena.reserved) => (SHARE_OF_NEARLY_SAME_SIZES, SHARE_OF_NEARLY_SAME_SIZES),
            false => (SHARE_OF_NEW_SIZES, SHARE_OF_NEW_SIZES),
        };
        let share = arena.reserved / share / self.granule * self.granule;
        let bytes = match is_sparing {
            true => least,
            // A large handle is no place for small blocks.
            false if lacking <= LARGEST_SMALL => share.min(self.handles.largest_common).max(least).min(room),
            false => least.max(share).min(room),
        };
        let most = match bytes {
            // The device may have the memory in small pieces only.
            _ if is_sparing => 1 << (bytes / SPARING_HANDLES).max(1).ilog2(),
            _ if self.total > 0 => ((arena.reserved + bytes) / most_share).min(self.total / MOST_SHARE_OF_DEVICE),
            _ => (arena.reserved + bytes) / most_share,
        };
        let most = (most / self.granule * self.granule).max(self.granule);
        let mut home = arena.blocks.address(hole);
        let end = home + bytes;
        let mut new = Vec::new();
        while home < end {
            let mut one = most.min(end - home);
            let has_rest = bytes == least && lacking < least && home + one == end;
            if is_growth && has_rest && one > self.granule && bytes > self.handles.largest_common {
                // What the request leaves free serves others. If they stay, they keep a granule and not all of this.
                one -= self.granule;
            }
            // Only a handle that is larger than what is lacking can be smaller.
            let is_only = one == bytes;
            new.push(NewHandle {
                home,
                bytes: one,
                least: if is_only { least } else { one },
                name: 0,
                stage: Stage::Absent,
            });
            home += one;
        }
        new
    }

    /// Adds new memory to pieces that lack so many bytes. It must be beside ends of handles.
    fn add_new(&self, pieces: &mut Vec<Piece>, new: &[NewHandle], lacking: u64, alignment: u64) {
        let (Some(first), Some(last)) = (new.first(), new.last()) else {
            return;
        };
        let (start, end) = (first.home, last.home + last.bytes);
        let Some(at_end) = pieces.pop() else { return };
        let ends_handle = |at: u64| {
            let mut handle = self.handles.in_range(at - UNIT..at);
            handle.any(|(home, handle)| home + handle.bytes == at)
        };
        if ends_handle(at_end.end()) {
            pieces.push(at_end);
            pieces.push(Piece {
                address: start,
                bytes: lacking,
            });
            return;
        }
        // The last piece does not end a handle, so the new memory comes before it.
        let needed = lacking + at_end.bytes;
        let bytes = if pieces.is_empty() {
            lacking.next_multiple_of(alignment)
        } else {
            (end - start).min(needed)
        };
        pieces.push(Piece {
            address: end - bytes,
            bytes,
        });
        if bytes < needed {
            pieces.push(Piece {
                address: at_end.address,
                bytes: needed - bytes,
            });
        }
    }

    /// The handles behind pieces, in this order.
    fn parts_of(&self, pieces: &[Piece], new: &[NewHandle]) -> Vec<(Part, Option<u64>)> {
        let mut parts = Vec::new();
        for piece in pieces {
            let known = self.handles.in_range(piece.address..piece.end());
            parts.extend(known.map(|(home, handle)| {
                let bytes = handle.bytes;
                (Part { home, bytes }, Some(handle.name))
            }));
            let new = new
                .iter()
                .filter(|handle| handle.home < piece.end() && piece.address < handle.home + handle.bytes);
            parts.extend(new.map(|handle| {
                let (home, bytes) = (handle.home, handle.bytes);
                (Part { home, bytes }, None)
            }));
        }
        parts
    }

    pub(super) fn work(
        &mut self,
        arena: &mut Arena,
        hole: Option<Id>,
        new: Vec<NewHandle>,
        stitch: Option<NewStitch>,
        is_sparing: bool,
    ) -> Work {
        let claim = hole.zip(new.first()).map(|(hole, first)| {
            let bytes: u64 = new.iter().map(|handle| handle.bytes).sum();
            arena.claim(hole, first.home, (bytes / UNIT) as u32)
        });
        let parts = stitch.iter().flat_map(|stitch| &stitch.parts);
        parts.for_each(|(part, _)| self.handles.hold(part.home));
        Work::Map(Box::new(Map(Task::Grow(Grow {
            new,
            hole: claim,
            stitch,
            problem: None,
            stitch_problem: None,
            is_sparing,
        }))))
    }

    pub(super) fn reserve(&self, purpose: For, bytes: u64) -> Work {
        let times = match purpose {
            For::Home => RANGE_PER_DEVICE_MEMORY,
            For::SmallHome => 1,
            For::Stitches => RANGE_PER_DEVICE_MEMORY * STITCHES_PER_HOME,
        };
        let total = if self.total > 0 { self.total } else { UNKNOWN_MEMORY };
        let range = total.saturating_mul(times).min(LARGEST_RANGE).max(2 * bytes);
        let alignment = self.granule.max(LARGEST_ALIGNMENT);
        Work::Map(Box::new(Map(Task::Reserve(Reserve {
            purpose,
            bytes: range.next_multiple_of(alignment),
            least: bytes.next_multiple_of(alignment) + alignment,
            alignment,
            address: Err(DriverError::OUT_OF_MEMORY),
        }))))
    }

    pub(super) fn reserved_range(&mut self, arena: &mut Arena, reserve: Reserve) -> CudaResult {
        match (reserve.purpose, reserve.address) {
            (For::Home, Ok(address)) => {
                self.homes.push((address, reserve.bytes));
                arena.add_segment(address, reserve.bytes, Kind::Hole, Region::Main);
            }
            (For::SmallHome, Ok(address)) => {
                self.homes.push((address, reserve.bytes));
                self.has_small_region = true;
                arena.add_segment(address, reserve.bytes, Kind::Hole, Region::Small);
            }
            (For::Stitches, Ok(address)) => self.space.add(address, reserve.bytes),
            // The other memory serves small requests as well.
            (For::SmallHome, Err(DriverError::OUT_OF_MEMORY)) => self.may_part = false,
            // Memory without a stitch serves the request as well.
            (For::Stitches, Err(DriverError::OUT_OF_MEMORY)) => self.may_stitch = false,
            (_, Err(problem)) => return Err(problem),
        }
        Ok(())
    }

    /// What growing has achieved. An error that is not out of memory is for the caller to judge.
    pub(super) fn grown(&mut self, arena: &mut Arena, grow: Grow) -> CudaResult {
        if let Some(hole) = grow.hole {
            let newest_stitch = self.stitches.made() + u64::from(grow.stitch.is_some());
            self.settle_new(arena, hole, &grow.new, newest_stitch);
        }
        if let Some(stitch) = grow.stitch {
            let is_old = |part: &Part| !grow.new.iter().any(|handle| handle.home == part.home);
            let old = stitch.parts.iter().filter(|(part, _)| is_old(part));
            old.for_each(|(part, _)| self.handles.let_go(part.home));
            self.stitched(stitch, grow.stitch_problem);
        }
        let new: u64 = grow.new.iter().map(|handle| handle.bytes).sum();
        self.note_search(arena, new);
        match grow.problem {
            None => {
                self.is_scarce &= grow.new.is_empty();
                Ok(())
            }
            // Another attempt uses what is free, and asks for no more than is lacking.
            Some(DriverError::OUT_OF_MEMORY) if !grow.is_sparing => {
                self.is_scarce = true;
                Ok(())
            }
            Some(problem) => Err(problem),
        }
    }

    fn settle_new(&mut self, arena: &mut Arena, hole: Claim, new: &[NewHandle], newest_stitch: u64) {
        arena.settle(hole, Kind::Hole);
        for handle in new.iter().filter(|handle| handle.stage > Stage::Absent) {
            let (home, bytes, name) = (handle.home, handle.bytes, handle.name);
            let Some(id) = arena.blocks.containing(home) else {
                continue;
            };
            let claim = arena.claim(id, home, (bytes / UNIT) as u32);
            if handle.stage == Stage::Usable {
                arena.settle(claim, Kind::Free);
                let handle = Handle {
                    bytes,
                    name,
                    holds: 0,
                    newest_stitch,
                };
                self.handles.insert(home, handle);
                continue;
            }
            self.handles.left.push(Left {
                home,
                bytes,
                name,
                is_mapped: handle.stage == Stage::Mapped,
                claim,
            });
        }
    }

    fn stitched(&mut self, made: NewStitch, problem: Option<DriverError>) {
        let address = made.address;
        if problem.is_some() {
            self.skips_stitch = true;
            self.stitch_failures += u32::from(!self.has_stitched);
        }
        if made.is_usable {
            self.has_stitched = true;
            self.stitch_failures = 0;
        }
        if made.mapped == 0 {
            self.space.give(address, made.room);
            return;
        }
        let parts: Vec<Part> = made.parts.into_iter().map(|(part, _)| part).collect();
        // A new handle may have become smaller than was planned.
        let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        if bytes < made.room {
            self.space.give(address + bytes, made.room - bytes);
        }
        self.made = made.is_usable.then_some(address + made.offset);
        self.stitches
            .add(Stitch::new(address, parts, made.mapped, made.is_usable));
    }
}
