//! How mapped memory grows: the work that makes room for a request, and what it has achieved.

use base::cuda::{CudaResult, DriverError};

use super::finding::region_of;
use super::handles::Handle;
use super::mapping::{For, Grow, Map, NewHandle, NewStitch, Part, Released, Reserve, Stage, Task};
use super::memory::Memory;
use super::pieces::{self, Piece};
use super::space::{LARGEST_ALIGNMENT, LARGEST_RANGE};
use super::stitches::Stitch;
use super::tuned;
use crate::arena::{Arena, Claim, Region};
use crate::blocks::{Id, Kind};
use crate::request::{LastResort, Request, UNIT};
use crate::work::{Obtain, Work};

/// Addresses cost nothing. So a range for homes is this many times as large as the device's memory: what is given back leaves
/// holes, which are filled again.
const RANGE_PER_DEVICE_MEMORY: u64 = 2;

impl Memory {
    /// Work that makes room for a request that nothing serves.
    pub fn grow(&mut self, arena: &mut Arena, request: &Request) -> CudaResult<Work> {
        let bytes = request.rounded();
        if bytes > self.headroom.total {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        let region = if self.may_part {
            region_of(request)
        } else {
            Region::Main
        };
        arena.is_short = self.is_short(arena, request);
        Ok(self.make_room(arena, request, region))
    }

    /// The last work for a request that is out of memory otherwise: a chunk. The device may have memory, and the next layer
    /// refuse to create or map more of it: its limit may be for handles alone, or addresses may be used up.
    pub(super) fn grow_at_last(&mut self, request: &mut Request) -> CudaResult<Work> {
        if request.last_resort == LastResort::Tried {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        request.last_resort = LastResort::Tried;
        // No other place is looked for than the chunk.
        self.is_scarce = true;
        let bytes = request.rounded();
        Ok(Work::Obtain(Obtain::new(bytes, bytes, false).dedicated()))
    }

    fn make_room(&mut self, arena: &mut Arena, request: &Request, region: Region) -> Work {
        let bytes = request.rounded();
        let is_sparing = self.is_scarce;
        let may_unmap = !request.capturing && !self.unmaps_in_vain;
        let Some((hole, before)) = self.hole_for(arena, request, region) else {
            return self.reserve(For::Home(region), bytes);
        };
        let skips_stitch = std::mem::take(&mut self.skips_stitch) || self.stitch_failures >= tuned::FAILURES;
        let may_stitch = self.may_stitch && !skips_stitch;
        let spared = arena.free_bytes().saturating_sub(before);
        let mut pieces = Vec::new();
        let least_spared = match is_sparing {
            true => 0,
            false => self.headroom.least_spared(arena.reserved),
        };
        if may_stitch && spared > least_spared && (is_sparing || self.may_look(request)) {
            if self.stitches.idle() >= tuned::MOST_IDLE && may_unmap {
                if let Some(evict) = self.evict(arena) {
                    return evict;
                }
                arena.want_end();
            }
            pieces = pieces::choose(&pieces::runs(arena, &self.handles, request), &self.handles, bytes);
        }
        let is_extension = |pieces: &[Piece]| matches!(pieces, [piece] if piece.end() == arena.blocks.address(hole));
        let found: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        let has_room = self.stitches.idle() < 2 * tuned::MOST_IDLE;
        let is_worth = is_sparing || found >= before + least_spared;
        if found <= before || is_extension(&pieces) || !has_room || !is_worth {
            let new = self.new_handles(arena, hole, bytes - before, is_sparing);
            return self.work(arena, Some(hole), new, None, is_sparing);
        }
        let mut new = Vec::new();
        let mut new_hole = None;
        if found < bytes {
            let Some(hole) = self.hole_of(arena, bytes - found) else {
                return self.reserve(For::Home(Region::Main), bytes);
            };
            new = self.new_handles(arena, hole, bytes - found, is_sparing);
            new_hole = Some(hole);
            self.add_new(&mut pieces, &new, bytes - found, u64::from(request.alignment) * UNIT);
        }
        let parts = self.parts_of(&pieces, &new);
        let room: u64 = parts.iter().map(|(part, _)| part.bytes).sum();
        let Some(address) = self.space.take(room) else {
            return self.reserve(For::Stitches, room);
        };
        let stitch = NewStitch {
            address,
            room,
            offset: pieces[0].address - parts[0].0.home,
            parts,
            mapped: 0,
            is_usable: false,
        };
        self.work(arena, new_hole, new, Some(stitch), is_sparing)
    }

    /// The holes of a region that a handle fits into, in the order of addresses.
    fn holes(&self, arena: &Arena, region: Region) -> impl Iterator<Item = Id> {
        let mut holes: Vec<Id> = arena.holes(region, (self.granule / UNIT) as u32).collect();
        holes.sort_unstable_by_key(|&id| arena.blocks.address(id));
        holes.into_iter()
    }

    /// Whether so many bytes of new memory fit into a hole.
    fn fit(&self, arena: &Arena, hole: Id, bytes: u64) -> bool {
        bytes.next_multiple_of(self.granule) <= arena.blocks.bytes(hole)
    }

    fn hole_of(&self, arena: &Arena, bytes: u64) -> Option<Id> {
        self.holes(arena, Region::Main)
            .find(|&hole| self.fit(arena, hole, bytes))
    }

    /// The first hole in which new memory makes room for the request, and how many of its bytes the usable memory before
    /// the hole serves.
    fn hole_for(&self, arena: &Arena, request: &Request, region: Region) -> Option<(Id, u64)> {
        let (bytes, alignment) = (request.rounded(), u64::from(request.alignment) * UNIT);
        self.holes(arena, region).find_map(|hole| {
            let address = arena.blocks.address(hole);
            let usable = arena.usable_around(address, request).start;
            let usable = self.start_in(arena, usable, request).next_multiple_of(alignment);
            let before = address.saturating_sub(usable).min(bytes - UNIT);
            self.fit(arena, hole, bytes - before).then_some((hole, before))
        })
    }

    /// The new handles for `lacking` bytes, at the beginning of a hole.
    fn new_handles(&self, arena: &Arena, hole: Id, lacking: u64, is_sparing: bool) -> Vec<NewHandle> {
        let room = arena.blocks.bytes(hole) / self.granule * self.granule;
        let least = lacking.next_multiple_of(self.granule);
        let region = arena.region(hole);
        let step = self.headroom.step(self.held[region as usize], arena.reserved) / self.granule * self.granule;
        let bytes = match is_sparing || region == Region::Main {
            true => least,
            false => step.max(least).min(room),
        };
        let most = match is_sparing {
            // The device may have the memory in small pieces only.
            true => 1 << (bytes / tuned::SPARING_HANDLES).max(1).ilog2(),
            false if region != Region::Main => bytes,
            // The device may have more than was known: others give memory back.
            false => self
                .headroom
                .largest_handle(arena.reserved)
                .max(least / tuned::SPARING_HANDLES),
        };
        let most = (most / self.granule * self.granule).max(self.granule);
        let mut home = arena.blocks.address(hole);
        let end = home + bytes;
        let mut new = Vec::new();
        while home < end {
            let one = most.min(end - home);
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
        let bytes: u64 = new.iter().map(|handle| handle.bytes).sum();
        let claim = hole
            .zip(new.first())
            .map(|(hole, first)| arena.claim(hole, first.home, (bytes / UNIT) as u32));
        let parts = stitch.iter().flat_map(|stitch| &stitch.parts);
        parts.for_each(|(part, _)| self.handles.hold(part.home));
        Work::Map(Box::new(Map(Task::Grow(Grow {
            new,
            hole: claim,
            stitch,
            problem: None,
            stitch_problem: None,
            is_sparing,
            asks: self.headroom.is_old(arena.reserved + bytes),
            available: None,
        }))))
    }

    pub(super) fn reserve(&self, purpose: For, bytes: u64) -> Work {
        let range = match purpose {
            For::Home(_) => self.headroom.total.saturating_mul(RANGE_PER_DEVICE_MEMORY),
            For::Stitches => LARGEST_RANGE,
        };
        let range = range.min(LARGEST_RANGE).max(2 * bytes);
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
            (For::Home(region), Ok(address)) => {
                self.homes.push((address, reserve.bytes));
                arena.add_segment(address, reserve.bytes, Kind::Hole, region);
            }
            (For::Stitches, Ok(address)) => self.space.add(address, reserve.bytes),
            // The other memory serves small requests as well.
            (For::Home(Region::Small | Region::Middle), Err(DriverError::OUT_OF_MEMORY)) => self.may_part = false,
            // Memory without a stitch serves the request as well.
            (For::Stitches, Err(DriverError::OUT_OF_MEMORY)) => self.may_stitch = false,
            (_, Err(problem)) => return Err(problem),
        }
        Ok(())
    }

    /// What growing has achieved. An error that is not out of memory is for the caller to judge.
    pub(super) fn grown(&mut self, arena: &mut Arena, grow: Grow) -> CudaResult {
        if let Some(hole) = grow.hole {
            self.settle_new(arena, hole, &grow.new);
        }
        if let Some(stitch) = grow.stitch {
            let is_old = |part: &Part| !grow.new.iter().any(|handle| handle.home == part.home);
            let old = stitch.parts.iter().filter(|(part, _)| is_old(part));
            old.for_each(|(part, _)| self.handles.let_go(part.home));
            self.stitched(stitch, grow.stitch_problem);
        }
        if let Some(available) = grow.available {
            self.headroom.learn(available, arena.reserved);
        }
        match grow.problem {
            None => {
                self.is_scarce &= grow.new.is_empty();
                Ok(())
            }
            // Another attempt uses what is free, and asks for no more than is lacking.
            Some(DriverError::OUT_OF_MEMORY) if !grow.is_sparing => {
                self.is_scarce = true;
                self.headroom.exhausted(arena.reserved);
                arena.is_short = true;
                arena.want_all_events();
                Ok(())
            }
            Some(problem) => {
                // What the device has now decides about the next request.
                self.is_scarce &= grow.available.is_none();
                Err(problem)
            }
        }
    }

    fn settle_new(&mut self, arena: &mut Arena, hole: Claim, new: &[NewHandle]) {
        let region = arena.region(hole.id) as usize;
        arena.settle(hole, Kind::Hole);
        for handle in new.iter().filter(|handle| handle.stage > Stage::Absent) {
            let (home, bytes, name) = (handle.home, handle.bytes, handle.name);
            let Some(id) = arena.blocks.containing(home) else {
                continue;
            };
            let claim = arena.claim(id, home, (bytes / UNIT) as u32);
            if handle.stage == Stage::Usable {
                arena.settle(claim, Kind::Free);
                let handle = Handle { bytes, name, holds: 0 };
                self.handles.by_home.insert(home, handle);
                self.held[region] += bytes;
                continue;
            }
            self.handles.left.push(Released {
                home,
                base: home,
                bytes,
                name,
                claim,
                was_usable: false,
                stage: handle.stage,
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
        self.stitches.add(Stitch {
            address,
            parts,
            mapped: made.mapped,
            is_usable: made.is_usable,
            ..Stitch::default()
        });
    }
}
