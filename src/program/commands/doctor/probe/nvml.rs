//! Asks NVML how many bytes each process holds on each device.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use serde::{Deserialize, Serialize};

use crate::driver::{Library, NOT_FOUND, call};

/// Bytes that a process holds on a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Holding {
    pub uuid: String,
    pub process: u32,
    pub bytes: u64,
}

/// The driver's management library.
pub struct Nvml(Library);

/// `nvmlProcessInfo_t` since version 2.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    process: u32,
    bytes: u64,
    instances: [u32; 2],
}

const MOST_PROCESSES: usize = 512;
/// The value that stands for "not available" in place of bytes.
const NOT_AVAILABLE: u64 = u64::MAX;

impl Nvml {
    pub fn open() -> Option<Nvml> {
        let library = Library::open(c"libnvidia-ml.so.1").ok()?;
        (call!(library, nvmlInit_v2()) == 0).then_some(Nvml(library))
    }

    /// The version of the driver.
    pub fn driver_version(&self) -> Option<String> {
        let mut text = [0u8; 80];
        let result = call!(self.0, nvmlSystemGetDriverVersion(text.as_mut_ptr() => *mut u8, text.len() as u32 => u32));
        let version = CStr::from_bytes_until_nul(&text).ok()?;
        (result == 0).then(|| version.to_string_lossy().into_owned())
    }

    pub fn uuids(&self) -> Vec<String> {
        let mut count = 0;
        call!(self.0, nvmlDeviceGetCount_v2(&mut count => *mut u32));
        let uuid = |index: u32| {
            let mut device: *mut c_void = ptr::null_mut();
            let mut text = [0u8; 96];
            let found = call!(self.0, nvmlDeviceGetHandleByIndex_v2(index => u32, &mut device => *mut *mut c_void))
                == 0
                && call!(self.0, nvmlDeviceGetUUID(
                    device => *mut c_void, text.as_mut_ptr() => *mut u8, text.len() as u32 => u32
                )) == 0;
            let text = CStr::from_bytes_until_nul(&text).ok()?;
            found.then(|| text.to_string_lossy().into_owned())
        };
        (0..count).filter_map(uuid).collect()
    }

    pub fn holdings(&self, uuid: &str) -> Vec<Holding> {
        let mut device: *mut c_void = ptr::null_mut();
        let Ok(name) = CString::new(uuid) else {
            return Vec::new();
        };
        if call!(self.0, nvmlDeviceGetHandleByUUID(name.as_ptr() => *const c_char, &mut device => *mut *mut c_void))
            != 0
        {
            return Vec::new();
        }
        let mut found = [ProcessInfo::default(); MOST_PROCESSES];
        let mut count = found.len() as u32;
        let mut result = call!(self.0, nvmlDeviceGetComputeRunningProcesses_v3(
            device => *mut c_void, &mut count => *mut u32, found.as_mut_ptr() => *mut ProcessInfo
        ));
        if result == NOT_FOUND {
            result = call!(self.0, nvmlDeviceGetComputeRunningProcesses_v2(
                device => *mut c_void, &mut count => *mut u32, found.as_mut_ptr() => *mut ProcessInfo
            ));
        }
        if result != 0 {
            return Vec::new();
        }
        let found = found
            .iter()
            .take(count as usize)
            .filter(|info| info.bytes != NOT_AVAILABLE);
        found
            .map(|info| Holding {
                uuid: uuid.to_owned(),
                process: info.process,
                bytes: info.bytes,
            })
            .collect()
    }
}
