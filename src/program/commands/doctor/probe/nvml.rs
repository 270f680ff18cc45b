//! Asks NVML how many bytes each process holds on each device.

use std::ffi::OsStr;

use nvml_wrapper::enums::device::UsedGpuMemory;
use serde::{Deserialize, Serialize};

/// Bytes that a process holds on a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Holding {
    pub uuid: String,
    pub process: u32,
    pub bytes: u64,
}

/// The driver's management library.
pub struct Nvml(nvml_wrapper::Nvml);

impl Nvml {
    pub fn open() -> Option<Nvml> {
        let library = OsStr::new("libnvidia-ml.so.1");
        nvml_wrapper::Nvml::builder().lib_path(library).init().ok().map(Nvml)
    }

    /// The version of the driver.
    pub fn driver_version(&self) -> Option<String> {
        self.0.sys_driver_version().ok()
    }

    pub fn uuids(&self) -> Vec<String> {
        let devices = 0..self.0.device_count().unwrap_or(0);
        let uuid = |number| self.0.device_by_index(number).and_then(|device| device.uuid());
        devices.filter_map(|number| uuid(number).ok()).collect()
    }

    /// The processes for which NVML reports their bytes.
    pub fn holdings(&self, uuid: &str) -> Vec<Holding> {
        let device = self.0.device_by_uuid(uuid);
        let processes = device.and_then(|device| device.running_compute_processes());
        let holding = |info: nvml_wrapper::struct_wrappers::device::ProcessInfo| match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(Holding {
                uuid: uuid.to_owned(),
                process: info.pid,
                bytes,
            }),
            UsedGpuMemory::Unavailable => None,
        };
        processes.unwrap_or_default().into_iter().filter_map(holding).collect()
    }
}
