//! Which bytes a request gets.
//!
//! A policy serves one context of one device. It sees memory through `DeviceMemory` and nothing else, so the same code
//! serves a live GPU and an offline replay. `arena` is what the policies share: segments, best fit, and the rule that
//! freeing is a synchronisation; `blocks` and `free_index` are what it is made of.

mod arena;
mod auto_growth;
mod blocks;
mod chunks;
pub mod device_memory;
mod free_index;
mod granules;
mod naive_best_fit;
mod placement;
pub mod slabs;

use arena::{Arena, Request};
use blocks::Id;

use crate::device_memory::{DeviceMemory, DriverError};

/// Values of `FLAGS_allocator_strategy` and `VRAMSHIM_STRATEGY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    Passthrough,
    NaiveBestFit,
    AutoGrowth,
}

impl Strategy {
    pub const fn name(self) -> &'static str {
        match self {
            Strategy::Passthrough => "passthrough",
            Strategy::NaiveBestFit => "naive_best_fit",
            Strategy::AutoGrowth => "auto_growth",
        }
    }

    /// As Paddle's start line spells it.
    pub const fn log_name(self) -> &'static str {
        match self {
            Strategy::Passthrough => "Passthrough",
            Strategy::NaiveBestFit => "Naive Best Fit",
            Strategy::AutoGrowth => "Auto Growth",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "passthrough" => Strategy::Passthrough,
            "naive_best_fit" => Strategy::NaiveBestFit,
            "auto_growth" | "autogrow" => Strategy::AutoGrowth,
            _ => return None,
        })
    }
}

/// Paddle's flags that size a policy's requests (`paddle/common/flags.cc`). Bytes where a name says so.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Share of the available memory that naive_best_fit reserves, where no size is given.
    pub fraction: f64,
    pub initial_bytes: u64,
    pub reallocate_bytes: u64,
    /// Least chunk of auto_growth.
    pub chunk_bytes: u64,
    pub free_idle_chunk: bool,
    pub free_when_no_cache_hit: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            fraction: 0.92,
            initial_bytes: 0,
            reallocate_bytes: 0,
            chunk_bytes: 0,
            free_idle_chunk: false,
            free_when_no_cache_hit: false,
        }
    }
}

/// A live block. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub address: u64,
    pub requested: u64,
    pub allocated: u64,
}

/// The memory behind a live block, as the layer below knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A segment that was allocated in one piece: first address and bytes.
    Segment { address: u64, size: u64 },
    /// Physical memory handles of `size` bytes each, mapped side by side from `address` on.
    Granules { address: u64, size: u64, handles: Vec<u64> },
}

/// What does not go with its context: physical memory and address space belong to the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remains {
    /// First address and bytes of what is mapped.
    pub mapped: Vec<(u64, u64)>,
    pub handles: Vec<u64>,
    /// First address and bytes of reserved address space.
    pub ranges: Vec<(u64, u64)>,
}

/// What a policy holds. Bytes, but for the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub reserved: u64,
    pub allocated: u64,
    pub free: u64,
    pub largest_free_block: u64,
    /// Bytes of granules that were unmapped and mapped again elsewhere, ever.
    pub remapped: u64,
    pub segments: usize,
    pub live_blocks: usize,
    /// Times that the context was synchronised so that freed blocks could be used, ever.
    pub synchronisations: u64,
    /// Free blocks that were looked at one by one, for requests that no list of sizes answers, ever.
    pub surveyed: u64,
}

pub trait Policy: Send {
    /// A block of at least `size` bytes. Zero bytes are `INVALID_VALUE`, as in CUDA. `stream` is the one that the block
    /// will be used on, where the request names it: blocks freed on the same stream are then good at once.
    fn allocate(&mut self, memory: &dyn DeviceMemory, size: u64, stream: Option<u64>) -> Result<Block, DriverError>;

    /// Takes back the block that begins at `address`; `None` (and no change) where no live block begins there.
    fn free(&mut self, memory: &dyn DeviceMemory, address: u64, stream: Option<u64>) -> Option<Block>;

