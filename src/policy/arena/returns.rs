//! Memory that is given back to the next layer.
//!
//! It is taken out of the blocks when that is decided, so nobody is given a part of it while the next layer frees it, and
//! the next layer may grant its address again at once. It stays reserved, but is not free, until it is gone. If the next
//! layer does not take it, it becomes a segment again.

use std::ops::Range;

use super::batches::BatchId;
use super::region::Region;
use super::segments::Arena;
use crate::blocks::{Id, Kind, NONE};
use crate::holdings::UsedBy;
use crate::request::UNIT;
use crate::work::{Piece, Return};

impl Arena {
    /// Gives the segment of a free block back if no block in it is live. The next layer waits for the work that uses it,
    /// in place of the caller's own wait.
    pub fn give_back_when_idle(&mut self, free_block: Id) {
        let mut first = free_block;
        while self.blocks[first].prev != NONE {
            first = self.blocks[first].prev;
            if self.blocks.kind(first) != Kind::Free {
                return;
            }
        }
        let segment = std::iter::successors(Some(first), |&id| Some(self.blocks[id].next).filter(|&id| id != NONE));
        let blocks: Vec<Id> = segment.take_while(|&id| self.blocks.kind(id) == Kind::Free).collect();
        if blocks.last().is_some_and(|&last| self.blocks[last].next != NONE) {
            return;
        }
        let mut is_clean = true;
        for &id in &blocks {
            is_clean &= self.unlist(id) == BatchId::CLEAN;
        }
        blocks.iter().skip(1).for_each(|_| self.blocks.join_next(first));
        self.list(first, BatchId::CLEAN);
        let piece = self.take_out(first, self.blocks.range(first));
        self.due_with_wait.push(Piece { is_clean, ..piece });
    }

    /// Gives a part of a clean free block back now: addresses. The next layer must not wait for that.
    pub fn give_back_now(&mut self, free_block: Id, part: Range<u64>) {
        let piece = self.take_out(free_block, part);
        self.due.push(piece);
    }

    /// Whether one of the segments with these first addresses is idle.
    pub fn has_idle(&self, is_one: impl Fn(u64) -> bool) -> bool {
        let mut firsts = self.blocks.first_blocks();
        firsts.any(|first| is_one(self.blocks.address(first)) && self.is_idle_segment(first))
    }

    /// Takes the idle segments with these first addresses out, to be given back.
    pub fn release_idle(&mut self, is_one: impl Fn(u64) -> bool) -> Option<Return> {
        let firsts = self.blocks.first_blocks();
        let firsts: Vec<Id> = firsts.filter(|&first| is_one(self.blocks.address(first))).collect();
        let pieces = firsts.into_iter().filter_map(|first| self.take_segment_out(first));
        Return::of_pieces(pieces.collect())
    }

    pub(super) fn due_return(&mut self, with_wait: bool) -> Option<Return> {
        let due = if with_wait {
            &mut self.due_with_wait
        } else {
            &mut self.due
        };
        Return::of_pieces(std::mem::take(due))
    }

    /// The next layer took the memory, or did not.
    pub fn given_back(&mut self, returned: Return) {
        for piece in returned.pieces {
            let (address, size) = (piece.address, piece.size);
            // Another piece at this address may be on its way too, if the next layer has granted the address again.
            let known = self
                .returning
                .iter()
                .position(|&returning| returning == (address, size));
            known.map(|index| self.returning.swap_remove(index));
            self.taken -= size;
            self.reserved -= size;
            if piece.is_gone {
                continue;
            }
            let kept = self.add_segment(address, size, Kind::Free, Region::Main);
            if !piece.is_clean {
                self.unlist(kept);
                let batch = self.batch_for(UsedBy::Unknown);
                self.list(kept, batch);
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
        self.blocks[id].prev == NONE && self.blocks[id].next == NONE && self.is_clean(id)
    }

    fn take_segment_out(&mut self, id: Id) -> Option<Piece> {
        self.is_idle_segment(id)
            .then(|| self.take_out(id, self.blocks.range(id)))
    }

    /// Takes a part of a clean free block out. What is left of the segment before and after the part becomes a segment
    /// each.
    pub fn take_out(&mut self, free_block: Id, part: Range<u64>) -> Piece {
        let (address, size) = (part.start, part.end - part.start);
        let claim = self.claim(free_block, address, (size / UNIT) as u32);
        let region = self.region(claim.id);
        // The lists order blocks by their place, which changes for all blocks after the part.
        let mut relisted: Vec<(Id, BatchId)> = Vec::new();
        let after = self.blocks[claim.id].next;
        let mut id = after;
        while id != NONE {
            if self.blocks.kind(id) == Kind::Free {
                relisted.push((id, self.unlist(id)));
            }
            id = self.blocks[id].next;
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
            is_clean: true,
            is_gone: false,
        }
    }
}
