//! What the hooked driver functions do: each hands its call to the engine. `abi/mod.rs` exports them, with the signatures of
//! `next/signatures.rs`.
//!
//! Every function here keeps the contract of the CUDA function of its name: pointers from the job are used only as that
//! allows. An unsuffixed name that also has a `_v2` is the 32-bit function of CUDA 3.1, and is forwarded and recorded as that
//! function.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the CUDA function of the same name

use std::ptr;

use super::route::route;
use crate::engine::{
    ArrayShape, Key, Location, Place, Waited, enter, enter_if_limited, enter_running, primary_released,
};
use crate::next::{self, *};
use base::api::{Api, Class};
use base::cuda::{check, result_code};

/// Defines what hooked functions do. A line has the names of functions, those of their arguments, how a call enters the
/// engine, the name of the call in the journal, and what is done if the library takes part in the call. There `below`
/// calls the next layer's function with the job's own arguments, and `per_thread` says whether the default stream of the
/// function is that of the thread. Here result codes become `Result`s and back.
macro_rules! hooks {
    (|$call:ident, $below:ident, $per_thread:ident| $(
        $($name:ident)+: $arguments:tt $enter:ident($api:ident) => $engine:expr;
    )+) => {$($(
        $crate::abi::driver::hooks! {
            one |$call, $below, $per_thread| $name $arguments $enter($api) => $engine
        }
    )+)+};
    (one |$call:ident, $below:ident, $per_thread:ident|
        $name:ident ($($argument:ident),*) $enter:ident($api:ident) => $engine:expr
    ) => {
        #[allow(unused_variables)] // Most functions have no need of all three.
        #[inline(always)]
        pub unsafe fn $name(($($argument,)*): $crate::abi::arguments::$name) -> i32 {
            let $per_thread = const { $crate::abi::route::is_of_thread(stringify!($name)) };
            // SAFETY: the job's own arguments go to the function that the job called.
            let $below = || check(unsafe { next::$name($($argument),*) });
            result_code(match $enter(Api::$api) {
                Some($call) => $engine,
                None => $below(),
            })
        }
    };
}

pub(super) use hooks;

/// Reads an out-parameter after a successful call, or makes the key of an allocation from it.
macro_rules! written {
    ($out:ident) => {
        // SAFETY: the call has written it, and no call with a null pointer succeeds.
        || unsafe { *$out }
    };
    ($out:ident as $type:ty) => {
        // SAFETY: as above.
        || unsafe { *$out as $type }
    };
    ($key:path, $out:ident) => {
        // SAFETY: as above.
        || $key(unsafe { *$out } as u64)
    };
}

// ---- linear, pitched, managed, host -----------------------------------------------------------------------------------

hooks! { |call, below, per_thread|
    cuMemAlloc_v2: (out, size) enter(cuMemAlloc) => {
        // SAFETY: `out` is null or writable by the function's contract.
        unsafe { call.allocate_linear(out, size) }
    };
    cuMemAlloc: (out, size) enter(cuMemAlloc_v1) => {
        call.obtain_direct(Class::Linear, Location::current(), size.into(), below, written!(Key::Address, out))
    };
    cuMemAllocPitch cuMemAllocPitch_v2: (out, pitch, width, height, element) enter(cuMemAllocPitch) => {
        call.obtain_pitched(width as u64, height as u64, below, written!(out as u64), written!(pitch as u64))
    };
    cuMemAllocManaged: (out, size, flags) enter(cuMemAllocManaged) => {
        call.obtain_direct(Class::Managed, Location::current(), size as u64, below, written!(Key::Address, out))
    };
    cuMemFree_v2: (address) enter(cuMemFree) => call.free(address, below);
    cuMemFree: (address) enter(cuMemFree_v1) => call.free(address.into(), below);
    cuMemAllocHost cuMemAllocHost_v2: (out, size) enter(cuMemAllocHost) => {
        call.obtain_host(size as u64, below, written!(Key::Address, out))
    };
    cuMemHostAlloc: (out, size, flags) enter(cuMemHostAlloc) => {
        call.obtain_host(size as u64, below, written!(Key::Address, out))
    };
    cuMemFreeHost: (address) enter(cuMemFreeHost) => call.give_back(Key::Address(address as u64), below);
    cuMemHostRegister cuMemHostRegister_v2: (address, size, flags) enter(cuMemHostRegister) => {
        let key = || Key::Registered(address as u64);
        call.obtain_direct(Class::HostRegistered, Some(Location::HOST), size as u64, below, key)
    };
    cuMemHostUnregister: (address) enter(cuMemHostUnregister) => {
        call.give_back(Key::Registered(address as u64), below)
    };
}

