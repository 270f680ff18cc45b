//! What a policy holds and tells of it, and who may still use what is freed. Sizes and addresses are bytes.

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
    /// How many stitches are remembered now, and how many requests were served by stitches.
    pub stitches: usize,
    pub stitch_uses: u64,
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
