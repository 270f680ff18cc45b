//! The exported functions of the driver's management library whose answers must agree with the ledger: what a device
//! has, and who has it. Every other one is the library's own affair.
//!
//! They start nothing: a program that only looks keeps no journal.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the NVML function of the same name

use crate::engine::management as answers;
use crate::real::management::{self as real, Device, INSUFFICIENT_SIZE, Memory, MemoryV2, OK, Process, ProcessV1};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, out: *mut Memory) -> i32 {
    // SAFETY: the caller's own arguments; what was written is read after success.
    unsafe {
        let result = real::nvmlDeviceGetMemoryInfo(device, out);
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
        let result = real::nvmlDeviceGetMemoryInfo_v2(device, out);
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

/// As NVML hands out lists: `count` says how much room there is, and then how many there are.
unsafe fn hand_out<T>(list: Vec<T>, count: *mut u32, out: *mut T) -> i32 {
    // SAFETY: the caller's own arguments: `count` is readable, and there is room for as many.
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

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    device: Device,
    count: *mut u32,
    out: *mut ProcessV1,
) -> i32 {
    let list = if count.is_null() {
        None
    } else {
        answers::processes(device)
    };
    // SAFETY: the caller's own arguments.
    unsafe {
        match list {
            Some(list) => {
                let short = |process: Process| ProcessV1 {
                    pid: process.pid,
                    used: process.used,
                };
                hand_out(list.into_iter().map(short).collect(), count, out)
            }
            None => real::nvmlDeviceGetComputeRunningProcesses(device, count, out),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: Device,
    count: *mut u32,
    out: *mut Process,
) -> i32 {
    let list = if count.is_null() {
        None
    } else {
        answers::processes(device)
    };
    // SAFETY: the caller's own arguments.
    unsafe {
        match list {
            Some(list) => hand_out(list, count, out),
            None => real::nvmlDeviceGetComputeRunningProcesses_v2(device, count, out),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut u32,
    out: *mut Process,
) -> i32 {
    let list = if count.is_null() {
        None
    } else {
        answers::processes(device)
    };
    // SAFETY: the caller's own arguments.
    unsafe {
        match list {
            Some(list) => hand_out(list, count, out),
            None => real::nvmlDeviceGetComputeRunningProcesses_v3(device, count, out),
        }
    }
}
