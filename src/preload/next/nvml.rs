//! The functions of NVML: as the next layer has them, for the job's questions; and NVML's own (`own`), for what the library
//! asks itself. Some layers answer NVML's functions from their book, which has no contexts (HAMi-core hooks
//! `nvmlDeviceGetMemoryInfo`). The library's books need what the driver says.
//!
//! NVML has result codes of its own. The types are those of the public header `nvml.h`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering::Relaxed};

use super::driver;
use super::elf::once;
use super::slot::{ABSENT, forward, functions};
use base::uuid::{parse_uuid, uuid_text};

pub const OK: i32 = 0;
pub const INSUFFICIENT_SIZE: i32 = 7;
const FUNCTION_NOT_FOUND: i32 = 13;
/// The value of a figure that the driver does not tell.
pub const NOT_AVAILABLE: u64 = u64::MAX;

pub type Device = *mut c_void;

/// `nvmlMemory_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryV2 {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlProcessInfo_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessV1 {
    pub pid: u32,
    pub used: u64,
}

/// `nvmlProcessInfo_v2_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub pid: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// As `forward`, for NVML's own functions. If no layer stands before NVML, they are those of the next layer.
macro_rules! forward_to_own {
    ($($name:ident($($argument:ident: $type:ty),*);)+) => {
        mod own {
            use super::{ABSENT, AtomicPtr, Device, FUNCTION_NOT_FOUND, Memory, Process, c_char, c_void, driver, once, ptr};

            super::functions!(names: $($name)+);
            $(
                /// Calls NVML's function of this name, even if a layer answers for it.
                ///
                /// # Safety
                /// The caller keeps the contract of the NVML function of this name.
                #[allow(non_snake_case)]
                pub unsafe fn $name($($argument: $type),*) -> i32 {
                    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
                    let next = names::$name();
                    let find = || driver::behind_layer(next, b"libnvidia-ml.so").or_else(|| next.get());
                    let address = once(&FOUND, || find().unwrap_or(ABSENT));
                    if address == ABSENT {
                        return FUNCTION_NOT_FOUND;
                    }
                    // SAFETY: NVML's function of this name has the C signature that the public header gives it.
                    unsafe {
                        let function: unsafe extern "C" fn($($type),*) -> i32 = std::mem::transmute(address);
                        function($($argument),*)
                    }
                }
            )+
        }
    };
}

forward! {
    functions or FUNCTION_NOT_FOUND =>
    nvmlDeviceGetUUID(device: Device, out: *mut c_char, length: u32);
    nvmlDeviceGetMigMode(device: Device, current: *mut u32, pending: *mut u32);
    nvmlDeviceGetMemoryInfo(device: Device, out: *mut Memory);
    nvmlDeviceGetMemoryInfo_v2(device: Device, out: *mut MemoryV2);
    nvmlDeviceGetComputeRunningProcesses(device: Device, count: *mut u32, out: *mut ProcessV1);
    nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: *mut u32, out: *mut Process);
    nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut u32, out: *mut Process);
}

forward_to_own! {
    nvmlInit_v2();
    nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut Device);
    nvmlDeviceGetMemoryInfo(device: Device, out: *mut Memory);
    nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: *mut u32, out: *mut Process);
    nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut u32, out: *mut Process);
    nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Device, count: *mut u32, out: *mut Process);
    nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: *mut u32, out: *mut Process);
}

/// The UUID of a device or MIG device.
pub fn uuid(device: Device) -> Option<[u8; 16]> {
    let mut text = [0u8; 96];
    // SAFETY: the buffer is a variable of this frame and has the size that the call is told.
    let asked = unsafe { nvmlDeviceGetUUID(device, text.as_mut_ptr().cast(), text.len() as u32) };
    let text = CStr::from_bytes_until_nul(&text).ok()?;
    parse_uuid(text.to_str().ok()?).filter(|_| asked == OK)
}

/// The bytes of a device as NVML shows them; `None` if it does not say.
pub fn total(device: Device) -> Option<u64> {
    let mut memory = Memory::default();
    // SAFETY: the pointer is to a variable of this frame.
    let asked = unsafe { nvmlDeviceGetMemoryInfo(device, &mut memory) };
    (asked == OK).then_some(memory.total)
}

/// Whether a device is divided into parts (MIG). CUDA then uses the parts as its devices.
pub fn is_divided(device: Device) -> bool {
    let (mut current, mut pending) = (0, 0);
    // SAFETY: both pointers are to variables of this frame.
    unsafe { nvmlDeviceGetMigMode(device, &mut current, &mut pending) == OK && current != 0 }
}

