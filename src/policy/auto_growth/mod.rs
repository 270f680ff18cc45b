//! `auto_growth`: grows with demand, and stays contiguous.
//!
//! Address space is reserved once, far more than the device has memory. Physical memory is created in granules and
//! mapped into it. Best fit serves most requests. A large request that no free block fits closely gets the place that
//! wastes least. If no free block is long enough, one is composed: whole free granules and free parts of granules in
//! use are mapped side by side, without a copy, and new granules are added if need be. So a request fails only if the
//! free granules and the free memory of the device together are less than it needs.
//!
//! Small requests have a region of their own, or use small free blocks that are left over in the main region. So none
//! of them occupies a granule that a large request could use.
//!
//! If the next layer has no virtual memory management, or if that fails, memory grows in `chunks`.
//!
//! - `search`: the way of one request; `survey`: the best place for a large one
//! - `composition`: how a large request can be placed; `composing`: making a block for it
//! - `aliasing`: granules that are mapped more than once
//! - `granules`, `views`: what is mapped where
//!
//! # How the thresholds were measured
//!
//! Each constant in `search` and `survey` was varied while the others stayed as they are, and `vramshim replay` played
//! traces. `decomfl` is a recorded PyTorch job, which is not in this repository; the others are made by
//! `cargo run -p vramshim-tests --example traces -- FOLDER`, with 20,000 events for `full_16mib` and its like. The figures
//! are utilisation (peak live / peak reserved) and driver calls.

mod aliasing;
mod chunks;
mod composing;
mod composition;
mod granules;
mod search;
mod survey;
mod views;

use base::cuda::DriverError;

use crate::Mapping;
use crate::arena::{Arena, Request};
use crate::arena_policy::ArenaPolicy;
use crate::blocks::Id;
use crate::device_memory::DeviceMemory;
use crate::policy::{Backing, Block, Statistics, VirtualMemory};
pub use chunks::ChunkRules;
use chunks::Chunks;
use granules::Granules;
use search::Search;

enum Growth {
    /// No request has come yet.
    Undecided,
    Granules(Box<Granules>),
    Chunks,
}

pub struct AutoGrowth {
    growth: Growth,
    chunks: Chunks,
    /// The size of a granule that was set.
    wanted_granule_bytes: u64,
    mapping: Mapping,
    /// How many more large requests get the best place.
    searches_left: u32,
}

impl AutoGrowth {
    pub fn new(wanted_granule_bytes: u64, mapping: Mapping, chunk_rules: ChunkRules) -> Self {
        let growth = match mapping {
            Mapping::None => Growth::Chunks,
            Mapping::Free | Mapping::InPlace => Growth::Undecided,
        };
        AutoGrowth {
            growth,
            wanted_granule_bytes,
            mapping,
            searches_left: 0,
            chunks: Chunks::new(chunk_rules),
        }
    }

    /// The granules, if virtual memory management exists and works.
    fn granules(&mut self, memory: &dyn DeviceMemory) -> Option<&mut Granules> {
        if matches!(self.growth, Growth::Undecided) {
            self.growth = match memory.granularity() {
                Some(granularity) => {
                    let total = memory.available().map_or(0, |available| available.total);
                    Growth::Granules(Box::new(Granules::new(granularity, self.wanted_granule_bytes, total)))
                }
                None => Growth::Chunks,
            };
        }
        match &mut self.growth {
            Growth::Granules(granules) if !granules.is_abandoned() => Some(granules),
            _ => None,
        }
    }
}

impl ArenaPolicy for AutoGrowth {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError> {
        if self.granules(memory).is_none() {
            return self.chunks.allocate(arena, memory, request);
        }
        let Growth::Granules(granules) = &mut self.growth else {
            return Err(DriverError::OUT_OF_MEMORY);
        };
        let search = Search {
            arena,
            granules,
            memory,
            request,
            may_move: self.mapping == Mapping::Free,
            searches_left: &mut self.searches_left,
        };
        match search.serve() {
            Err(problem) if problem != DriverError::OUT_OF_MEMORY => {
                // If a chunk can be obtained, the fault is in virtual memory management.
                let block = self.chunks.allocate(arena, memory, request).map_err(|_| problem)?;
                if let Growth::Granules(granules) = &mut self.growth {
                    granules.abandon();
                }
                memory.no_virtual_memory(problem);
                Ok(block)
            }
            result => result,
        }
    }

    fn after_clean(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, free_block: Id) {
        match &mut self.growth {
            Growth::Granules(granules) => granules.after_clean(arena, free_block),
            _ => self.chunks.after_clean(arena, memory, free_block),
        }
    }

    fn release_idle(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) -> u64 {
        let chunks = arena.release_idle(memory);
        match &mut self.growth {
            Growth::Granules(granules) => chunks + granules.release_idle(arena, memory),
            _ => chunks,
        }
    }

    fn granules_behind(&self, arena: &Arena, block: &Block) -> Option<Backing> {
        match &self.growth {
            Growth::Granules(granules) => granules.behind(arena, block),
            _ => None,
        }
    }

    fn virtual_memory(&self, arena: &Arena) -> VirtualMemory {
        match &self.growth {
            Growth::Granules(granules) => granules.virtual_memory(arena),
            _ => VirtualMemory::default(),
        }
    }

    fn add_statistics(&self, statistics: &mut Statistics) {
        if let Growth::Granules(granules) = &self.growth {
            granules.add_statistics(statistics);
        }
    }
}
