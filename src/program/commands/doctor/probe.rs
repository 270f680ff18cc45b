//! Asks the driver in a child process, because a driver or a layer may crash or hang when it is loaded. Before every
//! step the child writes a line with that step and what it knows. If the child crashes, its last line shows the step.
//!
//! The child finds the driver's functions through `dlopen` and `dlsym`, as a job does.

use std::ffi::{CStr, CString, c_int, c_void};
use std::io::Write;
use std::path::Path;
use std::ptr;

use base::cuda::DriverError;
use base::kernel::DMA_BUF_SUPPORTED;
use serde::{Deserialize, Serialize};

use crate::analysis::names::device_uuid;
use crate::analysis::nvml::{self, Listed};
use crate::driver::{Access, Failed, Library, Location, Properties, call, checked, file_of, mapped_files};
use crate::failure::Failure;

/// The hidden subcommand that the child runs.
pub const COMMAND: &str = "doctor-probe";

/// What the driver has answered so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Driver {
    /// The step that began last: a function, or a device.
    pub doing: String,
    pub done: bool,
    pub load_error: Option<String>,
    /// The file that was loaded as `libcuda.so.1`.
    pub path: Option<String>,
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
    /// The result of `cuInit`.
    pub init: Option<i32>,
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Device {
    pub ordinal: i32,
    pub name: String,
    pub uuid: Option<String>,
    pub total_memory: u64,
    pub free_memory: Option<u64>,
    /// The size of a context according to NVML; `None` if NVML does not show this process.
    pub context_bytes: Option<u64>,
    /// Other processes and their bytes, according to NVML.
    pub others: Vec<Listed>,
    /// NVML tells pids of the host, which are not those of this pid namespace.
    pub host_pids: bool,
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
    /// The total that a layer shows, and that of the driver, if that is more.
    pub limit_of_layer: Option<(u64, u64)>,
    /// Whether that limit holds for memory that is created for mapping. Without a limit: whether free memory falls with it.
    pub granule_counted: bool,
    /// Function and result, if a context (`context_error`) or a granule (`granule_error`) could not be made.
    pub context_error: Option<Failed>,
    pub granule_error: Option<Failed>,
}

impl Device {
    /// The bytes in use that no context of the child takes. What a layer shows as used is its own.
    pub fn held_by_others(&self, layer: Option<&str>) -> Option<u64> {
        if layer.is_some() {
            return Some(self.others.iter().filter_map(|held| held.used).sum());
        }
        let used = self.total_memory.saturating_sub(self.free_memory?);
        Some(used.saturating_sub(self.context_bytes.unwrap_or(0)))
    }
}

/// What the library looks for before it chooses a policy (`preload/next/abilities.rs`).
const FOR_POLICIES: &str =
    "cuEventCreate cuEventRecord cuEventQuery cuThreadExchangeStreamCaptureMode cuStreamIsCapturing";
const FOR_MAPPING: &str = "cuMemGetAllocationGranularity cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemMap \
                           cuMemSetAccess cuMemUnmap cuMemRelease";

impl Driver {
    fn step(&mut self, doing: &str) {
        self.doing = doing.into();
        self.tell();
    }

    fn tell(&self) {
        let mut out = std::io::stdout().lock();
        // Writing fails only if the parent no longer reads.
        let _ = serde_json::to_writer(&mut out, self);
        let _ = out.write_all(b"\n").and_then(|()| out.flush());
    }
}

pub fn answer() -> Result<(), Failure> {
    let mut known = Driver::default();
    known.step("dlopen");
    match Library::open(c"libcuda.so.1") {
        Ok(library) => ask_library(&library, &mut known),
        Err(error) => known.load_error = Some(error),
    }
    known.done = true;
    known.tell();
    Ok(())
}

