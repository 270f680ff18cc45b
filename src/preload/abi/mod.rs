//! The front door: every exported C name. Each takes its arguments, calls the engine and returns the result.
//!
//! This file has the one table of hooks, from name to function, that both `dlsym` and `cuGetProcAddress` read.

mod control;
mod dlsym;
mod driver;
mod graphs;
mod nvml;
mod nvtx;
mod operations;
mod process;
mod route;
mod runtime;
mod table;
mod torch;

use crate::hooked_driver_functions;
use crate::next;
use table::{Entry, table};

/// What the hooked driver functions do.
mod done {
    pub use super::{driver::*, graphs::*, operations::*};
}

/// The table of the hooked driver functions, the arguments of each, and the functions themselves.
macro_rules! export_driver {
    ($($name:ident($($argument:ident: $type:ty),*);)+) => {
        table! { DRIVER "vramshim_driver_table": $($name hooks::$name [next::hooked::slots::$name])+ }

        #[allow(non_camel_case_types)]
        mod arguments {
            use crate::next::*;
            use std::ffi::{c_char, c_void};

            $(pub type $name = ($($type,)*);)+
        }

        #[allow(non_snake_case)]
        #[allow(clippy::missing_safety_doc)] // one contract for all: the CUDA function of the same name
        #[allow(clippy::too_many_arguments)] // as many as the CUDA function of the same name
        mod hooks {
            use crate::next::*;
            use std::ffi::{c_char, c_void};

            $(
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
                    // SAFETY: the job's own arguments keep the contract of the function.
                    unsafe { super::done::$name(($($argument,)*)) }
                }
            )+
        }
    };
}
hooked_driver_functions!(export_driver);

macro_rules! runtime_table {
    ($($name:ident($($argument:ident: $type:ty),*) $api:ident;)+) => {
        table! {
            RUNTIME "vramshim_runtime_table": $($name runtime::$name [])+
            cudaGetDriverEntryPoint runtime::cudaGetDriverEntryPoint []
            cudaGetDriverEntryPoint_ptsz runtime::cudaGetDriverEntryPoint_ptsz []
            cudaGetDriverEntryPointByVersion runtime::cudaGetDriverEntryPointByVersion []
            cudaGetDriverEntryPointByVersion_ptsz runtime::cudaGetDriverEntryPointByVersion_ptsz []
        }
    };
}
runtime::hooked_runtime_functions!(runtime_table);

macro_rules! nvml_table {
    ($($name:ident,)+) => {
        table! { NVML "vramshim_nvml_table": $($name nvml::$name [next::nvml::functions::slots::$name])+ }
    };
}
nvml_table! {
    nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetComputeRunningProcesses,
    nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3,
}

/// The entry of this name. Names are matched whole: a match by prefix would take cuDNN's `cudnnCreate` for a CUDA
/// function.
pub fn entry(name: &[u8]) -> Option<Entry> {
    let table = match name {
        [b'n', ..] => NVML(),
        [b'c', b'u', b'd', b'a', ..] => RUNTIME(),
        _ => DRIVER(),
    };
    table.iter().find(|entry| entry.name().as_bytes() == name)
}