// ---- stream-ordered ----------------------------------------------------------------------------------------------------

/// The stream that a variant of a function means.
pub(super) fn meant(stream: CUstream, per_thread: bool) -> usize {
    if per_thread && stream.is_null() {
        STREAM_PER_THREAD
    } else {
        stream as usize
    }
}

/// The device of a location, or of the location in properties; none if the pointer is null, which the next layer reports.
macro_rules! device_named {
    ($location:ident) => {
        // SAFETY: a pointer that is not null is readable by the function's contract.
        (!$location.is_null()).then(|| unsafe { Location::device_at($location) })
    };
    (in $properties:ident) => {
        // SAFETY: as above.
        (!$properties.is_null()).then(|| unsafe { Location::device_at(&raw const (*$properties).location) })
    };
}

hooks! { |call, below, per_thread|
    cuMemAllocAsync cuMemAllocAsync_ptsz: (out, size, stream) enter(cuMemAllocAsync) => {
        call.allocate_async(written!(out), size, ptr::null_mut(), meant(stream, per_thread), below)
    };
    cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz: (out, size, pool, stream) enter(cuMemAllocFromPoolAsync) => {
        call.allocate_async(written!(out), size, pool, meant(stream, per_thread), below)
    };
    cuMemFreeAsync cuMemFreeAsync_ptsz: (address, stream) enter(cuMemFreeAsync) => {
        call.free_async(address, meant(stream, per_thread), below)
    };
    cuStreamSynchronize cuStreamSynchronize_ptsz: (stream) enter_running(Policy) => {
        call.wait(Waited::Stream(Place::of_stream(meant(stream, per_thread))), below)
    };
    cuMemPoolCreate: (out, properties) enter(cuMemPoolCreate) => {
        call.pool_on(device_named!(in properties), written!(out), below)
    };
    cuMemPoolDestroy: (pool) enter(cuMemPoolDestroy) => call.destroy_pool(pool, below);
    cuMemPoolTrimTo: (pool, keep) enter(cuMemPoolTrimTo) => call.change_pool(pool, below);
    cuMemPoolSetAttribute: (pool, attribute, value) enter(cuMemPoolSetAttribute) => call.change_pool(pool, below);
    cuMemPoolImportFromShareableHandle: (out, handle, kind, flags) enter(Policy) => {
        call.imports_pool(written!(out), below)
    };
    cuMemGetDefaultMemPool cuMemGetMemPool: (out, location, kind) enter(Policy) => {
        call.pool_on(device_named!(location), written!(out), below)
    };
    cuMemSetMemPool: (location, kind, pool) enter(Policy) => call.pool_on(device_named!(location), || pool, below);
    cuMemPoolImportPointer: (out, pool, data) enter(cuMemPoolImportPointer) => {
        call.import(written!(out), Key::Address, size_at, below)
    };
    cuEventSynchronize: (event) enter_running(Policy) => call.wait(Waited::Event, below);
    cuCtxSynchronize: () enter_running(Policy) => call.context_waits(0, below);
    cuCtxSynchronize_v2: (context) enter_running(Policy) => call.context_waits(context as u64, below);
}

// ---- virtual memory management -----------------------------------------------------------------------------------------

