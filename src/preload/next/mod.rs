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
mod signatures;
pub mod symbols;

pub use signatures::*;

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

pub use base::cuda::*;

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

    /// The function's address, or `None` where the layer below does not have it. Two threads may both look; they find
    /// the same.
    #[inline]
    pub fn get(&self) -> Option<*mut c_void> {
        let mut found = self.address.load(Ordering::Acquire);
        if found.is_null() {
            found = symbols::function(self.name);
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
