//! The exported NVML functions: those whose answers about memory must agree with the ledger.
//!
//! They start no engine, so a program that only looks at a GPU writes no journal.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the NVML function of the same name

use crate::engine::at_fork;
use crate::engine::nvml as answers;
use crate::next::nvml::{self as next, Device, INSUFFICIENT_SIZE, Memory, MemoryV2, OK, Process, ProcessV1};

macro_rules! export_memory {
    ($($name:ident of $memory:ident: |$told:ident, $answer:ident| $make:expr;)+) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: Device, out: *mut $memory) -> i32 {
            at_fork();
            // SAFETY: the caller's own arguments. What was written is read after success only.
            unsafe {
                let result = next::$name(device, out);
                if result == OK
                    && let Some($told) = out.as_mut()
                    && let Some($answer) = answers::memory(device, $told.total, $told.free)
                {
                    *$told = $make;
                }
                result
            }
        }
    )+};
}

export_memory! {
    nvmlDeviceGetMemoryInfo of Memory: |told, answer| answer;
    nvmlDeviceGetMemoryInfo_v2 of MemoryV2: |told, answer| MemoryV2 {
        total: answer.total,
        free: answer.free,
        used: answer.used,
        // The rest, which is neither used by the job nor free for it.
        reserved: answer.total.saturating_sub(answer.free.saturating_add(answer.used)),
        ..*told
    };
}

/// Writes our list of processes as NVML writes its own: `count` is the room for entries before the call, and the number
/// of entries after it. If we have no list, `below` answers.
///
/// # Safety
/// `count` is null, or readable and writable. `out` is null or has room for `count` entries.
unsafe fn list<T>(
    device: Device,
    count: *mut u32,
    out: *mut T,
    entry: impl Fn(Process) -> T,
    below: impl FnOnce() -> i32,
) -> i32 {
    at_fork();
    if count.is_null() {
        return below();
    }
    let Some(list) = answers::processes(device) else {
        return below();
    };
    let list: Vec<T> = list.into_iter().map(entry).collect();
    // SAFETY: by contract, and no more entries are written than there is room for.
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
