//! `VRAMSHIM_HOST_GUARD`, read at the first request.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base::units::{LEAST_HOST_GUARD_BYTES, parse_size};

use crate::report;

/// Requests of more bytes are refused. 0 as long as the variable was not read, `NONE` if nothing is refused.
static BOUND: AtomicUsize = AtomicUsize::new(0);
const NONE: usize = usize::MAX;
const VARIABLE: &CStr = c"VRAMSHIM_HOST_GUARD";

/// Whether a request of this size is too large. Costs a load and a comparison.
#[inline(always)]
pub fn refuses(size: usize) -> bool {
    size > BOUND.load(Relaxed) && is_above(size)
}

pub fn bytes() -> usize {
    BOUND.load(Relaxed)
}

#[cold]
fn is_above(size: usize) -> bool {
    let mut bound = BOUND.load(Relaxed);
    if bound == 0 {
        bound = match read() {
            Some(bound) => bound,
            // The loader asks for memory before the environment is there.
            None => return false,
        };
        report::process_begins();
        BOUND.store(bound, Relaxed);
    }
    size > bound
}

/// `None` as long as there is no environment.
fn read() -> Option<usize> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    // SAFETY: glibc defines the variable, and sets it before the process has a second thread.
    if unsafe { environ }.is_null() {
        return None;
    }
    // SAFETY: the name is a C string.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return Some(NONE);
    }
    // SAFETY: `getenv` gives a C string, which nobody changes while the first requests are made.
    let value = unsafe { CStr::from_ptr(value) };
    // A size of 0, and an empty value, mean no bound.
    let size = if value.to_bytes().is_empty() {
        Some(0)
    } else {
        value.to_str().ok().and_then(parse_size)
    };
    match size {
        None => report::wrong_bound(value, format_args!("not a size")),
        Some(1..LEAST_HOST_GUARD_BYTES) => {
            report::wrong_bound(value, format_args!("less than {} MiB", LEAST_HOST_GUARD_BYTES >> 20));
        }
        Some(bytes) => {
            let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0);
            return Some(bytes.unwrap_or(NONE));
        }
    }
    Some(NONE)
}
