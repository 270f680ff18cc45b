//! What a policy may ask of a device, and nothing more.
//!
//! A policy sees memory through this trait alone, so the same code serves a live GPU (`real/memory.rs`) and an offline
//! replay. Sizes and addresses are bytes. An implementation accounts for what it hands out: every successful
//! `allocate` is one *segment* obtained from the layer below, every `free` gives one back.

/// A CUDA driver result code (`CUresult`) other than success. Kept an integer: a newer driver may return codes that no
/// enum of ours knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError(pub i32);

impl DriverError {
    /// `CUDA_ERROR_INVALID_VALUE`
    pub const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `CUDA_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: Self = Self(801);
}

/// Free and total memory of a device in bytes, as the layer below tells it (`cuMemGetInfo`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Available {
    pub free: u64,
    pub total: u64,
}

pub trait DeviceMemory {
    /// Obtain one contiguous segment of `size` bytes; returns its address (at least 256-byte aligned).
    fn allocate(&self, size: u64) -> Result<u64, DriverError>;

    /// Give back a segment that `allocate` returned. Waits for the work that uses it, as `cuMemFree` does.
    fn free(&self, address: u64) -> Result<(), DriverError>;

    /// Wait until all work submitted so far to this context has finished.
    fn synchronise(&self) -> Result<(), DriverError>;

    /// Whether `synchronise` is allowed now. False while a stream capture is open: synchronising would break the
    /// capture, so a policy must then hand out only memory that needs no synchronisation.
    fn may_synchronise(&self) -> bool;

    /// What the layer below says is free and total.
    fn available(&self) -> Result<Available, DriverError>;
}