hooks! { |call, below, per_thread|
    cuMemAddressReserve: (out, size, alignment, address, flags) enter(cuMemAddressReserve) => {
        let location = Some(Location::of_device_here());
        call.obtain_direct(Class::AddressRange, location, size as u64, below, written!(Key::Range, out))
    };
    cuMemAddressFree: (address, size) enter(cuMemAddressFree) => call.give_back(Key::Range(address), below);
    cuMemCreate: (out, size, properties, flags) enter(cuMemCreate) => {
        let device = device_named!(in properties).unwrap_or(HOST_DEVICE);
        call.create_physical(device, size as u64, written!(out), below)
    };
    cuMemRelease: (handle) enter(cuMemRelease) => call.release_physical(handle, below);
    cuMemMap: (address, size, offset, handle, flags) enter(cuMemMap) => {
        call.map_physical(address, size as u64, handle, below)
    };
    cuMemUnmap: (address, size) enter(cuMemUnmap) => {
        call.unless_pooled(address, || call.unmap_physical(address, size as u64, below))
    };
    cuMemSetAccess: (address, size, access, count) enter_running(cuMemMap) => call.unless_pooled(address, below);
    cuMemGetAccess: (flags, location, address) enter_running(cuMemMap) => {
        // SAFETY: each pointer is null or valid by the function's contract.
        unsafe { call.access_flags(flags, location, address) }
    };
    cuMemRetainAllocationHandle: (out, address) enter(cuMemRetainAllocationHandle) => {
        call.retain_physical(written!(out), address as u64, below)
    };
    cuMemExportToShareableHandle: (out, handle, kind, flags) enter_running(cuMemCreate) => {
        // SAFETY: the job's own arguments.
        unsafe { call.export_physical((out, handle, kind), below) }
    };
    cuMemImportFromShareableHandle: (out, os_handle, kind) enter(cuMemImportFromShareableHandle) => {
        call.import_physical(written!(out), (os_handle, kind), below)
    };
}

// ---- arrays --------------------------------------------------------------------------------------------------------------

/// What the bytes are of an array with this descriptor; 0 if the pointer is null, which the next layer reports.
macro_rules! bytes {
    ($descriptor:ident, $of_shape:expr) => {
        // SAFETY: null or readable by the function's contract.
        unsafe { $descriptor.as_ref() }
            .map(ArrayShape::from)
            .map_or(0, $of_shape)
    };
}

hooks! { |call, below, per_thread|
    cuArrayCreate cuArrayCreate_v2: (out, descriptor) enter(cuArrayCreate) => {
        let size = bytes!(descriptor, |shape| shape.bytes());
        call.obtain_direct(Class::Array, Location::current(), size, below, written!(Key::Object, out))
    };
    cuArray3DCreate cuArray3DCreate_v2: (out, descriptor) enter(cuArray3DCreate) => {
        let size = bytes!(descriptor, |shape| shape.bytes());
        call.obtain_direct(Class::Array, Location::current(), size, below, written!(Key::Object, out))
    };
    cuArrayDestroy: (array) enter(cuArrayDestroy) => call.give_back(Key::Object(array as u64), below);
    cuMipmappedArrayCreate: (out, descriptor, levels) enter(cuMipmappedArrayCreate) => {
        let size = bytes!(descriptor, |shape| shape.mipmap_bytes(levels));
        call.obtain_direct(Class::Mipmap, Location::current(), size, below, written!(Key::Object, out))
    };
    cuMipmappedArrayDestroy: (array) enter(cuMipmappedArrayDestroy) => {
        call.give_back(Key::Object(array as u64), below)
    };
}

// ---- memory of other processes and APIs ------------------------------------------------------------------------------------

