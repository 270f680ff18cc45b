//! Asks the driver in a child process, because a driver or a layer may crash or hang when it is loaded. Before every
//! step the child writes a line with that step and what it knows. If the child crashes, its last line shows the step.
//!
//! The child finds the driver's functions through `dlopen` and `dlsym`, as a job does.

mod nvml;
mod roads;

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::io::Write;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use base::kernel::DMA_BUF_SUPPORTED;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use self::nvml::Nvml;
use crate::analysis::names::device_uuid;
use crate::driver::{Access, Library, Location, Properties, call, file_of};
use crate::failure::Failure;
pub use nvml::Holding;
pub use roads::{Answer, Book, Books, Road, Steps};

/// The hidden subcommand that the child runs.
pub const COMMAND: &str = "doctor-probe";

#[derive(Args)]
pub struct Probe {
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// What the driver reports about itself and its devices.
    Driver,
    /// How many bytes each process holds on each device, repeatedly.
    Memory,
    /// Which files this process has mapped.
    Maps,
    /// What the next layer and the ledger say while memory is taken and given back.
    Roads,
}

impl What {
    pub fn name(self) -> &'static str {
        match self {
            What::Driver => "driver",
            What::Memory => "memory",
            What::Maps => "maps",
            What::Roads => "roads",
        }
    }
}

/// What the driver has answered so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Driver {
    /// The step that began last: a function, or a device.
    pub doing: String,
    pub done: bool,
    pub load_error: Option<String>,
    /// `path` is the file that was loaded as `libcuda.so.1`, `answers` the file that contains `cuInit`.
    pub path: Option<String>,
    pub answers: Option<String>,
    /// The file that contains `cuMemAlloc`: the driver, or a layer.
    pub allocates: Option<String>,
    /// The file that contains `cuMemCreate`.
    pub creates: Option<String>,
    /// Functions that the library's policies call and that nobody has, and those that mapping needs besides.
    pub missing_for_policies: Vec<String>,
    pub missing_for_mapping: Vec<String>,
    /// Other mapped files whose names begin with `libcuda.so`: drivers behind a layer.
    pub behind: Vec<String>,
    pub version: Option<i32>,
    /// The version of the driver, by NVML.
    pub release: Option<String>,
    /// The result of `cuInit`.
    pub init: Option<i32>,
    /// The result of `cuDeviceGetCount` if it failed.
    pub count_error: Option<i32>,
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Device {
    pub ordinal: i32,
    pub name: String,
    pub uuid: Option<String>,
    pub total_memory: u64,
    pub free_memory: Option<u64>,
    /// The size of a context according to NVML; `None` if NVML does not list this process.
    pub context_bytes: Option<u64>,
    /// What other processes hold, according to NVML.
    pub others: Vec<Holding>,
    /// `CU_COMPUTEMODE_*`
    pub compute_mode: i32,
    /// Whether the device reports virtual memory management, sharing by file descriptor, and memory pools.
    pub vmm: bool,
    pub descriptors: bool,
    pub pools: bool,
    /// Whether network cards can get its memory as dma-bufs.
    pub dma_buf: bool,
    pub granularity: Option<u64>,
    /// Whether a mapped granule can be mapped at a second address.
    pub mapped_twice: bool,
    /// Whether free memory falls when memory is created for mapping.
    pub granule_counted: bool,
    /// Function and result, if a context (`context_error`) or a granule (`granule_error`) could not be made.
    pub context_error: Option<(String, i32)>,
    pub granule_error: Option<(String, i32)>,
}

impl Device {
    /// The bytes in use that no context of the child takes.
    pub fn held_by_others(&self) -> Option<u64> {
        let used = self.total_memory.saturating_sub(self.free_memory?);
        Some(used.saturating_sub(self.context_bytes.unwrap_or(0)))
    }
}

impl Probe {
    pub fn answer(self) -> Result<(), Failure> {
        match self.what {
            What::Driver => probe_driver(),
            What::Roads => roads::probe(tell),
            What::Memory => watch_memory()?,
            What::Maps => {
                let maps = std::fs::read("/proc/self/maps").map_err(Failure::failed)?;
                std::io::stdout().write_all(&maps).map_err(Failure::unwritten)?;
            }
        }
        Ok(())
    }
}

fn tell(what: &impl Serialize) {
    let mut out = std::io::stdout().lock();
    // Writing fails only if the parent no longer reads.
    let _ = serde_json::to_writer(&mut out, what);
    let _ = out.write_all(b"\n").and_then(|()| out.flush());
}

