//! Replaces the answers of `cuGetProcAddress` and `cudaGetDriverEntryPoint` by our functions.
//!
//! The next layer is asked first: it chooses the version and the per-thread-stream variant. The *address* that it
//! returned is looked up among the next layer's addresses of the hooked functions, and replaced by our function. Some
//! drivers and layers return internal addresses, which are not among them. Then the next layer is asked for each hooked
//! function of that name, by the CUDA version that introduced it: the one that it answers with the same address is
//! meant. Only if the layer answers another address each time, the documented rule for names decides.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use super::DRIVER;
use super::table::Entry;
use crate::engine;
use crate::next::{self, symbols};
use base::cuda::{DriverError, check};

/// The parts of a name in the table: `cuMemAllocAsync_ptsz` is `cuMemAllocAsync`, generation 1, per thread.
pub struct Variant<'a> {
    pub base: &'a str,
    pub generation: u32,
    pub per_thread: bool,
}

/// Whether the default stream of the function of this name is that of the thread.
pub const fn is_of_thread(name: &str) -> bool {
    matches!(
        name.as_bytes(),
        [.., b'_', b'p', b't', b's', b'z'] | [.., b'_', b'p', b't', b'd', b's']
    )
}

pub fn variant(name: &str) -> Variant<'_> {
    let per_thread = is_of_thread(name);
    let rest = if per_thread {
        &name[..name.len() - "_ptsz".len()]
    } else {
        name
    };
    let later = |suffix, generation| Some((rest.strip_suffix(suffix)?, generation));
    let (base, generation) = later("_v2", 2).or_else(|| later("_v3", 3)).unwrap_or((rest, 1));
    Variant {
        base,
        generation,
        per_thread,
    }
}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`
const LEGACY_STREAM: u64 = 1;

/// The newest CUDA version whose functions are known here. A later one may give a name another signature.
const KNOWN_VERSION: i32 = 13050;

/// The CUDA version from which on a base name means this function, as the `cuda.h` of that release says.
fn since(variant: &Variant) -> i32 {
    match (variant.generation, variant.base) {
        (1, _) => 0,
        (2, base) => second_generation_since(base),
        (_, "cuGraphAddNode") => 13040,
        (_, _) => i32::MAX,
    }
}

/// The same for `_v2` functions.
fn second_generation_since(base: &str) -> i32 {
    match base {
        "cuCtxDestroy" | "cuStreamDestroy" => 4000,
        "cuMemHostRegister" => 6050,
        "cuStreamBeginCapture" => 10010,
        "cuDevicePrimaryCtxRelease" | "cuDevicePrimaryCtxReset" | "cuIpcOpenMemHandle" => 11000,
        "cuGetProcAddress" => 12000,
        "cuGraphAddNode" => 12030,
        "cuCtxSynchronize" | "cuMemcpyBatchAsync" | "cuMemcpy3DBatchAsync" => 13000,
        "cuGraphNodeSetParams" => 13040,
        _ => 3020,
    }
}

/// Our function in place of the next layer's answer for `name`, or that answer itself if we have no such function.
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn route(name: *const c_char, answer: *mut c_void, version: i32, flags: u64) -> *mut c_void {
    if name.is_null() || answer.is_null() {
        return answer;
    }
    // SAFETY: the name is not null, so it is a C string by contract.
    let asked_name = unsafe { CStr::from_ptr(name) };
    if asked_name == c"cuInit" {
        engine::cuda_begins();
    }
    if symbols::is_ours(answer) {
        let same = DRIVER().iter().find(|entry| std::ptr::eq(entry.ours(), answer));
        return same.map_or(answer, |entry| entry.ours().cast_mut());
    }
    if next::layer_in_front().is_some_and(|front| front.holds(answer)) {
        // The layer's function calls ours. Without it, the layer would not count what the job takes.
        return answer;
    }
    let Ok(name) = asked_name.to_str() else {
        return answer;
    };
    let base = variant(name).base;
    let family = || DRIVER().iter().filter(|entry| variant(entry.name()).base == base);
    if let Some(same) = family().find(|entry| entry.next().and_then(|next| next.get()) == Some(answer)) {
        return same.ours().cast_mut();
    }
    let chosen = family().find(|entry| is_answered_for(entry, answer)).or_else(|| {
        // The next layer tells its functions apart, and this one is none of ours: a later release has introduced it,
        // with other arguments.
        let tells_apart = asked(asked_name, version, flags) == Some(answer);
        let by_name = || family().filter(|entry| suits(entry, version, flags)).max_by_key(rank);
        if tells_apart { None } else { by_name() }
    });
    match chosen {
        Some(chosen) => {
            if let Some(next) = chosen.next() {
                next.adopt(answer);
            }
            chosen.ours().cast_mut()
        }
        None => answer,
    }
}

/// Whether the next layer answers this address if it is asked for this very function.
fn is_answered_for(entry: &Entry, answer: *mut c_void) -> bool {
    let variant = variant(entry.name());
    let second = second_generation_since(variant.base);
    let has_second = DRIVER().iter().any(|other| {
        let other = self::variant(other.name());
        other.base == variant.base && other.generation == 2
    });
    let version = match variant.generation {
        1 if has_second => second - 1,
        1 => KNOWN_VERSION,
        _ => since(&variant),
    };
    let flags = if variant.per_thread {
        PER_THREAD_DEFAULT_STREAM
    } else {
        LEGACY_STREAM
    };
    CString::new(variant.base).is_ok_and(|name| asked(&name, version, flags) == Some(answer))
}

/// What the next layer answers for `name`.
fn asked(name: &CStr, version: i32, flags: u64) -> Option<*mut c_void> {
    let (mut newest, mut found) = (0, ptr::null_mut());
    // SAFETY: the pointers are to variables of this frame, and CUDA allows the status to be null.
    unsafe {
        check(next::cuDriverGetVersion(&mut newest)).ok()?;
        let version = version.min(newest);
        match check(next::cuGetProcAddress_v2(
            name.as_ptr(),
            &mut found,
            version,
            flags,
            ptr::null_mut(),
        )) {
            Err(DriverError::NOT_FOUND) => {
                check(next::cuGetProcAddress(name.as_ptr(), &mut found, version, flags)).ok()?
            }
            answer => answer.ok()?,
        }
    }
    (!found.is_null()).then_some(found)
}

fn suits(entry: &Entry, version: i32, flags: u64) -> bool {
    let variant = variant(entry.name());
    version >= since(&variant) && (!variant.per_thread || flags & PER_THREAD_DEFAULT_STREAM != 0)
}

fn rank(entry: &Entry) -> (bool, u32) {
    let variant = variant(entry.name());
    (variant.per_thread, variant.generation)
}
