//! Constants of the CUDA driver API that have a name here (public header `cuda.h`).

/// The devices that a process is followed on: those with ordinals below this.
pub const MAX_DEVICES: usize = 32;

/// The device number of memory that is on no device.
pub const HOST_DEVICE: i16 = -1;

/// `CUDA_SUCCESS`
pub const SUCCESS: i32 = 0;

/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub const POSIX_FILE_DESCRIPTOR: u32 = 1;

/// `CU_STREAM_LEGACY` is the default stream, 0; `CU_STREAM_PER_THREAD` is a different stream in each thread.
pub const STREAM_LEGACY: usize = 1;
pub const STREAM_PER_THREAD: usize = 2;

/// A CUDA driver result code (`CUresult`) other than success. It is an integer because a newer driver may return codes
/// that an enum of ours does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError(pub i32);

/// The outcome of a CUDA driver call.
pub type CudaResult<T = ()> = Result<T, DriverError>;

impl DriverError {
    /// `CUDA_ERROR_INVALID_VALUE`
    pub const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `CUDA_ERROR_DEINITIALIZED`
    pub const DEINITIALISED: Self = Self(4);
    /// `CUDA_ERROR_INVALID_CONTEXT`
    pub const INVALID_CONTEXT: Self = Self(201);
    /// `CUDA_ERROR_MAP_FAILED`
    pub const MAP_FAILED: Self = Self(205);
    /// `CUDA_ERROR_INVALID_HANDLE`
    pub const INVALID_HANDLE: Self = Self(400);
    /// `CUDA_ERROR_NOT_FOUND`
    pub const NOT_FOUND: Self = Self(500);
    /// `CUDA_ERROR_NOT_PERMITTED`
    pub const NOT_PERMITTED: Self = Self(800);
    /// `CUDA_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: Self = Self(801);
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`
    pub const CAPTURE_UNSUPPORTED: Self = Self(900);
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`
    pub const CAPTURE_INVALIDATED: Self = Self(901);
}

/// The result code of a CUDA driver call as a `Result`.
#[inline]
pub const fn check(result: i32) -> CudaResult {
    match result {
        SUCCESS => Ok(()),
        problem => Err(DriverError(problem)),
    }
}

/// The result code that stands for `result`.
#[inline]
pub const fn result_code(result: CudaResult) -> i32 {
    match result {
        Ok(()) => SUCCESS,
        Err(DriverError(problem)) => problem,
    }
}
