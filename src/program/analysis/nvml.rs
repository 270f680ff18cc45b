//! What NVML, the driver's management library, says about devices and the processes on them.
//!
//! A child process, which runs this program again, asks NVML. For a simulated GPU the child needs the job's environment
//! from its start, because the loader reads `LD_LIBRARY_PATH` only then.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use journal::format::ProcessBytes;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

use super::host::{Host, is_simulated};
use crate::driver::{Library, file_of, mapped_files};

/// The hidden subcommand that the child runs.
pub const SUBCOMMAND: &str = "ask-nvml";

/// Why NVML does not answer a question, in words. It crosses from the child to this program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{0}")]
pub struct Unanswered(String);

/// Says what NVML does not do, and its error.
fn unanswered<E: Display>(what: &'static str) -> impl Fn(E) -> Unanswered {
    move |error| Unanswered(format!("{what}: {error}"))
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reading {
    pub total: u64,
    /// Used bytes without those in `reserved`, which the driver keeps for itself.
    pub used: u64,
    pub free: u64,
    pub reserved: u64,
    pub mig: bool,
    /// The file of a layer that answers in place of NVML.
    pub layer: Option<String>,
    /// The processes that have a context on the device, or why NVML does not list them.
    pub processes: Result<Vec<Listed>, Unanswered>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub pid: u32,
    /// `None` if NVML does not report the bytes.
    pub used: Option<u64>,
}

/// A device as NVML knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seen {
    pub uuid: String,
    pub name: String,
    /// NVML's number of the device; `None` for a MIG instance.
    pub number: Option<u32>,
    /// Percent of the time in which a kernel ran; `None` if NVML does not report it.
    pub busy_percent: Option<u32>,
    pub reading: Result<Reading, Unanswered>,
}

/// All devices of a host, or why NVML cannot be asked.
pub type Everything = Result<Vec<Seen>, Unanswered>;

/// Children that did not answer in time, and have not ended yet.
static ABANDONED: AtomicUsize = AtomicUsize::new(0);
/// A child ends itself after so many seconds, in case this program has ended before it.
const LONGEST_S: u32 = 120;
const UNKNOWN: &str = "NVML does not know the device";
/// The longest answer: many thousand processes.
const MOST_BYTES: u64 = 4 << 20;

/// Starts the child, which asks NVML about all devices of a host, and about these, which may be MIG instances. NVML may
/// take as long as `patience`.
pub fn ask(host: &Host, uuids: &[String], patience: Duration) -> Everything {
    if ABANDONED.load(Ordering::Relaxed) > 0 {
        return Err(Unanswered("NVML has not answered an earlier question yet".to_owned()));
    }
    let mut command = Command::new("/proc/self/exe");
    // A preloaded library might answer the calls instead of NVML.
    command.arg(SUBCOMMAND).args(uuids).env_remove("LD_PRELOAD");
    match host {
        Host::Machine => {}
        Host::Closed(closed) => return Err(Unanswered(closed.why.clone())),
        Host::Simulated(simulated) => {
            for (name, _) in std::env::vars_os().filter(|(name, _)| is_simulated(name)) {
                command.env_remove(name);
            }
            command
                .envs(simulated.variables.iter().map(|(name, value)| (name, value)))
                .current_dir(&simulated.folder);
        }
    }
    let unstarted = unanswered::<io::Error>("cannot start this program again to ask NVML");
    let mut child = (command.stdin(Stdio::null()).stdout(Stdio::piped()))
        .spawn()
        .map_err(&unstarted)?;
    let pipe = child.stdout.take();
    let (send, answer) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|pipe| pipe.take(MOST_BYTES).read_to_end(&mut bytes));
        let _ = send.send(bytes);
    });
    let Ok(bytes) = answer.recv_timeout(patience) else {
        drop(child.kill());
        // A process inside a call of the kernel does not end, so another thread waits for it.
        ABANDONED.fetch_add(1, Ordering::Relaxed);
        thread::spawn(move || {
            drop(child.wait());
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
        });
        let patience_s = patience.as_secs_f64();
        return Err(Unanswered(format!("NVML did not answer within {patience_s} s")));
    };
    let status = child.wait().map_err(unstarted)?;
    serde_json::from_slice(&bytes).map_err(|_| Unanswered(format!("NVML brought its process down ({status})")))?
}

pub fn reading_of(all: &[Seen], uuid: &str) -> Result<Reading, Unanswered> {
    let seen = all.iter().find(|seen| seen.uuid == uuid);
    seen.map_or_else(|| Err(unanswered(UNKNOWN)(uuid)), |seen| seen.reading.clone())
}

