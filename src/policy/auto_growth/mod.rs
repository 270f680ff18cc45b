//! `auto_growth`: grows with demand, and stays tight.
//!
//! Physical memory comes in handles of several sizes. Each is mapped once at its *home* in a range of reserved addresses,
//! side by side with the others, so that free memory is joined across handles. Best fit at home serves most requests.
//!
//! If no free block is long enough, but free memory would do, its handles are mapped a second time, side by side: a
//! *stitch*. Nothing moves, and a stitch stays mapped, so a job that repeats itself soon calls the driver no more. If free
//! memory is not enough, one more handle comes beside it.
//!
//! If the next layer has no virtual memory management, or if that fails for good, memory grows in `chunks`. A request that
//! mapped memory cannot serve gets a chunk of its own before the answer is out of memory.
//!
//! - `memory`: what there is; `growing`, `release`: how it becomes more and less
//! - `large`: requests that the driver serves: large ones of a job that only grows, and those that nothing else serves
//! - `finding`: which memory that is there serves a request; `apart`: memory for small requests
//! - `pieces`: which free memory a stitch is made of; `tight`: the same if a job does not repeat itself
//! - `sizes`, `order`, `cycles`: whether the sizes of a job repeat, their order, and the job itself
//! - `handles`, `stitches`, `space`: what is mapped where
//! - `mapping`: the calls of the driver

mod apart;
mod chunks;
mod cycles;
mod finding;
mod growing;
mod handles;
mod large;
pub(crate) mod mapping;
mod memory;
mod order;
mod pieces;
mod release;
mod sizes;
mod space;
mod stitches;
mod tight;

use base::cuda::{CudaResult, DriverError};

use crate::arena::{Arena, Region};
use crate::holdings::Block;
use crate::request::{LastResort, Request};
use crate::work::{Ask, Obtain, Work};
use crate::{Mapping, Settings};
use mapping::{Map, Task};
pub use memory::Memory;

/// After so many requests, one after the other, that a chunk could serve and mapped memory could not, memory is mapped no
/// more. One failed call says little.
const FAILURES_UNTIL_CHUNKS: u32 = 3;

pub struct AutoGrowth {
    settings: Settings,
    /// `None` until the first request has come.
    has_virtual_memory: Option<bool>,
    pub(crate) memory: Option<Box<Memory>>,
    /// Why mapped memory could not serve the request that is served now.
    problem: Option<DriverError>,
    /// The same while a chunk is obtained in place of mapped memory.
    beside: Option<DriverError>,
    /// The last such problem, and how many requests in a row had one.
    failures: (Option<DriverError>, u32),
}

impl AutoGrowth {
    pub fn new(settings: &Settings) -> Self {
        AutoGrowth {
            settings: settings.clone(),
            has_virtual_memory: (settings.mapping == Mapping::None).then_some(false),
            memory: None,
            problem: None,
            beside: None,
            failures: (None, 0),
        }
    }

    /// Why memory is mapped no more, if it is not.
    fn gives_up(&self) -> Option<DriverError> {
        let (problem, times) = self.failures;
        problem.filter(|&problem| times >= FAILURES_UNTIL_CHUNKS || problem == DriverError::NOT_SUPPORTED)
    }

    fn mapped(&mut self, arena: &mut Arena, map: Map) -> CudaResult {
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        let result = match map.0 {
            Task::Reserve(reserve) => memory.reserved_range(arena, reserve),
            Task::Grow(grow) => memory.grown(arena, grow).inspect(|()| self.failures = (None, 0)),
            Task::Withdraw(_) => Ok(()),
            Task::GiveUp(_) => {
                self.has_virtual_memory = Some(false);
                Ok(())
            }
        };
        match result {
            Err(problem) if problem != DriverError::OUT_OF_MEMORY => {
                // If a chunk can be obtained, the fault is in virtual memory management.
                self.problem = Some(problem);
                memory.may_part = false;
                Ok(())
            }
            result => result,
        }
    }

    #[inline]
    pub fn find(&mut self, arena: &mut Arena, request: &Request) -> Option<Block> {
        match &mut self.memory {
            Some(memory) => memory.find(arena, request),
            None => chunks::find(arena, request),
        }
    }

    pub fn grow(&mut self, arena: &mut Arena, request: &mut Request) -> CudaResult<Work> {
        let gives_up = self.gives_up();
        self.beside = None;
        match (&mut self.memory, self.has_virtual_memory) {
            (_, None) => Ok(Work::Ask(Ask::VirtualMemory(None))),
            (Some(memory), Some(true)) if self.problem.is_none() => match gives_up {
                Some(problem) => Ok(Work::Map(Box::new(Map(Task::GiveUp(problem))))),
                None if request.last_resort != LastResort::NotDue => {
                    // Less than a granule may fit beside other memory of the driver's. That says nothing of mapped memory.
                    self.beside = (request.rounded() >= memory.granule).then_some(DriverError::OUT_OF_MEMORY);
                    memory.grow_at_last(request)
                }
                None => memory.grow(arena, request),
            },
            (memory, _) => {
                let ranges = memory.as_mut().map(|memory| memory.withdraw_addresses(arena));
                if let Some(ranges) = ranges.filter(|ranges| !ranges.is_empty()) {
                    return Ok(Work::Map(Box::new(Map(Task::Withdraw(ranges)))));
                }
                let work = chunks::grow(&self.settings, arena, request);
                if matches!(work, Work::Obtain(_)) {
                    self.beside = self.problem.take();
                }
                Ok(work)
            }
        }
    }

    pub fn obtained(&mut self) {
        if let Some(problem) = self.beside.take() {
            self.failures = (Some(problem), self.failures.1 + 1);
        }
    }

    pub fn not_obtained(&mut self, obtain: &Obtain, problem: DriverError) -> CudaResult {
        match &mut self.memory {
            // The next attempt uses what is free.
            Some(memory) if obtain.region == Region::Dedicated && problem == DriverError::OUT_OF_MEMORY => {
                memory.is_scarce = true;
                Ok(())
            }
            _ => Err(problem),
        }
    }

    pub fn commit(&mut self, arena: &mut Arena, work: Work) -> CudaResult {
        match work {
            Work::Ask(Ask::VirtualMemory(answer)) => {
                self.has_virtual_memory = Some(answer.is_some());
                if let Some((granularity, available)) = answer {
                    self.memory = Some(Memory::boxed(granularity, available.total, &self.settings));
                    arena.watch_streams();
                }
            }
            Work::Map(map) => return self.mapped(arena, *map),
            Work::Unmap(unmap) => {
                if let Some(memory) = &mut self.memory {
                    memory.unmapped(arena, *unmap);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a chunk is given back as soon as no block in it is live.
    pub fn gives_idle_chunks_back(&self) -> bool {
        self.memory.is_none() && self.settings.free_idle_chunk
    }

    pub fn has_last_resort(&self) -> bool {
        self.memory.is_some() && self.has_virtual_memory == Some(true)
    }
}