hooks! { |call, below, per_thread|
    cuIpcGetMemHandle: (out, address) enter(cuIpcGetMemHandle) => {
        // SAFETY: `out` is null or writable by the function's contract.
        unsafe { call.ipc_export(out, address, below) }
    };
    cuIpcOpenMemHandle cuIpcOpenMemHandle_v2: (out, handle, flags) enter(cuIpcOpenMemHandle) => {
        // SAFETY: `out` is null or writable by the function's contract.
        unsafe { call.ipc_open(out, &handle, flags, size_at, below) }
    };
    cuIpcCloseMemHandle: (address) enter(cuIpcCloseMemHandle) => call.ipc_close(address, below);
    cuImportExternalMemory: (out, descriptor) enter(cuImportExternalMemory) => {
        // SAFETY: it is read after success only, and no call with a null descriptor succeeds.
        call.import(written!(out as u64), Key::Object, |_| unsafe { (*descriptor).size }, below)
    };
    cuExternalMemoryGetMappedBuffer: (out, memory, descriptor) enter(cuImportExternalMemory) => {
        // SAFETY: as above.
        call.import(written!(out), Key::Address, |_| unsafe { (*descriptor).size }, below)
    };
    cuDestroyExternalMemory: (memory) enter(cuDestroyExternalMemory) => {
        call.give_back(Key::Object(memory as u64), below)
    };
}

/// Bytes of the allocation at `address`, as the next layer tells them; 0 if it does not.
fn size_at(address: CUdeviceptr) -> u64 {
    let mut size = 0usize;
    // SAFETY: the pointer is to a variable of this frame, and CUDA allows the base to be null.
    unsafe { next::cuMemGetAddressRange_v2(ptr::null_mut(), &mut size, address) };
    size as u64
}

// ---- questions -----------------------------------------------------------------------------------------------------------------

