//! The exported driver functions, as `cuda.h` declares them; each hands its call to the engine.
//!
//! Every function here has the C signature of its name and keeps that function's contract: pointers from the job are used
//! only as the contract allows. `next/signatures.rs` has the same list for calling the next layer. An unsuffixed name
//! that also has a `_v2` is the 32-bit function of CUDA 3.1, and is forwarded and recorded as that function.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the CUDA function of the same name

use std::ffi::{c_char, c_void};

use super::route::route;
use crate::engine::{ArrayShape, Key, Location, enter, enter_if_limited, enter_running};
use crate::next::{self, *};
use base::api::{Api, Class};
use base::cuda::{check, result_code};

/// Defines an exported function. `engine` runs if the library takes part in the call. It can use the closure `below`,
/// which calls the next layer's function with the job's own arguments. Here result codes become `Result`s and back.
macro_rules! export {
    ($(
        $name:ident($($argument:ident: $type:ty),*) $enter:ident($api:ident) |$call:ident, $below:ident| $engine:expr;
    )+) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
            // SAFETY: the job's own arguments go to the function that the job called.
            let $below = || check(unsafe { next::$name($($argument),*) });
            result_code(match $enter(Api::$api) {
                Some($call) => $engine,
                None => $below(),
            })
        }
    )+};
}

pub(super) use export;

/// Reads an out-parameter after a successful call.
macro_rules! written {
    ($out:ident) => {
        // SAFETY: the call has written it, and no call with a null pointer succeeds.
        || unsafe { *$out }
    };
    ($out:ident as $type:ty) => {
        // SAFETY: as above.
        || unsafe { *$out as $type }
    };
}

// ---- linear, pitched, managed, host -----------------------------------------------------------------------------------

export! {
    cuMemAlloc_v2(out: *mut CUdeviceptr, size: usize) enter(cuMemAlloc) |call, _below| {
        // SAFETY: `out` is null or writable by the function's contract.
        unsafe { call.allocate_linear(out, size) }
    };
    cuMemAlloc(out: *mut CUdeviceptrV1, size: u32) enter(cuMemAlloc_v1) |call, below| {
        call.obtain_direct(Class::Linear, Location::current(), u64::from(size), below, written!(out as u64))
    };
    cuMemAllocPitch_v2(out: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: u32)
    enter(cuMemAllocPitch) |call, below| {
        // SAFETY: the values are read after success only.
        call.obtain_pitched(width as u64, height as u64, below, || unsafe { (*out, *pitch as u64) })
    };
    cuMemAllocPitch(out: *mut CUdeviceptrV1, pitch: *mut u32, width: u32, height: u32, element: u32)
    enter(cuMemAllocPitch) |call, below| {
        // SAFETY: the values are read after success only.
        call.obtain_pitched(u64::from(width), u64::from(height), below, || unsafe { (u64::from(*out), u64::from(*pitch)) })
    };
    cuMemAllocManaged(out: *mut CUdeviceptr, size: usize, flags: u32) enter(cuMemAllocManaged) |call, below| {
        call.obtain_direct(Class::Managed, Location::current(), size as u64, below, written!(out))
    };
    cuMemFree_v2(address: CUdeviceptr) enter(cuMemFree) |call, below| call.free(address, below);
    cuMemFree(address: CUdeviceptrV1) enter(cuMemFree_v1) |call, below| call.free(u64::from(address), below);
    cuMemAllocHost_v2(out: *mut *mut c_void, size: usize) enter(cuMemAllocHost) |call, below| {
        call.obtain_host(size as u64, below, written!(out))
    };
    cuMemAllocHost(out: *mut *mut c_void, size: u32) enter(cuMemAllocHost) |call, below| {
        call.obtain_host(u64::from(size), below, written!(out))
    };
    cuMemHostAlloc(out: *mut *mut c_void, size: usize, flags: u32) enter(cuMemHostAlloc) |call, below| {
        call.obtain_host(size as u64, below, written!(out))
    };
    cuMemFreeHost(address: *mut c_void) enter(cuMemFreeHost) |call, below| {
        call.give_back(Key::Address(address as u64), below)
    };
    cuMemHostRegister(address: *mut c_void, size: usize, flags: u32) enter(cuMemHostRegister) |call, below| {
        call.register_host(address, size as u64, below)
    };
    cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: u32) enter(cuMemHostRegister) |call, below| {
        call.register_host(address, size as u64, below)
    };
    cuMemHostUnregister(address: *mut c_void) enter(cuMemHostUnregister) |call, below| {
        call.give_back(Key::Registered(address as u64), below)
    };
}

