//! What the hooked functions of CUDA graphs do: launches, and nodes that allocate or copy.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // one contract for all: the CUDA function of the same name

use std::ffi::c_void;

use super::driver::hooks;
use super::operations::each_of;
use crate::engine::{Call, Location, copies, enter, enter_if_watched, enter_running};
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

hooks! { |call, below, per_thread|
    cuGraphAddMemAllocNode: (out, graph, dependencies, count, parameters) enter(cuGraphAddMemAllocNode) => {
        call.graph_allocates().and_then(|()| below())
    };
    cuGraphAddNode: (out, graph, dependencies, count, parameters) enter(cuGraphAddMemAllocNode) => {
        // SAFETY: the function's contract.
        unsafe { node_is_added(&call, parameters) }.and_then(|()| below())
    };
    cuGraphAddNode_v2 cuGraphAddNode_v3: (out, graph, dependencies, edges, count, parameters)
    enter(cuGraphAddMemAllocNode) => {
        // SAFETY: the function's contract.
        unsafe { node_is_added(&call, parameters) }.and_then(|()| below())
    };
    cuGraphLaunch cuGraphLaunch_ptsz: (graph, stream) enter_running(cuGraphLaunch) => call.graph_launched(below);
    cuGraphExecDestroy: (graph) enter_running(cuGraphExecDestroy) => {
        let result = below();
        call.refresh_graphs(Location::current().map(|location| location.device), result)
    };
    cuDeviceGraphMemTrim: (device) enter_running(cuDeviceGraphMemTrim) => call.refresh_graphs(Some(device as i16), below());
    cuGraphAddMemcpyNode: (out, graph, dependencies, count, copy, context) enter_if_watched(Policy) => {
        // SAFETY: the function's contract.
        unsafe { node_copies(&call, copy, Some(context)) }.and_then(|()| below())
    };
    cuGraphMemcpyNodeSetParams: (node, copy) enter_if_watched(Policy) => {
        // SAFETY: the function's contract.
        unsafe { node_copies(&call, copy, None) }.and_then(|()| below())
    };
    cuGraphExecMemcpyNodeSetParams: (graph, node, copy, context) enter_if_watched(Policy) => {
        // SAFETY: the function's contract.
        unsafe { node_copies(&call, copy, Some(context)) }.and_then(|()| below())
    };
    cuGraphNodeSetParams cuGraphNodeSetParams_v2: (node, parameters) enter_if_watched(Policy) => {
        // SAFETY: the function's contract.
        unsafe { node_changes(&call, parameters) }.and_then(|()| below())
    };
    cuGraphExecNodeSetParams: (graph, node, parameters) enter_if_watched(Policy) => {
        // SAFETY: the function's contract.
        unsafe { node_changes(&call, parameters) }.and_then(|()| below())
    };
}
