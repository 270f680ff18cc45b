//! Making a free block: of granules that are free elsewhere, of new granules, and of pieces of granules in use.
//!
//! Any call to the next layer can fail. Whatever was done before the failure stays accounted for.

use std::ops::Range;

use base::cuda::DriverError;

use super::composition::{Composition, Site};
use super::granules::{Granules, LARGEST_RANGE};
use super::views::View;
use crate::arena::{Arena, Region};
use crate::blocks::{Id, Kind, UNIT};
use crate::device_memory::DeviceMemory;

/// A range of addresses is this many times as large as the device's memory. Blocks in use cannot move, so more
/// addresses than memory are needed. The factor is a judgement: addresses cost nothing, and a second range is reserved
/// when the first has no hole that is long enough.
const RANGE_PER_DEVICE_MEMORY: u64 = 8;

/// If a block needs at least this many new granules, the device is first asked whether it has so much free memory. The
/// question is one driver call; a failed attempt costs two calls for each granule that was created in vain.
const QUERY_FREE_FROM_GRANULES: u32 = 16;

/// Why a block could not be composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComposeError {
    /// Free granules could not be unmapped.
    CannotUnmap,
    Driver(DriverError),
}

impl From<DriverError> for ComposeError {
    fn from(problem: DriverError) -> Self {
        ComposeError::Driver(problem)
    }
}

impl From<ComposeError> for DriverError {
    fn from(error: ComposeError) -> Self {
        match error {
            ComposeError::CannotUnmap => DriverError::OUT_OF_MEMORY,
            ComposeError::Driver(problem) => problem,
        }
    }
}

impl Granules {
    /// Makes a free block as `composition` says; returns the address in it at which the request of `units` begins.
    pub fn compose(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        region: Region,
        composition: &Composition,
        units: u32,
    ) -> Result<u64, ComposeError> {
        let Composition {
            first_piece,
            last_piece,
            site,
            granules,
            new,
            at_end,
        } = *composition;
        // A request that cannot be served must not take memory that other processes could use meanwhile.
        if new >= QUERY_FREE_FROM_GRANULES
            && let Ok(available) = memory.available()
            && u64::from(new) > available.free / self.size
        {
            return Err(DriverError::OUT_OF_MEMORY.into());
        }
        let View {
            segment,
            granule: first,
        } = self.place_for_granules(arena, memory, region, composition)?;
        let middle = self.address(
            arena,
            View {
                segment,
                granule: first,
            },
        );
        let after = middle + u64::from(granules) * self.size;
        // New granules first: if the device has none, no mapping was changed in vain.
        let created = self.create(memory, new as usize)?;
        let pieces = match site {
            Site::Hole => [
                first_piece.map(|piece| (piece, first.wrapping_sub(1))),
                last_piece.map(|piece| (piece, first + granules)),
            ],
            _ => [None, None],
        };
        for (piece, granule) in pieces.into_iter().flatten() {
            let aliased = self.alias(arena, memory, piece.address, piece.units, View { segment, granule });
            aliased.inspect_err(|_| self.discard(memory, &created))?;
        }
        let keep = match site {
            Site::After(free_block) | Site::Before(free_block) => Some(free_block),
            Site::Hole => None,
        };
        if granules > 0 {
            self.fill(arena, memory, (segment, first, granules), created, keep)?;
        }
        Ok(match (site, first_piece, last_piece) {
            (Site::After(_), Some(piece), _) => piece.address,
            (_, Some(piece), _) if !at_end => middle - u64::from(piece.units) * UNIT,
            (_, _, Some(piece)) => {
                let end = if site == Site::Hole { after } else { piece.address };
                end + u64::from(piece.units) * UNIT - u64::from(units) * UNIT
            }
            _ => middle,
        })
    }

    /// Where the first of the granules to be mapped goes.
    fn place_for_granules(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        region: Region,
        composition: &Composition,
    ) -> Result<View, ComposeError> {
        let blocks = &arena.blocks;
        Ok(match composition.site {
            Site::Hole => {
                let first_piece = u32::from(composition.first_piece.is_some());
                let wanted = composition.granules + first_piece + u32::from(composition.last_piece.is_some());
                if self.hole(arena, region, wanted).is_none() {
                    self.reserve(arena, memory, region, u64::from(wanted) * self.size)?;
                }
                let hole = self.hole(arena, region, wanted).ok_or(DriverError::OUT_OF_MEMORY)?;
                View {
                    granule: hole.granule + first_piece,
                    ..hole
                }
            }
            Site::After(free_block) => View {
                segment: blocks.segment_of(free_block),
                granule: (blocks.offset(free_block) + blocks.units(free_block)) / self.units(),
            },
            Site::Before(free_block) => View {
                segment: blocks.segment_of(free_block),
                granule: blocks.offset(free_block) / self.units() - composition.granules,
            },
        })
    }

    /// The first of `granules` places in a hole in which nothing is mapped.
    fn hole(&self, arena: &Arena, region: Region, granules: u32) -> Option<View> {
        arena.holes(region, granules * self.units()).find_map(|hole| {
            let (segment, start) = (arena.blocks.segment_of(hole), arena.blocks.offset(hole));
            let first = start.div_ceil(self.units());
            let end = (start + arena.blocks.units(hole)) / self.units();
            let handles = self
                .handles
                .get(&segment)?
                .get(first as usize..(first + granules) as usize)?;
            let unmapped = first + granules <= end && handles.iter().all(|&handle| handle == 0);
            unmapped.then_some(View {
                segment,
                granule: first,
            })
        })
    }

