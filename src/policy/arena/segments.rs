//! The struct `Arena`: its segments, added and given back, and the lists of their free blocks.

use std::cell::Cell;
use std::collections::BTreeSet;

use super::batches::{Batch, BatchId, Region, Streams};
use crate::blocks::{Blocks, Id, Kind, NONE};
use crate::device_memory::EventId;
use crate::free_index::FreeIndex;
use crate::holdings::{Block, Statistics};
use crate::request::UNIT;
use crate::work::Piece;

#[derive(Default)]
pub struct Arena {
    pub blocks: Blocks,
    /// The free blocks by batch and region; see `BatchId::list`.
    pub(super) lists: Vec<FreeIndex>,
    /// By number. Blocks of the first are clean; the second takes blocks that work on any stream may use.
    pub(super) batches: Vec<Batch>,
    pub(super) batches_begun: u64,
    /// How many blocks have joined a dirty batch, all batches together.
    pub dirty_frees: u64,
    pub(super) waits_begun: u64,
    pub(super) streams: Streams,
    /// Whether what one stream has freed stays with it as long as memory is not short.
    pub(super) spares_events: bool,
    pub is_short: bool,
    /// Whether events were ever recorded.
    pub(super) has_events: bool,
    /// The batches whose events are to be recorded.
    pub(super) wanted: Vec<BatchId>,
    /// At how many more frees, one after the other, events are recorded.
    pub(super) frees_with_events: u32,
    /// How many more requests do without a look at the events.
    pub(super) requests_until_look: u32,
    /// The region of each segment.
    regions: Vec<Region>,
    /// The holes of each region: (units, place, block).
    holes: [BTreeSet<(u32, u64, Id)>; Region::ALL.len()],
    /// Bytes obtained from the next layer.
    pub reserved: u64,
    /// Bytes of live blocks.
    pub allocated: u64,
    /// Bytes of all blocks that were ever freed.
    pub freed: u64,
    /// Reserved bytes that were taken out of the free blocks for work that is under way.
    pub(super) taken: u64,
    /// Memory that was taken out, and is to be given back now. The next layer does not wait for that.
    pub(super) due: Vec<Piece>,
    /// The same for memory that the next layer waits for.
    pub(super) due_with_wait: Vec<Piece>,
    /// First address and bytes of the memory that was taken out and not given back yet.
    pub(super) returning: Vec<(u64, u64)>,
    /// Events that tell nothing any more.
    pub forgotten: Vec<EventId>,
    /// See `Statistics::examined`.
    pub(super) examined: Cell<u64>,
}

impl Arena {
    pub fn new() -> Self {
        let first_lists = BatchId::UNKNOWN.list(Region::Dedicated) + 1;
        Arena {
            blocks: Blocks::default(),
            lists: (0..first_lists).map(FreeIndex::new).collect(),
            batches: vec![Batch::default(), Batch::default()],
            ..Arena::default()
        }
    }

    /// Adds a segment of `size` bytes as one block: free and clean, or a hole without memory.
    pub fn add_segment(&mut self, address: u64, size: u64, kind: Kind, region: Region) -> Id {
        let id = self.blocks.add_segment(address, (size / UNIT) as u32, kind);
        self.set_region(id, region);
        match kind {
            Kind::Free => {
                self.reserved += size;
                self.list(id, BatchId::CLEAN);
            }
            _ => self.note_hole(id),
        }
        id
    }

    pub fn region(&self, id: Id) -> Region {
        self.regions[self.blocks[id].segment as usize]
    }

    pub(super) fn set_region(&mut self, id: Id, region: Region) {
        let number = self.blocks[id].segment as usize;
        self.regions.resize(self.regions.len().max(number + 1), Region::Main);
        self.regions[number] = region;
    }

    pub(super) fn note_hole(&mut self, id: Id) {
        let region = self.region(id) as usize;
        self.holes[region].insert((self.blocks[id].units, self.blocks.place(id), id));
    }

    pub(super) fn forget_hole(&mut self, id: Id) {
        let region = self.region(id) as usize;
        self.holes[region].remove(&(self.blocks[id].units, self.blocks.place(id), id));
    }

    /// Holes of at least `units`, smallest first. Holes of equal size are ordered by place.
    pub fn holes(&self, region: Region, units: u32) -> impl Iterator<Item = Id> + '_ {
        self.holes[region as usize].range((units, 0, 0)..).map(|&(_, _, id)| id)
    }

    /// Puts a free block in the list of its region and batch.
    pub(super) fn list(&mut self, id: Id, batch: BatchId) {
        let list = batch.list(self.region(id));
        self.lists[list as usize].insert(&mut self.blocks, id);
    }

    /// Takes a free block out of its list; returns its batch.
    pub(super) fn unlist(&mut self, id: Id) -> BatchId {
        let list = self.blocks.list(id);
        self.lists[list as usize].remove(&mut self.blocks, id);
        BatchId::of_list(list)
    }

    // ---- questions that change nothing

    pub fn free_bytes(&self) -> u64 {
        self.reserved - self.allocated - self.taken
    }

    pub fn find(&self, address: u64) -> Option<Block> {
        let id = self.blocks.containing(address)?;
        (self.blocks.kind(id) == Kind::Live).then(|| self.blocks.describe(id))
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
            segments: self.blocks.by_address.len(),
            live_blocks: self.blocks.live.len(),
            examined: self.examined.get() + self.blocks.passed.get(),
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
