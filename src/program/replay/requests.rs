//! The requests of a trace, and what serves them.

use std::ffi::OsString;

use base::cuda::DriverError;
use config::Config;
use policy::Settings;

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

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubts {
    /// Tensors were in private pools. What those keep is known to the models of PyTorch's allocator alone.
    pub(super) has_private: bool,
    /// The requests are those of PyTorch's cache, for its segments.
    pub(super) has_segments: bool,
    /// The job used memory that is not played.
    pub(super) has_others: bool,
    /// Events or tensors are missing.
    pub(super) is_partial: bool,
}

#[derive(Debug, Default)]
pub struct Trace {
    /// The variables of a journal's job, with their values.
    pub environment: Vec<(String, String)>,
    pub requests: Vec<Request>,
    /// The settings of PyTorch's allocator in the recorded job.
    pub torch: TorchSettings,
    pub peak_live: u64,
    /// How often a free had no allocation, or an address was allocated twice without a free in between. The former
    /// frees are not played.
    pub unmatched: u64,
    /// How long the job took for the requests; `None` if the trace has no times.
    pub duration_ns: Option<u64>,
    /// The bytes of the job's last request, if it failed for lack of memory and the job got none afterwards. It is the last
    /// allocation in `requests`.
    pub fatal: Option<u64>,
    pub(super) doubts: Doubts,
    /// The memory of the job's device; `None` if the trace does not say it.
    pub device_memory: Option<u64>,
    /// Notes for the user about requests that the figures leave out.
    pub notes: Vec<String>,
}

impl Trace {
    /// The settings that the job ran with.
    pub fn settings(&self) -> Settings {
        let lookup = |name: &str| {
            let found = self.environment.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        // Errors are ignored: if a value cannot be used, the job also ran with the default.
        Config::read(lookup).0.settings
    }

    /// Whether requests for linear memory are missing, besides those that would have followed the last, which failed.
    pub fn is_partial(&self) -> bool {
        self.doubts.is_partial || self.unmatched > 0
    }

    /// Whether a strategy may have needed more than a replay of this trace says.
    pub fn is_at_least(&self) -> bool {
        self.fatal.is_some() || self.doubts.has_others || self.is_partial()
    }

    /// Why nothing is known of the strategy of this name.
    pub fn not_known(&self, name: &str) -> Option<&'static str> {
        let is_of_torch = matches!(name, "torch" | "torch_expandable");
        if self.doubts.has_private && !is_of_torch {
            return Some("private pools of PyTorch (CUDA graphs, MemPool) keep memory in a way that this model lacks");
        }
        (self.doubts.has_segments && (is_of_torch || name.starts_with("paddle")))
            .then_some("these are the segments of PyTorch's cache: record its tensors with run --torch record")
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