// ---- stream-ordered ----------------------------------------------------------------------------------------------------

/// As `export!`, for both variants of functions of a stream: the default stream of the second is that of the thread, and then
/// `per_thread` is true.
macro_rules! export_both_variants {
    (|$call:ident, $below:ident, $per_thread:ident| $(
        $name:ident $of_thread:ident($($argument:ident: $type:ty),*) $enter:ident($api:ident) $engine:expr;
    )+) => {
        $crate::abi::driver::export! {$(
            $name($($argument: $type),*) $enter($api) |$call, $below| { let $per_thread = false; $engine };
            $of_thread($($argument: $type),*) $enter($api) |$call, $below| { let $per_thread = true; $engine };
        )+}
    };
}

/// The stream that a variant of a function means.
pub(super) fn meant(stream: CUstream, per_thread: bool) -> usize {
    if per_thread && stream.is_null() {
        STREAM_PER_THREAD
    } else {
        stream as usize
    }
}

export_both_variants! { |call, below, per_thread|
    cuMemAllocAsync cuMemAllocAsync_ptsz(out: *mut CUdeviceptr, size: usize, stream: CUstream) enter(cuMemAllocAsync) {
        call.allocate_async(written!(out), size, std::ptr::null_mut(), meant(stream, per_thread), below)
    };
    cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz(
        out: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream
    ) enter(cuMemAllocFromPoolAsync) {
        call.allocate_async(written!(out), size, pool, meant(stream, per_thread), below)
    };
    cuMemFreeAsync cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream) enter(cuMemFreeAsync) {
        call.free_async(address, meant(stream, per_thread), below)
    };
    cuStreamSynchronize cuStreamSynchronize_ptsz(stream: CUstream) enter_running(Policy) {
        call.stream_waits(meant(stream, per_thread), below)
    };
}

/// The device of a location; none if the pointer is null, which the next layer reports.
macro_rules! device_named {
    ($location:ident) => {
        // SAFETY: a pointer that is not null is readable by the function's contract.
        (!$location.is_null()).then(|| unsafe { Location::device_at($location) })
    };
}

export! {
    cuMemPoolCreate(out: *mut CUmemoryPool, properties: *const CUmemPoolProps) enter(cuMemPoolCreate) |call, below| {
        // SAFETY: a pointer that is not null is readable by the function's contract.
        let device = (!properties.is_null()).then(|| unsafe { Location::device_at(&raw const (*properties).location) });
        call.pool_on(device, written!(out), below)
    };
    cuMemPoolDestroy(pool: CUmemoryPool) enter(cuMemPoolDestroy) |call, below| call.destroy_pool(pool, below);
    cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) enter(cuMemPoolTrimTo) |call, below| {
        call.change_pool(pool, below)
    };
    cuMemPoolImportFromShareableHandle(out: *mut CUmemoryPool, handle: *mut c_void, kind: u32, flags: u64)
    enter(Policy) |call, below| call.imports_pool(written!(out), below);
    cuMemGetDefaultMemPool(out: *mut CUmemoryPool, location: *mut CUmemLocation, kind: u32)
    enter(Policy) |call, below| call.pool_on(device_named!(location), written!(out), below);
    cuMemGetMemPool(out: *mut CUmemoryPool, location: *mut CUmemLocation, kind: u32) enter(Policy) |call, below| {
        call.pool_on(device_named!(location), written!(out), below)
    };
    cuMemSetMemPool(location: *mut CUmemLocation, kind: u32, pool: CUmemoryPool) enter(Policy) |call, below| {
        call.pool_on(device_named!(location), || pool, below)
    };
    cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void)
    enter(cuMemPoolSetAttribute) |call, below| call.change_pool(pool, below);
    cuMemPoolImportPointer(out: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut c_void)
    enter(cuMemPoolImportPointer) |call, below| {
        call.import(written!(out), Key::Address, size_at, below)
    };
    cuEventSynchronize(event: CUevent) enter_running(Policy) |call, below| call.event_waits(below);
    cuCtxSynchronize() enter_running(Policy) |call, below| call.context_waits(0, below);
    cuCtxSynchronize_v2(context: CUcontext) enter_running(Policy) |call, below| {
        call.context_waits(context as u64, below)
    };
}

