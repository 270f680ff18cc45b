//! The device and context that an allocation belongs to.

use crate::next::{self, CUmemLocation};
use base::cuda::{CudaResult, DriverError, HOST_DEVICE, LOCATION_DEVICE, LOCATION_LOCALITY_DOMAIN};

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

    /// That device, for memory that outlives the context.
    pub fn of_device_here() -> Location {
        Location {
            device: Location::device_here(),
            context: 0,
        }
    }

    /// The device whose memory a `CUmemLocation` names (cuda.h 13.5:4417), or `HOST_DEVICE`. What it is used for (the usage
    /// flags) does not matter. Memory of a type that is not known counts for the calling thread's device.
    ///
    /// # Safety
    /// `location` is readable.
    pub unsafe fn device_at(location: *const CUmemLocation) -> i16 {
        // SAFETY: by contract. The enum is read as a number.
        let (kind, id) = unsafe { ((&raw const (*location).type_).cast::<u32>().read(), (*location).id) };
        match kind {
            LOCATION_DEVICE => id as i16,
            LOCATION_LOCALITY_DOMAIN => (id & 0xff) as i16,
            // `NONE`, which managed memory has, `HOST`, `HOST_NUMA` and `HOST_NUMA_CURRENT`.
            0 | 2..=4 => HOST_DEVICE,
            _ => Location::device_here(),
        }
    }
}
