//! Segments whose memory is mapped and unmapped in parts.
//!
//! Memory is mapped into a hole, and unmapped memory leaves a hole. The part that is mapped or unmapped is claimed before,
//! so nobody else uses it while the driver is called.

use super::batches::BatchId;
use super::segments::Arena;
use crate::blocks::{Id, Kind, NO_LIST, NONE};
use crate::request::UNIT;

/// A part of a free block or of a hole that was taken for work. It must be settled.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub id: Id,
    /// `Kind::Free` or `Kind::Hole`
    pub was: Kind,
}

impl Arena {
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

    /// Whether the segment that begins at `address` is one hole of `size` bytes.
    pub fn is_hole(&self, address: u64, size: u64) -> bool {
        let Some(id) = self.blocks.containing(address) else {
            return false;
        };
        self.blocks.kind(id) == Kind::Hole && self.blocks.address(id) == address && self.blocks.bytes(id) == size
    }

    /// Forgets the segment that begins at `address`, which is one hole.
    pub fn remove_hole(&mut self, address: u64) {
        if let Some(id) = self.blocks.containing(address) {
            self.forget_hole(id);
            self.blocks.detach(id);
        }
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
