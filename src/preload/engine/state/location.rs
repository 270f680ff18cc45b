//! The device and context that an allocation belongs to.

use crate::next;
use base::cuda::{CudaResult, DriverError, HOST_DEVICE};

/// The device that an allocation is charged to, and the context that it dies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    pub device: i16,
    /// 0 for memory that outlives contexts.
    pub context: u64,
}

impl Location {
    pub const HOST: Location = Location {
        device: HOST_DEVICE,
        context: 0,
    };

    /// The context that owns what the calling thread allocates (see `next::memory_context`), and its device. The error
    /// says why there is none: the thread has no context, or the driver is shutting down.
    pub fn find() -> CudaResult<Location> {
        let context = next::memory_context()?;
        if context.is_null() {
            return Err(DriverError::INVALID_CONTEXT);
        }
        Ok(Location {
            device: next::current_device()? as i16,
            context: context as u64,
        })
    }

    /// As `find`, for callers whose own call of the next layer will report the error.
    pub fn current() -> Option<Location> {
        Location::find().ok()
    }

    /// The device of the calling thread's context; `HOST_DEVICE` if it has none.
    pub fn device_here() -> i16 {
        Location::current().unwrap_or(Location::HOST).device
    }

    /// This device, for memory that outlives the context.
    pub fn without_context(self) -> Location {
        Location { context: 0, ..self }
    }
}
