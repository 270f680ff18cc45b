//! The way of one request through `auto_growth`: the best fit, the best place, or a composed block.

use base::cuda::DriverError;

use super::composing::ComposeError;
use super::composition::Placement;
use super::granules::{FreeGranules, Granules};
use super::survey::{Movable, Survey};
use crate::arena::{Arena, Cut, Region, Request};
use crate::blocks::{Id, UNIT};
use crate::device_memory::DeviceMemory;
use crate::policy::Block;

// How the figures below were measured: see `auto_growth`.

/// Requests of up to this many units are small: 64 KiB. With 16 KiB the utilisation of `full_256mib` falls by 0.001;
/// with 256 KiB it rises by 0.001, and that of `full_16mib` rises from 0.934 to 0.948.
const LARGEST_SMALL_UNITS: u32 = (64 << 10) / UNIT as u32;

/// Small requests get a region of their own as soon as this many bytes are reserved. A granule is then little beside
/// the reserved memory. From the first byte on, the utilisation
/// of `full_16mib` rises from 0.934 to 0.953, but a process with a few small blocks would need two granules instead of
/// one.
const SMALL_REGION_FROM_BYTES: u64 = 512 << 20;

/// A small request may use a free block of the main region if it is no longer than this, in units: 256 KiB. A longer
/// one serves larger requests, or may be joined to a whole granule soon. Other values change a utilisation by 0.001,
/// except that `full_16mib` rises from 0.934 to 0.948 if small requests may use none.
const LARGEST_SCRAP_UNITS: u32 = (256 << 10) / UNIT as u32;

/// Requests of more units are large: 1 MiB. The best fit wastes little for a smaller request. With 4 MiB the
/// utilisation of `full_16mib` falls from 0.934 to 0.903, and it makes a quarter fewer driver calls; 256 KiB gains
/// nothing.
const LARGEST_MEDIUM_UNITS: u32 = (1 << 20) / UNIT as u32;
/// A request is also large if it is more than 1/128 of the reserved memory. Values of 32 and 512 change the utilisation
/// of `growing` by 0.001, and no other.
const LARGE_RESERVED_DIVISOR: u64 = 128;

/// A free block is taken for a large request if it is longer by at most 1/256 of the request. With 1/16 `decomfl` waits
/// twice as often and its utilisation falls by 0.001; 1/1024 makes no difference of 0.001, except 0.005 in
/// `full_16mib`.
const CLOSE_FIT_DIVISOR: u32 = 256;

/// If more than 1/3 of the reserved memory is in free granules, a free block is taken as it is: memory is plentiful,
/// and mapping takes time. With 1/2 `decomfl` makes twice as many driver calls and gains nothing; with 1/10
/// `variable_lengths` makes half as many, and its utilisation falls by 0.002.
const PLENTIFUL_FREE_DIVISOR: u64 = 3;

/// How many large requests get the best place after memory has grown. Later ones get the best fit, so that a job that
/// repeats itself makes no more driver calls. With 1000 the utilisation of `variable_lengths` falls from 0.999 to
/// 0.988; with 16000 it makes 54% more driver calls and stays the same.
const SEARCHES_AFTER_GROWTH: u32 = 4000;

/// That many after memory has grown by 1/50 of the reserved memory, and proportionally fewer after less. Values of 10
/// and 500 make a difference of 0.001 at most.
const FULL_GROWTH_DIVISOR: u64 = 50;

pub struct Search<'a> {
    pub arena: &'a mut Arena,
    pub granules: &'a mut Granules,
    pub memory: &'a dyn DeviceMemory,
    pub request: &'a Request,
    /// Whether granules may be mapped elsewhere, or a second time.
    pub may_move: bool,
    /// How many more large requests get the best place.
    pub searches_left: &'a mut u32,
}

