//! The front door: every exported C name. Arguments in, engine called, result out; no policy here.
//!
//! This file is the one table of exported name -> our function that `dlsym` and `cuGetProcAddress` both read.

mod control;
mod dlsym;
mod driver;
mod nvml;
mod process;
mod route;
mod runtime;
mod torch;

use std::ffi::c_void;

use crate::hooked_driver_functions;
use crate::real::{self, Slot};

/// One hooked function.
pub struct Entry {
    pub name: &'static str,
    /// Our function of that name.
    ours: *const c_void,
    /// Where the next layer's function is; runtime functions are found a caller at a time instead.
    pub slot: Option<&'static Slot>,
}

// SAFETY: the pointer is the address of a function and never written through.
unsafe impl Sync for Entry {}

macro_rules! driver_table {
    ($($name:ident($($argument:ident: $type:ty),*);)+) => {
        /// The hooked driver functions.
        pub static DRIVER: &[Entry] = &[$(
            Entry {
                name: stringify!($name),
                ours: driver::$name as *const c_void,
                slot: Some(&real::hooked::$name),
            },
        )+];
    };
}
hooked_driver_functions!(driver_table);

macro_rules! runtime_table {
    ($($name:ident,)+) => {
        /// The hooked runtime functions.
        pub static RUNTIME: &[Entry] = &[$(
            Entry { name: stringify!($name), ours: runtime::$name as *const c_void, slot: None },
        )+];
    };
}
runtime::hooked_runtime_functions!(runtime_table);

macro_rules! management_table {
    ($($name:ident,)+) => {
        /// The hooked functions of the management library.
        static MANAGEMENT: &[Entry] = &[$(
            Entry {
                name: stringify!($name),
                ours: nvml::$name as *const c_void,
                slot: Some(&real::management::slots::$name),
            },
        )+];
    };
}
management_table! {
    nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetComputeRunningProcesses,
    nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3,
}

impl Entry {
    pub fn ours(&self) -> *mut c_void {
        self.ours.cast_mut()
    }
}

/// The entry of exactly this name. Names are matched whole: a prefix match once sent cuDNN's `cudnnCreate` astray.
pub fn entry(name: &[u8]) -> Option<&'static Entry> {
    let table = match name {
        [b'n', ..] => MANAGEMENT,
        [b'c', b'u', b'd', b'a', ..] => RUNTIME,
        _ => DRIVER,
    };
    table.iter().find(|entry| entry.name.as_bytes() == name)
}

/// Our function of this name, for the exported `dlsym`.
pub fn lookup(name: &[u8]) -> Option<*const c_void> {
    entry(name).map(|entry| entry.ours)
}
