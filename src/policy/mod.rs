//! Which bytes a request gets.
//!
//! A policy serves one context of one device. It sees memory through `DeviceMemory` and nothing else, so the same code
//! serves a live GPU and an offline replay. `arena` is what the policies share: segments, blocks, best fit, and the rule
//! that freeing is a synchronisation.

mod arena;
mod auto_growth;
mod naive_best_fit;

use arena::Arena;

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

/// What a policy holds. Bytes, but for the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub reserved: u64,
    pub allocated: u64,
    pub free: u64,
    pub largest_free_block: u64,
    pub segments: usize,
    pub live_blocks: usize,
}

pub trait Policy: Send {
    /// A block of at least `size` bytes. Zero bytes are `INVALID_VALUE`, as in CUDA.
    fn allocate(&mut self, memory: &dyn DeviceMemory, size: u64) -> Result<Block, DriverError>;

    /// Takes back the block that begins at `address`; `None` (and no change) where no live block begins there.
    fn free(&mut self, memory: &dyn DeviceMemory, address: u64) -> Option<Block>;

    /// The live block that `address` lies in.
    fn find(&self, address: u64) -> Option<Block>;

    /// Whether `address` lies in one of our segments, in a live block or not.
    fn owns(&self, address: u64) -> bool;

    fn statistics(&self) -> Statistics;

    /// Gives segments without a live block back to the layer below; returns bytes.
    fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64;
}

/// What the policies differ in: how they make room, and what they do about a segment a block was freed in.
trait Plan: Send {
    fn allocate(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, size: u64) -> Result<Block, DriverError>;
    fn freed(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, segment: u64);
}

struct Planned<P> {
    arena: Arena,
    plan: P,
}

impl<P: Plan> Policy for Planned<P> {
    fn allocate(&mut self, memory: &dyn DeviceMemory, size: u64) -> Result<Block, DriverError> {
        self.plan.allocate(&mut self.arena, memory, size)
    }

    fn free(&mut self, memory: &dyn DeviceMemory, address: u64) -> Option<Block> {
        let (block, segment) = self.arena.free(address)?;
        self.plan.freed(&mut self.arena, memory, segment);
        Some(block)
    }

    fn find(&self, address: u64) -> Option<Block> {
        self.arena.find(address)
    }

    fn owns(&self, address: u64) -> bool {
        self.arena.owns(address)
    }

    fn statistics(&self) -> Statistics {
        self.arena.statistics()
    }

    fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64 {
        self.arena.release_idle(memory)
    }
}

/// The policy of this name; `None` for passthrough, which needs none.
pub fn create(strategy: Strategy, settings: &Settings) -> Option<Box<dyn Policy>> {
    fn planned(plan: impl Plan + 'static) -> Option<Box<dyn Policy>> {
        Some(Box::new(Planned {
            arena: Arena::new(),
            plan,
        }))
    }
    match strategy {
        Strategy::Passthrough => None,
        Strategy::NaiveBestFit => planned(naive_best_fit::NaiveBestFit::new(settings.clone())),
        Strategy::AutoGrowth => planned(auto_growth::AutoGrowth::new(settings.clone())),
    }
}
