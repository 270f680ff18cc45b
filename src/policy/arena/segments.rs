//! The struct `Arena`: its segments, added and given back, and the lists of their free blocks.

use std::cell::Cell;
use std::collections::BTreeSet;

use base::cuda::DriverError;

use super::request::{LARGEST_UNITS, Region};
use super::wait::WaitFor;
use crate::blocks::{Blocks, Id, Kind, NONE, UNIT};
use crate::device_memory::DeviceMemory;
use crate::free_index::FreeIndex;

pub struct Arena {
    pub blocks: Blocks,
    /// The free blocks, by what they wait for and region; see `WaitFor::list`.
    pub(super) lists: Vec<FreeIndex>,
    /// The streams that have freed blocks, in the order in which they were seen.
    pub(super) streams: Vec<u64>,
    /// The region of each segment.
    regions: Vec<Region>,
    /// The holes of each region: (units, place, block).
    holes: [BTreeSet<(u32, u64, Id)>; 2],
    pub(super) reserved: u64,
    pub(super) allocated: u64,
    /// How often the context was synchronised.
    pub(super) synchronisations: u64,
    /// Whether free neighbours may exist that were not joined because they wait for different work. A synchronisation
    /// joins them.
    pub(super) has_unjoined: bool,
    /// See `Statistics::examined`.
    pub(super) examined: Cell<u64>,
}

impl Arena {
    pub fn new() -> Self {
        let lists_without_streams = WaitFor::CONTEXT.list(Region::Small) + 1;
        Arena {
            blocks: Blocks::default(),
            lists: (0..lists_without_streams).map(FreeIndex::new).collect(),
            streams: Vec::new(),
            regions: Vec::new(),
            holes: Default::default(),
            reserved: 0,
            allocated: 0,
            synchronisations: 0,
            has_unjoined: false,
            examined: Cell::new(0),
        }
    }

    /// Adds a segment of `size` bytes as one block: free and clean, or a hole without memory.
    pub fn add_segment(&mut self, address: u64, size: u64, kind: Kind, region: Region) -> Id {
        let id = self.blocks.add_segment(address, (size / UNIT) as u32, kind);
        self.set_region(id, region);
        match kind {
            Kind::Free => {
                self.reserved += size;
                self.list(id, WaitFor::NOTHING);
            }
            _ => self.note_hole(id),
        }
        id
    }

    /// Obtains a segment from the next layer. It is one free, clean block.
    pub fn obtain(&mut self, memory: &dyn DeviceMemory, size: u64) -> Result<Id, DriverError> {
        if size / UNIT > LARGEST_UNITS {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        let address = memory.allocate(size)?;
        Ok(self.add_segment(address, size, Kind::Free, Region::Main))
    }

    /// Gives the segment of a free block back; returns its bytes. Returns 0 if the segment is not idle, or if the next
    /// layer does not take it.
    pub fn release(&mut self, memory: &dyn DeviceMemory, id: Id) -> u64 {
        let Some(first) = self.first_of_idle(id) else { return 0 };
        if memory.free(self.blocks.address(first)).is_err() {
            return 0;
        }
        self.unlist(first);
        while self.blocks.next(first) != NONE {
            self.unlist(self.blocks.next(first));
            self.blocks.join_next(first);
        }
        let size = u64::from(self.blocks.units(first)) * UNIT;
        self.blocks.detach(first);
        self.reserved -= size;
        size
    }

    /// The first block of the segment that `id` is in, if all blocks of the segment are free.
    fn first_of_idle(&self, id: Id) -> Option<Id> {
        let mut first = id;
        while self.blocks.prev(first) != NONE {
            first = self.blocks.prev(first);
            if self.blocks.kind(first) != Kind::Free {
                return None;
            }
        }
        let mut each = first;
        while each != NONE {
            if self.blocks.kind(each) != Kind::Free {
                return None;
            }
            each = self.blocks.next(each);
        }
        Some(first)
    }

    /// Gives every idle segment back; returns bytes.
    pub fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64 {
        let firsts: Vec<Id> = self.blocks.first_blocks().collect();
        firsts.into_iter().map(|first| self.release(memory, first)).sum()
    }

    pub fn region(&self, id: Id) -> Region {
        self.regions[self.blocks.segment_of(id) as usize]
    }

    pub(super) fn set_region(&mut self, id: Id, region: Region) {
        let number = self.blocks.segment_of(id) as usize;
        self.regions.resize(self.regions.len().max(number + 1), Region::Main);
        self.regions[number] = region;
    }

    pub(super) fn note_hole(&mut self, id: Id) {
        let region = self.region(id) as usize;
        self.holes[region].insert((self.blocks.units(id), self.blocks.place(id), id));
    }

    pub(super) fn forget_hole(&mut self, id: Id) {
        let region = self.region(id) as usize;
        self.holes[region].remove(&(self.blocks.units(id), self.blocks.place(id), id));
    }

    /// Holes of at least `units`, smallest first. Holes of equal size are ordered by place.
    pub fn holes(&self, region: Region, units: u32) -> impl Iterator<Item = Id> + '_ {
        self.holes[region as usize].range((units, 0, 0)..).map(|&(_, _, id)| id)
    }

    /// Puts a free block in the list of its region and of what it waits for.
    pub(super) fn list(&mut self, id: Id, wait: WaitFor) {
        let list = wait.list(self.region(id));
        self.lists[list as usize].insert(&mut self.blocks, id);
    }

    /// Takes a free block out of its list; returns what it waits for.
    pub(super) fn unlist(&mut self, id: Id) -> WaitFor {
        let list = self.blocks.list(id);
        self.lists[list as usize].remove(&mut self.blocks, id);
        WaitFor::of_list(list)
    }

    /// Whether this is a free block that waits for exactly this.
    pub(super) fn is_free(&self, id: Id, wait: WaitFor) -> bool {
        id != NONE && self.blocks.kind(id) == Kind::Free && WaitFor::of_list(self.blocks.list(id)) == wait
    }
}
