//! `auto_growth`: grows with demand and stays contiguous.
//!
//! Address space is reserved once, far more than the device has memory; physical memory is created in granules and mapped
//! where it is needed. Best fit over all of it. A large request that no free block fits exactly goes where it costs least
//! (see `placement`), and where no free block is long enough one is made: of granules that lie wholly free elsewhere,
//! and of what is free of others, mapped side by side (no copy, no new memory), and of new ones. So a request fails only
//! where the free granules and the free memory of the device together are less than it needs.
//!
//! Small requests have address space of their own, or take scraps, so that none of them holds a granule that a large
//! request could have had.
//!
//! Where the layer below has no virtual memory management, or it fails there: `chunks`.

use super::arena::{Arena, End, Region, Request};
use super::blocks::{Id, UNIT};
use super::chunks::Chunks;
use super::granules::{Failure, Granules, Source};
use super::placement::{Movable, Placement, Survey};
use super::{Backing, Block, Plan, Remains, Settings, Statistics};
use crate::device_memory::{DeviceMemory, DriverError};

/// Requests up to this many units are small.
const SMALL_UNITS: u32 = (64 << 10) / UNIT as u32;

/// They have address space of their own once this much is reserved: a granule is little then.
const APART_FROM: u64 = 512 << 20;

/// A small request takes what a granule in use has left only where that is no longer than this: what is longer serves
/// larger requests, and may be part of a free granule soon.
const SCRAP_UNITS: u32 = (256 << 10) / UNIT as u32;

/// Requests of more units are large, and those of more than this part of what is reserved: looking for their place costs
/// less than what they may waste.
const LARGE_UNITS: u32 = (1 << 20) / UNIT as u32;
const LARGE_PART: u64 = 128;

/// A free block fits a large request where it is longer by at most this part of it.
const NEARLY: u32 = 256;

/// Where more than this part of what is reserved lies in free granules, a free block is taken as it is: there is memory
/// enough, and mapping takes time.
const PLENTY: u64 = 3;

/// Large requests that get the best place after memory has grown; then the best fit is good enough: a job that does the
/// same again and again is not to pay for it each time.
const CAREFUL: u32 = 4000;

/// As many again where it grew by this part of what is reserved; fewer where it grew by less.
const GROWN: u64 = 50;

enum Growth {
    /// Nothing was asked for yet.
    Unknown,
    Mapped(Box<Granules>),
    Chunks,
}

pub struct AutoGrowth {
    growth: Growth,
    chunks: Chunks,
    least_step: u64,
    /// Large requests that get the best place still.
    careful: u32,
}

impl AutoGrowth {
    pub fn new(settings: Settings) -> Self {
        AutoGrowth {
            growth: Growth::Unknown,
            least_step: settings.chunk_bytes,
            careful: 0,
            chunks: Chunks::new(settings),
        }
    }

    /// Granules, where there is virtual memory management that works.
    fn granules(&mut self, memory: &dyn DeviceMemory) -> Option<&mut Granules> {
        if matches!(self.growth, Growth::Unknown) {
            self.growth = match memory.granularity() {
                Some(granularity) => {
                    let total = memory.available().map_or(0, |available| available.total);
                    Growth::Mapped(Box::new(Granules::new(granularity, self.least_step, total)))
                }
                None => Growth::Chunks,
            };
        }
        match &mut self.growth {
            Growth::Mapped(granules) if !granules.given_up() => Some(granules),
            _ => None,
        }
    }
}

/// A request on its way, and what it goes through.
struct Search<'a> {
    arena: &'a mut Arena,
    granules: &'a mut Granules,
    memory: &'a dyn DeviceMemory,
    request: &'a Request,
    careful: &'a mut u32,
}

