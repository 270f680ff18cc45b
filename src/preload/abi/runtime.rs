//! The exported runtime functions. Each notes the function that the application called and forwards to the application's
//! runtime. The runtime keeps its own state consistent, and calls the driver through pointers to our driver functions.
//!
//! Two runtimes (.12 and .13) may be loaded in one process. A call goes to the runtime that the caller is linked with.
//! Who looks a function up by the handle of one of them gets that runtime's own function (`dlsym`). The calls of the driver
//! that it makes are recorded, under their own names.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the CUDA runtime function of the same name

use std::ffi::{c_char, c_void};

use super::route::route;
use crate::engine;
use crate::next::c_name;
use crate::next::runtimes::RuntimeFunction;
use base::api::Api;

/// `cudaErrorInsufficientDriver`: the error of a program that finds no usable runtime or driver.
const NO_RUNTIME: i32 = 35;

/// `struct cudaExtent`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent {
    width: usize,
    height: usize,
    depth: usize,
}

/// `struct cudaIpcMemHandle_st`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcMemHandle([c_char; 64]);

type Stream = *mut c_void;
type Pool = *mut c_void;

macro_rules! export {
    ($($name:ident($($argument:ident: $type:ty),*) $api:ident;)+) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
            let _scope = engine::runtime(Api::$api);
            static NEXT: RuntimeFunction = RuntimeFunction::new();
            let next = NEXT.get(c_name!($name));
            if next.is_null() {
                return NO_RUNTIME;
            }
            // SAFETY: the runtime's function of this name has the C signature that the public header gives it, and the
            // arguments are the application's own.
            unsafe {
                let next: unsafe extern "C" fn($($type),*) -> i32 = std::mem::transmute(next);
                next($($argument),*)
            }
        }
    )+};
}

/// Passes the hooked runtime functions to the macro `then`, as `name(argument: type, ...) name_in_the_journal;`.
macro_rules! hooked_runtime_functions {
    ($then:ident) => {
        $then! {
            cudaMalloc(out: *mut *mut c_void, size: usize) cudaMalloc;
            cudaFree(address: *mut c_void) cudaFree;
            cudaMallocPitch(out: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) cudaMallocPitch;
            cudaMalloc3D(out: *mut c_void, extent: Extent) cudaMalloc3D;
            cudaMallocManaged(out: *mut *mut c_void, size: usize, flags: u32) cudaMallocManaged;
            cudaMallocHost(out: *mut *mut c_void, size: usize) cudaMallocHost;
            cudaHostAlloc(out: *mut *mut c_void, size: usize, flags: u32) cudaHostAlloc;
            cudaFreeHost(address: *mut c_void) cudaFreeHost;
            cudaHostRegister(address: *mut c_void, size: usize, flags: u32) cudaHostRegister;
            cudaHostUnregister(address: *mut c_void) cudaHostUnregister;
            cudaMallocAsync(out: *mut *mut c_void, size: usize, stream: Stream) cudaMallocAsync;
            cudaMallocAsync_ptsz(out: *mut *mut c_void, size: usize, stream: Stream) cudaMallocAsync;
            cudaMallocFromPoolAsync(out: *mut *mut c_void, size: usize, pool: Pool, stream: Stream) cudaMallocFromPoolAsync;
            cudaMallocFromPoolAsync_ptsz(
                out: *mut *mut c_void, size: usize, pool: Pool, stream: Stream
            ) cudaMallocFromPoolAsync;
            cudaFreeAsync(address: *mut c_void, stream: Stream) cudaFreeAsync;
            cudaFreeAsync_ptsz(address: *mut c_void, stream: Stream) cudaFreeAsync;
            cudaMemPoolCreate(out: *mut Pool, properties: *const c_void) cudaMemPoolCreate;
            cudaMemPoolDestroy(pool: Pool) cudaMemPoolDestroy;
            cudaMemPoolTrimTo(pool: Pool, keep: usize) cudaMemPoolTrimTo;
            cudaMemPoolSetAttribute(pool: Pool, attribute: u32, value: *mut c_void) cudaMemPoolSetAttribute;
            cudaMemPoolImportPointer(out: *mut *mut c_void, pool: Pool, data: *mut c_void) cudaMemPoolImportPointer;
            cudaMallocArray(
                out: *mut *mut c_void, descriptor: *const c_void, width: usize, height: usize, flags: u32
            ) cudaMallocArray;
            cudaMalloc3DArray(out: *mut *mut c_void, descriptor: *const c_void, extent: Extent, flags: u32) cudaMalloc3DArray;
            cudaFreeArray(array: *mut c_void) cudaFreeArray;
            cudaMallocMipmappedArray(
                out: *mut *mut c_void, descriptor: *const c_void, extent: Extent, levels: u32, flags: u32
            ) cudaMallocMipmappedArray;
            cudaFreeMipmappedArray(array: *mut c_void) cudaFreeMipmappedArray;
            cudaIpcGetMemHandle(out: *mut IpcMemHandle, address: *mut c_void) cudaIpcGetMemHandle;
            cudaIpcOpenMemHandle(out: *mut *mut c_void, handle: IpcMemHandle, flags: u32) cudaIpcOpenMemHandle;
            cudaIpcCloseMemHandle(address: *mut c_void) cudaIpcCloseMemHandle;
            cudaImportExternalMemory(out: *mut *mut c_void, descriptor: *const c_void) cudaImportExternalMemory;
            cudaExternalMemoryGetMappedBuffer(
                out: *mut *mut c_void, memory: *mut c_void, descriptor: *const c_void
            ) cudaImportExternalMemory;
            cudaDestroyExternalMemory(memory: *mut c_void) cudaDestroyExternalMemory;
            cudaGraphAddMemAllocNode(
                out: *mut *mut c_void, graph: *mut c_void, dependencies: *const *mut c_void, count: usize, parameters: *mut c_void
            ) cudaGraphAddMemAllocNode;
            cudaGraphLaunch(graph: *mut c_void, stream: Stream) cudaGraphLaunch;
            cudaGraphLaunch_ptsz(graph: *mut c_void, stream: Stream) cudaGraphLaunch;
            cudaGraphExecDestroy(graph: *mut c_void) cudaGraphExecDestroy;
            cudaDeviceGraphMemTrim(device: i32) cudaDeviceGraphMemTrim;
            cudaDeviceReset() cudaDeviceReset;
            cudaMemGetInfo(free: *mut usize, total: *mut usize) cudaMemGetInfo;
        }
    };
}
pub(super) use hooked_runtime_functions;
hooked_runtime_functions!(export);

