//! The live device memory that a policy works on: one context of one device.

use super::{CUcontext, SUCCESS};
use crate::device_memory::{Available, DeviceMemory, DriverError};

/// Who is told of every segment, and knows whether a capture is open.
pub trait Segments {
    fn obtained(&self, address: u64, size: u64);
    /// Runs `free` for the segment at `address` and accounts for it; returns the CUDA result.
    fn give_back(&self, address: u64, free: &dyn Fn() -> i32) -> i32;
    fn capturing(&self) -> bool;
}

pub struct LiveMemory<'a> {
    context: u64,
    segments: &'a dyn Segments,
}

impl<'a> LiveMemory<'a> {
    pub fn new(context: u64, segments: &'a dyn Segments) -> Self {
        LiveMemory { context, segments }
    }

    /// Runs `work` with our context current: a block may be freed by a thread that has another one, or none.
    fn in_context(&self, work: impl Fn() -> i32) -> i32 {
        let wanted = self.context as CUcontext;
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: contexts are the driver's own; what is pushed here is popped here.
        unsafe {
            if super::cuCtxGetCurrent(&mut current) == SUCCESS && current == wanted {
                return work();
            }
            let pushed = super::cuCtxPushCurrent_v2(wanted);
            if pushed != SUCCESS {
                return pushed;
            }
            let result = work();
            super::cuCtxPopCurrent_v2(&mut current);
            result
        }
    }
}

fn checked(result: i32) -> Result<(), DriverError> {
    if result == SUCCESS {
        Ok(())
    } else {
        Err(DriverError(result))
    }
}

impl DeviceMemory for LiveMemory<'_> {
    fn allocate(&self, size: u64) -> Result<u64, DriverError> {
        let bytes = usize::try_from(size).map_err(|_| DriverError::OUT_OF_MEMORY)?;
        let address = std::cell::Cell::new(0u64);
        // SAFETY: the cell lives through the call.
        checked(self.in_context(|| unsafe { super::cuMemAlloc_v2(address.as_ptr(), bytes) }))?;
        self.segments.obtained(address.get(), size);
        Ok(address.get())
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        // SAFETY: the policy gives back what `allocate` gave it.
        let free = || self.in_context(|| unsafe { super::cuMemFree_v2(address) });
        checked(self.segments.give_back(address, &free))
    }

    fn synchronise(&self) -> Result<(), DriverError> {
        // SAFETY: takes nothing but the current context.
        checked(self.in_context(|| unsafe { super::cuCtxSynchronize() }))
    }

    fn may_synchronise(&self) -> bool {
        !self.segments.capturing()
    }

    fn available(&self) -> Result<Available, DriverError> {
        let (free, total) = (std::cell::Cell::new(0usize), std::cell::Cell::new(0usize));
        // SAFETY: both cells live through the call.
        checked(self.in_context(|| unsafe { super::cuMemGetInfo_v2(free.as_ptr(), total.as_ptr()) }))?;
        Ok(Available {
            free: free.get() as u64,
            total: total.get() as u64,
        })
    }
}
