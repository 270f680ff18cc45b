//! Physical memory in granules, and the reserved address space that they are mapped into.
//!
//! Each granule is a handle of its own, so that a granule that is wholly free can be mapped elsewhere or be given back.
//! One that is partly in use cannot move, but it can be mapped a second time (see `views`), and what is free of it be used
//! there.
//!
//! Any call to the layer below may fail at any point; what was done until then stays on the books.

mod views;

use std::collections::HashMap;
use std::ops::Range;

use super::arena::{Arena, End, Region};
use super::blocks::{Id, Kind, UNIT};
use super::placement::{Composition, Site};
use super::{Backing, Block, Remains, Statistics};
use crate::device_memory::{DeviceMemory, DriverError};
use views::Views;

/// Address space, as a multiple of the device's memory: room for blocks that cannot move.
const RESERVE_FACTOR: u64 = 8;
/// Units are counted in 32 bits, and two sizes are added now and then.
const LARGEST_RANGE: u64 = 1 << 40;
/// Granules that a device has room for, however large they are wanted.
const LEAST_GRANULES: u64 = 16;
/// New granules from which on the device is asked whether it has them.
const WORTH_ASKING: usize = 16;

/// Why a block was not composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Granules that lie free could not be unmapped.
    Stuck,
    Driver(DriverError),
}

impl From<DriverError> for Failure {
    fn from(problem: DriverError) -> Self {
        Failure::Driver(problem)
    }
}

impl From<Failure> for DriverError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Stuck => DriverError::OUT_OF_MEMORY,
            Failure::Driver(problem) => problem,
        }
    }
}

/// Which granules a block may be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// New ones alone.
    New,
    /// Free ones as well, but for the last of the small region: it would be moved back and forth.
    Spared,
    /// All free ones.
    Any,
}

pub struct Granules {
    size: u64,
    /// Handles by segment and granule; 0 where nothing is mapped.
    handles: HashMap<u32, Vec<u64>>,
    /// Created or unmapped, and not mapped anywhere.
    spare: Vec<u64>,
    views: Views,
    given_up: bool,
    remapped: u64,
}

impl Granules {
    /// Of at least `least_step` bytes each, but no more than a part of the device's `total` memory: what is less than a
    /// granule of it cannot be used.
    pub fn new(granularity: u64, least_step: u64, total: u64) -> Self {
        let most = (total / LEAST_GRANULES).clamp(granularity, LARGEST_RANGE / 8);
        // Reserved ranges can be aligned to powers of two only.
        let size = least_step.clamp(granularity, 1 << most.ilog2()).next_power_of_two();
        Granules {
            size,
            handles: HashMap::new(),
            spare: Vec::new(),
            views: Views::default(),
            given_up: false,
            remapped: 0,
        }
    }

    pub fn units(&self) -> u32 {
        (self.size / UNIT) as u32
    }

