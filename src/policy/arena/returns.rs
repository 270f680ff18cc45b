//! Memory that is given back to the next layer.
//!
//! It is taken out of the blocks when that is decided, so nobody is given a part of it while the next layer frees it, and
//! the next layer may grant its address again at once. It stays reserved, but is not free, until it is gone. If the next
//! layer does not take it, it becomes a segment again.

use std::ops::Range;

use super::batches::BatchId;
use super::region::Region;
use super::segments::Arena;
use crate::blocks::{Id, Kind, NONE, UNIT};
use crate::work::{Piece, Return};

impl Arena {
    /// Gives the segment of a free block back when the caller may wait, if all of it is free and clean then.
    pub fn give_back_later(&mut self, free_block: Id) {
        if self.is_idle_segment(free_block) {
            self.to_give_back.insert(self.blocks.address(free_block));
        }
    }

    /// Gives a part of a clean free block back now: addresses. The next layer must not wait for that.
    pub fn give_back_now(&mut self, free_block: Id, part: Range<u64>) {
        let piece = self.take_out(free_block, part);
        self.due.push(piece);
    }

    /// Takes every idle segment out, to be given back.
    pub fn release_idle(&mut self) -> Option<Return> {
        let firsts: Vec<Id> = self.blocks.first_blocks().collect();
        let pieces = firsts.into_iter().filter_map(|first| self.take_segment_out(first));
        let pieces: Vec<Piece> = pieces.collect();
        (!pieces.is_empty()).then_some(Return { pieces })
    }

    /// Memory that is to be given back now.
    pub(super) fn next_return(&mut self, may_wait: bool) -> Option<Return> {
        let mut pieces = std::mem::take(&mut self.due);
        if may_wait {
            for address in std::mem::take(&mut self.to_give_back) {
                let first = self.blocks.containing(address);
                pieces.extend(first.and_then(|first| self.take_segment_out(first)));
            }
        }
        (!pieces.is_empty()).then_some(Return { pieces })
    }

    /// The next layer took the memory, or did not.
    pub fn given_back(&mut self, returned: Return) {
        for Piece { address, size, is_gone } in returned.pieces {
            // Another piece at this address may be on its way too, if the next layer has granted the address again.
            let known = self.returning.iter().position(|&piece| piece == (address, size));
            known.map(|index| self.returning.swap_remove(index));
            self.taken -= size;
            self.reserved -= size;
            if !is_gone {
                self.add_segment(address, size, Kind::Free, Region::Main);
            }
        }
    }

    /// Whether `address` is in memory that is being given back.
    pub(super) fn is_returning(&self, address: u64) -> bool {
        self.returning
            .iter()
            .any(|&(start, size)| (start..start + size).contains(&address))
    }

    /// Whether all of the segment is this free, clean block. Clean neighbours are always joined.
    fn is_idle_segment(&self, id: Id) -> bool {
        self.blocks.prev(id) == NONE && self.blocks.next(id) == NONE && self.is_clean(id)
    }

    fn take_segment_out(&mut self, id: Id) -> Option<Piece> {
        let start = self.blocks.address(id);
        let end = start + u64::from(self.blocks.units(id)) * UNIT;
        self.is_idle_segment(id).then(|| self.take_out(id, start..end))
    }

    /// Takes a part of a clean free block out. What is left of the segment before and after the part becomes a segment
    /// each.
    pub fn take_out(&mut self, free_block: Id, part: Range<u64>) -> Piece {
        let (address, size) = (part.start, part.end - part.start);
        let claim = self.claim(free_block, address, (size / UNIT) as u32);
        let region = self.region(claim.id);
        // The lists order blocks by their place, which changes for all blocks after the part.
        let mut relisted: Vec<(Id, BatchId)> = Vec::new();
        let after = self.blocks.next(claim.id);
        let mut id = after;
        while id != NONE {
            if self.blocks.kind(id) == Kind::Free {
                relisted.push((id, self.unlist(id)));
            }
            id = self.blocks.next(id);
        }
        self.blocks.detach(claim.id);
        if after != NONE {
            self.set_region(after, region);
        }
        for (id, batch) in relisted {
            self.list(id, batch);
        }
        self.returning.push((address, size));
        Piece {
            address,
            size,
            is_gone: false,
        }
    }
}