/// The processes that compute on a device, from the newest function that the next layer has.
pub fn processes(device: Device) -> Option<Vec<Process>> {
    let (newest, other) = (
        nvmlDeviceGetComputeRunningProcesses_v3,
        nvmlDeviceGetComputeRunningProcesses_v2,
    );
    listed(device, newest, other)
}

type AskProcesses = unsafe fn(Device, *mut u32, *mut Process) -> i32;

/// The list that a function for processes writes; that of `other` if there is no `newest`.
fn listed(device: Device, newest: AskProcesses, other: AskProcesses) -> Option<Vec<Process>> {
    // Usually this is room enough, so that one call suffices.
    let mut list: Vec<Process> = Vec::with_capacity(64);
    for _ in 0..8 {
        let mut count = list.capacity() as u32;
        let room = list.as_mut_ptr();
        // SAFETY: the list has room for `count` entries.
        let asked = match unsafe { newest(device, &mut count, room) } {
            // SAFETY: as above.
            FUNCTION_NOT_FOUND => unsafe { other(device, &mut count, room) },
            result => result,
        };
        match asked {
            OK if count as usize <= list.capacity() => {
                // SAFETY: NVML has written this number of entries.
                unsafe { list.set_len(count as usize) };
                return Some(list);
            }
            // More processes may begin before the next attempt.
            INSUFFICIENT_SIZE => list.reserve(count as usize + 8),
            _ => return None,
        }
    }
    None
}

/// No answer of NVML's.
const NOT_ASKED: i32 = -1;

/// The device that has this UUID. `None` if NVML cannot be used, or does not know it.
fn find(uuid: [u8; 16]) -> Option<Device> {
    /// What NVML answered. A forked child would wait for ever for a thread of its parent, so no thread waits for another, and
    /// two may begin NVML.
    static ANSWER: AtomicI32 = AtomicI32::new(NOT_ASKED);
    if ANSWER.load(Relaxed) == NOT_ASKED {
        // SAFETY: the call takes no argument. It is never undone, because the job may use NVML as well.
        ANSWER.store(unsafe { own::nvmlInit_v2() }, Relaxed);
    }
    if ANSWER.load(Relaxed) != OK {
        return None;
    }
    let text = uuid_text(uuid);
    let mut device: Device = std::ptr::null_mut();
    let found = ["GPU", "MIG"].into_iter().any(|kind| {
        let name = CString::new(text.replacen("GPU", kind, 1)).unwrap_or_default();
        // SAFETY: the name is a C string, and the pointer is to a variable of this frame.
        unsafe { own::nvmlDeviceGetHandleByUUID(name.as_ptr(), &mut device) == OK }
    });
    found.then_some(device)
}

/// A process: its pid on the host, and its bytes if NVML tells them.
pub type Told = (u32, Option<u64>);

/// The processes on the device that has this UUID, with their bytes as far as NVML tells them; and the clients of MPS. `None` if NVML does not say.
pub fn holders(uuid: [u8; 16]) -> Option<[Vec<Told>; 2]> {
    let device = find(uuid)?;
    let newest = own::nvmlDeviceGetComputeRunningProcesses_v3;
    let list = listed(device, newest, own::nvmlDeviceGetComputeRunningProcesses_v2)?;
    let newest = own::nvmlDeviceGetMPSComputeRunningProcesses_v3;
    let clients = listed(device, newest, own::nvmlDeviceGetMPSComputeRunningProcesses_v2);
    let told = |list: Vec<Process>| -> Vec<Told> {
        let bytes = |process: &Process| Some(process.used).filter(|&bytes| bytes != NOT_AVAILABLE);
        list.iter().map(|process| (process.pid, bytes(process))).collect()
    };
    Some([told(list), told(clients.unwrap_or_default())])
}

/// The used bytes of the device that has this UUID: the least of several answers, because others allocate meanwhile.
pub fn used(uuid: [u8; 16]) -> Option<u64> {
    let device = find(uuid)?;
    let ask = |_| {
        let mut memory = Memory::default();
        // SAFETY: the pointer is to a variable of this frame.
        (unsafe { own::nvmlDeviceGetMemoryInfo(device, &mut memory) } == OK).then_some(memory.used)
    };
    (0..3).filter_map(ask).min()
}