impl Search<'_> {
    pub fn serve(mut self) -> Result<Block, DriverError> {
        let request = self.request;
        let small = request.units <= LARGEST_SMALL_UNITS && self.arena.reserved() >= SMALL_REGION_FROM_BYTES;
        let region = if small { Region::Small } else { Region::Main };
        let mut found = self.best(region);
        if found.is_none() && small {
            let is_scrap = |&id: &Id| {
                self.arena.blocks.units(id) <= LARGEST_SCRAP_UNITS && self.granules.whole_in(self.arena, id).is_empty()
            };
            found = self.best(Region::Main).filter(is_scrap);
        }
        match found {
            Some(free_block) if !self.is_large() || *self.searches_left == 0 || self.fits_closely(free_block) => {
                Ok(self.cut(free_block))
            }
            _ => self.place(region),
        }
    }

    fn best(&self, region: Region) -> Option<Id> {
        self.arena.best(self.memory, region, self.request)
    }

    fn fits_closely(&self, free_block: Id) -> bool {
        self.arena.blocks.units(free_block) - self.request.units <= self.request.units / CLOSE_FIT_DIVISOR
    }

    fn is_large(&self) -> bool {
        self.request.units > LARGEST_MEDIUM_UNITS
            || self.request.rounded() > self.arena.reserved() / LARGE_RESERVED_DIVISOR
    }

    fn cut(&mut self, free_block: Id) -> Block {
        let end = self.granules.best_end(self.arena, free_block);
        self.arena.carve(free_block, self.request, end)
    }

    /// The best place in clean blocks and in those that were freed on the request's stream.
    fn choose(&self, region: Region, from: FreeGranules, pieces: bool) -> Option<Placement> {
        let granules = self.granules.count_free(self.arena, region, from) as u32;
        let free = u64::from(granules) * u64::from(self.granules.units()) * UNIT;
        let plentiful = free >= self.arena.reserved() / PLENTIFUL_FREE_DIVISOR + self.request.rounded();
        let movable = Movable { granules, pieces };
        // Captured work runs later, so the order of the stream promises nothing.
        let stream = self.request.stream.filter(|_| !self.memory.is_capturing());
        Survey::new(self.arena, self.granules, region, stream, movable).choose(self.request.units, plentiful)
    }

    /// Finds the best place in all free memory. Composes a free block if that is better, with new memory if need be.
    fn place(&mut self, region: Region) -> Result<Block, DriverError> {
        // Nothing may be unmapped while a stream capture is open.
        let may_move = self.may_move && !self.memory.is_capturing();
        if may_move {
            self.granules.gather(self.arena, self.memory);
        }
        let found = self.best(region);
        if let Some(free_block) = found.filter(|&free_block| !may_move || self.fits_closely(free_block)) {
            return Ok(self.cut(free_block));
        }
        let mut from = match may_move {
            true => FreeGranules::AllButOneSmall,
            false => FreeGranules::None,
        };
        loop {
            let pieces = may_move && self.granules.can_alias();
            let composition = match self.choose(region, from, pieces) {
                Some(Placement::Within(free_block, skip)) => return Ok(self.cut_within(free_block, skip)),
                Some(Placement::Composed(composition)) => composition,
                None => return Err(DriverError::OUT_OF_MEMORY),
            };
            // A free block of the other region is better than new memory.
            if composition.new > 0
                && let Some(free_block) = self.best(other(region))
            {
                return Ok(self.cut(free_block));
            }
            let units = self.request.units;
            match self
                .granules
                .compose(self.arena, self.memory, region, &composition, units)
            {
                Ok(address) => {
                    self.arena.expect_events();
                    self.note_search(composition.new);
                    return self.cut_at(address);
                }
                // The next layer maps nothing twice: try again without pieces.
                Err(_) if pieces && !self.granules.can_alias() => {}
                // The next layer does not unmap now: try again with new memory only.
                Err(ComposeError::CannotUnmap) if from != FreeGranules::None => from = FreeGranules::None,
                // There is no new memory: try again with the last free granule of the small region.
                Err(ComposeError::Driver(DriverError::OUT_OF_MEMORY)) if from == FreeGranules::AllButOneSmall => {
                    from = FreeGranules::All
                }
                Err(error) => {
                    let found = self.best(region).or_else(|| self.best(other(region)));
                    return found.map(|free_block| self.cut(free_block)).ok_or(error.into());
                }
            }
        }
    }

    /// Counts a request that got the best place, and the memory that grew by so many granules for it.
    fn note_search(&mut self, new_granules: u32) {
        let grown = u64::from(new_granules) * u64::from(self.granules.units()) * UNIT;
        let reserved = self.arena.reserved();
        let more = u64::from(SEARCHES_AFTER_GROWTH) * (grown * FULL_GROWTH_DIVISOR).min(reserved) / reserved.max(1);
        *self.searches_left = (self.searches_left.saturating_sub(1) + more as u32).min(SEARCHES_AFTER_GROWTH);
    }

    fn cut_within(&mut self, free_block: Id, skip: u32) -> Block {
        self.note_search(0);
        self.arena.carve(free_block, self.request, Cut::At(skip))
    }

    /// Cuts the request out of the composed free block, from `address` on.
    fn cut_at(&mut self, address: u64) -> Result<Block, DriverError> {
        let free_block = self
            .arena
            .blocks
            .containing(address)
            .ok_or(DriverError::OUT_OF_MEMORY)?;
        let skip = ((address - self.arena.blocks.address(free_block)) / UNIT) as u32;
        Ok(self.arena.carve(free_block, self.request, Cut::At(skip)))
    }
}

fn other(region: Region) -> Region {
    match region {
        Region::Main => Region::Small,
        Region::Small => Region::Main,
    }
}
