//! What a policy may ask of a device, and nothing more.
//!
//! A policy sees memory through this trait alone, so the same code serves a live GPU (`real/memory.rs`) and an offline
//! replay. Sizes and addresses are bytes. An implementation accounts for what it hands out: every successful
//! `allocate` is one *segment* obtained from the layer below, every `free` gives one back; what is made of physical
//! memory and address space is accounted for when a policy says that it was `mapped` or `unmapped`.

pub use base::cuda::DriverError;

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

    /// Least bytes of physical memory that can be mapped (`cuMemGetAllocationGranularity`); `None` where the layer below
    /// has no virtual memory management.
    fn granularity(&self) -> Option<u64>;

    /// Reserve address space; returns its first address, a multiple of `alignment`.
    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, DriverError>;

    /// Create physical memory; returns its handle, which is not 0. Not accounted for until it is `mapped`.
    fn create(&self, size: u64) -> Result<u64, DriverError>;

    /// Give `size` bytes of physical memory back that are mapped nowhere.
    fn release(&self, handle: u64, size: u64) -> Result<(), DriverError>;

    fn map(&self, address: u64, size: u64, handle: u64) -> Result<(), DriverError>;

    /// Unmap everything in a range; mappings lie in it wholly. Does *not* wait for work that uses it.
    fn unmap(&self, address: u64, size: u64) -> Result<(), DriverError>;

    /// Let the device, and peers that may see its memory, read and write a mapped range.
    fn allow_access(&self, address: u64, size: u64) -> Result<(), DriverError>;

    /// Told of every range that became usable: `size` bytes of new memory, or of memory that was `moved`.
    fn mapped(&self, address: u64, size: u64, moved: bool);

    /// Told of every range that was unmapped, to be `moved` or given back.
    fn unmapped(&self, address: u64, size: u64, moved: bool);

    /// Told once where virtual memory management fails although there is one.
    fn no_virtual_memory(&self, why: DriverError);
}
