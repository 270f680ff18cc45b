//! What NVML, the driver's management library, says about devices and the processes on them.
//!
//! A child process, which runs this program again, asks NVML. For a simulated GPU the child needs the job's environment
//! from its start, because the loader reads `LD_LIBRARY_PATH` only then.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

use super::host::{Host, is_simulated};

/// The hidden subcommand that the child runs.
pub const SUBCOMMAND: &str = "ask-nvml";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reading {
    pub total: u64,
    /// Used bytes without those in `reserved`, which the driver keeps for itself.
    pub used: u64,
    pub free: u64,
    pub reserved: u64,
    pub mig: bool,
    /// The processes that have a context on the device, or why NVML does not list them.
    pub processes: Result<Vec<Listed>, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub pid: u32,
    /// `None` if NVML does not report the bytes.
    pub used: Option<u64>,
}

/// A reading or an error for each device, in the order of the UUIDs; or why NVML cannot be asked at all.
pub type Answer = Result<Vec<Result<Reading, String>>, String>;

/// Starts the child, which asks NVML about these devices of a host.
pub fn ask(host: &Host, uuids: &[String]) -> Answer {
    let mut command = Command::new("/proc/self/exe");
    // A preloaded library might answer the calls instead of NVML.
    command.arg(SUBCOMMAND).args(uuids).env_remove("LD_PRELOAD");
    match host {
        Host::Machine => {}
        Host::Closed(reason) => return Err(reason.clone()),
        Host::Simulated(simulated) => {
            for (name, _) in std::env::vars_os().filter(|(name, _)| is_simulated(name)) {
                command.env_remove(name);
            }
            command
                .envs(simulated.variables.iter().map(|(name, value)| (name, value)))
                .current_dir(&simulated.folder);
        }
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start this program again to ask NVML: {error}"))?;
    serde_json::from_slice::<Answer>(&output.stdout)
        .map_err(|_| format!("NVML brought its process down ({})", output.status))?
}

/// Asks NVML in this process. The child runs this function.
pub fn answer(uuids: &[String]) -> Answer {
    let nvml = Nvml::builder()
        .lib_path(OsStr::new("libnvidia-ml.so.1"))
        .init()
        .map_err(|error| match error {
            NvmlError::LibloadingError(error) => format!("NVML cannot be loaded: {error}"),
            error => format!("NVML cannot be used: {error}"),
        })?;
    Ok(uuids.iter().map(|uuid| device(&nvml, uuid)).collect())
}

fn device(nvml: &Nvml, uuid: &str) -> Result<Reading, String> {
    // CUDA writes the UUID of a MIG instance as `GPU-...`; NVML writes the same bytes as `MIG-...`.
    let instance = || {
        uuid.strip_prefix("GPU-")
            .map(|rest| nvml.device_by_uuid(format!("MIG-{rest}")))
    };
    let device = nvml
        .device_by_uuid(uuid)
        .or_else(|error| instance().unwrap_or(Err(error)))
        .map_err(|error| format!("NVML does not know the device: {error}"))?;
    let memory = device.memory_info().map_err(|error| match error {
        NvmlError::FailedToLoadSymbol(_) => "NVML is older than driver 510".to_owned(),
        error => format!("NVML does not report the device's memory: {error}"),
    })?;
    Ok(Reading {
        total: memory.total,
        used: memory.used,
        free: memory.free,
        reserved: memory.reserved,
        mig: device.mig_mode().is_ok_and(|mode| mode.current != 0),
        processes: processes(&device),
    })
}

/// Lists each process once. A process that computes and draws is in both of NVML's lists, with the same bytes.
fn processes(device: &Device) -> Result<Vec<Listed>, String> {
    let computing = device
        .running_compute_processes()
        .map_err(|error| format!("NVML does not report the device's processes: {error}"))?;
    let drawing = device.running_graphics_processes().unwrap_or_default();
    let mut listed: Vec<Listed> = Vec::new();
    for ProcessInfo {
        pid, used_gpu_memory, ..
    } in computing.into_iter().chain(drawing)
    {
        let used = match used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        match listed.iter_mut().find(|known| known.pid == pid) {
            Some(known) => known.used = known.used.max(used),
            None => listed.push(Listed { pid, used }),
        }
    }
    Ok(listed)
}
