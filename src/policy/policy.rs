//! What a policy is: the trait that the callers use, and the types of its answers.
//!
//! Sizes and addresses are bytes.

use base::cuda::DriverError;

use crate::request::Request;
use crate::work::Work;

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub address: u64,
    pub requested: u64,
    pub allocated: u64,
}

impl Block {
    /// Whether the byte at `address` is one that was asked for. `address` is not before the block.
    pub fn has(&self, address: u64) -> bool {
        address - self.address < self.requested
    }
}

/// The memory behind a live block, as the next layer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A segment that was allocated in one piece: first address and size.
    Segment { address: u64, size: u64 },
    /// Physical memory: handles and their bytes, mapped side by side. The block begins `offset` bytes after the beginning
    /// of the first.
    Handles { offset: u64, handles: Vec<(u64, u64)> },
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
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let (mut mapped, mut ranges) = (self.mapped.clone(), self.ranges.clone());
        mapped.sort_unstable();
        ranges.sort_unstable();
        let begins_range = |address: u64| ranges.binary_search_by_key(&address, |&(start, _)| start).is_ok();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (address, size) in mapped {
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
    /// Bytes of free blocks. Memory that is being given back is reserved, but not free.
    pub free: u64,
    pub largest_free_block: u64,
    /// How many handles of physical memory it holds now.
    pub handles: usize,
    /// How many stitches are remembered now, and how many bytes of addresses they cover.
    pub stitches: usize,
    pub stitched: u64,
    /// How many requests were served by stitches, and how many stitches were unmapped.
    pub stitch_uses: u64,
    pub stitches_evicted: u64,
    /// How many segments it holds now.
    pub segments: usize,
    /// How many live blocks there are now.
    pub live_blocks: usize,
    /// How many blocks were examined one by one: free ones, because a request needed more than the best fit, and those
    /// that were passed on the way to the block at an address.
    pub examined: u64,
}

/// Which work may still use a block when it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBy<'a> {
    /// None.
    Nothing,
    /// Work on these streams, by identity in ascending order.
    Streams(&'a [u64]),
    /// Work on any stream of any context that has access. Events tell when it is done.
    Unknown,
    /// The same. The caller begins a wait before anything else happens.
    Awaited,
}

/// What the caller did before it asks for work that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// A request, which gets no work that the driver may hold up. It does so with events while another thread waits in a
    /// copy (`events_beside_waits` in tests/assumptions), and that thread may wait for what the caller does next.
    Request,
    /// A free, or the end of a wait.
    Free,
    /// A free of an awaited block, which also gets work that waits.
    AwaitedFree,
}

impl After {
    /// What a free of a block is that `used_by` may still use.
    pub fn free(used_by: UsedBy) -> After {
        match used_by {
            UsedBy::Awaited => After::AwaitedFree,
            UsedBy::Nothing | UsedBy::Streams(_) | UsedBy::Unknown => After::Free,
        }
    }
}

/// A wait that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the blocks become clean by `end_wait` alone"]
pub struct WaitTicket(pub(crate) u64);

/// What a policy does about a request now.
#[derive(Debug)]
pub enum Decision {
    Block(Block),
    /// This has to be done first. After the commit the policy is asked again.
    First(Work),
    /// No memory that the policy has can serve the request. The caller must be the only one that makes the policy grow
    /// (`Holder::growing`), and then asks again with `Request::may_grow`.
    Grow,
}

/// No method calls the driver. What needs a call is work, which the caller carries out while it does not use the policy;
/// see `serve`.
pub trait Policy: Send {
    /// The next step of a request. Waits for nothing.
    fn decide(&mut self, request: &mut Request) -> Result<Decision, DriverError>;

    /// Frees the live block that begins at `address`. If there is none, returns `None` and changes nothing.
    fn free(&mut self, address: u64, used_by: UsedBy) -> Option<Block>;

    /// Work that is due, beside all requests: events to be recorded, or memory to be given back. The caller asks
    /// each time it has changed the policy, before it unlocks it. It asks again after each commit, until no work is due.
    fn next_work(&mut self, after: After) -> Option<Work>;

    /// What the work achieved becomes part of the books, and what it did not use is free again. An error is the answer to
    /// the request that the work was done for.
    fn commit(&mut self, work: Work) -> Result<(), DriverError>;

    /// Called before a wait for all work that may use the memory. The blocks that are dirty now are clean when the wait
    /// has ended. `None` if all free blocks are clean. Other requests may come during the wait.
    fn begin_wait(&mut self) -> Option<WaitTicket>;

    /// The wait has ended, so the blocks that were dirty when it began are clean.
    fn end_wait(&mut self, ticket: WaitTicket);

    /// Whether every free block is clean.
    fn all_clean(&self) -> bool;

    /// Makes events due on all streams that may use dirty blocks.
    fn want_events(&mut self);

    /// The live block that contains `address`.
    fn find(&self, address: u64) -> Option<Block>;

    /// The memory behind a live block, or behind a part of one.
    fn backing(&self, block: &Block) -> Option<Backing>;

    /// Whether `address` is in memory that the policy holds, whether live or free.
    fn owns(&self, address: u64) -> bool;

    fn statistics(&self) -> Statistics;

    /// Every live block.
    fn live(&self) -> Vec<Block>;

    /// The memory that blocks in stitches have at its home: first address and size of each piece.
    fn stitched(&self) -> Vec<(u64, u64)>;

    /// Splits the live block that contains `address` in two; the second begins at `address`.
    fn split_live(&mut self, address: u64);

    /// Whether there is memory without a live block that could be given back.
    fn has_idle(&self) -> bool;

    /// Whether the policy may serve a request in another way (`Request::at_last`) before the answer is out of memory.
    fn has_last_resort(&self) -> bool;

    /// Takes clean memory without a live block out of the lists; the work gives it back to the next layer.
    fn release_idle(&mut self) -> Vec<Work>;

    /// What must be given back separately after the context is destroyed.
    fn virtual_memory(&self) -> VirtualMemory;
}
