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

/// Streams from here on are those of PyTorch's private pools, of CUDA graphs or of `torch.cuda.MemPool`: a number for each
/// pair of pool and stream.
pub const FIRST_PRIVATE: u64 = 1 << 63;

pub fn is_private(stream: u64) -> bool {
    stream >= FIRST_PRIVATE
}

/// Settings of PyTorch's allocator (`PYTORCH_CUDA_ALLOC_CONF`) that decide how much it reserves.
#[derive(Clone, Debug, Default)]
pub struct TorchSettings {
    /// `max_split_size_mb`, in bytes.
    pub max_split_size: Option<u64>,
    /// `roundup_power2_divisions`: the divisions of the sizes of 2^(20 + index) bytes and more, 0 for none. The first also
    /// serves smaller sizes, the last larger ones.
    pub roundup_divisions: Vec<u64>,
    /// The trace has PyTorch's tensors, so its other requests went to the driver.
    pub has_tensors: bool,
}

impl TorchSettings {
    /// Takes over a setting, as PyTorch's snapshot names it. A value that cannot be read is left out.
    pub fn set(&mut self, name: &str, value: &str) {
        let numbers = || {
            value
                .split([',', '{', '}', ':', ' ', '\''])
                .filter_map(|part| part.parse::<u64>().ok())
        };
        match name {
            "max_split_size" => self.max_split_size = value.parse().ok(),
            // Pairs of a size in MiB and its divisions.
            "roundup_power2_divisions" => self.roundup_divisions = numbers().skip(1).step_by(2).collect(),
            _ => {}
        }
    }

    /// Into how many parts the sizes between two powers of two are divided for a request of `size` bytes.
    pub fn divisions(&self, size: u64) -> u64 {
        let index = size.max(1).ilog2().saturating_sub(20) as usize;
        let last = self.roundup_divisions.len().saturating_sub(1);
        self.roundup_divisions.get(index.min(last)).copied().unwrap_or(0)
    }
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
    /// The job told PyTorch to give its cache back (`torch.cuda.empty_cache`).
    EmptyCache,
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
    /// Gives the driver what no allocation uses.
    fn empty_cache(&mut self) {}
}
