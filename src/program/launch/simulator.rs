//! Finds the simulated GPU, and makes the variables for a job that uses the simulated GPU.
//!
//! The loader finds the simulated driver through `LD_LIBRARY_PATH`. The stand-ins for the runtime, cuBLAS and cuDNN
//! are preloaded instead, because frameworks have run paths that win over `LD_LIBRARY_PATH`.

use std::os::fd::{IntoRawFd, RawFd};
use std::path::{Path, PathBuf};

use base::text::shown;
use base::units::{lacks_unit, parse_size};
use base::uuid::uuid_text;
use config::table;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

use super::environment::Variables;
use super::library::find_part;
use crate::failure::Failure;

const STAND_INS: [&str; 5] = [
    "libcudart.so.12",
    "libcudart.so.13",
    "libcublas.so.",
    "libcublasLt.so.",
    "libcudnn.so.",
];
/// Above the descriptor numbers that shell scripts use.
const FIRST_DESCRIPTOR: RawFd = 200;

/// What `--sim` asks for: `24GiB`, or `2x24GiB`.
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    devices: u32,
    /// The memory of each device.
    bytes: u64,
}

impl Simulated {
    /// The text of an error is for clap, which names option and value.
    pub fn parse(text: &str) -> Result<Simulated, String> {
        let (devices, size) = match text.split_once('x') {
            Some((devices, size)) => (devices.trim().parse().ok(), size.trim()),
            None => (Some(1), text.trim()),
        };
        if let Some(problem) = lacks_unit(size) {
            return Err(problem);
        }
        let devices = devices.filter(|devices| (1..=32).contains(devices));
        match (devices, parse_size(size).filter(|bytes| *bytes > 0)) {
            (Some(devices), Some(bytes)) => Ok(Simulated { devices, bytes }),
            _ => Err(
                "no size; give bytes with a unit, such as 80GiB, or 2x80GiB for two devices (at most 32)".to_owned(),
            ),
        }
    }

    /// What is preloaded for the simulated GPU, and the variables that make a job use it.
    pub fn find(self) -> Result<(Vec<PathBuf>, Variables), Failure> {
        let places = ["simgpu", "../simgpu"];
        let how = "build it with `src/simgpu/build target/simgpu`";
        let has_driver = |folder: &Path| folder.join("libcuda.so.1").exists();
        let folder = find_part("simulated GPU", table::SIMULATOR.name, places, how, has_driver)?;
        if folder.to_string_lossy().contains([':', ';', ' ']) {
            return Err(Failure::refused(format!(
                "{}: a library path cannot hold a colon, semicolon or space; move the simulated GPU elsewhere",
                shown(&folder)
            )));
        }
        // Runs that are given one file share the devices.
        let given = std::env::var_os("SIMGPU_STATE").filter(|file| !file.is_empty());
        let state = given.map_or_else(|| shared_state().map(Into::into), Ok)?;
        let mut path = folder.clone().into_os_string();
        if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
            path.push(":");
            path.push(before);
        }
        let variables = vec![
            ("LD_LIBRARY_PATH", path),
            ("SIMGPU_MEMORY", self.bytes.to_string().into()),
            ("SIMGPU_DEVICES", self.devices.to_string().into()),
            ("SIMGPU_STATE", state),
        ];
        Ok((stand_ins(&folder), variables))
    }

    /// The UUIDs that the simulated GPU gives to devices (`sim_uuid` in src/simgpu/driver/config.c).
    pub fn uuids(self) -> Vec<Option<String>> {
        let uuid = |device: u32| uuid_text(std::array::from_fn(|i| (0x51 + 7 * i as u32 + 31 * device) as u8));
        (0..self.devices).map(|device| Some(uuid(device))).collect()
    }
}

/// The stand-ins for the runtime, cuBLAS and cuDNN in the folder, sorted by name.
fn stand_ins(folder: &Path) -> Vec<PathBuf> {
    let is_stand_in = |name: &str| STAND_INS.iter().any(|start| name.starts_with(start));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_stand_in))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

impl std::fmt::Display for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}x{}B", self.devices, self.bytes)
    }
}

/// Makes a file in memory that holds the state of the simulated GPU, and returns its path. The path is that of a
/// descriptor of this process (`/proc/PID/fd/N`). It stays valid for the job, because this process becomes the job. The
/// kernel removes the file when no process uses it.
fn shared_state() -> Result<String, Failure> {
    let made = memfd_create("simgpu", MemfdFlags::empty()).and_then(|low| {
        let file = fcntl_dupfd_cloexec(&low, FIRST_DESCRIPTOR).unwrap_or(low);
        // The job needs it.
        fcntl_setfd(&file, FdFlags::empty())?;
        Ok(file.into_raw_fd())
    });
    let file =
        made.map_err(|error| Failure::failed(format!("cannot make the simulated GPU's shared state: {error}")))?;
    Ok(format!("/proc/{}/fd/{file}", std::process::id()))
}
