//! The exported functions of the driver's management library whose answers must agree with the ledger: what a device
//! has, and who has it. Every other one is the library's own affair.
//!
//! They start nothing: a program that only looks keeps no journal.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the NVML function of the same name

use crate::engine::call::nvml as answers;
use crate::next::management::{self as next, Device, INSUFFICIENT_SIZE, Memory, MemoryV2, OK, Process, ProcessV1};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, out: *mut Memory) -> i32 {
    // SAFETY: the caller's own arguments; what was written is read after success.
    unsafe {
        let result = next::nvmlDeviceGetMemoryInfo(device, out);
        if result == OK
            && let Some(memory) = out.as_mut()
            && let Some(answer) = answers::memory(device, memory.total, memory.free)
        {
            *memory = Memory {
                total: answer.total,
                free: answer.free,
                used: answer.used,
            };
        }
        result
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, out: *mut MemoryV2) -> i32 {
    // SAFETY: as above.
    unsafe {
        let result = next::nvmlDeviceGetMemoryInfo_v2(device, out);
        if result == OK
            && let Some(memory) = out.as_mut()
            && let Some(answer) = answers::memory(device, memory.total, memory.free)
        {
            *memory = MemoryV2 {
                total: answer.total,
                free: answer.free,
                used: answer.used,
                // Neither ours nor to be had.
                reserved: answer.total.saturating_sub(answer.free.saturating_add(answer.used)),
                ..*memory
            };
        }
        result
    }
}

/// Our list, as NVML hands one out: `count` says how much room there is, and then how many there are. Where we have none
/// to tell, `below` answers.
///
/// # Safety
/// `count` is null or readable and writable, and `out` null or with room for as many.
unsafe fn list<T>(
    device: Device,
    count: *mut u32,
    out: *mut T,
    entry: impl Fn(Process) -> T,
    below: impl FnOnce() -> i32,
) -> i32 {
    if count.is_null() {
        return below();
    }
    let Some(list) = answers::processes(device) else {
        return below();
    };
    let list: Vec<T> = list.into_iter().map(entry).collect();
    // SAFETY: by contract.
    unsafe {
        let room = std::mem::replace(&mut *count, list.len() as u32);
        if list.is_empty() {
            return OK;
        }
        if out.is_null() || (room as usize) < list.len() {
            return INSUFFICIENT_SIZE;
        }
        std::ptr::copy_nonoverlapping(list.as_ptr(), out, list.len());
    }
    OK
}

macro_rules! export_list {
    ($($name:ident of $entry:ty: $make:expr;)+) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: Device, count: *mut u32, out: *mut $entry) -> i32 {
            // SAFETY: the caller's own arguments.
            unsafe { list(device, count, out, $make, || next::$name(device, count, out)) }
        }
    )+};
}

export_list! {
    nvmlDeviceGetComputeRunningProcesses of ProcessV1: |process| ProcessV1 { pid: process.pid, used: process.used };
    nvmlDeviceGetComputeRunningProcesses_v2 of Process: |process| process;
    nvmlDeviceGetComputeRunningProcesses_v3 of Process: |process| process;
}