/// Defines a look-up function of the runtime: the runtime answers, then the address is replaced by that of our function.
macro_rules! export_entry_point {
    ($($name:ident($($extra:ident: $type:ty),*) $version:expr;)+) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            symbol: *const c_char, out: *mut *mut c_void, $($extra: $type,)* flags: u64, status: *mut u32
        ) -> i32 {
            static NEXT: RuntimeFunction = RuntimeFunction::new();
            let next = NEXT.get(c_name!($name));
            if next.is_null() {
                return NO_RUNTIME;
            }
            // SAFETY: as in `export!`; `out` is read after success only.
            unsafe {
                let next: unsafe extern "C" fn(
                    *const c_char, *mut *mut c_void, $($type,)* u64, *mut u32
                ) -> i32 = std::mem::transmute(next);
                let result = next(symbol, out, $($extra,)* flags, status);
                if result == 0 && !out.is_null() {
                    *out = route(symbol, *out, $version, flags);
                }
                result
            }
        }
    )+};
}

/// The version of the caller's runtime, for which the look-ups without a version ask.
fn own_version() -> i32 {
    static NEXT: RuntimeFunction = RuntimeFunction::new();
    let (next, mut version) = (NEXT.get(c"cudaRuntimeGetVersion"), 0);
    if !next.is_null() {
        // SAFETY: the runtime's function of this name has the C signature that the public header gives it, and the
        // pointer is to a variable of this frame.
        unsafe {
            let next: unsafe extern "C" fn(*mut i32) -> i32 = std::mem::transmute(next);
            next(&mut version);
        }
    }
    if version > 0 { version } else { i32::MAX }
}

export_entry_point! {
    cudaGetDriverEntryPoint() own_version();
    cudaGetDriverEntryPoint_ptsz() own_version();
    cudaGetDriverEntryPointByVersion(version: u32) version as i32;
    cudaGetDriverEntryPointByVersion_ptsz(version: u32) version as i32;
}
