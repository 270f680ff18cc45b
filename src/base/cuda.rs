//! Constants of the CUDA driver API that have a name here (public header `cuda.h`).

/// The devices that a process is followed on: those with ordinals below this.
pub const MAX_DEVICES: usize = 32;

/// The device number of memory that is on no device.
pub const HOST_DEVICE: i16 = -1;

/// CUDA's result codes that we have to name; every other one is passed on as the number it is.
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

/// `CU_STREAM_LEGACY` is the default stream, 0; `CU_STREAM_PER_THREAD` is a different stream in each thread.
pub const STREAM_LEGACY: usize = 1;
pub const STREAM_PER_THREAD: usize = 2;

/// A CUDA driver result code (`CUresult`) other than success. Kept an integer: a newer driver may return codes that no
/// enum of ours knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError(pub i32);

impl DriverError {
    /// `CUDA_ERROR_INVALID_VALUE`
    pub const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `CUDA_ERROR_INVALID_CONTEXT`
    pub const INVALID_CONTEXT: Self = Self(201);
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`
    pub const CAPTURE_UNSUPPORTED: Self = Self(900);
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`
    pub const CAPTURE_INVALIDATED: Self = Self(901);
    /// `CUDA_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: Self = Self(801);
}

/// The result of a driver function, which returns 0 if it succeeds.
#[inline]
pub fn check(result: i32) -> Result<(), DriverError> {
    match result {
        SUCCESS => Ok(()),
        code => Err(DriverError(code)),
    }
}
