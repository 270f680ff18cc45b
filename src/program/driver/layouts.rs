//! What the driver's functions get, as cuda.h has it.

use std::ffi::c_int;

/// `CUmemAllocationProp` of memory on a device.
#[repr(C)]
#[derive(Default)]
pub struct Properties {
    pub kind: c_int,
    pub handles: c_int,
    pub location: Location,
    pub security: usize,
    pub flags: u64,
}

impl Properties {
    /// Of pinned memory on a device, which no other process gets.
    pub fn on(location: Location) -> Properties {
        Properties {
            kind: 1,
            location,
            ..Properties::default()
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Location {
    pub kind: c_int,
    pub id: c_int,
}

/// `CUmemAccessDesc`
#[repr(C)]
pub struct Access {
    pub location: Location,
    pub rights: c_int,
}
