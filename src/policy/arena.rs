//! Segments cut into blocks: best fit, split, coalesced within a segment.
//!
//! Freeing is a synchronisation: `cuMemFree` waits for the work that uses the memory, and a policy that keeps the block
//! does not. So a freed block is *dirty* until the context was synchronised once after that; one synchronisation cleans
//! every block freed before it. A dirty block is handed out only to the stream that freed it, where a request names its
//! stream: work on one stream runs in order. While a capture is open, when synchronising would break it, only such
//! blocks and clean ones are used.

mod ranges;

use std::cell::Cell;
use std::collections::BTreeSet;

use super::blocks::{Blocks, Id, Kind, MAX_LISTS, NONE, UNIT};
use super::free_index::FreeIndex;
use super::{Backing, Block, Statistics};
use crate::device_memory::{DeviceMemory, DriverError};

/// A block that is clean is taken though it is longer than the best fit, where the excess is at most this part of the
/// request: a synchronisation costs more than that.
const NEAR_ENOUGH: u32 = 16;

/// Units are counted in 32 bits, and two sizes are added now and then.
const LARGEST_SEGMENT: u64 = (u32::MAX / 2) as u64;

/// Segments are of one region or the other, so that a plan can keep small requests apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    Main = 0,
    Small = 1,
}

/// Which part of a free block a request gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Head,
    Tail,
    /// So many units from its beginning.
    At(u32),
}

/// A request on its way through a plan.
#[derive(Clone, Copy)]
pub struct Request {
    /// Bytes asked for.
    pub bytes: u64,
    pub units: u32,
    pub stream: Option<u64>,
}

impl Request {
    pub fn new(bytes: u64, stream: Option<u64>) -> Result<Self, DriverError> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).map_err(|_| DriverError::OUT_OF_MEMORY)?;
        match bytes {
            0 => Err(DriverError::INVALID_VALUE),
            _ if u64::from(units) > LARGEST_SEGMENT => Err(DriverError::OUT_OF_MEMORY),
            _ => Ok(Request { bytes, units, stream }),
        }
    }

    pub fn rounded(&self) -> u64 {
        u64::from(self.units) * UNIT
    }
}

/// What must have happened before a free block can be used. Numbers name lists: region + 2 * this.
type Dirt = u32;
const CLEAN: Dirt = 0;
/// A synchronisation of the context.
const DEVICE: Dirt = 1;
/// The first of those that wait for one stream only.
const FIRST_STREAM: Dirt = 2;
/// The last list number means none.
const LAST_STREAM: Dirt = MAX_LISTS / 2 - 2;

pub struct Arena {
    pub blocks: Blocks,
    /// By region and dirt.
    lists: Vec<FreeIndex>,
    /// Streams by dirt.
    streams: Vec<u64>,
    /// Region of each segment.
    regions: Vec<Region>,
    /// By region, as (units, place, block).
    holes: [BTreeSet<(u32, u64, Id)>; 2],
    reserved: u64,
    allocated: u64,
    /// Synchronisations so far.
    pub synchronisations: u64,
    /// Free blocks may lie beside each other that wait for different things: a synchronisation joins them.
    apart: bool,
    /// See `Statistics`.
    surveyed: Cell<u64>,
}

impl Arena {
    pub fn new() -> Self {
        Arena {
            blocks: Blocks::default(),
            lists: (0..2 * FIRST_STREAM).map(FreeIndex::new).collect(),
            streams: Vec::new(),
            regions: Vec::new(),
            holes: Default::default(),
            reserved: 0,
            allocated: 0,
            synchronisations: 0,
            apart: false,
            surveyed: Cell::new(0),
        }
    }

    /// A segment of `size` bytes: free and clean, or address space alone.
    pub fn add_segment(&mut self, address: u64, size: u64, kind: Kind, region: Region) -> Id {
        let id = self.blocks.add_segment(address, (size / UNIT) as u32, kind);
        self.note_region(id, region);
        match kind {
            Kind::Free => {
                self.reserved += size;
                self.list(id, CLEAN);
            }
            _ => self.note_hole(id),
        }
        id
    }

    fn note_region(&mut self, id: Id, region: Region) {
        let number = self.blocks.segment_of(id) as usize;
        self.regions.resize(self.regions.len().max(number + 1), Region::Main);
        self.regions[number] = region;
    }

