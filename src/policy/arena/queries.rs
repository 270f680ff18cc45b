//! Questions about the arena that change nothing.

use super::batches::BatchId;
use super::region::Region;
use super::segments::Arena;
use crate::blocks::{Id, Kind, NONE};
use crate::free_index::FreeIndex;
use crate::holdings::{Backing, Block, Statistics};
use crate::request::UNIT;

impl Arena {
    /// Bytes of free blocks.
    pub fn free_bytes(&self) -> u64 {
        self.reserved - self.allocated - self.taken
    }

    pub fn find(&self, address: u64) -> Option<Block> {
        let id = self.blocks.containing(address)?;
        (self.blocks.kind(id) == Kind::Live).then(|| self.blocks.describe(id))
    }

    /// The segment that contains `address`.
    pub fn segment_of(&self, address: u64) -> Option<Backing> {
        let (address, units) = self.blocks.segment_around(address)?;
        let size = u64::from(units) * UNIT;
        Some(Backing::Segment { address, size })
    }

    /// Whether there is memory of the arena at `address`, live or free. Memory that is being given back belongs to the
    /// arena until it is gone.
    pub fn owns(&self, address: u64) -> bool {
        let block = self.blocks.containing(address);
        block.is_some_and(|id| !matches!(self.blocks.kind(id), Kind::Vacant | Kind::Hole)) || self.is_returning(address)
    }

    pub fn statistics(&self) -> Statistics {
        let (clean, dirty) = self.lists.split_at(BatchId::UNKNOWN.list(Region::Main) as usize);
        let clean = clean.iter().filter_map(FreeIndex::largest);
        let clean = clean.map(|id| self.blocks[id].units).max().unwrap_or(0);
        let dirty = dirty.iter().flat_map(|list| list.descending(&self.blocks, 1));
        let largest = self.largest_run_of(dirty.collect()).max(clean);
        Statistics {
            reserved: self.reserved,
            allocated: self.allocated,
            free: self.free_bytes(),
            largest_free_block: u64::from(largest) * UNIT,
            segments: self.blocks.segment_count(),
            live_blocks: self.blocks.live_count(),
            examined: self.examined.get() + self.blocks.passed(),
            ..Statistics::default()
        }
    }

    /// Units of the longest block that one of these will be part of when all free blocks are clean. Each run of free blocks
    /// is passed once.
    fn largest_run_of(&self, mut free: Vec<Id>) -> u32 {
        let is_free = |&id: &Id| id != NONE && self.blocks.kind(id) == Kind::Free;
        free.sort_unstable_by_key(|&id| self.blocks.address(id));
        let (mut largest, mut passed) = (0, 0);
        for id in free {
            if self.blocks.address(id) < passed {
                continue;
            }
            let before = std::iter::successors(Some(self.blocks[id].prev).filter(is_free), |&id| {
                Some(self.blocks[id].prev).filter(is_free)
            });
            let from = std::iter::successors(Some(id), |&id| Some(self.blocks[id].next).filter(is_free));
            let mut units = before.map(|id| self.blocks[id].units).sum();
            for id in from {
                units += self.blocks[id].units;
                passed = self.blocks.range(id).end;
            }
            largest = largest.max(units);
        }
        largest
    }
}