    /// Virtual memory management fails here: no more of it.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    pub fn given_up(&self) -> bool {
        self.given_up
    }

    /// Whether the block lies where granules are mapped, and not in a chunk.
    pub fn hold(&self, arena: &Arena, id: Id) -> bool {
        self.handles.contains_key(&arena.blocks.segment_of(id))
    }

    /// Granules that lie wholly in a block, counted from its segment's first address.
    pub fn whole_in(&self, arena: &Arena, id: Id) -> Range<u32> {
        if !self.hold(arena, id) {
            return 0..0;
        }
        let (start, units) = (arena.blocks.offset(id), arena.blocks.units(id));
        let first = start.div_ceil(self.units());
        first..((start + units) / self.units()).max(first)
    }

    /// The end of a free block to cut a request from: the one that leaves more granules whole.
    pub fn end_for(&self, arena: &Arena, run: Id) -> End {
        let (start, units) = (arena.blocks.offset(run), arena.blocks.units(run));
        // A power of two: this is on the way of every request.
        let within = self.units() - 1;
        let (head, tail) = (start & within, (start + units) & within);
        if head == 0 && tail != 0 { End::Tail } else { End::Head }
    }

    /// Granules that could be taken for a block of `region` from free blocks: clean ones, and those that were freed on
    /// `stream`.
    pub fn free_granules(&self, arena: &Arena, region: Region, from: Source, stream: Option<u64>) -> usize {
        let of = |region: Region| -> usize {
            let usable = arena
                .clean(region, self.units())
                .chain(arena.freed_on(stream, region, self.units()));
            usable.map(|id| self.whole_in(arena, id).len()).sum()
        };
        match from {
            Source::New => 0,
            Source::Spared if region == Region::Main => of(Region::Main) + of(Region::Small).saturating_sub(1),
            _ => of(Region::Main) + of(Region::Small),
        }
    }

    /// Free blocks that could have a whole granule in them.
    fn free_runs<'a>(&self, arena: &'a Arena) -> impl Iterator<Item = Id> + use<'a> {
        let least = self.units();
        [Region::Main, Region::Small]
            .into_iter()
            .flat_map(move |region| arena.clean(region, least))
    }

    /// Reserves address space for at least `size` bytes.
    pub fn reserve(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        region: Region,
        size: u64,
    ) -> Result<(), DriverError> {
        let total = memory.available()?.total;
        let least = size.next_multiple_of(self.size);
        let most = total.saturating_mul(RESERVE_FACTOR).min(LARGEST_RANGE);
        let mut range = most.next_multiple_of(self.size).max(least);
        let address = loop {
            match memory.reserve(range, self.size) {
                // Address space can be scarce as well (ulimit -v).
                Err(_) if range / 2 >= least => range = (range / 2).next_multiple_of(self.size),
                result => break result?,
            }
        };
        let hole = arena.add_segment(address, range, Kind::Hole, region);
        let granules = vec![0; (range / self.size) as usize];
        self.handles.insert(arena.blocks.segment_of(hole), granules);
        Ok(())
    }

    /// A hole of `granules` in which nothing is mapped: its segment, and the first of them.
    fn hole(&self, arena: &Arena, region: Region, granules: u32) -> Option<(u32, u32)> {
        arena.holes(region, granules * self.units()).find_map(|hole| {
            let (segment, start) = (arena.blocks.segment_of(hole), arena.blocks.offset(hole));
            let first = start.div_ceil(self.units());
            let end = (start + arena.blocks.units(hole)) / self.units();
            let slots = self
                .handles
                .get(&segment)?
                .get(first as usize..(first + granules) as usize)?;
            (first + granules <= end && slots.iter().all(|&handle| handle == 0)).then_some((segment, first))
        })
    }

    fn address(&self, arena: &Arena, segment: u32, granule: u32) -> u64 {
        arena.blocks.base(segment) + u64::from(granule) * self.size
    }

    /// Makes a free block as it was composed; returns where in it the request of `units` begins: its address.
    pub fn compose(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        region: Region,
        composition: &Composition,
        units: u32,
    ) -> Result<u64, Failure> {
        let Composition {
            opening,
            closing,
            site,
            granules,
            new,
            at_end,
        } = *composition;
        // A request that cannot be served must not take what others could have meanwhile.
        if new as usize >= WORTH_ASKING
            && let Ok(available) = memory.available()
            && u64::from(new) > available.free / self.size
        {
            return Err(DriverError::OUT_OF_MEMORY.into());
        }
        let (segment, first) = match site {
            Site::Anew => {
                let wanted = granules + u32::from(opening.is_some()) + u32::from(closing.is_some());
                if self.hole(arena, region, wanted).is_none() {
                    self.reserve(arena, memory, region, u64::from(wanted) * self.size)?;
                }
                let hole = self.hole(arena, region, wanted).ok_or(DriverError::OUT_OF_MEMORY)?;
                (hole.0, hole.1 + u32::from(opening.is_some()))
            }
            Site::After(run) => {
                let end = arena.blocks.offset(run) + arena.blocks.units(run);
                (arena.blocks.segment_of(run), end / self.units())
            }
            Site::Before(run) => {
                let start = arena.blocks.offset(run) / self.units();
                (arena.blocks.segment_of(run), start - granules)
            }
        };
        let middle = self.address(arena, segment, first);
        let after = middle + u64::from(granules) * self.size;
        // New ones first: where the device has none, nothing was moved for nothing.
        let created = self.create(memory, new as usize)?;
        let ends = match site {
            Site::Anew => [
                opening.map(|piece| (piece, first.wrapping_sub(1))),
                closing.map(|piece| (piece, first + granules)),
            ],
            _ => [None, None],
        };
        for (piece, slot) in ends.into_iter().flatten() {
            let moved = self.view(arena, memory, piece.address, piece.units, (segment, slot));
            moved.inspect_err(|_| self.discard(memory, &created))?;
        }
        let keep = match site {
            Site::After(run) | Site::Before(run) => Some(run),
            Site::Anew => None,
        };
        if granules > 0 {
            self.fill(arena, memory, (segment, first, granules), created, keep)?;
        }
        Ok(match (site, opening, closing) {
            (Site::After(_), Some(piece), _) => piece.address,
            (_, Some(piece), _) if !at_end => middle - u64::from(piece.units) * UNIT,
            (_, _, Some(piece)) => {
                let end = if site == Site::Anew { after } else { piece.address };
                end + u64::from(piece.units) * UNIT - u64::from(units) * UNIT
            }
            _ => middle,
        })
    }

    /// Maps `created` and as many free granules as are missing into a hole: segment, first granule, number of them.
    fn fill(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        (segment, first, granules): (u32, u32, u32),
        created: Vec<u64>,
        keep: Option<Id>,
    ) -> Result<(), Failure> {
        let address = self.address(arena, segment, first);
        let new = created.len() as u64 * self.size;
        let mut handles = self.take_free(arena, memory, granules as usize - created.len(), keep);
        let moved = handles.len() as u64 * self.size;
        handles.extend(created);
        let mapped = match arena.blocks.holding(address) {
            Some(hole) if handles.len() == granules as usize => self
                .map_all(memory, address, &handles)
                .map(|()| hole)
                .map_err(Failure::Driver),
            _ => Err(Failure::Stuck),
        };
        let hole = mapped.inspect_err(|_| self.discard(memory, &handles))?;
        let slots = first as usize..(first + granules) as usize;
        self.handles.entry(segment).or_default()[slots].copy_from_slice(&handles);
        self.remapped += moved;
        if moved > 0 {
            memory.mapped(address, moved, true);
        }
        if new > 0 {
            memory.mapped(address + moved, new, false);
        }
        arena.fill(hole, address, granules * self.units());
        Ok(())
    }

    /// Maps granules one after the other from `address` on, accessible; all of them or none.
    fn map_all(&self, memory: &dyn DeviceMemory, address: u64, handles: &[u64]) -> Result<(), DriverError> {
        let mut mapped = 0;
        let mut outcome = Ok(());
        for &handle in handles {
            outcome = memory.map(address + mapped, self.size, handle);
            if outcome.is_err() {
                break;
            }
            mapped += self.size;
        }
        let outcome = outcome.and_then(|()| memory.allow_access(address, mapped));
        if outcome.is_err() && mapped > 0 {
            // Nothing can be done about memory that can neither be used nor unmapped.
            let _ = memory.unmap(address, mapped);
        }
        outcome
    }

    /// New granules, those first that are left over from before; all or none.
    fn create(&mut self, memory: &dyn DeviceMemory, count: usize) -> Result<Vec<u64>, DriverError> {
        let mut new = self.take_spare(memory, count);
        while new.len() < count {
            match memory.create(self.size) {
                Ok(handle) => new.push(handle),
                Err(problem) => {
                    self.discard(memory, &new);
                    return Err(problem);
                }
            }
        }
        Ok(new)
    }

    /// Unmaps up to `wanted` granules that lie wholly free, from the smallest free blocks, but for `keep`.
    fn take_free(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, wanted: usize, keep: Option<Id>) -> Vec<u64> {
        let mut taken = Vec::with_capacity(wanted);
        if wanted == 0 {
            return taken;
        }
        let may_give = |&id: &Id| keep != Some(id) && !self.whole_in(arena, id).is_empty();
        let mut donors: Vec<Id> = self.free_runs(arena).filter(may_give).collect();
        // Those of the small region last: see `Source::Spared`.
        donors.sort_by_key(|&id| (arena.region(id) == Region::Small, arena.blocks.units(id)));
        for donor in donors {
            let whole = self.whole_in(arena, donor);
            let count = (whole.len()).min(wanted - taken.len()) as u32;
            taken.extend(self.unmap(arena, memory, donor, whole.end - count..whole.end, true));
            if taken.len() == wanted {
                break;
            }
        }
        taken
    }

    /// Unmaps granules of a free, clean block; none where the layer below refuses.
    fn unmap(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        block: Id,
        granules: Range<u32>,
        moved: bool,
    ) -> Vec<u64> {
        let segment = arena.blocks.segment_of(block);
        let address = arena.blocks.base(segment) + u64::from(granules.start) * self.size;
        let size = granules.len() as u64 * self.size;
        if !self.seen_once(arena, memory, segment, granules.clone()) || memory.unmap(address, size).is_err() {
            return Vec::new();
        }
        memory.unmapped(address, size, moved);
        arena.hollow(block, address, granules.len() as u32 * self.units());
        let handles = self.handles.entry(segment).or_default();
        let taken = &mut handles[granules.start as usize..granules.end as usize];
        taken.iter_mut().map(std::mem::take).collect()
    }

    /// Handles that were left over, no longer told as such.
    fn take_spare(&mut self, memory: &dyn DeviceMemory, most: usize) -> Vec<u64> {
        let taken = self.spare.split_off(self.spare.len() - most.min(self.spare.len()));
        for &handle in &taken {
            memory.unmapped(handle, self.size, true);
        }
        taken
    }

    /// Gives handles that are mapped nowhere back; those that the layer below will not take are kept, and known by their
    /// own number where an address would stand.
    fn discard(&mut self, memory: &dyn DeviceMemory, handles: &[u64]) {
        for &handle in handles {
            if memory.release(handle, self.size).is_err() {
                memory.mapped(handle, self.size, true);
                self.spare.push(handle);
            }
        }
    }

    /// Gives every granule that lies wholly free back to the layer below; returns bytes.
    pub fn release_idle(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) -> u64 {
        if !matches!(arena.synchronise(memory), Ok(true)) {
            return 0;
        }
        self.gather(arena, memory);
        let runs: Vec<Id> = self.free_runs(arena).collect();
        let mut handles = self.take_spare(memory, usize::MAX);
        for run in runs {
            let whole = self.whole_in(arena, run);
            if !whole.is_empty() {
                handles.extend(self.unmap(arena, memory, run, whole, false));
            }
        }
        let (before, kept) = (handles.len(), self.spare.len());
        self.discard(memory, &handles);
        (before - (self.spare.len() - kept)) as u64 * self.size
    }

    /// The granules behind a live block.
    pub fn behind(&self, arena: &Arena, block: &Block) -> Option<Backing> {
        let id = arena.blocks.holding(block.address)?;
        let segment = arena.blocks.segment_of(id);
        let handles = self.handles.get(&segment)?;
        let base = arena.blocks.base(segment);
        let (first, end) = (block.address - base, block.address + block.allocated - base);
        let slots = (first / self.size) as usize..end.div_ceil(self.size) as usize;
        Some(Backing::Granules {
            address: base + slots.start as u64 * self.size,
            size: self.size,
            handles: handles.get(slots)?.to_vec(),
        })
    }

    pub fn remains(&self, arena: &Arena) -> Remains {
        let mut remains = Remains {
            handles: self.spare.clone(),
            ..Remains::default()
        };
        for (&segment, slots) in &self.handles {
            let base = arena.blocks.base(segment);
            remains.ranges.push((base, slots.len() as u64 * self.size));
            for (index, &handle) in slots.iter().enumerate().filter(|&(_, &handle)| handle != 0) {
                remains.mapped.push((base + index as u64 * self.size, self.size));
                remains.handles.push(handle);
            }
        }
        // A granule can be mapped more than once.
        remains.handles.sort_unstable();
        remains.handles.dedup();
        remains
    }

    pub fn count(&self, statistics: &mut Statistics) {
        let spare = self.spare.len() as u64 * self.size;
        statistics.reserved += spare;
        statistics.free += spare;
        statistics.remapped = self.remapped;
    }
}