    /// Reserves address space for at least `size` bytes.
    fn reserve(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        region: Region,
        size: u64,
    ) -> Result<(), DriverError> {
        let total = memory.available()?.total;
        let least = size.next_multiple_of(self.size);
        let most = total.saturating_mul(RANGE_PER_DEVICE_MEMORY).min(LARGEST_RANGE);
        let mut range = most.next_multiple_of(self.size).max(least);
        let address = loop {
            match memory.reserve(range, self.size) {
                // Address space can be limited too (`ulimit -v`).
                Err(_) if range / 2 >= least => range = (range / 2).next_multiple_of(self.size),
                result => break result?,
            }
        };
        let hole = arena.add_segment(address, range, Kind::Hole, region);
        let handles = vec![0; (range / self.size) as usize];
        self.handles.insert(arena.blocks.segment_of(hole), handles);
        Ok(())
    }

    /// Maps `created`, and as many free granules as are missing, into a hole: segment, first granule, how many. No
    /// granule is taken from the free block `keep`.
    fn fill(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        (segment, first, granules): (u32, u32, u32),
        created: Vec<u64>,
        keep: Option<Id>,
    ) -> Result<(), ComposeError> {
        let address = self.address(
            arena,
            View {
                segment,
                granule: first,
            },
        );
        let new = created.len() as u64 * self.size;
        let mut handles = self.take_free(arena, memory, granules as usize - created.len(), keep);
        let moved = handles.len() as u64 * self.size;
        handles.extend(created);
        let mapped = match arena.blocks.containing(address) {
            Some(hole) if handles.len() == granules as usize => self
                .map_all(memory, address, &handles)
                .map(|()| hole)
                .map_err(ComposeError::Driver),
            _ => Err(ComposeError::CannotUnmap),
        };
        let hole = mapped.inspect_err(|_| self.discard(memory, &handles))?;
        let filled = first as usize..(first + granules) as usize;
        self.handles.entry(segment).or_default()[filled].copy_from_slice(&handles);
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

    /// Maps granules side by side from `address` on, and makes them accessible. Maps all of them or none.
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
            // Nothing more can be done if the range cannot be unmapped either.
            let _ = memory.unmap(address, mapped);
        }
        outcome
    }

    /// Returns `count` granules: first those that are mapped nowhere, then new ones. Returns all of them or none.
    fn create(&mut self, memory: &dyn DeviceMemory, count: usize) -> Result<Vec<u64>, DriverError> {
        let mut new = self.take_unmapped(memory, count);
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

    /// Unmaps up to `wanted` granules that are wholly free. Takes them from the smallest free blocks, but not from
    /// `keep`.
    fn take_free(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, wanted: usize, keep: Option<Id>) -> Vec<u64> {
        let mut taken = Vec::with_capacity(wanted);
        if wanted == 0 {
            return taken;
        }
        let may_give = |&id: &Id| keep != Some(id) && !self.whole_in(arena, id).is_empty();
        let mut donors: Vec<Id> = self.free_blocks(arena).filter(may_give).collect();
        // Blocks of the small region come last, see `FreeGranules::AllButOneSmall`.
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

    /// Clean free blocks that are long enough for a whole granule.
    fn free_blocks<'a>(&self, arena: &'a Arena) -> impl Iterator<Item = Id> + use<'a> {
        let least = self.units();
        [Region::Main, Region::Small]
            .into_iter()
            .flat_map(move |region| arena.clean_blocks(region, least))
    }

    /// Unmaps granules of a free, clean block; returns their handles. Returns none if the next layer does not unmap.
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
        if !self.unalias(arena, memory, segment, granules.clone()) || memory.unmap(address, size).is_err() {
            return Vec::new();
        }
        memory.unmapped(address, size, moved);
        arena.hollow(block, address, granules.len() as u32 * self.units());
        let handles = self.handles.entry(segment).or_default();
        let taken = &mut handles[granules.start as usize..granules.end as usize];
        taken.iter_mut().map(std::mem::take).collect()
    }

    /// Takes up to `most` of the granules that are mapped nowhere, and ends their place in the accounts.
    fn take_unmapped(&mut self, memory: &dyn DeviceMemory, most: usize) -> Vec<u64> {
        let taken = self
            .unmapped
            .split_off(self.unmapped.len() - most.min(self.unmapped.len()));
        for &handle in &taken {
            memory.unmapped(handle, self.size, true);
        }
        taken
    }

    /// Gives granules that are mapped nowhere back. If the next layer does not take one, it is kept, and accounted for
    /// under its handle instead of an address.
    fn discard(&mut self, memory: &dyn DeviceMemory, handles: &[u64]) {
        for &handle in handles {
            if memory.release(handle, self.size).is_err() {
                memory.mapped(handle, self.size, true);
                self.unmapped.push(handle);
            }
        }
    }

    /// Gives every granule that is wholly free back to the next layer; returns bytes.
    pub fn release_idle(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) -> u64 {
        if memory.is_capturing() {
            return 0;
        }
        self.gather(arena, memory);
        let free_blocks: Vec<Id> = self.free_blocks(arena).collect();
        let mut handles = self.take_unmapped(memory, usize::MAX);
        for free_block in free_blocks {
            let whole = self.whole_in(arena, free_block);
            if !whole.is_empty() {
                handles.extend(self.unmap(arena, memory, free_block, whole, false));
            }
        }
        let (before, kept) = (handles.len(), self.unmapped.len());
        self.discard(memory, &handles);
        (before - (self.unmapped.len() - kept)) as u64 * self.size
    }
}
