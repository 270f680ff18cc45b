//! The address of one function of the next layer, found at first use and kept.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::symbols;

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

pub struct Slot {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

/// The value of a slot whose function the next layer does not have.
const ABSENT: *mut c_void = usize::MAX as *mut c_void;

impl Slot {
    pub const fn new(name: &'static CStr) -> Self {
        Slot {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    pub fn c_name(&self) -> &'static CStr {
        self.name
    }

    /// The function's address; `None` if the next layer does not have it. Two threads that look at the same time find the
    /// same address.
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

    /// Takes over `address`, which `cuGetProcAddress` answered, if no function was found by name.
    pub fn adopt(&self, address: *mut c_void) {
        if self.get().is_none() {
            self.address.store(address, Ordering::Release);
        }
    }
}