/// What the library looks for before it chooses a policy (`preload/next/abilities.rs`).
const FOR_POLICIES: [&CStr; 5] = [
    c"cuEventCreate",
    c"cuEventRecord",
    c"cuEventQuery",
    c"cuThreadExchangeStreamCaptureMode",
    c"cuStreamIsCapturing",
];
const FOR_MAPPING: [&CStr; 8] = [
    c"cuMemGetAllocationGranularity",
    c"cuMemAddressReserve",
    c"cuMemAddressFree",
    c"cuMemCreate",
    c"cuMemMap",
    c"cuMemSetAccess",
    c"cuMemUnmap",
    c"cuMemRelease",
];

fn probe_driver() {
    let mut known = Driver::default();
    let step = |known: &mut Driver, doing: &str| {
        known.doing = doing.into();
        tell(known);
    };
    step(&mut known, "dlopen");
    let library = match Library::open(c"libcuda.so.1") {
        Ok(library) => library,
        Err(error) => {
            known.load_error = Some(error.to_string());
            known.done = true;
            return tell(&known);
        }
    };
    known.path = library.path();
    step(&mut known, "dlsym");
    known.answers = file_of(library.address(c"cuInit"));
    known.allocates = file_of(library.address(c"cuMemAlloc_v2"));
    known.creates = file_of(library.address(c"cuMemCreate"));
    let missing = |names: &[&CStr]| -> Vec<String> {
        let lacks = |name: &&&CStr| library.address(name).is_null();
        let names = names.iter().filter(lacks);
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    };
    known.missing_for_policies = missing(&FOR_POLICIES);
    known.missing_for_mapping = missing(&FOR_MAPPING);
    step(&mut known, "cuDriverGetVersion");
    let mut version = 0;
    if call!(library, cuDriverGetVersion(&mut version => *mut c_int)) == 0 {
        known.version = Some(version);
    }
    step(&mut known, "cuInit");
    let init = call!(library, cuInit(0 => u32));
    known.init = Some(init);
    known.behind = drivers_but(known.path.as_deref());
    if init == 0 {
        step(&mut known, "cuDeviceGetCount");
        let mut count = 0;
        let result = call!(library, cuDeviceGetCount(&mut count => *mut c_int));
        known.count_error = (result != 0).then_some(result);
        let nvml = Nvml::open();
        known.release = nvml.as_ref().and_then(Nvml::driver_version);
        for ordinal in 0..count {
            step(&mut known, &format!("device {ordinal}"));
            known.devices.push(Device {
                ordinal,
                ..Device::default()
            });
            probe_device(&library, nvml.as_ref(), &mut known, step);
        }
    }
    known.done = true;
    tell(&known);
}

/// The driver files that this process has mapped, except the one at `path`.
fn drivers_but(path: Option<&str>) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_driver = |file: &&str| {
        file.rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("libcuda.so"))
    };
    let real = path.and_then(|path| std::fs::canonicalize(path).ok());
    let others = files
        .filter(is_driver)
        .filter(|file| real.as_deref() != Some(Path::new(file)));
    let others: BTreeSet<String> = others.map(str::to_owned).collect();
    others.into_iter().collect()
}

/// `CU_DEVICE_ATTRIBUTE_*`
const COMPUTE_MODE: c_int = 20;
const VMM_SUPPORTED: c_int = 102;
const DESCRIPTORS_SUPPORTED: c_int = 103;
const POOLS_SUPPORTED: c_int = 115;

fn probe_device(library: &Library, nvml: Option<&Nvml>, known: &mut Driver, step: impl Fn(&mut Driver, &str)) {
    let Some(device) = known.devices.last_mut() else { return };
    let ordinal = device.ordinal;
    let attribute = |which: c_int| {
        let mut value = 0;
        let result = call!(library, cuDeviceGetAttribute(&mut value => *mut c_int, which => c_int, ordinal => c_int));
        if result == 0 { value } else { 0 }
    };
    let mut name = [0u8; 128];
    let (mut uuid, mut total) = ([0u8; 16], 0usize);
    call!(library, cuDeviceGetName(name.as_mut_ptr() => *mut u8, 127 => c_int, ordinal => c_int));
    call!(library, cuDeviceGetUuid(uuid.as_mut_ptr() => *mut u8, ordinal => c_int));
    call!(library, cuDeviceTotalMem_v2(&mut total => *mut usize, ordinal => c_int));
    device.name =
        CStr::from_bytes_until_nul(&name).map_or_else(|_| String::new(), |name| name.to_string_lossy().into());
    device.uuid = device_uuid(&uuid);
    device.total_memory = total as u64;
    device.compute_mode = attribute(COMPUTE_MODE);
    device.vmm = attribute(VMM_SUPPORTED) != 0;
    device.descriptors = attribute(DESCRIPTORS_SUPPORTED) != 0;
    device.pools = attribute(POOLS_SUPPORTED) != 0;
    device.dma_buf = attribute(DMA_BUF_SUPPORTED as c_int) != 0;

    step(known, "cuDevicePrimaryCtxRetain");
    let Some(device) = known.devices.last_mut() else { return };
    let mut context: *mut c_void = ptr::null_mut();
    let result = call!(library, cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, ordinal => c_int));
    if result != 0 {
        device.context_error = Some(("cuDevicePrimaryCtxRetain".into(), result));
        return;
    }
    call!(library, cuCtxSetCurrent(context => *mut c_void));
    let (mut free, mut total) = (0usize, 0usize);
    if call!(library, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize)) == 0 {
        device.free_memory = Some(free as u64);
    }
    if let (Some(nvml), Some(uuid)) = (nvml, &device.uuid) {
        let us = std::process::id();
        let holdings = nvml.holdings(uuid);
        device.context_bytes = holdings.iter().find(|held| held.process == us).map(|held| held.bytes);
        device.others = holdings.into_iter().filter(|held| held.process != us).collect();
    }
    if device.vmm {
        step(known, "cuMemCreate");
        let Some(device) = known.devices.last_mut() else { return };
        match map_granule(library, ordinal) {
            Ok(granule) => {
                device.granularity = Some(granule.size);
                device.mapped_twice = granule.twice;
                device.granule_counted = granule.counted;
            }
            Err((function, result)) => device.granule_error = Some((function.into(), result)),
        }
    }
    step(known, "cuDevicePrimaryCtxRelease");
    call!(library, cuDevicePrimaryCtxRelease_v2(ordinal => c_int));
}

