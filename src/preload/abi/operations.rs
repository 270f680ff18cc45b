//! The exported copies and fills. `graphs.rs` has the nodes of graphs that copy.
//!
//! Nearly always the library has no part in them. Then a hook costs the read of one variable.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the CUDA function of the same name
#![allow(clippy::too_many_arguments)] // as many as the CUDA function of the same name

use std::ffi::c_void;

use crate::engine::copies::{self, Order, Place};
use crate::engine::enter_running;
use crate::next::{self, *};
use base::api::Api;
use base::cuda::{check, result_code};

/// As `export!` of `driver.rs`, for functions that the engine enters only if copies and fills are watched.
macro_rules! operations {
    ($(
        $name:ident($($argument:ident: $type:ty),*) |$call:ident, $below:ident| $engine:expr;
    )+) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
            if !copies::are_watched() {
                // SAFETY: the job's own arguments go to the function that the job called.
                return unsafe { next::$name($($argument),*) };
            }
            // SAFETY: as above.
            let $below = || check(unsafe { next::$name($($argument),*) });
            result_code(match enter_running(Api::Policy) {
                Some($call) => $engine,
                None => $below(),
            })
        }
    )+};
}

pub(super) use operations;

const LEGACY: Order = Order {
    stream: None,
    per_thread: false,
};
const OF_THREAD: Order = Order {
    stream: None,
    per_thread: true,
};

fn on(stream: CUstream, per_thread: bool) -> Order {
    Order {
        stream: Some(stream),
        per_thread,
    }
}

/// A copy of bytes side by side, and the function that copies them between contexts.
macro_rules! copy {
    ($call:ident, $below:ident, $to:ident, $from:ident, $size:ident, $order:expr, $peer:ident $(, $stream:ident)?) => {
        $call.copy($to, $from, $order, $below, |to_context, from_context| {
            // SAFETY: the job's own arguments, and the contexts of both ends.
            check(unsafe { next::$peer($to, to_context, $from, from_context, $size $(, $stream)?) })
        })
    };
}

/// A copy of rows and slices, and the function that copies them between contexts.
macro_rules! copy_3d {
    ($call:ident, $below:ident, $copy:ident, $order:expr, $peer:ident $(, $stream:ident)?) => {{
        // SAFETY: null or readable by the function's contract.
        let copy = unsafe { $copy.as_ref() }.map(|&copy| Copy3d::from(copy));
        // SAFETY: the same copy, with the contexts of both ends.
        $call.copy_3d(copy, $order, $below, |copy| check(unsafe { next::$peer(copy $(, $stream)?) }))
    }};
}

operations! {
    cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, size: usize) |call, below| {
        copy!(call, below, to, from, size, LEGACY, cuMemcpyPeer)
    };
    cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, size: usize) |call, below| {
        copy!(call, below, to, from, size, OF_THREAD, cuMemcpyPeer_ptds)
    };
    cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) |call, below| {
        copy!(call, below, to, from, size, on(stream, false), cuMemcpyPeerAsync, stream)
    };
    cuMemcpyAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) |call, below| {
        copy!(call, below, to, from, size, on(stream, true), cuMemcpyPeerAsync_ptsz, stream)
    };
    cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize) |call, below| {
        copy!(call, below, to, from, size, LEGACY, cuMemcpyPeer)
    };
    cuMemcpyDtoD_v2_ptds(to: CUdeviceptr, from: CUdeviceptr, size: usize) |call, below| {
        copy!(call, below, to, from, size, OF_THREAD, cuMemcpyPeer_ptds)
    };
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) |call, below| {
        copy!(call, below, to, from, size, on(stream, false), cuMemcpyPeerAsync, stream)
    };
    cuMemcpyDtoDAsync_v2_ptsz(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) |call, below| {
        copy!(call, below, to, from, size, on(stream, true), cuMemcpyPeerAsync_ptsz, stream)
    };
    cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, size: usize) |call, below| {
        call.end_synchronous(&[to], false, below())
    };
    cuMemcpyHtoD_v2_ptds(to: CUdeviceptr, from: *const c_void, size: usize) |call, below| {
        call.end_synchronous(&[to], true, below())
    };
    cuMemcpyDtoA_v2(to: CUarray, offset: usize, from: CUdeviceptr, size: usize) |call, below| {
        let copied = call.copy_without_peer_form([Place::Array(to as u64), Place::Address(from)], LEGACY).and_then(|()| below());
        call.end_synchronous(&[from], false, copied)
    };
    cuMemcpyDtoA_v2_ptds(to: CUarray, offset: usize, from: CUdeviceptr, size: usize) |call, below| {
        let copied = call.copy_without_peer_form([Place::Array(to as u64), Place::Address(from)], OF_THREAD).and_then(|()| below());
        call.end_synchronous(&[from], true, copied)
    };
    cuMemcpyAtoD_v2(to: CUdeviceptr, from: CUarray, offset: usize, size: usize) |call, below| {
        let copied = call.copy_without_peer_form([Place::Address(to), Place::Array(from as u64)], LEGACY).and_then(|()| below());
        call.end_synchronous(&[to], false, copied)
    };
    cuMemcpyAtoD_v2_ptds(to: CUdeviceptr, from: CUarray, offset: usize, size: usize) |call, below| {
        let copied = call.copy_without_peer_form([Place::Address(to), Place::Array(from as u64)], OF_THREAD).and_then(|()| below());
        call.end_synchronous(&[to], true, copied)
    };
    cuMemcpyPeer(to: CUdeviceptr, context: CUcontext, from: CUdeviceptr, other: CUcontext, size: usize)
    |call, below| call.end_synchronous(&[to, from], false, below());
    cuMemcpyPeer_ptds(to: CUdeviceptr, context: CUcontext, from: CUdeviceptr, other: CUcontext, size: usize)
    |call, below| call.end_synchronous(&[to, from], true, below());
}

