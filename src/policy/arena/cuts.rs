//! Cutting a free block for a request, and freeing it again.

use std::ops::Range;

use super::batches::{BatchId, Cut};
use super::segments::Arena;
use crate::blocks::{Id, Kind, NONE};
use crate::holdings::{Block, UsedBy};
use crate::request::{Request, UNIT};

impl Arena {
    /// How many units of a free block are before the part that serves a request. `None` if no part is long enough and
    /// aligned as the request wants it.
    #[inline]
    pub(super) fn place(&self, id: Id, request: &Request, cut: Cut) -> Option<u32> {
        let rest = self.blocks[id].units.checked_sub(request.units)?;
        match (request.alignment, cut) {
            (1, Cut::Head) => Some(0),
            (1, Cut::Tail) => Some(rest),
            _ => self.aligned_place(id, request, cut, rest),
        }
    }

    fn aligned_place(&self, id: Id, request: &Request, cut: Cut, rest: u32) -> Option<u32> {
        let alignment = u64::from(request.alignment);
        // The block begins so many units after an aligned address. The beginning of a segment counts as aligned.
        let offset = self.blocks[id].offset;
        let base = self.blocks.segment_base(id) / UNIT;
        let after = |units: u32| (base + u64::from(offset) + u64::from(units)) % alignment;
        let skip = match cut {
            Cut::Head if offset == 0 => Some(0),
            Cut::Head => Some((alignment - after(0)) % alignment),
            Cut::Tail if offset == 0 => Some(u64::from(rest).saturating_sub(after(rest))),
            Cut::Tail => u64::from(rest).checked_sub(after(rest)),
        };
        skip.filter(|&skip| skip <= u64::from(rest)).map(|skip| skip as u32)
    }

    /// Cuts a live block for the request out of a free one that `best` has found.
    pub fn carve(&mut self, id: Id, request: &Request, cut: Cut) -> Block {
        let batch = self.unlist(id);
        let rest = self.blocks[id].units - request.units;
        let skip = self.place(id, request, cut).unwrap_or(0);
        let mut live = id;
        if skip > 0 {
            live = self.blocks.split(id, skip);
            self.list(id, batch);
        }
        if skip < rest {
            let after = self.blocks.split(live, request.units);
            self.list(after, batch);
        }
        self.made_live(live, request)
    }

    #[inline(always)]
    fn made_live(&mut self, id: Id, request: &Request) -> Block {
        self.blocks.make_live(id, request.bytes);
        self.allocated += request.rounded();
        self.blocks.describe(id)
    }

    /// Frees the live block that begins at `address`; returns it, and the free block that it is now a part of.
    pub fn free(&mut self, address: u64, used_by: UsedBy) -> Option<(Block, Id)> {
        let id = self.blocks.make_free(address)?;
        let block = self.blocks.describe(id);
        self.allocated -= block.allocated;
        self.freed += block.allocated;
        self.note_user(used_by);
        let batch = self.batch_for(used_by);
        let free_block = self.join(id, batch);
        if !matches!(used_by, UsedBy::Nothing | UsedBy::Awaited) {
            self.note_joined(batch);
        }
        Some((block, free_block))
    }

    /// Joins a free block of `batch` that is in no list with its free neighbours, and puts the result in a list. If there
    /// are several streams, a clean block is not joined with a dirty one, because the joined block would be dirty as a
    /// whole. Blocks that the same streams may use can all wait for the end of the later batch.
    pub(super) fn join(&mut self, id: Id, batch: BatchId) -> Id {
        let (mut id, mut batch) = (id, batch);
        let next = self.blocks[id].next;
        if self.joins(next, batch) {
            let its = self.unlist(next);
            batch = self.later(batch, its);
            self.blocks.join_next(id);
        }
        let prev = self.blocks[id].prev;
        if self.joins(prev, batch) {
            let its = self.unlist(prev);
            batch = self.later(batch, its);
            self.blocks.join_next(prev);
            id = prev;
        }
        self.list(id, batch);
        id
    }

    #[inline]
    fn joins(&self, neighbour: Id, batch: BatchId) -> bool {
        if neighbour == NONE || self.blocks.kind(neighbour) != Kind::Free {
            return false;
        }
        let its = BatchId::of_list(self.blocks.list(neighbour));
        let is_one_clean = its == BatchId::CLEAN || batch == BatchId::CLEAN;
        its == batch || self.have_same_streams(its, batch) || is_one_clean && self.has_one_stream()
    }