/// A granule that was made and mapped.
struct Granule {
    size: u64,
    /// Whether it could be mapped at a second address.
    twice: bool,
    /// Whether free memory fell by it.
    counted: bool,
}

/// Free bytes of the current context's device.
fn free_memory(library: &Library) -> usize {
    let (mut free, mut total) = (0usize, 0usize);
    call!(library, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize));
    free
}

/// Creates and maps a granule as `auto_growth` does, and frees it.
fn map_granule(library: &Library, ordinal: c_int) -> Result<Granule, (&'static str, i32)> {
    let checked = |name: &'static str, result: i32| if result == 0 { Ok(()) } else { Err((name, result)) };
    let location = Location { kind: 1, id: ordinal };
    let properties = Properties::on(location);
    let access = Access { location, rights: 3 };
    let (mut size, mut address, mut handle) = (0usize, 0u64, 0u64);
    let result = call!(library, cuMemGetAllocationGranularity(
        &mut size => *mut usize, &properties => *const Properties, 0 => c_int
    ));
    checked("cuMemGetAllocationGranularity", result)?;
    let result = call!(library, cuMemAddressReserve(
        &mut address => *mut u64, 2 * size => usize, 0 => usize, 0 => u64, 0 => u64
    ));
    checked("cuMemAddressReserve", result)?;
    let before = free_memory(library);
    let result = call!(library, cuMemCreate(
        &mut handle => *mut u64, size => usize, &properties => *const Properties, 0 => u64
    ));
    let map = |address: u64| {
        let result = call!(library, cuMemMap(address => u64, size => usize, 0 => usize, handle => u64, 0 => u64));
        checked("cuMemMap", result)?;
        let result = call!(library, cuMemSetAccess(
            address => u64, size => usize, &access => *const Access, 1 => usize
        ));
        let allowed = checked("cuMemSetAccess", result);
        if allowed.is_err() {
            call!(library, cuMemUnmap(address => u64, size => usize));
        }
        allowed
    };
    let mut done = checked("cuMemCreate", result);
    let counted = free_memory(library) + size / 2 <= before;
    let mut twice = false;
    if done.is_ok() {
        done = map(address);
        if done.is_ok() {
            let second = address + size as u64;
            twice = map(second).is_ok();
            if twice {
                call!(library, cuMemUnmap(second => u64, size => usize));
            }
            call!(library, cuMemUnmap(address => u64, size => usize));
        }
        call!(library, cuMemRelease(handle => u64));
    }
    call!(library, cuMemAddressFree(address => u64, 2 * size => usize));
    done.map(|()| Granule {
        size: size as u64,
        twice,
        counted,
    })
}

/// The time between two readings of `watch_memory`.
const MEMORY_INTERVAL: Duration = Duration::from_millis(50);

/// Writes a line with the bytes of all processes every `MEMORY_INTERVAL`, until this process is killed.
fn watch_memory() -> Result<(), Failure> {
    let nvml = Nvml::open().ok_or_else(|| Failure::failed("libnvidia-ml.so.1 cannot be used"))?;
    let uuids = nvml.uuids();
    loop {
        let holdings: Vec<Holding> = uuids.iter().flat_map(|uuid| nvml.holdings(uuid)).collect();
        tell(&holdings);
        std::thread::sleep(MEMORY_INTERVAL);
    }
}