hooks! { |call, below, per_thread|
    cuMemGetInfo: (free, total) enter_if_limited(cuMemGetInfo) => {
        // SAFETY: each pointer is null or writable by the function's contract.
        unsafe { call.memory_info(free, total, |free, total| next::cuMemGetInfo(free, total)) }
    };
    cuMemGetInfo_v2: (free, total) enter(cuMemGetInfo) => {
        // SAFETY: each pointer is null or writable by the function's contract.
        unsafe { call.memory_info(free, total, |free, total| next::cuMemGetInfo_v2(free, total)) }
    };
    cuDeviceTotalMem cuDeviceTotalMem_v2: (out, device) enter_if_limited(cuMemGetInfo) => {
        // SAFETY: the function's contract.
        unsafe { call.device_total(out, device, below()) }
    };
    cuMemGetAddressRange: (base, size, address) enter_running(cuMemGetInfo) => below();
    cuMemGetAddressRange_v2: (base, size, address) enter_running(cuMemGetInfo) => {
        // SAFETY: each pointer is null or writable by the function's contract.
        unsafe { call.address_range(base, size, address) }
    };
    cuPointerGetAttribute: (out, attribute, address) enter_running(cuMemGetInfo) => {
        let asked = call.address_for_next_layer(address);
        // SAFETY: the job's own arguments, except for the address, which the function does not access.
        let result = check(unsafe { next::cuPointerGetAttribute(out, attribute, asked) });
        if result.is_ok() {
            // SAFETY: the function's contract.
            unsafe { call.pointer_attribute(out, attribute, address) };
        }
        result
    };
    cuPointerGetAttributes: (count, attributes, out, address) enter_running(cuMemGetInfo) => {
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
    cuPointerSetAttribute: (value, attribute, address) enter_running(Policy) => {
        // SAFETY: `value` has the type of the attribute by the function's contract.
        unsafe { call.set_pointer_attribute(value, attribute, address, below) }
    };
    cuMemGetHandleForAddressRange: (out, address, size, kind, flags) enter_running(Policy) => {
        call.export_range(address, size, below)
    };
}

// ---- streams and captures -------------------------------------------------------------------------------------------------------------------

hooks! { |call, below, per_thread|
    cuStreamBeginCapture cuStreamBeginCapture_ptsz: (stream) enter(Policy) => {
        call.capture_begins(meant(stream, per_thread), below)
    };
    cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz: (stream, mode) enter(Policy) => {
        call.capture_begins(meant(stream, per_thread), below)
    };
    cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz:
    (stream, graph, dependencies, edges, count, mode) enter(Policy) => {
        call.capture_begins(meant(stream, per_thread), below)
    };
    cuStreamBeginRecaptureToGraph cuStreamBeginRecaptureToGraph_ptsz:
    (stream, mode, graph, callback, data) enter(Policy) => {
        call.capture_begins(meant(stream, per_thread), below)
    };
    cuStreamBeginCaptureToCig cuStreamBeginCaptureToCig_ptsz: (stream, parameters) enter(Policy) => {
        call.capture_begins(meant(stream, per_thread), below)
    };
    cuStreamEndCaptureToCig cuStreamEndCaptureToCig_ptsz: (stream) enter(Policy) => {
        call.capture_ends(meant(stream, per_thread), below)
    };
    cuStreamEndCapture cuStreamEndCapture_ptsz: (stream, out) enter(Policy) => {
        call.capture_ends(meant(stream, per_thread), below)
    };
    cuStreamCreate: (out, flags) enter(Policy) => call.stream_created(below);
    cuStreamCreateWithPriority: (out, flags, priority) enter(Policy) => call.stream_created(below);
    cuStreamDestroy cuStreamDestroy_v2: (stream) enter(Policy) => call.stream_destroyed(stream as usize, below);
}

// ---- contexts: primary and green ones, the end of contexts, and access between them ------------------------------------------------

hooks! { |call, below, per_thread|
    cuCtxDestroy cuCtxDestroy_v2: (context) enter_running(cuCtxDestroy) => call.context_destroyed(context, below);
    cuCtxAttach: (out, flags) enter(Policy) => call.context_attached(below, written!(out));
    cuCtxDetach: (context) enter_running(cuCtxDestroy) => call.context_detached(context, below);
    cuDevicePrimaryCtxRetain: (out, device) enter_if_limited(Policy) => call.primary_retained(device, below);
    cuGreenCtxCreate: (out, description, device, flags) enter(Policy) => call.green_created(device, below);
    cuGreenCtxDestroy: (green) enter_running(Policy) => call.green_destroyed(green, below);
    cuGreenCtxStreamCreate: (out, green, flags, priority) enter(Policy) => call.stream_created(below);
    cuCtxEnablePeerAccess: (peer, flags) enter(Policy) => call.peer_access(peer as u64, true, below);
    cuCtxDisablePeerAccess: (peer) enter(Policy) => call.peer_access(peer as u64, false, below);
}

/// These have no hook: the engine may start while the call runs.
macro_rules! releases_of_primary_contexts {
    ($($name:ident($api:ident))+) => {$(
        #[inline(always)]
        pub unsafe fn $name((device,): $crate::abi::arguments::$name) -> i32 {
            // SAFETY: the job's own argument goes to the function that the job called.
            result_code(primary_released(Api::$api, device, || check(unsafe { next::$name(device) })))
        }
    )+};
}

releases_of_primary_contexts! {
    cuDevicePrimaryCtxRelease(cuDevicePrimaryCtxRelease)
    cuDevicePrimaryCtxRelease_v2(cuDevicePrimaryCtxRelease)
    cuDevicePrimaryCtxReset(cuDevicePrimaryCtxReset)
    cuDevicePrimaryCtxReset_v2(cuDevicePrimaryCtxReset)
}

// ---- look-up -------------------------------------------------------------------------------------------------------------------

macro_rules! look_ups {
    ($($name:ident($($status:ident)?))+) => {$(
        pub unsafe fn $name((name, out, version, flags, $($status)?): super::arguments::$name) -> i32 {
            // SAFETY: the job's own arguments; `out` is read after success only.
            unsafe {
                let result = next::$name(name, out, version, flags, $($status)?);
                if result == SUCCESS && !out.is_null() {
                    *out = route(name, *out, version, flags);
                }
                result
            }
        }
    )+};
}

look_ups! { cuGetProcAddress() cuGetProcAddress_v2(status) }
