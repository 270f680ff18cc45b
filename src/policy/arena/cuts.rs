//! Cutting a free block for a request, and freeing it again.

use super::batches::BatchId;
use super::region::Cut;
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
        self.blocks.make_live(live, request.bytes);
        self.allocated += request.rounded();
        self.blocks.describe(live)
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

    /// Splits the live block that contains `address` in two; the second begins at `address`.
    pub fn split_live(&mut self, address: u64) {
        let Some(id) = self.blocks.containing(address) else {
            return;
        };
        let before = ((address - self.blocks.address(id)) / UNIT) as u32;
        if self.blocks.kind(id) != Kind::Live || before == 0 {
            return;
        }
        let slack = {
            let block = self.blocks.describe(id);
            block.allocated - block.requested
        };
        let rest = self.blocks.split(id, before);
        self.blocks.set_slack(id, 0);
        let requested = self.blocks.bytes(rest) - slack;
        self.blocks.make_live(rest, requested);
    }
}
