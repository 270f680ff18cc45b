//! The back door: functions of the next layer, each found once and kept.
//!
//! `signatures.rs` lists the functions, `next.rs` finds one by name, `memory.rs` is the live device memory a policy
//! works on. A function that the layer below does not have answers `CUDA_ERROR_NOT_FOUND` here; the hook of such a
//! function is never handed out, because `dlsym` and `cuGetProcAddress` ask the real one first.

/// The C name of an identifier, made at compile time.
macro_rules! c_name {
    ($name:ident) => {
        match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        }
    };
}
pub(crate) use c_name;

pub mod elf;
pub mod management;
pub mod memory;
pub mod next;
mod signatures;

pub use signatures::*;

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// CUDA's result codes that we have to name; every other one is passed on as the number it is.
pub const SUCCESS: i32 = 0;
pub const INVALID_VALUE: i32 = 1;
pub const OUT_OF_MEMORY: i32 = 2;
pub const DEINITIALISED: i32 = 4;
pub const INVALID_CONTEXT: i32 = 201;
pub const MAP_FAILED: i32 = 205;
pub const INVALID_HANDLE: i32 = 400;
pub const NOT_FOUND: i32 = 500;
pub const NOT_PERMITTED: i32 = 800;
pub const NOT_SUPPORTED: i32 = 801;

/// `CU_STREAM_LEGACY` is the default stream, 0; `CU_STREAM_PER_THREAD` is a different stream in each thread.
pub const STREAM_LEGACY: usize = 1;
pub const STREAM_PER_THREAD: usize = 2;

/// Where one function of the next layer is; found at first use.
pub struct Slot {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

/// Stands in a slot for "looked for and not there".
const ABSENT: *mut c_void = usize::MAX as *mut c_void;

impl Slot {
    pub const fn new(name: &'static CStr) -> Self {
        Slot {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub fn name(&self) -> &'static CStr {
        self.name
    }

    /// The function's address, or `None` where the layer below does not have it. Two threads may both look; they find
    /// the same.
    #[inline]
    pub fn get(&self) -> Option<*mut c_void> {
        let mut found = self.address.load(Ordering::Acquire);
        if found.is_null() {
            found = next::function(self.name);
            self.address
                .store(if found.is_null() { ABSENT } else { found }, Ordering::Release);
        }
        (found != ABSENT && !found.is_null()).then_some(found)
    }

    /// Takes `address` (from `cuGetProcAddress`) where nothing was found by name.
    pub fn adopt(&self, address: *mut c_void) {
        if self.get().is_none() {
            self.address.store(address, Ordering::Release);
        }
    }
}
