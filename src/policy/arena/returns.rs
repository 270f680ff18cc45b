//! Memory that is given back to the next layer.
//!
//! It is taken out of the blocks when that is decided, so nobody is given a part of it while the next layer frees it, and
//! the next layer may grant its address again at once. It stays reserved, but is not free, until it is gone. If the next
//! layer does not take it, it becomes a segment again.
//!
//! The memory of some segments is mapped and unmapped in parts. Memory is mapped into a hole, and unmapped memory leaves a
//! hole. The part that is mapped or unmapped is claimed before, so no other request uses it while the driver is called.

use std::ops::Range;

use super::batches::{BatchId, Region};
use super::segments::Arena;
use crate::blocks::{Id, Kind, NO_LIST, NONE};
use crate::holdings::UsedBy;
use crate::request::UNIT;
use crate::work::{Piece, Return};

/// A part of a free block or of a hole that was taken for work. It must be settled.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub id: Id,
    /// `Kind::Free` or `Kind::Hole`
    pub was: Kind,
}

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

    /// The segments with these first addresses in which no block is live, each one free, clean block. Clean neighbours are
    /// always joined.
    fn idle_segments(&self, is_one: impl Fn(u64) -> bool) -> impl Iterator<Item = Id> {
        let is_whole = |id: Id| self.blocks[id].prev == NONE && self.blocks[id].next == NONE;
        let is_idle = move |&id: &Id| is_one(self.blocks.address(id)) && is_whole(id) && self.is_clean(id);
        self.blocks.first_blocks().filter(is_idle)
    }

    pub fn has_idle(&self, is_one: impl Fn(u64) -> bool) -> bool {
        self.idle_segments(is_one).next().is_some()
    }

    /// Takes the idle segments with these first addresses out, to be given back.
    pub fn release_idle(&mut self, is_one: impl Fn(u64) -> bool) -> Option<Return> {
        let idle: Vec<Id> = self.idle_segments(is_one).collect();
        let pieces = idle.into_iter().map(|id| self.take_out(id, self.blocks.range(id)));
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

    pub(super) fn is_returning(&self, address: u64) -> bool {
        self.returning
            .iter()
            .any(|&(start, size)| (start..start + size).contains(&address))
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

    // ---- segments whose memory is mapped and unmapped in parts

    /// Claims `units` of a free block or a hole, from `address` on. What a free block leaves before and after it stays as
    /// it is.
    pub fn claim(&mut self, id: Id, address: u64, units: u32) -> Claim {
        let was = self.blocks.kind(id);
        let batch = match was {
            Kind::Hole => {
                self.forget_hole(id);
                BatchId::CLEAN
            }
            _ => self.unlist(id),
        };
        let claimed = self.cut_out(id, address, units);
        self.blocks.set_kind(claimed, Kind::Claimed);
        for rest in [self.blocks[claimed].prev, self.blocks[claimed].next] {
            if rest == NONE || self.blocks.kind(rest) != was || self.blocks.list(rest) != NO_LIST {
                continue;
            }
            match was {
                // Two holes are never neighbours, so a hole beside the claim was cut off just now.
                Kind::Hole => self.note_hole(rest),
                _ => self.list(rest, batch),
            }
        }
        if was == Kind::Free {
            self.taken += u64::from(units) * UNIT;
        }
        Claim { id: claimed, was }
    }

    /// What was claimed becomes clean free memory, or a hole; returns the block that it is a part of.
    pub fn settle(&mut self, claim: Claim, becomes: Kind) -> Id {
        let size = self.blocks.bytes(claim.id);
        if claim.was == Kind::Free {
            self.taken -= size;
            self.reserved -= size;
        }
        self.blocks.set_kind(claim.id, becomes);
        match becomes {
            Kind::Hole => self.join_holes(claim.id),
            _ => {
                self.reserved += size;
                self.join(claim.id, BatchId::CLEAN)
            }
        }
    }

    /// The hole that is the whole segment of `size` bytes at `address`.
    pub fn whole_hole(&self, address: u64, size: u64) -> Option<Id> {
        let blocks = &self.blocks;
        let is_it = |&id: &Id| blocks.kind(id) == Kind::Hole && blocks.range(id) == (address..address + size);
        blocks.containing(address).filter(is_it)
    }

    /// Forgets the segment of a hole.
    pub fn remove_hole(&mut self, hole: Id) {
        self.forget_hole(hole);
        self.blocks.detach(hole);
    }

    /// Splits the block `id` so that `units` of it, from `address` on, become a block of their own, and returns that
    /// one. The block `id` must be in no list.
    fn cut_out(&mut self, id: Id, address: u64, units: u32) -> Id {
        let skip = ((address - self.blocks.address(id)) / UNIT) as u32;
        debug_assert!(skip + units <= self.blocks[id].units && units > 0);
        let part = if skip > 0 { self.blocks.split(id, skip) } else { id };
        if self.blocks[part].units > units {
            self.blocks.split(part, units);
        }
        part
    }

    fn join_holes(&mut self, id: Id) -> Id {
        let mut hole = id;
        let next = self.blocks[hole].next;
        if next != NONE && self.blocks.kind(next) == Kind::Hole {
            self.forget_hole(next);
            self.blocks.join_next(hole);
        }
        let prev = self.blocks[hole].prev;
        if prev != NONE && self.blocks.kind(prev) == Kind::Hole {
            self.forget_hole(prev);
            self.blocks.join_next(prev);
            hole = prev;
        }
        self.note_hole(hole);
        hole
    }
}