// ---- rows and slices ------------------------------------------------------------------------------------------------

/// The addresses of both ends.
fn ends(copy: *const Copy3d) -> [u64; 2] {
    // SAFETY: null or readable by the contract of the functions that this is called from.
    unsafe { copy.as_ref() }.map_or([0; 2], |copy| [copy.to.address(), copy.from.address()])
}

operations! {
    cuMemcpy2D_v2(copy: *const Copy2d) |call, below| {
        copy_3d!(call, below, copy, LEGACY, cuMemcpy3DPeer)
    };
    cuMemcpy2D_v2_ptds(copy: *const Copy2d) |call, below| {
        copy_3d!(call, below, copy, OF_THREAD, cuMemcpy3DPeer_ptds)
    };
    cuMemcpy2DUnaligned_v2(copy: *const Copy2d) |call, below| {
        copy_3d!(call, below, copy, LEGACY, cuMemcpy3DPeer)
    };
    cuMemcpy2DUnaligned_v2_ptds(copy: *const Copy2d) |call, below| {
        copy_3d!(call, below, copy, OF_THREAD, cuMemcpy3DPeer_ptds)
    };
    cuMemcpy3D_v2(copy: *const Copy3d) |call, below| {
        copy_3d!(call, below, copy, LEGACY, cuMemcpy3DPeer)
    };
    cuMemcpy3D_v2_ptds(copy: *const Copy3d) |call, below| {
        copy_3d!(call, below, copy, OF_THREAD, cuMemcpy3DPeer_ptds)
    };
    cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: CUstream) |call, below| {
        copy_3d!(call, below, copy, on(stream, false), cuMemcpy3DPeerAsync, stream)
    };
    cuMemcpy2DAsync_v2_ptsz(copy: *const Copy2d, stream: CUstream) |call, below| {
        copy_3d!(call, below, copy, on(stream, true), cuMemcpy3DPeerAsync_ptsz, stream)
    };
    cuMemcpy3DAsync_v2(copy: *const Copy3d, stream: CUstream) |call, below| {
        copy_3d!(call, below, copy, on(stream, false), cuMemcpy3DPeerAsync, stream)
    };
    cuMemcpy3DAsync_v2_ptsz(copy: *const Copy3d, stream: CUstream) |call, below| {
        copy_3d!(call, below, copy, on(stream, true), cuMemcpy3DPeerAsync_ptsz, stream)
    };
    cuMemcpy3DPeer(copy: *const Copy3d) |call, below| call.end_synchronous(&ends(copy), false, below());
    cuMemcpy3DPeer_ptds(copy: *const Copy3d) |call, below| call.end_synchronous(&ends(copy), true, below());
}

// ---- batches, and copies with attributes ---------------------------------------------------------------------------

/// The ends of each copy of a batch.
pub(super) fn each_of(
    to: *const CUdeviceptr,
    from: *const CUdeviceptr,
    count: usize,
    visit: impl Fn([Place; 2]) -> CudaResult,
) -> CudaResult {
    if to.is_null() || from.is_null() {
        return Ok(());
    }
    (0..count).try_for_each(|index| {
        // SAFETY: both arrays have `count` elements by the contract of the functions that this is called from.
        let (to, from) = unsafe { (*to.add(index), *from.add(index)) };
        visit([Place::Address(to), Place::Address(from)])
    })
}

/// The ends of each copy of a batch of rows and slices.
fn each_operation(
    operations: *const Operation3d,
    count: usize,
    visit: impl Fn([Place; 2]) -> CudaResult,
) -> CudaResult {
    let place = |operand: &Operand| match operand.kind {
        Operand::ARRAY => Place::Array(operand.place),
        _ => Place::Address(operand.place),
    };
    if operations.is_null() {
        return Ok(());
    }
    (0..count).try_for_each(|index| {
        // SAFETY: the array has `count` elements by the contract of the functions that this is called from.
        let operation = unsafe { &*operations.add(index) };
        visit([place(&operation.to), place(&operation.from)])
    })
}

