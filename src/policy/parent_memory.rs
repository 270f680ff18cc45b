//! The parent pool, as the memory of a subpool.

use base::cuda::{CudaResult, DriverError};

use crate::device_memory::{Available, DeviceMemory, EventId, NoEvent};
use crate::holdings::{After, Block, UsedBy};
use crate::policy::Policy;
use crate::request::Request;
use crate::serve::{Due, Growing, Holder, Shared, serve, work_off};
use crate::slabs::PIECE_BYTES;
use crate::under_way::UnderWay;

/// `allocate` borrows a slab, and `free` gives a part of one back. A subpool uses no virtual memory management.
pub struct ParentMemory<'a> {
    pub parent: &'a Shared,
    /// The memory of the parent.
    pub memory: &'a dyn DeviceMemory,
    /// Are called with first address and bytes of what the subpool has from now on, and of what it has no more. The
    /// parent's policy is locked meanwhile.
    pub borrowed: &'a dyn Fn(u64, u64),
    pub returned: &'a dyn Fn(u64, u64),
}

/// The parent lends a slab at once or not at all. While another thread makes it grow, it may have room for a request
/// that it has none for a slab for, and then no request waits for the driver.
impl Holder for ParentMemory<'_> {
    fn with_policy<T>(&self, step: impl FnOnce(&mut Policy) -> CudaResult<T>) -> CudaResult<T> {
        self.parent.with_policy(step)
    }

    fn growing(&self) -> CudaResult<Growing<'_>> {
        self.parent.growing_at_once()
    }

    fn returns(&self) -> Option<&UnderWay> {
        self.parent.returns()
    }
}

impl DeviceMemory for ParentMemory<'_> {
    fn allocate(&self, size: u64) -> CudaResult<u64> {
        // A slab has whole pieces, so that an address tells which policy it belongs to.
        let request = Request::new(size)?.aligned(PIECE_BYTES);
        let borrowed = |slab: &Block| (self.borrowed)(slab.address, size);
        Ok(serve(self, self.memory, request, borrowed)?.address)
    }

    fn free(&self, address: u64, size: u64) -> CudaResult {
        let due = self.parent.with_policy(|parent| {
            parent.split_live(address);
            parent.split_live(address + size);
            // The subpool's loss is told first: after the free, the parent may hand the memory out at any moment.
            (self.returned)(address, size);
            let freed = parent.free(address, UsedBy::Nothing);
            freed.ok_or(DriverError::INVALID_VALUE)?;
            Ok(Due::next(self.parent, parent, After::Request))
        })?;
        work_off(self.parent, self.memory, due);
        Ok(())
    }

    fn is_capturing(&self) -> bool {
        self.memory.is_capturing()
    }

    fn record_event(&self, stream: u64) -> Result<EventId, NoEvent> {
        self.memory.record_event(stream)
    }

    fn record_all(&self) -> Result<Vec<EventId>, NoEvent> {
        self.memory.record_all()
    }

    fn event_is_done(&self, event: EventId) -> bool {
        self.memory.event_is_done(event)
    }

    fn forget_event(&self, event: EventId) {
        self.memory.forget_event(event);
    }

    fn available(&self) -> CudaResult<Available> {
        self.memory.available()
    }
}
