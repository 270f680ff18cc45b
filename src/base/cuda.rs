//! Constants and result codes of the CUDA driver API (public header `cuda.h`), and the limits of device numbers.

/// The library accounts for devices with ordinals below this number.
pub const MAX_DEVICES: usize = 32;

/// The device number that stands for host memory.
pub const HOST_DEVICE: i16 = -1;

pub const SUCCESS: i32 = 0;

/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`: a part of a device, whose number is the first byte of the location's id
/// (cuda.h 13.5:4541).
pub const LOCATION_LOCALITY_DOMAIN: u32 = 6;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub const POSIX_FILE_DESCRIPTOR: u32 = 1;

/// `CU_STREAM_LEGACY`: a handle of the default stream, as a null handle is in most functions.
pub const STREAM_LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: a handle that stands for another stream in each thread.
pub const STREAM_PER_THREAD: usize = 2;

/// A result code of the CUDA driver (`CUresult`) other than success. It is an integer, because a newer driver may
/// return codes that are not listed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError(pub i32);

/// The outcome of a CUDA driver call.
pub type CudaResult<T = ()> = Result<T, DriverError>;

/// Named as in cuda.h, without `CUDA_` and `CUDA_ERROR_`.
impl DriverError {
    pub const INVALID_VALUE: Self = Self(1);
    pub const OUT_OF_MEMORY: Self = Self(2);
    pub const DEINITIALISED: Self = Self(4);
    pub const INVALID_CONTEXT: Self = Self(201);
    pub const MAP_FAILED: Self = Self(205);
    pub const INVALID_HANDLE: Self = Self(400);
    pub const NOT_FOUND: Self = Self(500);
    pub const NOT_READY: Self = Self(600);
    pub const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    pub const CONTEXT_IS_DESTROYED: Self = Self(709);
    pub const NOT_PERMITTED: Self = Self(800);
    pub const NOT_SUPPORTED: Self = Self(801);
    pub const CAPTURE_UNSUPPORTED: Self = Self(900);
    pub const CAPTURE_INVALIDATED: Self = Self(901);

    /// Whether the error tells of a failure of the driver, the device or the host, and not of what the call asked for
    /// (cuda.h 13.0, at these codes). The device is unavailable, has an uncorrectable error, or is gone. The driver is not
    /// ready, or of another version. The operating system failed, a kernel faulted, or the error is unknown.
    pub const fn is_of_driver(self) -> bool {
        self.is_fault() || matches!(self.0, 46 | 100 | 205 | 214 | 220 | 304 | 802 | 803 | 999)
    }

    /// Whether work of the context has failed, such as a kernel that wrote to a wrong address. Any further work returns
    /// the same error until the context is destroyed (cuda.h 13.5, at each of these codes). The error of a call then
    /// says nothing about the call.
    pub const fn is_fault(self) -> bool {
        matches!(self.0, 226 | 700 | 702 | 710 | 714..=719 | 721 | 911)
    }

    /// Whether the answer to a question about a context's work says that the context runs nothing any more: it is gone, or
    /// has a fault. Any other error says nothing about the work.
    pub const fn ends_work(self) -> bool {
        self.is_fault()
            || matches!(
                self,
                Self::INVALID_CONTEXT | Self::CONTEXT_IS_DESTROYED | Self::DEINITIALISED | Self::INVALID_HANDLE
            )
    }
}

#[inline]
pub const fn check(result: i32) -> CudaResult {
    match result {
        SUCCESS => Ok(()),
        problem => Err(DriverError(problem)),
    }
}

#[inline]
pub const fn result_code(result: CudaResult) -> i32 {
    match result {
        Ok(()) => SUCCESS,
        Err(DriverError(problem)) => problem,
    }
}

/// The result of a request for memory. CUDA's codes are not negative: HAMi-core answers -1 if its limit refuses the request.
/// For the job this is out of memory.
pub fn of_request<T>(result: CudaResult<T>) -> CudaResult<T> {
    result.map_err(|DriverError(code)| match code {
        ..0 => DriverError::OUT_OF_MEMORY,
        code => DriverError(code),
    })
}
