//! The exported functions of CUDA graphs: launches, and nodes that allocate or copy.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the CUDA function of the same name
#![allow(clippy::too_many_arguments)] // as many as the CUDA function of the same name

use std::ffi::c_void;

use super::driver::export;
use super::operations::{each_of, operations};
use crate::engine::{Call, copies, enter, enter_running};
use crate::next::{self, *};
use base::api::Api;
use base::cuda::{CudaResult, check, result_code};

/// `CU_GRAPH_NODE_TYPE_MEMCPY`, `..._MEM_ALLOC` and `..._MEMCPY_BATCH`, the first field of `CUgraphNodeParams`
const MEMCPY_NODE: u32 = 1;
const MEM_ALLOC_NODE: u32 = 10;
const MEMCPY_BATCH_NODE: u32 = 14;

/// Visits each copy that a generic node will make: its ends, and the context in which the node will run.
///
/// # Safety
/// `parameters` is null or points to a `CUgraphNodeParams`, as the functions of generic nodes require.
unsafe fn each_copy(
    parameters: *const c_void,
    visit: impl Fn([copies::Place; 2], CUcontext) -> CudaResult,
) -> CudaResult {
    if parameters.is_null() {
        return Ok(());
    }
    // SAFETY: readable by contract. The type is the first field, and the parameters of that type begin at byte 16.
    unsafe {
        let of_type = parameters.byte_add(16);
        match parameters.cast::<u32>().read() {
            MEMCPY_NODE => {
                let node: &MemcpyNode = &*of_type.cast();
                copies::places_of(&node.copy).map_or(Ok(()), |places| visit(places, node.context))
            }
            MEMCPY_BATCH_NODE => {
                let node: &BatchNode = &*of_type.cast();
                each_of(node.to, node.from, node.count, |places| visit(places, node.context))
            }
            _ => Ok(()),
        }
    }
}

/// A generic node is about to be added to a graph.
///
/// # Safety
/// As `each_copy`.
unsafe fn node_is_added(call: &Call, parameters: *const c_void) -> CudaResult {
    // SAFETY: readable by contract.
    if unsafe { parameters.cast::<u32>().as_ref() } == Some(&MEM_ALLOC_NODE) {
        call.graph_allocates()?;
    }
    if !copies::are_watched() {
        return Ok(());
    }
    // SAFETY: the same contract.
    unsafe { each_copy(parameters, |places, context| call.copy_node(places, Some(context))) }
}

/// A generic node is about to get other parameters. If they name no context, the node may keep its own.
///
/// # Safety
/// As `each_copy`.
unsafe fn node_changes(call: &Call, parameters: *const c_void) -> CudaResult {
    let known = |context: CUcontext| (!context.is_null()).then_some(context);
    // SAFETY: the same contract.
    unsafe { each_copy(parameters, |places, context| call.copy_node(places, known(context))) }
}

/// A node that copies rows.
///
/// # Safety
/// `copy` is null or readable.
unsafe fn node_copies(call: &Call, copy: *const Copy3d, context: Option<CUcontext>) -> CudaResult {
    // SAFETY: the same contract.
    let places = unsafe { copy.as_ref() }.and_then(copies::places_of);
    places.map_or(Ok(()), |places| call.copy_node(places, context))
}

export! {
    cuGraphAddMemAllocNode(
        out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
        parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS
    ) enter(cuGraphAddMemAllocNode) |call, below| {
        call.graph_allocates().and_then(|()| below())
    };
    cuGraphAddNode(
        out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, parameters: *mut c_void
    ) enter(cuGraphAddMemAllocNode) |call, below| {
        // SAFETY: the function's contract.
        unsafe { node_is_added(&call, parameters) }.and_then(|()| below())
    };
    cuGraphAddNode_v2(
        out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const c_void, count: usize,
        parameters: *mut c_void
    ) enter(cuGraphAddMemAllocNode) |call, below| {
        // SAFETY: the function's contract.
        unsafe { node_is_added(&call, parameters) }.and_then(|()| below())
    };
    cuGraphAddNode_v3(
        out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const c_void, count: usize,
        parameters: *mut c_void
    ) enter(cuGraphAddMemAllocNode) |call, below| {
        // SAFETY: the function's contract.
        unsafe { node_is_added(&call, parameters) }.and_then(|()| below())
    };
    cuGraphLaunch(graph: CUgraphExec, stream: CUstream) enter_running(cuGraphLaunch) |call, below| {
        call.graph_launched(below)
    };
    cuGraphLaunch_ptsz(graph: CUgraphExec, stream: CUstream) enter_running(cuGraphLaunch) |call, below| {
        call.graph_launched(below)
    };
    cuGraphExecDestroy(graph: CUgraphExec) enter_running(cuGraphExecDestroy) |call, below| {
        call.refresh_graphs(below())
    };
    cuDeviceGraphMemTrim(device: CUdevice) enter_running(cuDeviceGraphMemTrim) |call, below| {
        call.refresh_graphs_of(device, below())
    };
}

operations! {
    cuGraphAddMemcpyNode(
        out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, copy: *const Copy3d,
        context: CUcontext
    ) |call, below| {
        // SAFETY: the function's contract.
        unsafe { node_copies(&call, copy, Some(context)) }.and_then(|()| below())
    };
    cuGraphMemcpyNodeSetParams(node: CUgraphNode, copy: *const Copy3d) |call, below| {
        // SAFETY: the function's contract.
        unsafe { node_copies(&call, copy, None) }.and_then(|()| below())
    };
    cuGraphExecMemcpyNodeSetParams(graph: CUgraphExec, node: CUgraphNode, copy: *const Copy3d, context: CUcontext)
    |call, below| {
        // SAFETY: the function's contract.
        unsafe { node_copies(&call, copy, Some(context)) }.and_then(|()| below())
    };
    cuGraphNodeSetParams(node: CUgraphNode, parameters: *mut c_void) |call, below| {
        // SAFETY: the function's contract.
        unsafe { node_changes(&call, parameters) }.and_then(|()| below())
    };
    cuGraphNodeSetParams_v2(node: CUgraphNode, parameters: *mut c_void) |call, below| {
        // SAFETY: the function's contract.
        unsafe { node_changes(&call, parameters) }.and_then(|()| below())
    };
    cuGraphExecNodeSetParams(graph: CUgraphExec, node: CUgraphNode, parameters: *mut c_void) |call, below| {
        // SAFETY: the function's contract.
        unsafe { node_changes(&call, parameters) }.and_then(|()| below())
    };
}