fn ask_library(library: &Library, known: &mut Driver) {
    known.path = library.path();
    known.step("dlsym");
    known.allocates = file_of(library.address(c"cuMemAlloc_v2"));
    known.creates = file_of(library.address(c"cuMemCreate"));
    let is_missing = |name: &&str| CString::new(*name).is_ok_and(|name| library.address(&name).is_null());
    let missing = |names: &str| names.split(' ').filter(is_missing).map(str::to_owned).collect();
    known.missing_for_policies = missing(FOR_POLICIES);
    known.missing_for_mapping = missing(FOR_MAPPING);
    known.step("cuDriverGetVersion");
    let mut version = 0;
    let told = checked!(library, cuDriverGetVersion(&mut version => *mut c_int));
    known.version = told.ok().map(|()| version);
    known.step("cuInit");
    let init = call!(library, cuInit(0 => u32));
    known.init = Some(init);
    known.behind = drivers_but(known.path.as_deref());
    if init != 0 {
        return;
    }
    known.step("cuDeviceGetCount");
    let mut count = 0;
    call!(library, cuDeviceGetCount(&mut count => *mut c_int));
    for ordinal in 0..count {
        known.step(&format!("device {ordinal}"));
        let device = probe_device(library, known, ordinal);
        known.devices.push(device);
    }
}

/// The driver files that this process has mapped, except the one at `path`.
fn drivers_but(path: Option<&str>) -> Vec<String> {
    let real = path.and_then(|path| std::fs::canonicalize(path).ok());
    let is_other = |file: &String| file.contains("/libcuda.so") && real.as_deref() != Some(Path::new(file));
    mapped_files("self").into_iter().filter(is_other).collect()
}

/// The driver behind the layer that answers for it, if one does.
fn behind_layer(known: &Driver) -> Option<Library> {
    let (path, allocates) = (known.path.as_deref()?, known.allocates.as_deref()?);
    let real = |path: &str| std::fs::canonicalize(path).ok();
    let is_in_place = real(path) == real(allocates);
    Library::behind_layers(if is_in_place { known.behind.last()? } else { path })
}

/// `CU_DEVICE_ATTRIBUTE_*`
const COMPUTE_MODE: c_int = 20;
const VMM_SUPPORTED: c_int = 102;
const DESCRIPTORS_SUPPORTED: c_int = 103;
const POOLS_SUPPORTED: c_int = 115;

fn probe_device(library: &Library, known: &mut Driver, ordinal: c_int) -> Device {
    let attribute = |which: c_int| {
        let mut value = 0;
        let result = call!(library, cuDeviceGetAttribute(&mut value => *mut c_int, which => c_int, ordinal => c_int));
        if result == 0 { value } else { 0 }
    };
    let (mut name, mut uuid, mut total) = ([0u8; 128], [0u8; 16], 0usize);
    call!(library, cuDeviceGetName(name.as_mut_ptr() => *mut u8, 127 => c_int, ordinal => c_int));
    call!(library, cuDeviceGetUuid(uuid.as_mut_ptr() => *mut u8, ordinal => c_int));
    call!(library, cuDeviceTotalMem_v2(&mut total => *mut usize, ordinal => c_int));
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    let mut device = Device {
        ordinal,
        name: name.to_string_lossy().into(),
        uuid: device_uuid(&uuid),
        total_memory: total as u64,
        compute_mode: attribute(COMPUTE_MODE),
        vmm: attribute(VMM_SUPPORTED) != 0,
        descriptors: attribute(DESCRIPTORS_SUPPORTED) != 0,
        pools: attribute(POOLS_SUPPORTED) != 0,
        dma_buf: attribute(DMA_BUF_SUPPORTED as c_int) != 0,
        ..Device::default()
    };
    let uuid = device.uuid.clone().unwrap_or_default();
    let holdings = || {
        let all = nvml::answer(std::slice::from_ref(&uuid));
        let processes = all.and_then(|all| nvml::reading_of(&all, &uuid)?.processes);
        let processes = processes.into_iter().flatten().filter(|one| one.used.is_some());
        processes.collect::<Vec<Listed>>()
    };
    let before = holdings();
    known.step("cuDevicePrimaryCtxRetain");
    if let Err(failed) = enter_context(library, ordinal) {
        device.context_error = Some(failed);
        return device;
    }
    let shown = free_and_total(library).ok();
    device.free_memory = shown.map(|(free, _)| free);
    let of_driver = behind_layer(known).and_then(|driver| free_and_total(&driver).ok());
    device.limit_of_layer = shown.zip(of_driver).map(|((_, shown), (_, all))| (shown, all));
    device.limit_of_layer.take_if(|(shown, all)| shown >= all);
    let (us, mut holdings) = (std::process::id(), holdings());
    let is_new = |held: &Listed| !before.iter().any(|one| one.pid == held.pid);
    let ours = |held: &Listed| held.pid == us && is_new(held);
    // In another pid namespace this process is the one that appeared, if no other did.
    let new = holdings.iter().filter(|held| is_new(held)).count();
    device.host_pids = !holdings.is_empty() && !holdings.iter().any(ours);
    if let Some(own) = holdings
        .iter()
        .position(|held| ours(held) || device.host_pids && new == 1 && is_new(held))
    {
        device.context_bytes = holdings.remove(own).used;
    }
    device.others = holdings;
    if device.vmm {
        known.step("cuMemCreate");
        if let Err(failed) = map_granule(library, &mut device) {
            device.granule_error = Some(failed);
        }
    }
    known.step("cuDevicePrimaryCtxRelease");
    call!(library, cuDevicePrimaryCtxRelease_v2(ordinal => c_int));
    device
}

