//! Segments whose memory comes and goes in parts: mapped into address space that was a hole, unmapped, given up.

use super::super::blocks::{Id, Kind, NO_LIST, NONE, UNIT};
use super::Arena;

impl Arena {
    /// The part of a block from `address` on, `units` long, as a block of its own. The block is in no list.
    fn cut_out(&mut self, id: Id, address: u64, units: u32) -> Id {
        let skip = ((address - self.blocks.address(id)) / UNIT) as u32;
        debug_assert!(skip + units <= self.blocks.units(id) && units > 0);
        let part = if skip > 0 { self.blocks.split(id, skip) } else { id };
        if self.blocks.units(part) > units {
            self.blocks.split(part, units);
        }
        part
    }

    /// Memory was mapped in `units` of a hole, from `address` on: free and clean. The free block it is part of.
    pub fn fill(&mut self, hole: Id, address: u64, units: u32) -> Id {
        self.forget_hole(hole);
        let filled = self.cut_out(hole, address, units);
        for rest in [self.blocks.prev(filled), self.blocks.next(filled)] {
            // The neighbour of a whole hole is never a hole: these were cut off just now.
            if rest != NONE && self.blocks.kind(rest) == Kind::Hole {
                self.note_hole(rest);
            }
        }
        self.blocks.set_kind(filled, Kind::Free);
        self.reserved += u64::from(units) * UNIT;
        self.coalesce_clean(filled)
    }

    /// `units` of a free block, from `address` on, as a block of its own that is in no list: no longer ours.
    fn lose(&mut self, run: Id, address: u64, units: u32) -> Id {
        let dirt = self.unlist(run);
        let lost = self.cut_out(run, address, units);
        for rest in [self.blocks.prev(lost), self.blocks.next(lost)] {
            if rest != NONE && self.blocks.kind(rest) == Kind::Free && self.blocks.list(rest) == NO_LIST {
                self.list(rest, dirt);
            }
        }
        self.reserved -= u64::from(units) * UNIT;
        lost
    }

    /// The memory of `units` of a free block, from `address` on, was unmapped: a hole, joined with those around it.
    pub fn hollow(&mut self, run: Id, address: u64, units: u32) {
        let mut hole = self.lose(run, address, units);
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

    /// `units` of a free block, from `address` on, were given back: what is left of its segment is one on either side.
    pub fn give_up(&mut self, run: Id, address: u64, units: u32) {
        let part = self.lose(run, address, units);
        let region = self.region(part);
        let mut free = Vec::new();
        let mut id = self.blocks.next(part);
        let after = id;
        while id != NONE {
            if self.blocks.kind(id) == Kind::Free {
                free.push((id, self.unlist(id)));
            }
            id = self.blocks.next(id);
        }
        self.blocks.detach(part);
        if after != NONE {
            self.note_region(after, region);
        }
        for (id, dirt) in free {
            self.list(id, dirt);
        }
    }
}