// ---- virtual memory management -----------------------------------------------------------------------------------------

export! {
    cuMemAddressReserve(out: *mut CUdeviceptr, size: usize, alignment: usize, address: CUdeviceptr, flags: u64)
    enter(cuMemAddressReserve) |call, below| call.reserve_range(written!(out), size as u64, below);
    cuMemAddressFree(address: CUdeviceptr, size: usize) enter(cuMemAddressFree) |call, below| {
        call.give_back(Key::Range(address), below)
    };
    cuMemCreate(out: *mut Handle, size: usize, properties: *const CUmemAllocationProp, flags: u64)
    enter(cuMemCreate) |call, below| {
        // SAFETY: a pointer that is not null is readable by the function's contract.
        let device = (!properties.is_null()).then(|| unsafe { Location::device_at(&raw const (*properties).location) });
        call.create_physical(device.unwrap_or(HOST_DEVICE), size as u64, written!(out), below)
    };
    cuMemRelease(handle: Handle) enter(cuMemRelease) |call, below| call.release_physical(handle, below);
    cuMemMap(address: CUdeviceptr, size: usize, offset: usize, handle: Handle, flags: u64)
    enter(cuMemMap) |call, below| call.map_physical(address, size as u64, handle, below);
    cuMemUnmap(address: CUdeviceptr, size: usize) enter(cuMemUnmap) |call, below| {
        call.unless_pooled(address, || call.unmap_physical(address, size as u64, below))
    };
    cuMemSetAccess(address: CUdeviceptr, size: usize, access: *const CUmemAccessDesc, count: usize)
    enter_running(cuMemMap) |call, below| call.unless_pooled(address, below);
    cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, address: CUdeviceptr)
    enter_running(cuMemMap) |call, _below| {
        // SAFETY: each pointer is null or valid by the function's contract.
        unsafe { call.access_flags(flags, location, address) }
    };
    cuMemRetainAllocationHandle(out: *mut Handle, address: *mut c_void)
    enter(cuMemRetainAllocationHandle) |call, below| call.retain_physical(written!(out), address as u64, below);
    cuMemExportToShareableHandle(out: *mut c_void, handle: Handle, kind: u32, flags: u64)
    enter_running(cuMemCreate) |call, below| {
        // SAFETY: the job's own arguments.
        unsafe { call.export_physical((out, handle, kind), below) }
    };
    cuMemImportFromShareableHandle(out: *mut Handle, os_handle: *mut c_void, kind: u32)
    enter(cuMemImportFromShareableHandle) |call, below| {
        call.import_physical(written!(out), (os_handle, kind), below)
    };
}

// ---- arrays --------------------------------------------------------------------------------------------------------------

/// The shape in a descriptor; none if the pointer is null, which the next layer reports.
macro_rules! shape {
    ($descriptor:ident v1) => {{
        // SAFETY: null or readable by the function's contract.
        unsafe { $descriptor.as_ref() }.map(ArrayShape::from)
    }};
    ($descriptor:ident $read:ident) => {
        // SAFETY: as above.
        (!$descriptor.is_null()).then(|| unsafe { ArrayShape::$read($descriptor) })
    };
}

