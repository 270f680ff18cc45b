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

use crate::engine;
use crate::hooked_driver_functions;
use crate::next::{self, Slot};
use base::api::Api;
use journal::format::Route;

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
                slot: Some(&next::hooked::$name),
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
                slot: Some(&next::management::slots::$name),
            },
        )+];
    };
}
management_table! {
    nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetComputeRunningProcesses,
    nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3,
}

impl Entry {
    /// Our function, for a job that looks it up by `route`.
    fn hand_out(&self, route: Route) -> *mut c_void {
        engine::handed_out(route, self.api());
        self.ours.cast_mut()
    }

    /// What calls of it are recorded under, if they are.
    fn api(&self) -> Option<Api> {
        let variant = route::variant(self.name);
        let called = |name: &str| Api::ALL.iter().find(|api| api.name() == name).copied();
        match variant.base {
            "cuGraphAddNode" => Some(Api::cuGraphAddMemAllocNode),
            "cuExternalMemoryGetMappedBuffer" => Some(Api::cuImportExternalMemory),
            "cudaExternalMemoryGetMappedBuffer" => Some(Api::cudaImportExternalMemory),
            "cuMemAlloc" if variant.generation == 1 => Some(Api::cuMemAlloc_v1),
            "cuMemFree" if variant.generation == 1 => Some(Api::cuMemFree_v1),
            base => called(base),
        }
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