    /// The block of this kind that contains `address`, and its units before that, if there are any.
    fn cut_at(&self, address: u64, kind: Kind) -> Option<(Id, u32)> {
        let id = self
            .blocks
            .containing(address)
            .filter(|&id| self.blocks.kind(id) == kind)?;
        let before = ((address - self.blocks.address(id)) / UNIT) as u32;
        (before > 0).then_some((id, before))
    }

    /// Splits the live block that contains `address` in two; the second begins at `address`.
    pub fn split_live(&mut self, address: u64) {
        let Some((id, before)) = self.cut_at(address, Kind::Live) else {
            return;
        };
        let block = self.blocks.describe(id);
        let rest = self.blocks.split(id, before);
        self.blocks.set_slack(id, 0);
        self.blocks
            .make_live(rest, self.blocks.bytes(rest) - (block.allocated - block.requested));
    }

    // ---- runs: usable memory that may be in several blocks side by side. Neighbours of different batches are not joined,
    // but one request may be able to use both.

    /// Whether this request can use the block now: it is free, and either clean or only used by the request's stream.
    fn is_usable(&self, id: Id, request: &Request) -> bool {
        if id == NONE || self.blocks.kind(id) != Kind::Free {
            return false;
        }
        let batch = BatchId::of_list(self.blocks.list(id));
        let own = request.stream.filter(|_| !request.capturing);
        batch == BatchId::CLEAN || own.is_some_and(|stream| self.batch(batch).is_of(stream))
    }

    /// The usable memory on both sides of `address`: from where it begins to where it ends. Empty if no usable memory is there.
    pub fn usable_around(&self, address: u64, request: &Request) -> Range<u64> {
        let after = self.blocks.containing(address);
        let mut first = match after {
            Some(id) if self.blocks.address(id) < address => id,
            Some(id) => self.blocks[id].prev,
            None => self.blocks.containing(address - UNIT).unwrap_or(NONE),
        };
        let mut start = address;
        while self.is_usable(first, request) {
            start = self.blocks.address(first);
            first = self.blocks[first].prev;
        }
        let mut end = address;
        let mut last = after.unwrap_or(NONE);
        while self.is_usable(last, request) {
            end = self.blocks.range(last).end;
            last = self.blocks[last].next;
        }
        start..end
    }

    /// Takes `units` from `address` on out of the free blocks that they are in; returns them as one block.
    fn take(&mut self, address: u64, units: u32) -> Option<Id> {
        let (mut at, mut left, mut taken) = (address, units, None);
        while left > 0 {
            let id = self.blocks.containing(at)?;
            let end = self.blocks.range(id).end;
            let here = left.min(((end - at) / UNIT) as u32);
            let claim = self.claim(id, at, here);
            match taken {
                None => taken = Some(claim.id),
                Some(first) => self.blocks.join_next(first),
            }
            at = end;
            left -= here;
        }
        self.taken -= u64::from(units) * UNIT;
        taken
    }

    /// Cuts a live block for the request out of a run, from `address` on.
    pub fn carve_run(&mut self, address: u64, request: &Request) -> Option<Block> {
        let id = self.take(address, request.units)?;
        Some(self.made_live(id, request))
    }

    /// Takes a part of a live block that has its address elsewhere.
    pub fn take_part(&mut self, address: u64, bytes: u64) {
        if let Some(id) = self.take(address, (bytes / UNIT) as u32) {
            self.blocks.set_kind(id, Kind::Part);
            self.allocated += bytes;
        }
    }

    /// Frees the parts of a live block that begin at these addresses.
    pub fn free_parts(&mut self, parts: impl Iterator<Item = u64>, used_by: UsedBy) {
        self.note_user(used_by);
        let batch = self.batch_for(used_by);
        for address in parts {
            let part = self.blocks.containing(address);
            let Some(id) = part.filter(|&id| self.blocks.kind(id) == Kind::Part) else {
                continue;
            };
            self.blocks.set_kind(id, Kind::Free);
            let bytes = self.blocks.bytes(id);
            self.allocated -= bytes;
            self.freed += bytes;
            self.join(id, batch);
        }
        if !matches!(used_by, UsedBy::Nothing | UsedBy::Awaited) {
            self.note_joined(batch);
        }
    }

    /// Splits the part of a live block that contains `address`, so that a part begins there.
    pub fn split_part(&mut self, address: u64) {
        if let Some((id, before)) = self.cut_at(address, Kind::Part) {
            self.blocks.split(id, before);
        }
    }

    /// Whether all of this range is free and clean. Clean neighbours are always joined.
    pub fn is_range_clean(&self, range: &Range<u64>) -> bool {
        let block = self.blocks.containing(range.start);
        block.is_some_and(|id| {
            let end = self.blocks.range(id).end;
            self.is_clean(id) && end >= range.end
        })
    }
}
