//! Runs: usable memory that may be in several blocks side by side.
//!
//! Neighbours of different batches are not joined, but one request may be able to use both.

use std::ops::Range;

use super::batches::BatchId;
use super::region::Region;
use super::segments::Arena;
use crate::blocks::{Id, Kind, NONE};
use crate::holdings::{Block, UsedBy};
use crate::request::{Request, UNIT};

impl Arena {
    /// Whether this request can use the block now: it is free, and either clean or only used by the request's stream.
    fn is_usable(&self, id: Id, request: &Request) -> bool {
        if id == NONE || self.blocks.kind(id) != Kind::Free {
            return false;
        }
        let batch = BatchId::of_list(self.blocks.list(id));
        let own = request.stream.filter(|_| !request.capturing);
        batch == BatchId::CLEAN || own.is_some_and(|stream| self.batch(batch).is_of(stream))
    }

    /// The usable memory on both sides of `address`: from where it begins to where it ends. Empty if there is none.
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

    /// All memory at least this long that the request can use, in the order of addresses. Neighbours are joined.
    pub fn usable_ranges(&self, request: &Request, least: u64) -> Vec<Range<u64>> {
        let mut ids: Vec<Id> = self
            .usable_blocks(Region::Main, request, (least / UNIT) as u32)
            .collect();
        ids.sort_unstable_by_key(|&id| self.blocks.address(id));
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for id in ids {
            let here = self.blocks.range(id);
            match ranges.last_mut().filter(|range| range.end == here.start) {
                Some(range) => range.end = here.end,
                None => ranges.push(here),
            }
        }
        ranges
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
        self.blocks.make_live(id, request.bytes);
        self.allocated += request.rounded();
        Some(self.blocks.describe(id))
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
        let Some(id) = self.blocks.containing(address) else {
            return;
        };
        let before = ((address - self.blocks.address(id)) / UNIT) as u32;
        if self.blocks.kind(id) == Kind::Part && before > 0 {
            self.blocks.split(id, before);
        }
    }

    /// Whether all of this range is free, clean or not.
    pub fn is_range_free(&self, range: &Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let block = self.blocks.containing(at);
            let Some(id) = block.filter(|&id| self.blocks.kind(id) == Kind::Free) else {
                return false;
            };
            at = self.blocks.range(id).end;
        }
        true
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
