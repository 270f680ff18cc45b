//! What the hooked copies and fills do. `graphs.rs` has the nodes of graphs that copy.
//!
//! Nearly always the library has no part in them. Then a hook costs the read of one variable.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the CUDA function of the same name

use super::driver::{hooks, meant};
use crate::engine::copies::{Order, Place};
use crate::engine::enter_if_watched;
use crate::next::{self, *};
use base::api::Api;
use base::cuda::{check, result_code};

/// `None` for the default stream, for which the call may wait.
fn order(stream: Option<CUstream>, per_thread: bool) -> Order {
    Order {
        stream: stream.map(|stream| meant(stream, per_thread)),
        per_thread,
    }
}

/// A copy of bytes side by side, and the functions that copy them between contexts, in both variants.
macro_rules! copy {
    ($call:ident, $below:ident, $to:ident, $from:ident, $size:ident, $order:expr, $peer:ident $of_thread:ident $(, $stream:ident)?) => {{
        let order = $order;
        let peer = if order.per_thread { next::$of_thread } else { next::$peer };
        $call.copy($to, $from, order, $below, |to_context, from_context| {
            // SAFETY: the job's own arguments, and the contexts of both ends.
            check(unsafe { peer($to, to_context, $from, from_context, $size $(, $stream)?) })
        })
    }};
}

/// A copy of rows and slices, and the functions that copy them between contexts, in both variants.
macro_rules! copy_3d {
    ($call:ident, $below:ident, $copy:ident, $order:expr, $peer:ident $of_thread:ident $(, $stream:ident)?) => {{
        let order = $order;
        let peer = if order.per_thread { next::$of_thread } else { next::$peer };
        // SAFETY: null or readable by the function's contract.
        let copy = unsafe { $copy.as_ref() }.map(|&copy| Copy3d::from(copy));
        // SAFETY: the same copy, with the contexts of both ends.
        $call.copy_3d(copy, order, $below, |copy| check(unsafe { peer(copy $(, $stream)?) }))
    }};
}

hooks! { |call, below, per_thread|
    cuMemcpy cuMemcpy_ptds cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds: (to, from, size) enter_if_watched(Policy) => {
        copy!(call, below, to, from, size, order(None, per_thread), cuMemcpyPeer cuMemcpyPeer_ptds)
    };
    cuMemcpyAsync cuMemcpyAsync_ptsz cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz: (to, from, size, stream)
    enter_if_watched(Policy) => {
        copy!(call, below, to, from, size, order(Some(stream), per_thread), cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz, stream)
    };
    cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds: (to, from, size) enter_if_watched(Policy) => {
        call.end_synchronous(&[to], per_thread, below())
    };
    cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds: (to, offset, from, size) enter_if_watched(Policy) => {
        let places = [Place::Array(to as u64), Place::Address(from)];
        let copied = call.copy_without_peer_form(places, order(None, per_thread)).and_then(|()| below());
        call.end_synchronous(&[from], per_thread, copied)
    };
    cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds: (to, from, offset, size) enter_if_watched(Policy) => {
        let places = [Place::Address(to), Place::Array(from as u64)];
        let copied = call.copy_without_peer_form(places, order(None, per_thread)).and_then(|()| below());
        call.end_synchronous(&[to], per_thread, copied)
    };
    cuMemcpyPeer cuMemcpyPeer_ptds: (to, context, from, other, size) enter_if_watched(Policy) => {
        call.end_synchronous(&[to, from], per_thread, below())
    };
}

// ---- rows and slices ------------------------------------------------------------------------------------------------

/// The addresses of both ends.
fn ends(copy: *const Copy3d) -> [u64; 2] {
    // SAFETY: null or readable by the contract of the functions that this is called from.
    unsafe { copy.as_ref() }.map_or([0; 2], |copy| [copy.to.address(), copy.from.address()])
}

hooks! { |call, below, per_thread|
    cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds cuMemcpy3D_v2 cuMemcpy3D_v2_ptds:
    (copy) enter_if_watched(Policy) => {
        copy_3d!(call, below, copy, order(None, per_thread), cuMemcpy3DPeer cuMemcpy3DPeer_ptds)
    };
    cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz: (copy, stream)
    enter_if_watched(Policy) => {
        copy_3d!(call, below, copy, order(Some(stream), per_thread), cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz, stream)
    };
    cuMemcpy3DPeer cuMemcpy3DPeer_ptds: (copy) enter_if_watched(Policy) => {
        call.end_synchronous(&ends(copy), per_thread, below())
    };
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

hooks! { |call, below, per_thread|
    cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz:
    (to, from, sizes, count, attributes, indices, attribute_count, failed, stream) enter_if_watched(Policy) => {
        let order = order(Some(stream), per_thread);
        each_of(to, from, count, |places| call.copy_without_peer_form(places, order)).and_then(|()| below())
    };
    cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz:
    (to, from, sizes, count, attributes, indices, attribute_count, stream) enter_if_watched(Policy) => {
        let order = order(Some(stream), per_thread);
        each_of(to, from, count, |places| call.copy_without_peer_form(places, order)).and_then(|()| below())
    };
    cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz: (count, operations, failed, flags, stream)
    enter_if_watched(Policy) => {
        let order = order(Some(stream), per_thread);
        each_operation(operations, count, |places| call.copy_without_peer_form(places, order)).and_then(|()| below())
    };
    cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz: (count, operations, flags, stream)
    enter_if_watched(Policy) => {
        let order = order(Some(stream), per_thread);
        each_operation(operations, count, |places| call.copy_without_peer_form(places, order)).and_then(|()| below())
    };
    cuMemcpy3DWithAttributesAsync cuMemcpy3DWithAttributesAsync_ptsz: (operation, flags, stream)
    enter_if_watched(Policy) => {
        let order = order(Some(stream), per_thread);
        each_operation(operation, 1, |places| call.copy_without_peer_form(places, order)).and_then(|()| below())
    };
    cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz: (to, from, size, attributes, stream)
    enter_if_watched(Policy) => {
        let places = [Place::Address(to), Place::Address(from)];
        call.copy_without_peer_form(places, order(Some(stream), per_thread)).and_then(|()| below())
    };
}

// ---- fills ----------------------------------------------------------------------------------------------------------

hooks! { |call, below, per_thread|
    cuMemsetD8_v2 cuMemsetD8_v2_ptds cuMemsetD16_v2 cuMemsetD16_v2_ptds cuMemsetD32_v2 cuMemsetD32_v2_ptds:
    (to, value, count) enter_if_watched(Policy) => call.end_synchronous(&[to], per_thread, below());
    cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds:
    (to, pitch, value, width, height) enter_if_watched(Policy) => call.end_synchronous(&[to], per_thread, below());
}
