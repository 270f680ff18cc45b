//! The address of one function of the next layer, found at first use and kept.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::symbols;

/// The C name of an identifier, made at compile time.
macro_rules! c_name {
    ($name:ident) => {
        const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        }
    };
}
pub(crate) use c_name;

/// Defines a module with a slot for each of these functions, and a function of the same name that returns its `Function`.
macro_rules! functions {
    ($module:ident: $($name:ident)+) => {
        #[allow(non_snake_case, non_upper_case_globals)]
        pub mod $module {
            use crate::next::slot::{Function, Slot, c_name};

            pub mod slots {
                use super::Slot;
                $(pub static $name: Slot = Slot::new();)+
            }

            $(
                #[inline(always)]
                pub fn $name() -> Function {
                    Function { name: c_name!($name), slot: &slots::$name }
                }
            )+
        }
    };
}
pub(crate) use functions;

/// Defines functions that call those of the next layer. One that the next layer does not have answers `$absent`.
macro_rules! forward {
    ($functions:ident or $absent:expr => $($name:ident($($argument:ident: $type:ty),*);)+) => {
        $crate::next::slot::functions!($functions: $($name)+);
        $(
            /// Calls the next layer's function of this name.
            ///
            /// # Safety
            /// The caller keeps the contract of the function of this name.
            #[allow(non_snake_case)]
            #[allow(clippy::too_many_arguments)] // as many as the function has in the header
            #[inline]
            pub unsafe fn $name($($argument: $type),*) -> i32 {
                let Some(address) = $functions::$name().get() else { return $absent };
                // SAFETY: the next layer's function of this name has the C signature that the public header gives it.
                unsafe {
                    let function: unsafe extern "C" fn($($type),*) -> i32 = std::mem::transmute(address);
                    function($($argument),*)
                }
            }
        )+
    };
}
pub(crate) use forward;

/// Where the address of a function is kept. It begins as zeros and has no pointer to the name, so the loader has nothing to
/// do for it: there are some 250, in every process that inherits the preload.
pub struct Slot(AtomicPtr<c_void>);

/// The value of a slot whose function the next layer does not have.
pub(super) const ABSENT: *mut c_void = usize::MAX as *mut c_void;

impl Slot {
    pub const fn new() -> Self {
        Slot(AtomicPtr::new(ptr::null_mut()))
    }
}

/// A function of the next layer: its name, and where its address is kept.
#[derive(Clone, Copy)]
pub struct Function {
    pub name: &'static CStr,
    pub slot: &'static Slot,
}

impl Function {
    /// The function's address; `None` if the next layer does not have it. Two threads that look at the same time find the
    /// same address.
    #[inline(always)]
    pub fn get(self) -> Option<*mut c_void> {
        let known = self.slot.0.load(Ordering::Acquire);
        let found = if known.is_null() {
            find(self.name, self.slot)
        } else {
            known
        };
        (found != ABSENT).then_some(found)
    }

    /// Takes over `address`, which `cuGetProcAddress` answered, if no function was found by name.
    pub fn adopt(self, address: *mut c_void) {
        if self.get().is_none() {
            self.slot.0.store(address, Ordering::Release);
        }
    }
}

#[cold]
#[inline(never)]
fn find(name: &'static CStr, slot: &'static Slot) -> *mut c_void {
    let found = symbols::function(name);
    let found = if found.is_null() { ABSENT } else { found };
    slot.0.store(found, Ordering::Release);
    found
}
