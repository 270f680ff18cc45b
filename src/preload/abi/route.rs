//! Replaces the answers of `cuGetProcAddress` and `cudaGetDriverEntryPoint` by our functions.
//!
//! The next layer is asked first: it chooses the version and the per-thread-stream variant. The *address* that it
//! returned is looked up among the next layer's addresses of the hooked functions, and replaced by our function. Some
//! drivers and layers return internal addresses, which are not among them. Only then the documented rule for names
//! decides.

use std::ffi::{CStr, CString, c_char, c_void};

use super::variant::variant;
use super::{DRIVER, Entry};
use crate::engine::Route;
use crate::next::symbols;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// The newest version suffix of any driver function: no function has a `_v5`.
const LATEST_GENERATION: u32 = 4;

/// The CUDA version from which on a base name means its `_v2` function, as the `cuda.h` of that release says.
fn second_generation_since(base: &str) -> i32 {
    match base {
        "cuCtxDestroy" | "cuStreamDestroy" => 4000,
        "cuMemHostRegister" => 6050,
        "cuStreamBeginCapture" => 10010,
        "cuDevicePrimaryCtxRelease" | "cuDevicePrimaryCtxReset" | "cuIpcOpenMemHandle" => 11000,
        "cuGetProcAddress" => 12000,
        "cuGraphAddNode" => 12030,
        "cuCtxSynchronize" | "cuMemcpyBatchAsync" => 13000,
        _ => 3020,
    }
}

/// Our function in place of the next layer's answer for `name`, or that answer itself if we have no such function.
/// `way` is the function by which the job asked.
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn route(way: Route, name: *const c_char, answer: *mut c_void, version: i32, flags: u64) -> *mut c_void {
    if name.is_null() || answer.is_null() {
        return answer;
    }
    if symbols::is_ours(answer) {
        let same = DRIVER.iter().find(|entry| std::ptr::eq(entry.ours, answer));
        return same.map_or(answer, |entry| entry.hand_out(way));
    }
    // SAFETY: the name is not null, so it is a C string by contract.
    let Ok(name) = (unsafe { CStr::from_ptr(name) }).to_str() else {
        return answer;
    };
    let asked = variant(name).base;
    let family = || DRIVER.iter().filter(|entry| variant(entry.name).base == asked);
    if let Some(same) = family().find(|entry| entry.slot.and_then(|slot| slot.get()) == Some(answer)) {
        return same.hand_out(way);
    }
    // A generation that a later CUDA release introduced has other arguments than ours.
    let is_later = |generation: u32| {
        CString::new(format!("{asked}_v{generation}")).is_ok_and(|name| {
            let ours = DRIVER.iter().any(|entry| entry.name.as_bytes() == name.to_bytes());
            !ours && std::ptr::eq(symbols::function(&name), answer)
        })
    };
    if (2..=LATEST_GENERATION).any(is_later) {
        return answer;
    }
    match family()
        .filter(|entry| suits(entry, version, flags))
        .max_by_key(|entry| rank(entry))
    {
        Some(chosen) => {
            if let Some(slot) = chosen.slot {
                slot.adopt(answer);
            }
            chosen.hand_out(way)
        }
        None => answer,
    }
}

fn suits(entry: &Entry, version: i32, flags: u64) -> bool {
    let variant = variant(entry.name);
    (variant.generation == 1 || version >= second_generation_since(variant.base))
        && (!variant.per_thread || flags & PER_THREAD_DEFAULT_STREAM != 0)
}

fn rank(entry: &Entry) -> (bool, u32) {
    let variant = variant(entry.name);
    (variant.per_thread, variant.generation)
}
