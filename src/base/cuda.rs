//! Constants of the CUDA driver API (public header `cuda.h`) and the type of its errors.

/// The library accounts for devices with ordinals below this.
pub const MAX_DEVICES: usize = 32;

/// The device ordinal in records of host memory.
pub const HOST_DEVICE: i16 = -1;

// Result codes that the library uses by name. It passes on all others as the numbers they are.
pub const SUCCESS: i32 = 0;
pub const INVALID_VALUE: i32 = 1;
pub const OUT_OF_MEMORY: i32 = 2;
pub const DEINITIALISED: i32 = 4;
pub const INVALID_CONTEXT: i32 = 201;
pub const MAP_FAILED: i32 = 205;
pub const INVALID_HANDLE: i32 = 400;
pub const NOT_FOUND: i32 = 500;
pub const NOT_PERMITTED: i32 = 800;
pub const NOT_SUPPORTED: i32 = 801;

/// `CU_STREAM_LEGACY`: another handle of the default stream, whose usual handle is 0.
pub const STREAM_LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: the default stream of the calling thread.
pub const STREAM_PER_THREAD: usize = 2;

/// A CUDA driver result code (`CUresult`) other than success. It is an integer, because a newer driver may return a
/// code that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError(pub i32);

impl DriverError {
    /// `CUDA_ERROR_INVALID_VALUE`
    pub const INVALID_VALUE: Self = Self(INVALID_VALUE);
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub const OUT_OF_MEMORY: Self = Self(OUT_OF_MEMORY);
    /// `CUDA_ERROR_INVALID_CONTEXT`
    pub const INVALID_CONTEXT: Self = Self(INVALID_CONTEXT);
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`
    pub const CAPTURE_UNSUPPORTED: Self = Self(900);
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`
    pub const CAPTURE_INVALIDATED: Self = Self(901);
    /// `CUDA_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: Self = Self(NOT_SUPPORTED);
}

/// The result of a driver function, which returns 0 if it succeeds.
#[inline]
pub fn check(result: i32) -> Result<(), DriverError> {
    match result {
        SUCCESS => Ok(()),
        code => Err(DriverError(code)),
    }
}