impl Search<'_> {
    fn serve(mut self) -> Result<Block, DriverError> {
        let request = self.request;
        let small = request.units <= SMALL_UNITS && self.arena.reserved() >= APART_FROM;
        let region = if small { Region::Small } else { Region::Main };
        let mut found = self.arena.best(self.memory, region, request)?;
        if found.is_none() && small {
            let scrap = |&id: &Id| {
                self.arena.blocks.units(id) <= SCRAP_UNITS && self.granules.whole_in(self.arena, id).is_empty()
            };
            found = self.best_now(Region::Main).filter(scrap);
        }
        match found {
            Some(run) if !self.is_large() || self.settled() || self.fits(run) => Ok(self.cut(run)),
            Some(_) if self.may_spare_waiting() => self.place_now(region),
            _ => self.place(region),
        }
    }

    fn best_now(&self, region: Region) -> Option<Id> {
        self.arena.best_now(self.memory, region, self.request)
    }

    fn fits(&self, run: Id) -> bool {
        self.arena.blocks.units(run) - self.request.units <= self.request.units / NEARLY
    }

    fn is_large(&self) -> bool {
        self.request.units > LARGE_UNITS || self.request.rounded() > self.arena.reserved() / LARGE_PART
    }

    fn settled(&self) -> bool {
        *self.careful == 0
    }

    /// Whether the stream that the request names could do with what it may use at once.
    fn may_spare_waiting(&self) -> bool {
        self.request.stream.is_some() && !self.arena.all_clean() && self.memory.may_synchronise()
    }

    fn cut(&mut self, run: Id) -> Block {
        self.arena
            .carve(run, self.request, self.granules.end_for(self.arena, run))
    }

    /// Looks at what the request's stream may use at once. It waits only where that is better.
    fn place_now(mut self, region: Region) -> Result<Block, DriverError> {
        match self.choose(region, Source::Spared, self.request.stream, self.granules.aliases()) {
            Some(Placement::Within(run, skip)) => Ok(self.cut_within(run, skip)),
            _ => self.place(region),
        }
    }

    /// The best place in clean memory and in what was freed on `stream`.
    fn choose(&self, region: Region, from: Source, stream: Option<u64>, pieces: bool) -> Option<Placement> {
        let whole = self.granules.free_granules(self.arena, region, from, stream) as u32;
        let free = u64::from(whole) * u64::from(self.granules.units()) * UNIT;
        let enough = free >= self.arena.reserved() / PLENTY + self.request.rounded();
        let movable = Movable {
            granules: whole,
            pieces,
        };
        Survey::new(self.arena, self.granules, region, stream, movable).choose(self.request.units, enough)
    }

    /// Looks at all free memory, and makes a free block of it, and of new memory, where that is better.
    fn place(&mut self, region: Region) -> Result<Block, DriverError> {
        // Only clean memory may be unmapped, and none while a capture is open.
        let may_move = self.arena.synchronise(self.memory)? && self.memory.may_synchronise();
        if may_move {
            self.granules.gather(self.arena, self.memory);
        }
        let found = self.best_now(region);
        if let Some(run) = found.filter(|&run| !may_move || self.fits(run)) {
            return Ok(self.cut(run));
        }
        let mut from = if may_move { Source::Spared } else { Source::New };
        loop {
            let aliases = may_move && self.granules.aliases();
            let composition = match self.choose(region, from, None, aliases) {
                Some(Placement::Within(run, skip)) => return Ok(self.cut_within(run, skip)),
                Some(Placement::Composed(composition)) => composition,
                None => return Err(DriverError::OUT_OF_MEMORY),
            };
            if composition.new > 0
                && let Some(run) = self.best_now(other(region))
            {
                return Ok(self.cut(run));
            }
            let units = self.request.units;
            match self
                .granules
                .compose(self.arena, self.memory, region, &composition, units)
            {
                Ok(address) => {
                    self.placed(composition.new);
                    return self.cut_at(address);
                }
                // What lies below maps nothing twice.
                Err(_) if aliases && !self.granules.aliases() => {}
                // What lies below unmaps nothing now: then new memory alone.
                Err(Failure::Stuck) if from != Source::New => from = Source::New,
                Err(Failure::Driver(DriverError::OUT_OF_MEMORY)) if from == Source::Spared => from = Source::Any,
                Err(failure) => {
                    let found = self.best_now(region).or_else(|| self.best_now(other(region)));
                    return found.map(|run| self.cut(run)).ok_or(failure.into());
                }
            }
        }
    }

    /// A request got the best place, with so many new granules.
    fn placed(&mut self, new: u32) {
        let grown = u64::from(new) * u64::from(self.granules.units()) * UNIT;
        let more = u64::from(CAREFUL) * (grown * GROWN).min(self.arena.reserved()) / self.arena.reserved().max(1);
        *self.careful = (self.careful.saturating_sub(1) + more as u32).min(CAREFUL);
    }

    fn cut_within(&mut self, run: Id, skip: u32) -> Block {
        self.placed(0);
        self.arena.carve(run, self.request, End::At(skip))
    }

    /// From `address` on, in the free block that was composed there.
    fn cut_at(&mut self, address: u64) -> Result<Block, DriverError> {
        let run = self.arena.blocks.holding(address).ok_or(DriverError::OUT_OF_MEMORY)?;
        let skip = ((address - self.arena.blocks.address(run)) / UNIT) as u32;
        Ok(self.arena.carve(run, self.request, End::At(skip)))
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
        if self.granules(memory).is_none() {
            return self.chunks.allocate(arena, memory, request);
        }
        let Growth::Mapped(granules) = &mut self.growth else {
            return Err(DriverError::OUT_OF_MEMORY);
        };
        let search = Search {
            arena,
            granules,
            memory,
            request,
            careful: &mut self.careful,
        };
        match search.serve() {
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
        match &mut self.growth {
            Growth::Mapped(granules) => granules.freed(arena, run),
            _ => self.chunks.freed(arena, memory, run),
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
