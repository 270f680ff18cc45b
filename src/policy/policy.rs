//! What a policy is: the trait that the callers use, and the types of its answers.
//!
//! Sizes and addresses are bytes.

use base::cuda::DriverError;

use crate::device_memory::{DeviceMemory, EventId, NoEvent};

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

impl VirtualMemory {
    /// What is mapped, as runs of mappings side by side in one reserved range: first address and size.
    pub fn runs(mut self) -> Vec<(u64, u64)> {
        self.mapped.sort_unstable();
        self.ranges.sort_unstable();
        let begins_range = |address: u64| self.ranges.binary_search_by_key(&address, |&(start, _)| start).is_ok();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &(address, size) in &self.mapped {
            match runs.last_mut() {
                Some((start, length)) if *start + *length == address && !begins_range(address) => *length += size,
                _ => runs.push((address, size)),
            }
        }
        runs
    }
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
    /// How many free blocks were examined one by one, because a request needed more than the best fit.
    pub examined: u64,
}

/// Which work may still use a block when it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBy<'a> {
    /// None: the caller has waited for it.
    Nothing,
    /// Work on these streams, by identity in ascending order.
    Streams(&'a [u64]),
    /// Work on any stream of any context that has access. Events tell when it is done.
    Unknown,
    /// The same. The caller begins a wait before anything else happens.
    Awaited,
}

/// A wait that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the blocks become clean by `end_wait` alone"]
pub struct WaitTicket(pub(crate) u64);

/// Events to be recorded on the streams that may use some dirty blocks.
#[derive(Debug)]
pub struct WantedEvents {
    pub(crate) batch: usize,
    pub(crate) generation: u64,
    pub(crate) joined: u64,
    /// `None` for all streams.
    pub(crate) streams: Option<Box<[u64]>>,
}

/// The outcome of a request to record events.
#[derive(Debug)]
pub enum Recorded {
    /// The blocks are clean when all of them are done.
    Events(Vec<EventId>),
    /// See `NoEvent`.
    NotNow,
    Never,
}

impl WantedEvents {
    /// Records an event on each of the streams.
    pub fn record(&self, memory: &dyn DeviceMemory) -> Recorded {
        let outcome = match &self.streams {
            None => memory.record_all(),
            Some(streams) => Self::record_each(memory, streams),
        };
        match outcome {
            Ok(events) => Recorded::Events(events),
            Err(NoEvent::NotNow) => Recorded::NotNow,
            Err(NoEvent::Never) => Recorded::Never,
        }
    }

    fn record_each(memory: &dyn DeviceMemory, streams: &[u64]) -> Result<Vec<EventId>, NoEvent> {
        let mut events = Vec::with_capacity(streams.len());
        for &stream in streams {
            match memory.record_event(stream) {
                Ok(event) => events.push(event),
                Err(problem) => {
                    events.into_iter().for_each(|event| memory.forget_event(event));
                    return Err(problem);
                }
            }
        }
        Ok(events)
    }
}

pub trait Policy: Send {
    /// Returns a block of at least `size` bytes. As in CUDA, 0 bytes are `INVALID_VALUE`. `stream` is the stream that
    /// will use the block, if the request names it: blocks that only this stream has used need not be clean. Waits for
    /// nothing. If it returns out of memory, the caller waits, gives idle memory back, and tries once more.
    fn allocate(&mut self, memory: &dyn DeviceMemory, size: u64, stream: Option<u64>) -> Result<Block, DriverError>;

    /// Frees the live block that begins at `address`. If there is none, returns `None` and changes nothing.
    fn free(&mut self, memory: &dyn DeviceMemory, address: u64, used_by: UsedBy) -> Option<Block>;

    /// Called before a wait for all work that may use the memory. The blocks that are dirty now are clean when the wait
    /// has ended. `None` if all free blocks are clean. Other requests may come during the wait.
    fn begin_wait(&mut self) -> Option<WaitTicket>;

    /// The wait has ended, so the blocks that were dirty when it began are clean.
    fn end_wait(&mut self, memory: &dyn DeviceMemory, ticket: WaitTicket);

    /// Whether every free block is clean.
    fn all_clean(&self) -> bool;

    /// The events by which the policy wants to learn when dirty blocks are clean. It asks for them after a request or
    /// free. They are recorded (`WantedEvents::record`) while the policy is not locked.
    fn take_wanted_events(&mut self) -> Vec<WantedEvents>;

    /// Asks for events on all streams that may use dirty blocks.
    fn want_events(&mut self);

    /// The outcome of `WantedEvents::record`.
    fn events_recorded(&mut self, memory: &dyn DeviceMemory, wanted: WantedEvents, recorded: Recorded);

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

    /// Gives clean memory without a live block back to the next layer; returns how much.
    fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64;

    /// Until the live block that holds `address` is freed, the memory behind it is neither moved nor given back: a
    /// device or another process knows it. A policy that moves no memory of live blocks needs to do nothing.
    fn pin(&mut self, address: u64) {
        let _ = address;
    }

    /// What must be given back separately after the context is destroyed.
    fn virtual_memory(&self) -> VirtualMemory;
}