fn enter_context(library: &Library, ordinal: c_int) -> Result<(), Failed> {
    let mut context: *mut c_void = ptr::null_mut();
    checked!(library, cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, ordinal => c_int))?;
    checked!(library, cuCtxSetCurrent(context => *mut c_void))
}

fn free_and_total(library: &Library) -> Result<(u64, u64), Failed> {
    let (mut free, mut total) = (0usize, 0usize);
    checked!(library, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize))?;
    Ok((free as u64, total as u64))
}

fn reserve(library: &Library, size: usize) -> Result<u64, Failed> {
    let mut address = 0;
    checked!(library, cuMemAddressReserve(
        &mut address => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64
    ))?;
    Ok(address)
}

fn create(library: &Library, ordinal: c_int, size: usize) -> Result<u64, Failed> {
    let (mut handle, properties) = (0, Properties::on(on_device(ordinal)));
    checked!(library, cuMemCreate(
        &mut handle => *mut u64, size => usize, &properties => *const Properties, 0 => u64
    ))?;
    Ok(handle)
}

fn map(library: &Library, ordinal: c_int, address: u64, size: usize, handle: u64) -> Result<(), Failed> {
    let location = on_device(ordinal);
    let access = Access { location, rights: 3 };
    checked!(library, cuMemMap(address => u64, size => usize, 0 => usize, handle => u64, 0 => u64))?;
    checked!(library, cuMemSetAccess(
        address => u64, size => usize, &access => *const Access, 1 => usize
    ))
    .inspect_err(|_| unmap(library, address, size))
}

fn unmap(library: &Library, address: u64, size: usize) {
    call!(library, cuMemUnmap(address => u64, size => usize));
}

fn on_device(id: c_int) -> Location {
    Location { kind: 1, id }
}

/// Creates and maps a granule as `auto_growth` does, notes what the device can, and frees the granule.
fn map_granule(library: &Library, device: &mut Device) -> Result<(), Failed> {
    let (ordinal, mut size) = (device.ordinal, 0usize);
    let properties = Properties::on(on_device(ordinal));
    checked!(library, cuMemGetAllocationGranularity(
        &mut size => *mut usize, &properties => *const Properties, 0 => c_int
    ))?;
    let address = reserve(library, 2 * size)?;
    let free = || free_and_total(library).map_or(0, |(free, _)| free);
    let before = free();
    let done = create(library, ordinal, size).and_then(|handle| {
        // As the library asks (`preload/engine/pools/growth.rs`).
        let falls = free() + size as u64 / 2 <= before;
        device.granule_counted = falls
            && match device.limit_of_layer {
                Some((limit, total)) => {
                    let is_refused = |size: u64, by_driver| match create(library, ordinal, size as usize) {
                        Ok(beyond) => {
                            call!(library, cuMemRelease(beyond => u64));
                            false
                        }
                        Err((_, code)) => DriverError(code) != by_driver,
                    };
                    let granule = size as u64;
                    is_refused((limit + 2) | 1, DriverError::INVALID_VALUE)
                        || is_refused(total.next_multiple_of(granule) + granule, DriverError::OUT_OF_MEMORY)
                }
                None => true,
            };
        let done = map(library, ordinal, address, size, handle);
        if done.is_ok() {
            device.granularity = Some(size as u64);
            let second = address + size as u64;
            device.mapped_twice = map(library, ordinal, second, size, handle)
                .map(|()| unmap(library, second, size))
                .is_ok();
            unmap(library, address, size);
        }
        call!(library, cuMemRelease(handle => u64));
        done
    });
    call!(library, cuMemAddressFree(address => u64, 2 * size => usize));
    done
}
