//! `auto_growth`: memory is worth what it is short of.
//!
//! As long as the device has enough memory, memory that is not used costs nothing. A call of the driver always costs time.
//! So the *headroom* decides, which is what the device, the limit and the group still have. No rule knows what the job did before.
//!
//! - Much headroom: memory grows in large steps, and hardly anything is stitched. Requests share handles with requests of
//!   about their size (`Region`), a large one has handles of its own. What a stream has freed stays with the stream.
//! - Little: every free block serves every request, and every stitch pays that saves more than the headroom can spare.
//!   Events tell when memory of one stream can serve another.
//! - None: what is idle is stitched, or goes back as far as the request lacks it, before the answer is out of memory.
//!
//! Physical memory comes in handles. Each is mapped once at its *home* in reserved addresses of its region, side by side with
//! the others, so that free memory is joined across handles. Best fit at home serves most requests. If no free block is long
//! enough, but free memory would do, its handles are mapped a second time, side by side: a *stitch*. Nothing moves, and a
//! stitch stays mapped, so a job that repeats itself soon calls the driver no more.
//!
//! **Invariant.** Each byte of a handle is in one block of the arena, at its home: live, a part of a live block of a stitch,
//! free, or claimed for work that is under way.
//!
//! **What is live pins.** A stitch is made of whole handles and two ends, so a large request cannot have what a live block
//! leaves free of its handle. As long as memory is not short, a block that stays keeps no more from large requests than its
//! own handle, and lies in no handle of a block of a larger region, nor in the rest of a larger handle. In the regions of
//! small and middle requests a block of one size may pin a handle that others of the region have left.
//!
//! If the next layer has no virtual memory management, or if that fails for good, memory grows in `chunks`. A request that
//! mapped memory cannot serve gets a chunk of its own before the answer is out of memory.
//!
//! - `tuned`: all tuned numbers; `headroom`: what the device still has, and what follows from it
//! - `memory`: what there is; `growing`, `release`: how it becomes more and less
//! - `finding`: which memory that is there serves a request; `pieces`: which free memory a stitch is made of
//! - `handles`, `stitches`, `space`: what is mapped where
//! - `mapping`: the calls of the driver

mod chunks;
mod finding;
mod growing;
mod handles;
mod headroom;
pub(crate) mod mapping;
mod memory;
mod pieces;
mod release;
mod space;
mod stitches;
mod tuned;

use base::cuda::{CudaResult, DriverError};

use crate::arena::{Arena, Region};
use crate::holdings::Block;
use crate::request::{LastResort, Request};
use crate::work::{Ask, Obtain, Work};
use crate::{Mapping, Settings};
use mapping::{Map, Task};
pub use memory::Memory;

#[derive(Default)]
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
            ..AutoGrowth::default()
        }
    }

    /// Why memory is mapped no more, if it is not.
    fn gives_up(&self) -> Option<DriverError> {
        let (problem, times) = self.failures;
        problem.filter(|&problem| times >= tuned::FAILURES || problem == DriverError::NOT_SUPPORTED)
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
                // Chunks serve requests of all sizes and streams.
                memory.may_part = false;
                arena.is_short = true;
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
                    self.memory = Some(Memory::boxed(granularity, available, &self.settings));
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
