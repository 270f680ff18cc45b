//! The requests of a trace, and what serves them.

use base::cuda::DriverError;

/// How the job asked for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As `cuMemAlloc` or `cudaMalloc`: for any stream. The free waits for the work that uses the memory.
    Driver,
    /// As `vramshim_torch_alloc`: for this stream, if the trace names it. The free waits for nothing.
    Tensor(Option<u64>),
}

/// Which work may still use memory when the job frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastUse {
    /// None, because the free waits for it.
    Awaited,
    /// Work of the stream of the allocation.
    Stream(u64),
    /// Work of the stream of the allocation, which is the first, and of another.
    TwoStreams(u64, u64),
    /// Work of any stream.
    Unknown,
}

/// A request of the job or a free. `id` names the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub id: u64,
    /// The time since the first request of the trace.
    pub at_ns: u64,
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `size` is in bytes.
    Allocate {
        size: u64,
        way: Way,
    },
    Free(LastUse),
}

impl Way {
    /// The last use of an allocation that no other stream has used.
    pub fn used_alone(self) -> LastUse {
        match self {
            Way::Driver => LastUse::Awaited,
            Way::Tensor(Some(stream)) => LastUse::Stream(stream),
            Way::Tensor(None) => LastUse::Unknown,
        }
    }
}

/// Serves the requests of a trace: a policy, a model of a framework's allocator, or the driver.
pub trait Allocator {
    /// Returns a handle for `size` bytes.
    fn allocate(&mut self, size: u64, way: Way) -> Result<u64, DriverError>;
    fn free(&mut self, handle: u64, last_use: LastUse);
}
