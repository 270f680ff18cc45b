//! `auto_growth`: grows with demand and stays contiguous.
//!
//! Address space is reserved once, far more than the device has memory; physical memory is created in granules and mapped
//! where it is needed. Best fit over all of it. Where no free block is long enough, the longest one beside unmapped
//! addresses is extended: first by granules that lie wholly free elsewhere, taken from the shortest free blocks and
//! mapped again (no copy, no new memory), then by new ones. So a request fails only where the free granules and the free
//! memory of the device together are less than it needs.
//!
//! Small requests have address space of their own, or take what a granule in use has left, so that none of them holds
//! a granule that a large request could have had.
//!
//! Where the layer below has no virtual memory management, or it fails there: `chunks`.

use super::arena::{Arena, Region, Request};
use super::blocks::{Id, UNIT};
use super::chunks::Chunks;
use super::granules::{Granules, Source};
use super::{Backing, Block, Plan, Remains, Settings, Statistics};
use crate::device_memory::{DeviceMemory, DriverError};

/// Requests up to this many units are small.
const SMALL_UNITS: u32 = (64 << 10) / UNIT as u32;

/// They have address space of their own once this much is reserved: a granule is little then.
const APART_FROM: u64 = 512 << 20;

enum Growth {
    /// Nothing was asked for yet.
    Unknown,
    Mapped(Granules),
    Chunks,
}

pub struct AutoGrowth {
    growth: Growth,
    chunks: Chunks,
    least_step: u64,
}

impl AutoGrowth {
    pub fn new(settings: Settings) -> Self {
        AutoGrowth {
            growth: Growth::Unknown,
            least_step: settings.chunk_bytes,
            chunks: Chunks::new(settings),
        }
    }

    /// Granules, where there is virtual memory management that works.
    fn granules(&mut self, memory: &dyn DeviceMemory) -> Option<&mut Granules> {
        if matches!(self.growth, Growth::Unknown) {
            self.growth = match memory.granularity() {
                Some(granularity) => Growth::Mapped(Granules::new(granularity, self.least_step)),
                None => Growth::Chunks,
            };
        }
        match &mut self.growth {
            Growth::Mapped(granules) if !granules.given_up() => Some(granules),
            _ => None,
        }
    }
}

fn in_granules(
    arena: &mut Arena,
    granules: &mut Granules,
    memory: &dyn DeviceMemory,
    request: &Request,
) -> Result<Block, DriverError> {
    let small = request.units <= SMALL_UNITS && arena.reserved() >= APART_FROM;
    let region = if small { Region::Small } else { Region::Main };
    let mut found = arena.best(memory, region, request)?;
    if found.is_none() && small {
        let rest_of_a_granule = |&id: &Id| granules.whole_in(arena, id).is_empty();
        found = arena.best_now(memory, Region::Main, request).filter(rest_of_a_granule);
    }
    let run = match found {
        Some(run) => run,
        None => extend(arena, granules, memory, region, request)?,
    };
    Ok(arena.carve(run, request, granules.end_for(arena, run)))
}

/// Makes a free block of the request's size of free memory elsewhere, and of new memory where that is not enough.
fn extend(
    arena: &mut Arena,
    granules: &mut Granules,
    memory: &dyn DeviceMemory,
    region: Region,
    request: &Request,
) -> Result<Id, DriverError> {
    // Only clean memory may be unmapped, and none while a capture is open.
    let may_move = arena.synchronise(memory)? && memory.may_synchronise();
    let mut from = if may_move { Source::Spared } else { Source::New };
    loop {
        let target = match granules.target(arena, region, request.units, from) {
            Some(target) => target,
            None => {
                granules.reserve(arena, memory, region, request.rounded())?;
                let target = granules.target(arena, region, request.units, from);
                target.ok_or(DriverError::OUT_OF_MEMORY)?
            }
        };
        if target.new > 0
            && let Some(found) = arena.best_now(memory, other(region), request)
        {
            return Ok(found);
        }
        match granules.fill(arena, memory, &target) {
            Err(DriverError::OUT_OF_MEMORY) if from == Source::Spared => from = Source::Any,
            result => return result,
        }
    }
}

fn other(region: Region) -> Region {
    match region {
        Region::Main => Region::Small,
        Region::Small => Region::Main,
    }
}

impl Plan for AutoGrowth {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError> {
        let Some(granules) = self.granules(memory) else {
            return self.chunks.allocate(arena, memory, request);
        };
        match in_granules(arena, granules, memory, request) {
            Err(problem) if problem != DriverError::OUT_OF_MEMORY => {
                // Where chunks work, it is virtual memory that does not.
                let block = self.chunks.allocate(arena, memory, request).map_err(|_| problem)?;
                if let Growth::Mapped(granules) = &mut self.growth {
                    granules.give_up();
                }
                memory.no_virtual_memory(problem);
                Ok(block)
            }
            result => result,
        }
    }

    fn freed(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, run: Id) {
        if !matches!(self.growth, Growth::Mapped(_)) {
            self.chunks.freed(arena, memory, run);
        }
    }

    fn release_idle(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) -> u64 {
        let chunks = arena.release_idle(memory);
        match &mut self.growth {
            Growth::Mapped(granules) => chunks + granules.release_idle(arena, memory),
            _ => chunks,
        }
    }

    fn granules_behind(&self, arena: &Arena, block: &Block) -> Option<Backing> {
        match &self.growth {
            Growth::Mapped(granules) => granules.behind(arena, block),
            _ => None,
        }
    }

    fn remains(&self, arena: &Arena) -> Remains {
        match &self.growth {
            Growth::Mapped(granules) => granules.remains(arena),
            _ => Remains::default(),
        }
    }

    fn count(&self, statistics: &mut Statistics) {
        if let Growth::Mapped(granules) = &self.growth {
            granules.count(statistics);
        }
    }
}