    /// Makes every free block usable at once, by a synchronisation where that is needed and allowed.
    fn clean(&mut self, memory: &dyn DeviceMemory) -> Result<(), DriverError>;

    /// The live block that `address` lies in.
    fn find(&self, address: u64) -> Option<Block>;

    /// The memory behind a live block, or a part of one.
    fn backing(&self, block: &Block) -> Option<Backing>;

    /// Whether `address` lies in memory of ours, in a live block or not.
    fn owns(&self, address: u64) -> bool;

    fn statistics(&self) -> Statistics;

    /// Every live block.
    fn live(&self) -> Vec<Block>;

    /// Makes two live blocks of the one that `address` lies in, the second beginning there.
    fn divide(&mut self, address: u64);

    /// Gives memory without a live block back to the layer below; returns bytes.
    fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64;

    /// What is left for its owner to give back once the context is gone.
    fn remains(&self) -> Remains;
}

/// What the policies differ in: how they make room, and what they do about the free block that a freed one became part of.
trait Plan: Send {
    fn allocate(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        request: &Request,
    ) -> Result<Block, DriverError>;

    fn freed(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, run: Id);

    fn release_idle(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) -> u64 {
        arena.release_idle(memory)
    }

    /// The granules behind a block; `None` where it lies in a segment.
    fn granules_behind(&self, _arena: &Arena, _block: &Block) -> Option<Backing> {
        None
    }

    fn remains(&self, _arena: &Arena) -> Remains {
        Remains::default()
    }

    /// Adds what the arena does not know.
    fn count(&self, _: &mut Statistics) {}
}

struct Planned<P> {
    arena: Arena,
    plan: P,
}

impl<P: Plan> Policy for Planned<P> {
    fn allocate(&mut self, memory: &dyn DeviceMemory, size: u64, stream: Option<u64>) -> Result<Block, DriverError> {
        let request = Request::new(size, stream)?;
        self.plan.allocate(&mut self.arena, memory, &request)
    }

    fn free(&mut self, memory: &dyn DeviceMemory, address: u64, stream: Option<u64>) -> Option<Block> {
        let (block, run) = self.arena.free(memory, address, stream)?;
        self.plan.freed(&mut self.arena, memory, run);
        Some(block)
    }

    fn clean(&mut self, memory: &dyn DeviceMemory) -> Result<(), DriverError> {
        self.arena.synchronise(memory).map(drop)
    }

    fn find(&self, address: u64) -> Option<Block> {
        self.arena.find(address)
    }

    fn backing(&self, block: &Block) -> Option<Backing> {
        self.plan
            .granules_behind(&self.arena, block)
            .or_else(|| self.arena.segment_of(block.address))
    }

    fn owns(&self, address: u64) -> bool {
        self.arena.owns(address)
    }

    fn statistics(&self) -> Statistics {
        let mut statistics = self.arena.statistics();
        self.plan.count(&mut statistics);
        statistics
    }

    fn live(&self) -> Vec<Block> {
        self.arena.blocks.each_live().collect()
    }

    fn divide(&mut self, address: u64) {
        self.arena.divide(address);
    }

    fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64 {
        self.plan.release_idle(&mut self.arena, memory)
    }

    fn remains(&self) -> Remains {
        self.plan.remains(&self.arena)
    }
}

fn planned(plan: impl Plan + 'static) -> Box<dyn Policy> {
    Box::new(Planned {
        arena: Arena::new(),
        plan,
    })
}

/// The policy of this name; `None` for passthrough, which needs none.
pub fn create(strategy: Strategy, settings: &Settings) -> Option<Box<dyn Policy>> {
    match strategy {
        Strategy::Passthrough => None,
        Strategy::NaiveBestFit => Some(planned(naive_best_fit::NaiveBestFit::new(settings.clone()))),
        Strategy::AutoGrowth => Some(planned(auto_growth::AutoGrowth::new(settings.clone()))),
    }
}

/// A policy that lives on memory of another one, which `slabs::Lent` is.
pub fn branch() -> Box<dyn Policy> {
    planned(slabs::Slabs)
}