operations! {
    cuMemcpyBatchAsync(
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void,
        indices: *mut usize, attribute_count: usize, failed: *mut usize, stream: CUstream
    ) |call, below| {
        each_of(to, from, count, |places| call.copy_without_peer_form(places, on(stream, false))).and_then(|()| below())
    };
    cuMemcpyBatchAsync_ptsz(
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void,
        indices: *mut usize, attribute_count: usize, failed: *mut usize, stream: CUstream
    ) |call, below| {
        each_of(to, from, count, |places| call.copy_without_peer_form(places, on(stream, true))).and_then(|()| below())
    };
    cuMemcpyBatchAsync_v2(
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void,
        indices: *mut usize, attribute_count: usize, stream: CUstream
    ) |call, below| {
        each_of(to, from, count, |places| call.copy_without_peer_form(places, on(stream, false))).and_then(|()| below())
    };
    cuMemcpyBatchAsync_v2_ptsz(
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void,
        indices: *mut usize, attribute_count: usize, stream: CUstream
    ) |call, below| {
        each_of(to, from, count, |places| call.copy_without_peer_form(places, on(stream, true))).and_then(|()| below())
    };
    cuMemcpy3DBatchAsync(count: usize, operations: *mut Operation3d, failed: *mut usize, flags: u64, stream: CUstream)
    |call, below| each_operation(operations, count, |places| call.copy_without_peer_form(places, on(stream, false))).and_then(|()| below());
    cuMemcpy3DBatchAsync_ptsz(count: usize, operations: *mut Operation3d, failed: *mut usize, flags: u64, stream: CUstream)
    |call, below| each_operation(operations, count, |places| call.copy_without_peer_form(places, on(stream, true))).and_then(|()| below());
    cuMemcpy3DBatchAsync_v2(count: usize, operations: *mut Operation3d, flags: u64, stream: CUstream)
    |call, below| each_operation(operations, count, |places| call.copy_without_peer_form(places, on(stream, false))).and_then(|()| below());
    cuMemcpy3DBatchAsync_v2_ptsz(count: usize, operations: *mut Operation3d, flags: u64, stream: CUstream)
    |call, below| each_operation(operations, count, |places| call.copy_without_peer_form(places, on(stream, true))).and_then(|()| below());
    cuMemcpy3DWithAttributesAsync(operation: *mut Operation3d, flags: u64, stream: CUstream)
    |call, below| each_operation(operation, 1, |places| call.copy_without_peer_form(places, on(stream, false))).and_then(|()| below());
    cuMemcpy3DWithAttributesAsync_ptsz(operation: *mut Operation3d, flags: u64, stream: CUstream)
    |call, below| each_operation(operation, 1, |places| call.copy_without_peer_form(places, on(stream, true))).and_then(|()| below());
    cuMemcpyWithAttributesAsync(to: CUdeviceptr, from: CUdeviceptr, size: usize, attributes: *mut c_void, stream: CUstream)
    |call, below| call.copy_without_peer_form([Place::Address(to), Place::Address(from)], on(stream, false)).and_then(|()| below());
    cuMemcpyWithAttributesAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, size: usize, attributes: *mut c_void, stream: CUstream)
    |call, below| call.copy_without_peer_form([Place::Address(to), Place::Address(from)], on(stream, true)).and_then(|()| below());
}

// ---- fills ----------------------------------------------------------------------------------------------------------

operations! {
    cuMemsetD8_v2(to: CUdeviceptr, value: u8, count: usize) |call, below| {
        call.end_synchronous(&[to], false, below())
    };
    cuMemsetD8_v2_ptds(to: CUdeviceptr, value: u8, count: usize) |call, below| {
        call.end_synchronous(&[to], true, below())
    };
    cuMemsetD16_v2(to: CUdeviceptr, value: u16, count: usize) |call, below| {
        call.end_synchronous(&[to], false, below())
    };
    cuMemsetD16_v2_ptds(to: CUdeviceptr, value: u16, count: usize) |call, below| {
        call.end_synchronous(&[to], true, below())
    };
    cuMemsetD32_v2(to: CUdeviceptr, value: u32, count: usize) |call, below| {
        call.end_synchronous(&[to], false, below())
    };
    cuMemsetD32_v2_ptds(to: CUdeviceptr, value: u32, count: usize) |call, below| {
        call.end_synchronous(&[to], true, below())
    };
    cuMemsetD2D8_v2(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize)
    |call, below| call.end_synchronous(&[to], false, below());
    cuMemsetD2D8_v2_ptds(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize)
    |call, below| call.end_synchronous(&[to], true, below());
    cuMemsetD2D16_v2(to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize)
    |call, below| call.end_synchronous(&[to], false, below());
    cuMemsetD2D16_v2_ptds(to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize)
    |call, below| call.end_synchronous(&[to], true, below());
    cuMemsetD2D32_v2(to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize)
    |call, below| call.end_synchronous(&[to], false, below());
    cuMemsetD2D32_v2_ptds(to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize)
    |call, below| call.end_synchronous(&[to], true, below());
}
