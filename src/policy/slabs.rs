//! A policy that lives on another one's memory, so that threads which would wait for each other need not: it borrows
//! slabs from the policy it branched off, cuts small requests from them by best fit, and gives back what lies free.
//!
//! To the lender a slab is a live block. Part of one can be given back as well, so that a few small blocks never keep a
//! slab from a large request.

use std::sync::{Mutex, PoisonError};

use super::arena::{Arena, End, Region, Request};
use super::blocks::{Id, NONE, UNIT};
use super::{Block, Plan, Policy};
use crate::device_memory::{Available, DeviceMemory, DriverError};

/// Bytes of a slab.
const SLAB: u64 = 32 << 20;
/// Requests up to this size, in bytes, are served from slabs.
pub const MOST: u64 = 1 << 20;
/// Of a slab in use, what lies free is given back in multiples of this, in bytes: no layer below maps less.
const PIECE: u64 = 2 << 20;

pub struct Slabs;

impl Slabs {
    /// Gives the whole pieces of a free block back to the lender; returns bytes, 0 where there are none or the lender
    /// refuses.
    fn give_back(arena: &mut Arena, memory: &dyn DeviceMemory, run: Id) -> u64 {
        let blocks = &arena.blocks;
        let (start, end) = (
            blocks.address(run),
            blocks.address(run) + u64::from(blocks.units(run)) * UNIT,
        );
        let from = if blocks.prev(run) == NONE {
            start
        } else {
            start.next_multiple_of(PIECE)
        };
        let to = if blocks.next(run) == NONE {
            end
        } else {
            end / PIECE * PIECE
        };
        if from >= to || memory.unmap(from, to - from).is_err() {
            return 0;
        }
        arena.give_up(run, from, ((to - from) / UNIT) as u32);
        to - from
    }
}

impl Plan for Slabs {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError> {
        let run = match arena.best(memory, Region::Main, request)? {
            Some(found) => found,
            None => arena.obtain(memory, SLAB.max(request.rounded()))?,
        };
        Ok(arena.carve(run, request, End::Head))
    }

    fn freed(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, run: Id) {
        let blocks = &arena.blocks;
        let is_whole = blocks.prev(run) == NONE && blocks.next(run) == NONE;
        // One that lies free is kept: the next request would borrow it again.
        if is_whole && arena.free_bytes() >= 2 * SLAB {
            Self::give_back(arena, memory, run);
        }
    }

    fn release_idle(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) -> u64 {
        if !matches!(arena.synchronise(memory), Ok(true)) {
            return 0;
        }
        let runs: Vec<Id> = arena.clean(Region::Main, 1).collect();
        runs.into_iter().map(|run| Self::give_back(arena, memory, run)).sum()
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

    fn release(&self, _handle: u64) -> Result<(), DriverError> {
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
