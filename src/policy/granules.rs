//! Physical memory in granules, and the reserved address space that they are mapped into.
//!
//! Each granule is a handle of its own, so that a granule that is wholly free can be mapped elsewhere or be given back.
//! One that is partly in use cannot move; but once its neighbours did, what is free of it lies beside a hole, and can be
//! continued there.
//!
//! Any call to the layer below may fail at any point; what was done until then stays on the books.

use std::collections::HashMap;
use std::ops::Range;

use super::arena::{Arena, End, Region};
use super::blocks::{Id, Kind, NONE, UNIT};
use super::{Backing, Block, Remains, Statistics};
use crate::device_memory::{DeviceMemory, DriverError};

/// Address space, as a multiple of the device's memory: room for blocks that cannot move.
const RESERVE_FACTOR: u64 = 8;
/// Units are counted in 32 bits, and two sizes are added now and then.
const LARGEST_RANGE: u64 = 1 << 40;
/// Free blocks shorter than this, in units, are not continued.
const SHORTEST: u32 = (16 << 10) / UNIT as u32;
/// New granules from which on the device is asked whether it has them.
const WORTH_ASKING: usize = 16;
/// Free blocks looked at, so that one request never takes long however many there are.
const MOST_RUNS: usize = 1024;

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

/// A hole to map granules into, so that a long enough free block lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where to map.
    pub address: u64,
    pub granules: usize,
    /// How many of them are new; the others lie free somewhere.
    pub new: usize,
    pub from: Source,
    /// The free blocks that are continued, if any: their granules stay where they are.
    pub keep: [Id; 2],
}

pub struct Granules {
    size: u64,
    /// Handles by segment and granule; 0 where nothing is mapped.
    handles: HashMap<u32, Vec<u64>>,
    /// Created or unmapped, and not mapped anywhere.
    spare: Vec<u64>,
    given_up: bool,
    remapped: u64,
}

impl Granules {
    pub fn new(granularity: u64, least_step: u64) -> Self {
        Granules {
            // Reserved ranges can be aligned to powers of two only.
            size: least_step.clamp(granularity, LARGEST_RANGE / 8).next_power_of_two(),
            handles: HashMap::new(),
            spare: Vec::new(),
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

    /// Granules that could be taken from free blocks for a block of `region`.
    fn free_granules(&self, arena: &Arena, region: Region, from: Source) -> usize {
        let of = |region: Region| -> usize {
            arena
                .clean(region, self.units())
                .map(|id| self.whole_in(arena, id).len())
                .sum()
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

    /// Where a block of `units` costs the fewest new granules, and of those the fewest calls: beside a free block that it
    /// continues, or in a hole by itself.
    pub fn target(&self, arena: &Arena, region: Region, units: u32, from: Source) -> Option<Target> {
        let granule = self.units();
        let all_free = self.free_granules(arena, region, from);
        let inside = |id: Id| if id == NONE { 0 } else { self.whole_in(arena, id).len() };
        let target = |address: u64, granules: usize, keep: [Id; 2]| {
            let elsewhere = all_free.saturating_sub(keep.into_iter().map(inside).sum());
            Target {
                address,
                granules,
                new: granules - elsewhere.min(granules),
                from,
                keep,
            }
        };
        let alone = arena.hole(region, units.next_multiple_of(granule));
        let all_of_it = units.div_ceil(granule) as usize;
        let mut best = alone.map(|hole| target(arena.blocks.address(hole), all_of_it, [NONE; 2]));
        let runs = arena
            .clean(region, SHORTEST)
            .take(MOST_RUNS)
            .filter(|&id| self.hold(arena, id));
        for run in runs.filter(|&id| arena.blocks.units(id) < units) {
            let missing = (units - arena.blocks.units(run)).next_multiple_of(granule);
            let room = |id: Id| match id != NONE && arena.blocks.kind(id) == Kind::Hole {
                true => arena.blocks.units(id),
                false => 0,
            };
            let (before, after) = (arena.blocks.prev(run), arena.blocks.next(run));
            let start = arena.blocks.address(run);
            let granules = (missing / granule) as usize;
            let candidate = if room(after) >= missing {
                target(arena.blocks.address(after), granules, [run, NONE])
            } else if room(before) >= missing {
                target(start - u64::from(missing) * UNIT, granules, [run, NONE])
            } else if room(after) > 0 {
                // All of the hole, so that the free block beyond it counts as well.
                let beyond = arena.blocks.next(after);
                let enough = |beyond: u32| room(after) + beyond >= units - arena.blocks.units(run);
                if !arena.is_clean(beyond) || !enough(arena.blocks.units(beyond)) {
                    continue;
                }
                let granules = (room(after) / granule) as usize;
                target(arena.blocks.address(after), granules, [run, beyond])
            } else {
                continue;
            };
            // What is left over is worth less than what is used up: the longest run of equals comes first.
            if best.is_none_or(|best| (candidate.new, candidate.granules) < (best.new, best.granules)) {
                best = Some(candidate);
            }
        }
        best
    }

    /// Maps granules as the target says; returns the free block that they are part of then.
    pub fn fill(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, target: &Target) -> Result<Id, DriverError> {
        // A request that cannot be served must not take what others could have meanwhile.
        if target.new >= WORTH_ASKING
            && let Ok(available) = memory.available()
            && target.new as u64 > available.free / self.size
        {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        // New ones first: where the device has none, nothing was moved for nothing.
        let new = self.create(memory, target.new)?;
        let created = new.len() as u64 * self.size;
        let mut handles = self.take_free(arena, memory, target.granules - target.new, &target.keep);
        let moved = handles.len() as u64 * self.size;
        handles.extend(new);
        let mapped = match arena.blocks.holding(target.address) {
            Some(hole) if handles.len() == target.granules => {
                self.map_all(memory, target.address, &handles).map(|()| hole)
            }
            // A granule that was free could not be unmapped.
            _ => Err(DriverError::OUT_OF_MEMORY),
        };
        let hole = mapped.inspect_err(|_| self.discard(memory, &handles))?;
        let segment = arena.blocks.segment_of(hole);
        let first = ((target.address - arena.blocks.base(segment)) / self.size) as usize;
        self.handles.entry(segment).or_default()[first..first + handles.len()].copy_from_slice(&handles);
        self.remapped += moved;
        if moved > 0 {
            memory.mapped(target.address, moved, true);
        }
        if created > 0 {
            memory.mapped(target.address + moved, created, false);
        }
        Ok(arena.fill(hole, target.address, target.granules as u32 * self.units()))
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
    fn take_free(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, wanted: usize, keep: &[Id]) -> Vec<u64> {
        let mut taken = Vec::with_capacity(wanted);
        if wanted == 0 {
            return taken;
        }
        let may_give = |&id: &Id| !keep.contains(&id) && !self.whole_in(arena, id).is_empty();
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
        if memory.unmap(address, size).is_err() {
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
        remains
    }

    pub fn count(&self, statistics: &mut Statistics) {
        let spare = self.spare.len() as u64 * self.size;
        statistics.reserved += spare;
        statistics.free += spare;
        statistics.remapped = self.remapped;
    }
}