export! {
    cuArrayCreate(out: *mut CUarray, descriptor: *const ArrayDescriptorV1) enter(cuArrayCreate) |call, below| {
        let size = shape!(descriptor v1).map_or(0, |shape| shape.bytes());
        call.obtain_array(Class::Array, size, below, written!(out as u64))
    };
    cuArrayCreate_v2(out: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR) enter(cuArrayCreate) |call, below| {
        let size = shape!(descriptor plane).map_or(0, |shape| shape.bytes());
        call.obtain_array(Class::Array, size, below, written!(out as u64))
    };
    cuArray3DCreate(out: *mut CUarray, descriptor: *const Array3dDescriptorV1) enter(cuArray3DCreate) |call, below| {
        let size = shape!(descriptor v1).map_or(0, |shape| shape.bytes());
        call.obtain_array(Class::Array, size, below, written!(out as u64))
    };
    cuArray3DCreate_v2(out: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR)
    enter(cuArray3DCreate) |call, below| {
        let size = shape!(descriptor volume).map_or(0, |shape| shape.bytes());
        call.obtain_array(Class::Array, size, below, written!(out as u64))
    };
    cuArrayDestroy(array: CUarray) enter(cuArrayDestroy) |call, below| {
        call.give_back(Key::Object(array as u64), below)
    };
    cuMipmappedArrayCreate(out: *mut CUmipmappedArray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR, levels: u32)
    enter(cuMipmappedArrayCreate) |call, below| {
        let size = shape!(descriptor volume).map_or(0, |shape| shape.mipmap_bytes(levels));
        call.obtain_array(Class::Mipmap, size, below, written!(out as u64))
    };
    cuMipmappedArrayDestroy(array: CUmipmappedArray) enter(cuMipmappedArrayDestroy) |call, below| {
        call.give_back(Key::Object(array as u64), below)
    };
}

// ---- memory of other processes and APIs ------------------------------------------------------------------------------------

export! {
    cuIpcGetMemHandle(out: *mut CUipcMemHandle, address: CUdeviceptr) enter(cuIpcGetMemHandle) |call, below| {
        // SAFETY: `out` is null or writable by the function's contract.
        unsafe { call.ipc_export(out, address, below) }
    };
    cuIpcOpenMemHandle(out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32)
    enter(cuIpcOpenMemHandle) |call, below| {
        // SAFETY: `out` is null or writable by the function's contract.
        unsafe { call.ipc_open(out, &handle, flags, size_at, below) }
    };
    cuIpcOpenMemHandle_v2(out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32)
    enter(cuIpcOpenMemHandle) |call, below| {
        // SAFETY: `out` is null or writable by the function's contract.
        unsafe { call.ipc_open(out, &handle, flags, size_at, below) }
    };
    cuIpcCloseMemHandle(address: CUdeviceptr) enter(cuIpcCloseMemHandle) |call, below| {
        call.ipc_close(address, below)
    };
    cuImportExternalMemory(out: *mut CUexternalMemory, descriptor: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC)
    enter(cuImportExternalMemory) |call, below| {
        // SAFETY: it is read after success only, and no call with a null descriptor succeeds.
        call.import(written!(out as u64), Key::Object, |_| unsafe { (*descriptor).size }, below)
    };
    cuExternalMemoryGetMappedBuffer(
        out: *mut CUdeviceptr, memory: CUexternalMemory, descriptor: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC
    ) enter(cuImportExternalMemory) |call, below| {
        // SAFETY: as above.
        call.import(written!(out), Key::Address, |_| unsafe { (*descriptor).size }, below)
    };
    cuDestroyExternalMemory(memory: CUexternalMemory) enter(cuDestroyExternalMemory) |call, below| {
        call.give_back(Key::Object(memory as u64), below)
    };
}

/// Bytes of the allocation at `address`, as the next layer tells them; 0 if it does not.
fn size_at(address: CUdeviceptr) -> u64 {
    let mut size = 0usize;
    // SAFETY: the pointer is to a variable of this frame, and CUDA allows the base to be null.
    unsafe { next::cuMemGetAddressRange_v2(std::ptr::null_mut(), &mut size, address) };
    size as u64
}

// ---- questions -----------------------------------------------------------------------------------------------------------------

