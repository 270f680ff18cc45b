//! Segments whose memory comes and goes in parts.
//!
//! Memory is mapped into a hole, and unmapped memory leaves a hole. The policy of a subpool gives parts of a segment
//! back altogether, which leaves a segment on either side.

use super::batches::BatchId;
use super::segments::Arena;
use crate::blocks::{Id, Kind, NO_LIST, NONE, UNIT};

impl Arena {
    /// Splits the block `id` so that `units` of it, from `address` on, become a block of their own, and returns that
    /// one. The block `id` must be in no list.
    fn cut_out(&mut self, id: Id, address: u64, units: u32) -> Id {
        let skip = ((address - self.blocks.address(id)) / UNIT) as u32;
        debug_assert!(skip + units <= self.blocks.units(id) && units > 0);
        let part = if skip > 0 { self.blocks.split(id, skip) } else { id };
        if self.blocks.units(part) > units {
            self.blocks.split(part, units);
        }
        part
    }

    /// Notes that memory was mapped in `units` of a hole, from `address` on. It is free and clean; returns the free
    /// block that it is a part of.
    pub fn fill(&mut self, hole: Id, address: u64, units: u32) -> Id {
        self.forget_hole(hole);
        let filled = self.cut_out(hole, address, units);
        for rest in [self.blocks.prev(filled), self.blocks.next(filled)] {
            // Two holes are never neighbours, so a hole beside the filled part was cut off just now.
            if rest != NONE && self.blocks.kind(rest) == Kind::Hole {
                self.note_hole(rest);
            }
        }
        self.blocks.set_kind(filled, Kind::Free);
        self.reserved += u64::from(units) * UNIT;
        self.join(filled, BatchId::CLEAN)
    }

    /// Takes `units` of a free block, from `address` on, out of the reserved memory; returns them as a block in no
    /// list.
    fn remove_from_free(&mut self, free_block: Id, address: u64, units: u32) -> Id {
        let batch = self.unlist(free_block);
        let removed = self.cut_out(free_block, address, units);
        for rest in [self.blocks.prev(removed), self.blocks.next(removed)] {
            if rest != NONE && self.blocks.kind(rest) == Kind::Free && self.blocks.list(rest) == NO_LIST {
                self.list(rest, batch);
            }
        }
        self.reserved -= u64::from(units) * UNIT;
        removed
    }

    /// Notes that `units` of a free block, from `address` on, were unmapped. They become a hole, which is joined with
    /// the holes beside it.
    pub fn hollow(&mut self, free_block: Id, address: u64, units: u32) {
        let mut hole = self.remove_from_free(free_block, address, units);
        self.blocks.set_kind(hole, Kind::Hole);
        let next = self.blocks.next(hole);
        if next != NONE && self.blocks.kind(next) == Kind::Hole {
            self.forget_hole(next);
            self.blocks.join_next(hole);
        }
        let prev = self.blocks.prev(hole);
        if prev != NONE && self.blocks.kind(prev) == Kind::Hole {
            self.forget_hole(prev);
            self.blocks.join_next(prev);
            hole = prev;
        }
        self.note_hole(hole);
    }

    /// Notes that `units` of a free block, from `address` on, were given back. What is left of the segment before and
    /// after them becomes a segment each.
    pub fn give_up(&mut self, free_block: Id, address: u64, units: u32) {
        let part = self.remove_from_free(free_block, address, units);
        let region = self.region(part);
        // The lists order blocks by their place, which changes for all blocks after the part.
        let mut relisted = Vec::new();
        let mut id = self.blocks.next(part);
        let after = id;
        while id != NONE {
            if self.blocks.kind(id) == Kind::Free {
                relisted.push((id, self.unlist(id)));
            }
            id = self.blocks.next(id);
        }
        self.blocks.detach(part);
        if after != NONE {
            self.set_region(after, region);
        }
        for (id, batch) in relisted {
            self.list(id, batch);
        }
    }
}