fn load() -> Result<Nvml, Unanswered> {
    // SAFETY: `alarm` has no preconditions. Its signal ends this process, which does nothing else.
    unsafe { libc::alarm(LONGEST_S) };
    Nvml::builder()
        .lib_path(OsStr::new("libnvidia-ml.so.1"))
        .init()
        .map_err(|error| match error {
            NvmlError::LibloadingError(error) => unanswered("NVML cannot be loaded")(error),
            error => unanswered("NVML cannot be used")(error),
        })
}

/// Asks NVML about everything in this process. The child runs this function.
pub fn answer(uuids: &[String]) -> Everything {
    let nvml = load()?;
    let count = nvml
        .device_count()
        .map_err(unanswered("NVML does not count the devices"))?;
    let mut all: Vec<Seen> = (0..count)
        .filter_map(|number| nvml.device_by_index(number).ok())
        .filter_map(|device| Some(seen(device.uuid().ok()?, device)))
        .collect();
    for uuid in uuids {
        if !all.iter().any(|seen| seen.uuid == *uuid)
            && let Ok(device) = find(&nvml, uuid)
        {
            let instance = seen(uuid.clone(), device);
            all.push(Seen {
                number: None,
                ..instance
            });
        }
    }
    Ok(all)
}

fn seen(uuid: String, device: Device) -> Seen {
    Seen {
        uuid,
        name: device.name().unwrap_or_default(),
        number: device.index().ok(),
        busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        reading: reading(device),
    }
}

fn find<'a>(nvml: &'a Nvml, uuid: &str) -> Result<Device<'a>, Unanswered> {
    // CUDA writes the UUID of a MIG instance as `GPU-...`; NVML writes the same bytes as `MIG-...`.
    let instance = || {
        uuid.strip_prefix("GPU-")
            .map(|rest| nvml.device_by_uuid(format!("MIG-{rest}")))
    };
    nvml.device_by_uuid(uuid)
        .or_else(|error| instance().unwrap_or(Err(error)))
        .map_err(unanswered(UNKNOWN))
}

fn reading(device: Device) -> Result<Reading, Unanswered> {
    let memory = device.memory_info().map_err(|error| match error {
        NvmlError::FailedToLoadSymbol(_) => Unanswered("NVML is older than driver 510".to_owned()),
        error => unanswered("NVML does not report the device's memory")(error),
    })?;
    Ok(Reading {
        total: memory.total,
        used: memory.used,
        free: memory.free,
        reserved: memory.reserved,
        layer: layer(),
        mig: device.mig_mode().is_ok_and(|mode| mode.current != 0),
        processes: processes(&device),
    })
}

/// The file of the layer that answers in place of NVML in this process, which has loaded it; `None` if NVML answers itself.
/// Layers for GPU sharing answer NVML's functions, so that programs see the layer's limit and book. They are preloaded and
/// export the functions, or are installed as `libnvidia-ml.so.1` and load NVIDIA's own library themselves.
fn layer() -> Option<String> {
    let real = |path: &str| fs::canonicalize(path).map_or_else(|_| path.into(), |path| path.display().to_string());
    let library = Library::open(c"libnvidia-ml.so.1").ok()?;
    let answers = real(&file_of(library.address(c"nvmlDeviceGetMemoryInfo"))?);
    let is_nvml = |file: &String| {
        file.rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("libnvidia-ml.so"))
    };
    let mut files = mapped_files("self").into_iter().filter(is_nvml);
    files.any(|file| real(&file) != answers).then_some(answers)
}

/// Lists each process once, the clients of MPS apart from their server. A process that computes and draws is in both of NVML's
/// lists, with the same bytes.
fn processes(device: &Device) -> Result<Vec<Listed>, Unanswered> {
    let told = |list: Vec<ProcessInfo>| -> Vec<(u32, Option<u64>)> {
        let bytes = |info: &ProcessInfo| match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        list.iter().map(|info| (info.pid, bytes(info))).collect()
    };
    let computing = device
        .running_compute_processes()
        .map_err(unanswered("NVML does not report the device's processes"))?;
    let clients = told(device.mps_running_compute_processes().unwrap_or_default());
    let drawing = device.running_graphics_processes().unwrap_or_default();
    let list = [told(computing), told(drawing)].concat();
    let each = ProcessBytes::listed(list, &clients).into_iter();
    let listed = |process: ProcessBytes| Listed {
        pid: process.host_pid,
        used: process.bytes,
    };
    Ok(each.map(listed).collect())
}
