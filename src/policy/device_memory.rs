//! What a policy may ask of a device, and nothing more.
//!
//! A policy sees memory through this trait alone, so the same code serves a live GPU and an offline replay. Sizes and
//! addresses are bytes. An implementation accounts for the memory that it hands out. Every successful `allocate` adds a
//! *segment*, and every `free` removes one. Physical memory counts from the moment that the policy reports it as
//! `mapped` for the first time, until it reports that it is `unmapped` and given back.

use base::cuda::{CudaResult, DriverError};
pub use base::shortage::MemInfo as Available;

/// An event that was recorded on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId(pub u64);

/// Why no event was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEvent {
    /// It may be possible later: a stream capture is open.
    NotNow,
    /// The stream is gone, or takes no events.
    Never,
}

/// Nothing here waits for work of the device, except `free`.
pub trait DeviceMemory {
    /// Obtains a contiguous segment of `size` bytes; returns its address, a multiple of 256 at least.
    fn allocate(&self, size: u64) -> CudaResult<u64>;

    /// Gives a segment of `size` bytes back that `allocate` returned. Waits for the work that uses it, as `cuMemFree` does.
    /// The memory of a subpool also takes a part of a segment, and waits for nothing.
    fn free(&self, address: u64, size: u64) -> CudaResult;

    /// Whether a stream capture is open. A policy then gives no memory back and unmaps none, because the next layer could
    /// invalidate the capture; and the order of a stream promises nothing, because captured work runs later.
    fn is_capturing(&self) -> bool;

    /// Whether there is no work that `free` would wait for. Waits for nothing.
    fn has_no_work(&self) -> bool {
        true
    }

    /// Records an event on the stream with this identity. The event is done when all work is done that was submitted to
    /// the stream until now. It stays recorded until `forget_event`.
    fn record_event(&self, stream: u64) -> Result<EventId, NoEvent>;

    /// Records events of all work that may use memory of this device: the work of its context, and of every context that
    /// was granted access. `Never` if the next layer records no events of contexts.
    fn record_all(&self) -> Result<Vec<EventId>, NoEvent>;

    /// Whether an event is done. Waits for nothing.
    fn event_is_done(&self, event: EventId) -> bool;

    fn forget_event(&self, event: EventId);

    fn available(&self) -> CudaResult<Available>;

    // Memory without virtual memory management leaves out what follows.

    /// The least size of physical memory that can be mapped (`cuMemGetAllocationGranularity`); `None` if the next layer
    /// has no virtual memory management.
    fn granularity(&self) -> Option<u64> {
        None
    }

    /// Reserves address space; returns its first address, a multiple of `alignment`.
    fn reserve(&self, _size: u64, _alignment: u64) -> CudaResult<u64> {
        Err(DriverError::NOT_SUPPORTED)
    }

    /// Gives address space back that `reserve` returned. Nothing is mapped there. Without a book of it there is nothing to do.
    fn give_addresses_back(&self, _address: u64, _size: u64) {}

    /// Creates physical memory; returns its handle, which is not 0. It is accounted for when it is `mapped`.
    fn create(&self, _size: u64) -> CudaResult<u64> {
        Err(DriverError::NOT_SUPPORTED)
    }

    /// Gives back `size` bytes of physical memory that is mapped nowhere.
    fn release(&self, _handle: u64, _size: u64) -> CudaResult {
        Err(DriverError::NOT_SUPPORTED)
    }

    /// Maps physical memory of `size` bytes at `address`.
    fn map(&self, _address: u64, _size: u64, _handle: u64) -> CudaResult {
        Err(DriverError::NOT_SUPPORTED)
    }

    /// Unmaps every mapping in a range, which must not cut any mapping in two. Does *not* wait for work that uses it.
    fn unmap(&self, _address: u64, _size: u64) -> CudaResult {
        Err(DriverError::NOT_SUPPORTED)
    }

    /// Lets the device, and the peers that were granted access to it, read and write a mapped range.
    fn allow_access(&self, _address: u64, _size: u64) -> CudaResult {
        Err(DriverError::NOT_SUPPORTED)
    }

    /// The policy reports that a range is mapped and accessible. If `again`, its memory is mapped elsewhere too, so it
    /// counts nothing.
    fn mapped(&self, _address: u64, _size: u64, _again: bool) {}

    /// The policy reports where else the memory of a part of the last range is mapped that was mapped again.
    fn is_part(&self, _address: u64, _size: u64, _home: u64) {}

    /// The policy reports that a range is no longer mapped. If not `again`, its memory was given back.
    fn unmapped(&self, _address: u64, _size: u64, _again: bool) {}

    /// The policy reports, once, that virtual memory management exists but fails with this error.
    fn no_virtual_memory(&self, _why: DriverError) {}
}