export! {
    cuMemGetInfo(free: *mut u32, total: *mut u32) enter_if_limited(cuMemGetInfo) |call, _below| {
        // SAFETY: each pointer is null or writable by the function's contract.
        unsafe { call.memory_info(free, total, |free, total| next::cuMemGetInfo(free, total)) }
    };
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) enter(cuMemGetInfo) |call, _below| {
        // SAFETY: each pointer is null or writable by the function's contract.
        unsafe { call.memory_info(free, total, |free, total| next::cuMemGetInfo_v2(free, total)) }
    };
    cuDeviceTotalMem(out: *mut u32, device: CUdevice) enter_if_limited(cuMemGetInfo) |call, below| {
        // SAFETY: the function's contract.
        unsafe { call.device_total(out, device, below()) }
    };
    cuDeviceTotalMem_v2(out: *mut usize, device: CUdevice) enter_if_limited(cuMemGetInfo) |call, below| {
        // SAFETY: the function's contract.
        unsafe { call.device_total(out, device, below()) }
    };
    cuMemGetAddressRange(base: *mut CUdeviceptrV1, size: *mut u32, address: CUdeviceptrV1)
    enter_running(cuMemGetInfo) |_call, below| below();
    cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr)
    enter_running(cuMemGetInfo) |call, _below| {
        // SAFETY: each pointer is null or writable by the function's contract.
        unsafe { call.address_range(base, size, address) }
    };
    cuPointerGetAttribute(out: *mut c_void, attribute: u32, address: CUdeviceptr)
    enter_running(cuMemGetInfo) |call, _below| {
        let asked = call.address_for_next_layer(address);
        // SAFETY: the job's own arguments, except for the address, which the function does not access.
        let result = check(unsafe { next::cuPointerGetAttribute(out, attribute, asked) });
        if result.is_ok() {
            // SAFETY: the function's contract.
            unsafe { call.pointer_attribute(out, attribute, address) };
        }
        result
    };
    cuPointerGetAttributes(count: u32, attributes: *mut u32, out: *mut *mut c_void, address: CUdeviceptr)
    enter_running(cuMemGetInfo) |call, _below| {
        let asked = call.address_for_next_layer(address);
        // SAFETY: as above.
        let result = check(unsafe { next::cuPointerGetAttributes(count, attributes, out, asked) });
        if result.is_ok() && !attributes.is_null() && !out.is_null() {
            for index in 0..count as usize {
                // SAFETY: both arrays have `count` elements by the function's contract.
                unsafe { call.pointer_attribute(*out.add(index), *attributes.add(index), address) };
            }
        }
        result
    };
}

export! {
    cuPointerSetAttribute(value: *const c_void, attribute: u32, address: CUdeviceptr)
    enter_running(Policy) |call, below| {
        // SAFETY: `value` has the type of the attribute by the function's contract.
        unsafe { call.set_pointer_attribute(value, attribute, address, below) }
    };
    cuMemGetHandleForAddressRange(out: *mut c_void, address: CUdeviceptr, size: usize, kind: u32, flags: u64)
    enter_running(Policy) |call, below| call.export_range(address, size, below);
}

// ---- streams and captures -------------------------------------------------------------------------------------------------------------------

export_both_variants! { |call, below, per_thread|
    cuStreamBeginCapture cuStreamBeginCapture_ptsz(stream: CUstream) enter(Policy) {
        call.capture_begins(meant(stream, per_thread), below)
    };
    cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: u32) enter(Policy) {
        call.capture_begins(meant(stream, per_thread), below)
    };
    cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz(
        stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const c_void, count: usize, mode: u32
    ) enter(Policy) {
        call.capture_begins(meant(stream, per_thread), below)
    };
    cuStreamBeginRecaptureToGraph cuStreamBeginRecaptureToGraph_ptsz(
        stream: CUstream, mode: u32, graph: CUgraph, callback: *mut c_void, data: *mut c_void
    ) enter(Policy) {
        call.capture_begins(meant(stream, per_thread), below)
    };
    cuStreamBeginCaptureToCig cuStreamBeginCaptureToCig_ptsz(stream: CUstream, parameters: *mut c_void) enter(Policy) {
        call.capture_begins(meant(stream, per_thread), below)
    };
    cuStreamEndCaptureToCig cuStreamEndCaptureToCig_ptsz(stream: CUstream) enter(Policy) {
        call.capture_ends(meant(stream, per_thread), below)
    };
    cuStreamEndCapture cuStreamEndCapture_ptsz(stream: CUstream, out: *mut CUgraph) enter(Policy) {
        call.capture_ends(meant(stream, per_thread), below)
    };
}

