//! The exported functions of contexts: primary and green ones, the end of contexts, and access between them.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the CUDA function of the same name

use std::ffi::c_void;

use super::driver::export;
use crate::engine::{enter, enter_running};
use crate::next::{self, *};
use base::api::Api;
use base::cuda::{check, result_code};

export! {
    cuCtxDestroy(context: CUcontext) enter_running(cuCtxDestroy) |call, below| call.context_destroyed(context, below);
    cuCtxDestroy_v2(context: CUcontext) enter_running(cuCtxDestroy) |call, below| call.context_destroyed(context, below);
    cuCtxAttach(out: *mut CUcontext, flags: u32) enter(Policy) |call, below| {
        // SAFETY: it is read after success only, and no call with a null pointer succeeds.
        call.context_attached(below, || unsafe { *out })
    };
    cuCtxDetach(context: CUcontext) enter_running(cuCtxDestroy) |call, below| call.context_detached(context, below);
    cuDevicePrimaryCtxRetain(out: *mut CUcontext, device: CUdevice) enter_running(Policy) |call, below| {
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
