//! What a policy is: the trait that the callers use, and the types of its answers.
//!
//! Sizes and addresses are bytes.

use base::cuda::DriverError;

use crate::device_memory::DeviceMemory;

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub address: u64,
    pub requested: u64,
    pub allocated: u64,
}

/// The memory behind a live block, as the next layer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A segment that was allocated in one piece: first address and size.
    Segment { address: u64, size: u64 },
    /// Physical memory handles of `size` bytes each, mapped side by side from `address` on.
    Granules { address: u64, size: u64, handles: Vec<u64> },
}

/// Everything that a policy holds through virtual memory management. Physical memory and address space belong to the
/// process, so they outlive the context and must be given back one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualMemory {
    /// First address and size of each mapping.
    pub mapped: Vec<(u64, u64)>,
    /// Handles of physical memory, each once.
    pub handles: Vec<u64>,
    /// First address and size of each reserved range of addresses.
    pub ranges: Vec<(u64, u64)>,
}

/// What a policy holds now, and what it has done since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub reserved: u64,
    pub allocated: u64,
    pub free: u64,
    pub largest_free_block: u64,
    /// Total size of the memory that was unmapped and mapped again elsewhere.
    pub remapped: u64,
    /// How many segments it holds now.
    pub segments: usize,
    /// How many live blocks there are now.
    pub live_blocks: usize,
    /// How often the context was synchronised so that dirty blocks could be used.
    pub synchronisations: u64,
    /// How many free blocks were examined one by one, because a request needed more than the best fit.
    pub examined: u64,
}

pub trait Policy: Send {
    /// Returns a block of at least `size` bytes. As in CUDA, 0 bytes are `INVALID_VALUE`. `stream` is the stream that
    /// will use the block, if the request names it: blocks that were freed on the same stream need no synchronisation.
    fn allocate(&mut self, memory: &dyn DeviceMemory, size: u64, stream: Option<u64>) -> Result<Block, DriverError>;

    /// Frees the live block that begins at `address`. If there is none, returns `None` and changes nothing. `stream` is
    /// the only stream that has used the block, if that is known.
    fn free(&mut self, memory: &dyn DeviceMemory, address: u64, stream: Option<u64>) -> Option<Block>;

    /// Makes every free block clean, by a synchronisation if one is needed and allowed now.
    fn synchronise(&mut self, memory: &dyn DeviceMemory) -> Result<(), DriverError>;

    /// The live block that contains `address`.
    fn find(&self, address: u64) -> Option<Block>;

    /// The memory behind a live block, or behind a part of one.
    fn backing(&self, block: &Block) -> Option<Backing>;

    /// Whether `address` is in memory that the policy holds, whether live or free.
    fn owns(&self, address: u64) -> bool;

    fn statistics(&self) -> Statistics;

    /// Every live block.
    fn live(&self) -> Vec<Block>;

    /// Splits the live block that contains `address` in two; the second begins at `address`.
    fn split_live(&mut self, address: u64);

    /// Gives memory without a live block back to the next layer; returns how much.
    fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64;

    /// What must be given back separately after the context is destroyed.
    fn virtual_memory(&self) -> VirtualMemory;
}
