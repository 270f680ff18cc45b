//! What a request is on its way through a policy.

use base::cuda::{CudaResult, DriverError};

/// Every block begins and ends at a multiple of this. CUDA promises an alignment of 256 bytes; PyTorch relies on 512.
pub const UNIT: u64 = 512;

/// The most units of a request: units are counted in 32 bits, and the sizes of two neighbours are added.
pub(crate) const LARGEST_UNITS: u64 = (u32::MAX / 2) as u64;

/// Blocks for memory of `cuMemAlloc` lie at multiples of this many bytes if they have at least so many ...
const PAGE_BYTES: u64 = 64 << 10;
/// ... and at multiples of this many if they have at least so many. The driver's large allocations begin at pages of
/// this size, and functions that hand memory to other devices want whole pages (`cuMemGetHandleForAddressRange`).
const LARGE_PAGE_BYTES: u64 = 2 << 20;

#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// Bytes that the job asked for.
    pub bytes: u64,
    /// The same, rounded up.
    pub(crate) units: u32,
    /// The address of the block is a multiple of so many units.
    pub(crate) alignment: u32,
    /// The stream that will use the block, if the request names it.
    pub stream: Option<u64>,
    /// Whether the caller waits for its own work as long as it takes, before it takes the answer out of memory.
    pub is_patient: bool,
    /// Whether a stream capture is open. Captured work runs later, so the order of a stream promises nothing.
    pub(crate) capturing: bool,
    /// Whether the caller alone makes the policy grow now; see `Decision::Grow`.
    pub may_grow: bool,
    /// Whether the events of dirty blocks were looked at for this request.
    pub(crate) has_looked: bool,
    /// Whether idle memory was given back for this request.
    pub(crate) has_given_back: bool,
    pub(crate) last_resort: LastResort,
}

/// What became of the last attempt to serve a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LastResort {
    #[default]
    NotDue,
    Due,
    Tried,
}

impl Request {
    /// A request for `bytes` bytes. As in CUDA, 0 bytes are `INVALID_VALUE`.
    pub fn new(bytes: u64) -> CudaResult<Self> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).map_err(|_| DriverError::OUT_OF_MEMORY)?;
        match bytes {
            0 => Err(DriverError::INVALID_VALUE),
            _ if u64::from(units) > LARGEST_UNITS => Err(DriverError::OUT_OF_MEMORY),
            _ => Ok(Request {
                bytes,
                units,
                alignment: 1,
                ..Request::default()
            }),
        }
    }

    /// The block will be used on this stream, if one is given: blocks that only this stream has used need not be clean.
    pub fn on(self, stream: Option<u64>) -> Self {
        Request { stream, ..self }
    }

    /// The address of the block is a multiple of `bytes`, a power of two. The beginning of a segment always counts as
    /// one: the next layer aligns what it hands out as it does for all.
    pub fn aligned(self, bytes: u64) -> Self {
        let alignment = u32::try_from(bytes / UNIT).map_or(1, |units| units.max(1));
        Request { alignment, ..self }
    }

    /// The block lies as memory of `cuMemAlloc` does.
    pub fn aligned_like_the_driver(self) -> Self {
        match self.bytes {
            LARGE_PAGE_BYTES.. => self.aligned(LARGE_PAGE_BYTES),
            PAGE_BYTES.. => self.aligned(PAGE_BYTES),
            _ => self,
        }
    }

    /// The caller expects that an allocation waits for work before it fails, as PyTorch's own allocator does.
    pub fn patient(self) -> Self {
        let is_patient = true;
        Request { is_patient, ..self }
    }

    /// All else has failed. What a policy does now only because of that, it does once; see `Policy::has_last_resort`.
    pub fn at_last(self) -> Self {
        let last_resort = LastResort::Due;
        Request { last_resort, ..self }
    }

    /// `capturing`: whether a stream capture is open.
    pub fn during_capture(self, capturing: bool) -> Self {
        Request { capturing, ..self }
    }

    /// Bytes that the block for this request has.
    pub(crate) fn rounded(&self) -> u64 {
        u64::from(self.units) * UNIT
    }
}
