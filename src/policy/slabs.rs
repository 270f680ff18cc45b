//! A policy that lives on another one's memory, so that threads which would wait for each other need not: it borrows
//! slabs from the policy it branched off, cuts small requests from them by best fit, and gives back what lies free.
//!
//! To the lender a slab is a live block. Part of one can be given back as well, so that a few small blocks never keep a
//! slab from a large request.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::arena::{Arena, End, Region, Request};
use super::blocks::{Id, NONE, UNIT};
use super::{Block, Plan, Policy};
use crate::device_memory::{Available, DeviceMemory, DriverError};

/// Bytes of a slab.
const SLAB: u64 = 32 << 20;
/// Requests up to this size, in bytes, are served from slabs.
pub const MOST: u64 = 1 << 20;
/// What lies free of a slab in use is given back in multiples of this, in bytes: no layer below maps less.
const PIECE: u64 = 2 << 20;

pub struct Slabs;

impl Slabs {
    /// Gives part of a free block back to the lender; returns bytes, 0 where it is empty or the lender refuses.
    fn give_back(arena: &mut Arena, memory: &dyn DeviceMemory, run: Id, part: Range<u64>) -> u64 {
        if part.is_empty() || memory.unmap(part.start, part.end - part.start).is_err() {
            return 0;
        }
        let size = part.end - part.start;
        arena.give_up(run, part.start, (size / UNIT) as u32);
        size
    }

    fn addresses(arena: &Arena, run: Id) -> Range<u64> {
        let start = arena.blocks.address(run);
        start..start + u64::from(arena.blocks.units(run)) * UNIT
    }

    /// Gives the whole pieces of a free block back.
    fn give_back_pieces(arena: &mut Arena, memory: &dyn DeviceMemory, run: Id) -> u64 {
        let Range { start, end } = Self::addresses(arena, run);
        let from = match arena.blocks.prev(run) {
            NONE => start,
            _ => start.next_multiple_of(PIECE),
        };
        let to = match arena.blocks.next(run) {
            NONE => end,
            _ => end / PIECE * PIECE,
        };
        Self::give_back(arena, memory, run, from..to)
    }

    /// Borrows a slab. What of it is less than a piece at either end is the lender's again: no two policies share a
    /// piece, so that each piece tells by its address whose it is.
    fn borrow(arena: &mut Arena, memory: &dyn DeviceMemory) -> Result<(), DriverError> {
        let slab = arena.obtain(memory, SLAB)?;
        let Range { start, end } = Self::addresses(arena, slab);
        Self::give_back(arena, memory, slab, end / PIECE * PIECE..end);
        Self::give_back(arena, memory, slab, start..start.next_multiple_of(PIECE));
        Ok(())
    }
}

impl Plan for Slabs {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError> {
        let mut run = arena.best(memory, Region::Main, request)?;
        if run.is_none() {
            Self::borrow(arena, memory)?;
            run = arena.best_now(memory, Region::Main, request);
        }
        let run = run.ok_or(DriverError::OUT_OF_MEMORY)?;
        Ok(arena.carve(run, request, End::Head))
    }

    fn freed(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, run: Id) {
        let blocks = &arena.blocks;
        let is_whole = blocks.prev(run) == NONE && blocks.next(run) == NONE;
        // One that lies free is kept: the next request would borrow it again.
        if is_whole && arena.free_bytes() >= 2 * SLAB {
            Self::give_back_pieces(arena, memory, run);
        }
    }

    fn release_idle(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) -> u64 {
        if !matches!(arena.synchronise(memory), Ok(true)) {
            return 0;
        }
        let runs: Vec<Id> = arena.clean(Region::Main, 1).collect();
        runs.into_iter()
            .map(|run| Self::give_back_pieces(arena, memory, run))
            .sum()
    }
}

/// Who is told which slabs are lent. Called while the lender is locked.
pub trait Lending {
    fn lent(&self, address: u64, size: u64);
    fn returned(&self, address: u64, size: u64);
}

/// The lender's memory as a borrower sees it.
pub struct Lent<'a> {
    pub lender: &'a Mutex<Option<Box<dyn Policy>>>,
    /// What the lender itself lives on.
    pub memory: &'a dyn DeviceMemory,
    pub told: &'a dyn Lending,
}

impl Lent<'_> {
    fn ask<T>(&self, ask: impl FnOnce(&mut dyn Policy) -> Result<T, DriverError>) -> Result<T, DriverError> {
        let mut lender = self.lender.lock().unwrap_or_else(PoisonError::into_inner);
        ask(lender.as_deref_mut().ok_or(DriverError::INVALID_CONTEXT)?)
    }
}

impl DeviceMemory for Lent<'_> {
    fn allocate(&self, size: u64) -> Result<u64, DriverError> {
        self.ask(|lender| {
            let slab = lender.allocate(self.memory, size, None)?;
            self.told.lent(slab.address, size);
            Ok(slab.address)
        })
    }

    /// Part of a slab, or a whole one.
    fn unmap(&self, address: u64, size: u64) -> Result<(), DriverError> {
        self.ask(|lender| {
            lender.divide(address);
            lender.divide(address + size);
            // Off the list first: the lender may hand it out the moment after.
            self.told.returned(address, size);
            match lender.free(self.memory, address, None) {
                Some(_) => Ok(()),
                None => Err(DriverError::INVALID_VALUE),
            }
        })
    }

    fn synchronise(&self) -> Result<(), DriverError> {
        self.memory.synchronise()
    }

    fn may_synchronise(&self) -> bool {
        self.memory.may_synchronise()
    }

    fn available(&self) -> Result<Available, DriverError> {
        self.memory.available()
    }

    // The rest is for policies that make memory themselves.

    fn free(&self, _address: u64) -> Result<(), DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn granularity(&self) -> Option<u64> {
        None
    }

    fn reserve(&self, _size: u64, _alignment: u64) -> Result<u64, DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn create(&self, _size: u64) -> Result<u64, DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn release(&self, _handle: u64, _size: u64) -> Result<(), DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn map(&self, _address: u64, _size: u64, _handle: u64) -> Result<(), DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn allow_access(&self, _address: u64, _size: u64) -> Result<(), DriverError> {
        Err(DriverError::NOT_SUPPORTED)
    }

    fn mapped(&self, _address: u64, _size: u64, _moved: bool) {}

    fn unmapped(&self, _address: u64, _size: u64, _moved: bool) {}

    fn no_virtual_memory(&self, _why: DriverError) {}
}