export! {
    cuStreamCreate(out: *mut CUstream, flags: u32) enter(Policy) |call, below| call.stream_created(below);
    cuStreamCreateWithPriority(out: *mut CUstream, flags: u32, priority: i32) enter(Policy) |call, below| {
        call.stream_created(below)
    };
    cuStreamDestroy(stream: CUstream) enter(Policy) |call, below| call.stream_destroyed(stream as usize, below);
    cuStreamDestroy_v2(stream: CUstream) enter(Policy) |call, below| call.stream_destroyed(stream as usize, below);
}

// ---- contexts: primary and green ones, the end of contexts, and access between them ------------------------------------------------

export! {
    cuCtxDestroy(context: CUcontext) enter_running(cuCtxDestroy) |call, below| call.context_destroyed(context, below);
    cuCtxDestroy_v2(context: CUcontext) enter_running(cuCtxDestroy) |call, below| call.context_destroyed(context, below);
    cuCtxAttach(out: *mut CUcontext, flags: u32) enter(Policy) |call, below| {
        call.context_attached(below, written!(out))
    };
    cuCtxDetach(context: CUcontext) enter_running(cuCtxDestroy) |call, below| call.context_detached(context, below);
    cuDevicePrimaryCtxRetain(out: *mut CUcontext, device: CUdevice) enter_if_limited(Policy) |call, below| {
        call.primary_retained(device, below)
    };
    cuDevicePrimaryCtxRelease(device: CUdevice) enter_running(cuDevicePrimaryCtxRelease) |call, below| {
        call.primary_released(device, below)
    };
    cuDevicePrimaryCtxRelease_v2(device: CUdevice) enter_running(cuDevicePrimaryCtxRelease) |call, below| {
        call.primary_released(device, below)
    };
    cuDevicePrimaryCtxReset(device: CUdevice) enter_running(cuDevicePrimaryCtxReset) |call, below| {
        call.primary_released(device, below)
    };
    cuDevicePrimaryCtxReset_v2(device: CUdevice) enter_running(cuDevicePrimaryCtxReset) |call, below| {
        call.primary_released(device, below)
    };
}

export! {
    cuGreenCtxCreate(out: *mut CUgreenCtx, description: *mut c_void, device: CUdevice, flags: u32)
    enter(Policy) |call, below| call.green_created(device, below);
    cuGreenCtxDestroy(green: CUgreenCtx) enter_running(Policy) |call, below| call.green_destroyed(green, below);
    cuGreenCtxStreamCreate(out: *mut CUstream, green: CUgreenCtx, flags: u32, priority: i32)
    enter(Policy) |call, below| call.stream_created(below);
}

export! {
    cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) enter(Policy) |call, below| {
        call.peer_access(peer as u64, true, below)
    };
    cuCtxDisablePeerAccess(peer: CUcontext) enter(Policy) |call, below| call.peer_access(peer as u64, false, below);
}

// ---- look-up -------------------------------------------------------------------------------------------------------------------

/// # Safety
/// As the CUDA function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: i32, flags: u64) -> i32 {
    // SAFETY: the job's own arguments; `out` is read after success only.
    unsafe {
        let result = next::cuGetProcAddress(name, out, version, flags);
        if result == SUCCESS && !out.is_null() {
            *out = route(name, *out, version, flags);
        }
        result
    }
}

/// # Safety
/// As the CUDA function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> i32 {
    // SAFETY: the job's own arguments; `out` is read after success only.
    unsafe {
        let result = next::cuGetProcAddress_v2(name, out, version, flags, status);
        if result == SUCCESS && !out.is_null() {
            *out = route(name, *out, version, flags);
        }
        result
    }
}