    fn note_hole(&mut self, id: Id) {
        let region = self.region(id) as usize;
        self.holes[region].insert((self.blocks.units(id), self.blocks.place(id), id));
    }

    fn forget_hole(&mut self, id: Id) {
        let region = self.region(id) as usize;
        self.holes[region].remove(&(self.blocks.units(id), self.blocks.place(id), id));
    }

    /// Bytes obtained from the layer below.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    pub fn free_bytes(&self) -> u64 {
        self.reserved - self.allocated
    }

    /// Holes of at least `units`, smallest first, the lowest first of several.
    pub fn holes(&self, region: Region, units: u32) -> impl Iterator<Item = Id> + '_ {
        self.holes[region as usize].range((units, 0, 0)..).map(|&(_, _, id)| id)
    }

    /// Asks the layer below for a segment, which is one free, clean block.
    pub fn obtain(&mut self, memory: &dyn DeviceMemory, size: u64) -> Result<Id, DriverError> {
        if size / UNIT > LARGEST_SEGMENT {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        let address = memory.allocate(size)?;
        Ok(self.add_segment(address, size, Kind::Free, Region::Main))
    }

    pub fn region(&self, id: Id) -> Region {
        self.regions[self.blocks.segment_of(id) as usize]
    }

    /// Puts a free block where `best` finds it.
    fn list(&mut self, id: Id, dirt: Dirt) {
        let name = self.region(id) as usize + 2 * dirt as usize;
        self.lists[name].insert(&mut self.blocks, id);
    }

    fn unlist(&mut self, id: Id) -> Dirt {
        let name = self.blocks.list(id);
        self.lists[name as usize].remove(&mut self.blocks, id);
        name / 2
    }

    fn dirt_of(&mut self, stream: Option<u64>) -> Dirt {
        let Some(stream) = stream else { return DEVICE };
        if let Some(known) = self.streams.iter().position(|&known| known == stream) {
            return FIRST_STREAM + known as Dirt;
        }
        let dirt = FIRST_STREAM + self.streams.len() as Dirt;
        if dirt > LAST_STREAM {
            return DEVICE;
        }
        self.streams.push(stream);
        for region in 0..2 {
            self.lists.push(FreeIndex::new(region + 2 * dirt));
        }
        dirt
    }

    fn smallest_of(&self, region: Region, units: u32, dirts: impl Iterator<Item = Dirt>) -> Option<Id> {
        dirts
            .filter_map(|dirt| self.lists[region as usize + 2 * dirt as usize].best(units))
            .min_by_key(|&id| self.blocks.units(id))
    }

    /// What blocks wait for that were freed on a stream; nothing where it has freed none.
    fn own(&self, stream: Option<u64>) -> Dirt {
        let known = stream.and_then(|stream| self.streams.iter().position(|&known| known == stream));
        known.map_or(CLEAN, |known| FIRST_STREAM + known as Dirt)
    }

    /// The best fit that may be used at once, and the best of those that first need a synchronisation.
    fn candidates(&self, memory: &dyn DeviceMemory, region: Region, request: &Request) -> (Option<Id>, Option<Id>) {
        // What is captured now runs later, perhaps on another stream.
        let stream = request.stream.filter(|_| memory.may_synchronise());
        let own = self.own(stream);
        let all = FIRST_STREAM + self.streams.len() as Dirt;
        let others = (DEVICE..all).filter(|&dirt| dirt != own);
        let own = Some(own).filter(|&own| own != CLEAN);
        let usable = self.smallest_of(region, request.units, own.into_iter().chain([CLEAN]));
        (usable, self.smallest_of(region, request.units, others))
    }

    /// The best fit for a request, synchronised for if need be; still whole, see `carve`. `None` where none fits, or none
    /// may be used now.
    pub fn best(
        &mut self,
        memory: &dyn DeviceMemory,
        region: Region,
        request: &Request,
    ) -> Result<Option<Id>, DriverError> {
        let (usable, dirty) = self.candidates(memory, region, request);
        let good_enough = match (usable, dirty) {
            (Some(_), None) => true,
            // A synchronisation would not make any long enough.
            (None, None) => !self.apart,
            (None, Some(_)) => false,
            (Some(usable), Some(dirty)) => {
                let (found, better) = (self.blocks.units(usable), self.blocks.units(dirty));
                found <= better || found - request.units <= request.units / NEAR_ENOUGH
            }
        };
        if good_enough || !self.synchronise(memory)? {
            return Ok(usable);
        }
        Ok(self.candidates(memory, region, request).0)
    }

    /// As `best`, among blocks that may be used at once.
    pub fn best_now(&self, memory: &dyn DeviceMemory, region: Region, request: &Request) -> Option<Id> {
        self.candidates(memory, region, request).0
    }

    /// Cleans every free block; false where that is not allowed now.
    pub fn synchronise(&mut self, memory: &dyn DeviceMemory) -> Result<bool, DriverError> {
        if self.all_clean() {
            return Ok(true);
        }
        if !memory.may_synchronise() {
            return Ok(false);
        }
        match memory.synchronise() {
            // A capture that we do not know of is open.
            Err(DriverError::CAPTURE_UNSUPPORTED | DriverError::CAPTURE_INVALIDATED) => return Ok(false),
            result => result?,
        }
        self.synchronisations += 1;
        self.apart = false;
        for name in 2 * DEVICE as usize..self.lists.len() {
            while let Some(id) = self.lists[name].largest() {
                self.unlist(id);
                self.coalesce_clean(id);
            }
        }
        Ok(true)
    }

    pub fn all_clean(&self) -> bool {
        self.lists[2 * DEVICE as usize..].iter().all(FreeIndex::is_empty)
    }

    /// Clean free blocks of at least `least` units, longest first.
    pub fn clean(&self, region: Region, least: u32) -> impl Iterator<Item = Id> + '_ {
        self.survey(&self.lists[region as usize], least)
    }

    fn survey<'a>(&'a self, list: &'a FreeIndex, least: u32) -> impl Iterator<Item = Id> + 'a {
        let blocks = list.descending(&self.blocks, least);
        blocks.inspect(|_| self.surveyed.set(self.surveyed.get() + 1))
    }

    /// Free blocks of at least `least` units that wait for work on `stream` alone, longest first.
    pub fn freed_on(&self, stream: Option<u64>, region: Region, least: u32) -> impl Iterator<Item = Id> + '_ {
        let own = Some(self.own(stream)).filter(|&own| own != CLEAN);
        let list = own.map(|own| &self.lists[region as usize + 2 * own as usize]);
        list.into_iter().flat_map(move |list| self.survey(list, least))
    }

    /// Cuts a free block for the request.
    pub fn carve(&mut self, id: Id, request: &Request, end: End) -> Block {
        let dirt = self.unlist(id);
        let rest = self.blocks.units(id) - request.units;
        let skip = match end {
            End::Head => 0,
            End::Tail => rest,
            End::At(skip) => skip,
        };
        let mut live = id;
        if skip > 0 {
            live = self.blocks.split(id, skip);
            self.list(id, dirt);
        }
        if skip < rest {
            let after = self.blocks.split(live, request.units);
            self.list(after, dirt);
        }
        self.blocks.make_live(live, request.bytes);
        self.allocated += request.rounded();
        self.blocks.describe(live)
    }

    /// Frees the live block that begins at `address`; also the free block that it is part of then.
    pub fn free(&mut self, memory: &dyn DeviceMemory, address: u64, stream: Option<u64>) -> Option<(Block, Id)> {
        let id = self.blocks.make_free(address)?;
        let block = self.blocks.describe(id);
        self.allocated -= block.allocated;
        let dirt = self.dirt_of(stream);
        let run = match memory.may_synchronise() {
            true => self.coalesce(id, dirt),
            // What is clean now could not be cleaned again.
            false => {
                self.apart = true;
                self.coalesce_alike(id, dirt)
            }
        };
        Some((block, run))
    }

    /// Joins a free block that is in no list with its free neighbours, and lists it: it waits for what any of them does.
    fn coalesce(&mut self, id: Id, dirt: Dirt) -> Id {
        let (mut id, mut dirt) = (id, dirt);
        let next = self.blocks.next(id);
        if next != NONE && self.blocks.kind(next) == Kind::Free {
            dirt = both(dirt, self.unlist(next));
            self.blocks.join_next(id);
        }
        let prev = self.blocks.prev(id);
        if prev != NONE && self.blocks.kind(prev) == Kind::Free {
            dirt = both(dirt, self.unlist(prev));
            self.blocks.join_next(prev);
            id = prev;
        }
        self.list(id, dirt);
        id
    }

    /// As `coalesce`, with neighbours alone that wait for the same.
    fn coalesce_alike(&mut self, id: Id, dirt: Dirt) -> Id {
        let mut id = id;
        let next = self.blocks.next(id);
        if self.is_free(next, dirt) {
            self.unlist(next);
            self.blocks.join_next(id);
        }
        let prev = self.blocks.prev(id);
        if self.is_free(prev, dirt) {
            self.unlist(prev);
            self.blocks.join_next(prev);
            id = prev;
        }
        self.list(id, dirt);
        id
    }

    fn coalesce_clean(&mut self, id: Id) -> Id {
        self.coalesce_alike(id, CLEAN)
    }

    /// Whether this is a free block that may be used, and moved, at once.
    pub fn is_clean(&self, id: Id) -> bool {
        self.is_free(id, CLEAN)
    }

    fn is_free(&self, id: Id, dirt: Dirt) -> bool {
        id != NONE && self.blocks.kind(id) == Kind::Free && self.blocks.list(id) / 2 == dirt
    }

    /// Makes two live blocks of the one that `address` lies in, the second beginning there.
    pub fn divide(&mut self, address: u64) {
        let Some(id) = self.blocks.holding(address) else { return };
        let before = ((address - self.blocks.address(id)) / UNIT) as u32;
        if self.blocks.kind(id) != Kind::Live || before == 0 {
            return;
        }
        let slack = {
            let block = self.blocks.describe(id);
            block.allocated - block.requested
        };
        let rest = self.blocks.split(id, before);
        self.blocks.set_slack(id, 0);
        let requested = u64::from(self.blocks.units(rest)) * UNIT - slack;
        self.blocks.make_live(rest, requested);
    }

    /// Gives the segment of a free block back; returns its bytes, 0 where it is not idle or the layer below will not take
    /// it.
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

    /// The first block of the segment that `id` lies in, where all of them are free.
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

    /// Gives every idle segment back.
    pub fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64 {
        let firsts: Vec<Id> = self.blocks.firsts().collect();
        firsts.into_iter().map(|first| self.release(memory, first)).sum()
    }

    /// Units of the free blocks side by side that this one is among.
    fn free_around(&self, id: Id) -> u32 {
        let is_free = |&id: &Id| id != NONE && self.blocks.kind(id) == Kind::Free;
        let before = std::iter::successors(Some(self.blocks.prev(id)).filter(is_free), |&id| {
            Some(self.blocks.prev(id)).filter(is_free)
        });
        let from = std::iter::successors(Some(id), |&id| Some(self.blocks.next(id)).filter(is_free));
        before.chain(from).map(|id| self.blocks.units(id)).sum()
    }

    pub fn find(&self, address: u64) -> Option<Block> {
        let id = self.blocks.holding(address)?;
        (self.blocks.kind(id) == Kind::Live).then(|| self.blocks.describe(id))
    }

    /// The segment that `address` lies in.
    pub fn segment_of(&self, address: u64) -> Option<Backing> {
        let (address, units) = self.blocks.segment_around(address)?;
        let size = u64::from(units) * UNIT;
        Some(Backing::Segment { address, size })
    }

    /// Whether `address` lies in memory that was obtained.
    pub fn owns(&self, address: u64) -> bool {
        let holding = self.blocks.holding(address);
        holding.is_some_and(|id| matches!(self.blocks.kind(id), Kind::Live | Kind::Free))
    }

    pub fn statistics(&self) -> Statistics {
        let clean = self.lists[..2].iter().filter_map(FreeIndex::largest);
        let clean = clean.map(|id| self.blocks.units(id)).max().unwrap_or(0);
        // As long as a synchronisation would make it.
        let dirty = self.lists[2..].iter().flat_map(|list| list.descending(&self.blocks, 1));
        let largest = dirty.map(|id| self.free_around(id)).fold(clean, u32::max);
        Statistics {
            reserved: self.reserved,
            allocated: self.allocated,
            free: self.free_bytes(),
            largest_free_block: u64::from(largest) * UNIT,
            segments: self.blocks.segment_count(),
            live_blocks: self.blocks.live_count(),
            synchronisations: self.synchronisations,
            surveyed: self.surveyed.get(),
            ..Statistics::default()
        }
    }
}

/// What a block waits for that was joined of two.
fn both(one: Dirt, other: Dirt) -> Dirt {
    match (one, other) {
        (CLEAN, dirt) | (dirt, CLEAN) => dirt,
        _ if one == other => one,
        _ => DEVICE,
    }
}
