//! The driver functions that the library knows, with their C signatures (public header `cuda.h`). Each has a function
//! here that calls the next layer, and a slot that remembers its address.
//!
//! The functions of the first list are hooked: `abi/mod.rs` builds its table from that list, so that each name stands in
//! one place only. Enumerations are plain integers here, because a Rust enum with a value that only a newer driver knows
//! would be undefined behaviour.

use std::ffi::{c_char, c_void};

pub use cudarc::driver::sys::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUDA_MEM_ALLOC_NODE_PARAMS, CUarray, CUcontext,
    CUdevice, CUdeviceptr, CUevent, CUexternalMemory, CUgraph, CUgraphExec, CUgraphNode, CUipcMemHandle,
    CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUmipmappedArray, CUstream,
    CUuuid,
};

pub use super::layouts::*;
use super::slot::forward;
use base::cuda::DriverError;

/// `CUdeviceptr` of the 32-bit (version 1) functions.
pub type CUdeviceptrV1 = u32;
pub type Handle = u64;
/// An opaque handle, as `CUcontext` is; it is not a `CUcontext`.
pub type CUgreenCtx = *mut c_void;

/// Passes functions to the macro `then`, each as `name(argument: type, ...);`. Names in front of one list share it.
#[macro_export]
macro_rules! each_name {
    ($then:ident $($($name:ident)+: $arguments:tt;)+) => { $then! { $($($name $arguments;)+)+ } };
}

/// Passes the hooked functions to the macro `then`, as `name(argument: type, ...);`.
#[macro_export]
macro_rules! hooked_driver_functions {
    ($then:ident) => {
        $crate::each_name! { $then
            cuMemAlloc: (out: *mut CUdeviceptrV1, size: u32);
            cuMemAlloc_v2: (out: *mut CUdeviceptr, size: usize);
            cuMemAllocPitch: (out: *mut CUdeviceptrV1, pitch: *mut u32, width: u32, height: u32, element: u32);
            cuMemAllocPitch_v2: (out: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: u32);
            cuMemAllocManaged: (out: *mut CUdeviceptr, size: usize, flags: u32);
            cuMemFree: (address: CUdeviceptrV1);
            cuMemFree_v2: (address: CUdeviceptr);
            cuMemAllocHost: (out: *mut *mut c_void, size: u32);
            cuMemAllocHost_v2: (out: *mut *mut c_void, size: usize);
            cuMemHostAlloc: (out: *mut *mut c_void, size: usize, flags: u32);
            cuMemFreeHost: (address: *mut c_void);
            cuMemHostRegister cuMemHostRegister_v2: (address: *mut c_void, size: usize, flags: u32);
            cuMemHostUnregister: (address: *mut c_void);

            cuMemAllocAsync cuMemAllocAsync_ptsz: (out: *mut CUdeviceptr, size: usize, stream: CUstream);
            cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz: (
                out: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream
            );
            cuMemFreeAsync cuMemFreeAsync_ptsz: (address: CUdeviceptr, stream: CUstream);
            cuMemPoolCreate: (out: *mut CUmemoryPool, properties: *const CUmemPoolProps);
            cuMemPoolDestroy: (pool: CUmemoryPool);
            cuMemPoolTrimTo: (pool: CUmemoryPool, keep: usize);
            cuMemPoolImportFromShareableHandle: (out: *mut CUmemoryPool, handle: *mut c_void, kind: u32, flags: u64);
            cuMemGetDefaultMemPool: (out: *mut CUmemoryPool, location: *mut CUmemLocation, kind: u32);
            cuMemGetMemPool: (out: *mut CUmemoryPool, location: *mut CUmemLocation, kind: u32);
            cuMemSetMemPool: (location: *mut CUmemLocation, kind: u32, pool: CUmemoryPool);
            cuMemPoolSetAttribute: (pool: CUmemoryPool, attribute: u32, value: *mut c_void);
            cuMemPoolImportPointer: (out: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut c_void);
            cuStreamSynchronize cuStreamSynchronize_ptsz: (stream: CUstream);
            cuEventSynchronize: (event: CUevent);
            cuCtxSynchronize: ();
            cuCtxSynchronize_v2: (context: CUcontext);

            cuMemAddressReserve: (
                out: *mut CUdeviceptr, size: usize, alignment: usize, address: CUdeviceptr, flags: u64
            );
            cuMemAddressFree: (address: CUdeviceptr, size: usize);
            cuMemCreate: (out: *mut Handle, size: usize, properties: *const CUmemAllocationProp, flags: u64);
            cuMemRelease: (handle: Handle);
            cuMemMap: (address: CUdeviceptr, size: usize, offset: usize, handle: Handle, flags: u64);
            cuMemUnmap: (address: CUdeviceptr, size: usize);
            cuMemSetAccess: (address: CUdeviceptr, size: usize, access: *const CUmemAccessDesc, count: usize);
            cuMemGetAccess: (flags: *mut u64, location: *const CUmemLocation, address: CUdeviceptr);
            cuMemRetainAllocationHandle: (out: *mut Handle, address: *mut c_void);
            cuMemExportToShareableHandle: (out: *mut c_void, handle: Handle, kind: u32, flags: u64);
            cuMemImportFromShareableHandle: (out: *mut Handle, os_handle: *mut c_void, kind: u32);

            cuArrayCreate: (out: *mut CUarray, descriptor: *const ArrayDescriptor<u32>);
            cuArrayCreate_v2: (out: *mut CUarray, descriptor: *const ArrayDescriptor<usize>);
            cuArray3DCreate: (out: *mut CUarray, descriptor: *const Array3dDescriptor<u32>);
            cuArray3DCreate_v2: (out: *mut CUarray, descriptor: *const Array3dDescriptor<usize>);
            cuArrayDestroy: (array: CUarray);
            cuMipmappedArrayCreate: (
                out: *mut CUmipmappedArray, descriptor: *const Array3dDescriptor<usize>, levels: u32
            );
            cuMipmappedArrayDestroy: (array: CUmipmappedArray);

            cuIpcGetMemHandle: (out: *mut CUipcMemHandle, address: CUdeviceptr);
            cuIpcOpenMemHandle cuIpcOpenMemHandle_v2: (out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32);
            cuIpcCloseMemHandle: (address: CUdeviceptr);
            cuImportExternalMemory: (out: *mut CUexternalMemory, descriptor: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
            cuExternalMemoryGetMappedBuffer: (
                out: *mut CUdeviceptr, memory: CUexternalMemory, descriptor: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC
            );
            cuDestroyExternalMemory: (memory: CUexternalMemory);

            cuGraphAddMemAllocNode: (
                out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
                parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS
            );
            cuGraphAddNode: (
                out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
                parameters: *mut c_void
            );
            cuGraphAddNode_v2 cuGraphAddNode_v3: (
                out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const c_void,
                count: usize, parameters: *mut c_void
            );
            cuGraphLaunch cuGraphLaunch_ptsz: (graph: CUgraphExec, stream: CUstream);
            cuGraphExecDestroy: (graph: CUgraphExec);
            cuDeviceGraphMemTrim: (device: CUdevice);

            cuCtxDestroy cuCtxDestroy_v2: (context: CUcontext);
            cuCtxAttach: (out: *mut CUcontext, flags: u32);
            cuCtxDetach: (context: CUcontext);
            cuDevicePrimaryCtxRetain: (out: *mut CUcontext, device: CUdevice);
            cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2: (device: CUdevice);
            cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2: (device: CUdevice);
            cuGreenCtxCreate: (out: *mut CUgreenCtx, description: *mut c_void, device: CUdevice, flags: u32);
            cuGreenCtxDestroy: (green: CUgreenCtx);
            cuGreenCtxStreamCreate: (out: *mut CUstream, green: CUgreenCtx, flags: u32, priority: i32);

            cuCtxEnablePeerAccess: (peer: CUcontext, flags: u32);
            cuCtxDisablePeerAccess: (peer: CUcontext);

            cuMemGetInfo: (free: *mut u32, total: *mut u32);
            cuMemGetInfo_v2: (free: *mut usize, total: *mut usize);
            cuDeviceTotalMem: (out: *mut u32, device: CUdevice);
            cuDeviceTotalMem_v2: (out: *mut usize, device: CUdevice);
            cuMemGetAddressRange: (base: *mut CUdeviceptrV1, size: *mut u32, address: CUdeviceptrV1);
            cuMemGetAddressRange_v2: (base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr);
            cuPointerGetAttribute: (out: *mut c_void, attribute: u32, address: CUdeviceptr);
            cuPointerGetAttributes: (count: u32, attributes: *mut u32, out: *mut *mut c_void, address: CUdeviceptr);
            cuPointerSetAttribute: (value: *const c_void, attribute: u32, address: CUdeviceptr);
            cuMemGetHandleForAddressRange: (out: *mut c_void, address: CUdeviceptr, size: usize, kind: u32, flags: u64);

            cuMemcpy cuMemcpy_ptds: (to: CUdeviceptr, from: CUdeviceptr, size: usize);
            cuMemcpyAsync cuMemcpyAsync_ptsz: (to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream);
            cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds: (to: CUdeviceptr, from: CUdeviceptr, size: usize);
            cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz: (
                to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream
            );
            cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds: (to: CUdeviceptr, from: *const c_void, size: usize);
            cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds: (to: CUarray, offset: usize, from: CUdeviceptr, size: usize);
            cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds: (to: CUdeviceptr, from: CUarray, offset: usize, size: usize);
            cuMemcpyPeer cuMemcpyPeer_ptds: (
                to: CUdeviceptr, context: CUcontext, from: CUdeviceptr, other: CUcontext, size: usize
            );
            cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds: (copy: *const Copy2d);
            cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz: (copy: *const Copy2d, stream: CUstream);
            cuMemcpy3D_v2 cuMemcpy3D_v2_ptds: (copy: *const Copy3d);
            cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz: (copy: *const Copy3d, stream: CUstream);
            cuMemcpy3DPeer cuMemcpy3DPeer_ptds: (copy: *const Copy3d);
            cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz: (
                to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void,
                indices: *mut usize, attribute_count: usize, failed: *mut usize, stream: CUstream
            );
            cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz: (
                to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void,
                indices: *mut usize, attribute_count: usize, stream: CUstream
            );
            cuGraphAddMemcpyNode: (
                out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
                copy: *const Copy3d, context: CUcontext
            );
            cuGraphMemcpyNodeSetParams: (node: CUgraphNode, copy: *const Copy3d);
            cuGraphExecMemcpyNodeSetParams: (
                graph: CUgraphExec, node: CUgraphNode, copy: *const Copy3d, context: CUcontext
            );
            cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz: (
                count: usize, operations: *mut Operation3d, failed: *mut usize, flags: u64, stream: CUstream
            );
            cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz: (
                count: usize, operations: *mut Operation3d, flags: u64, stream: CUstream
            );
            cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz: (
                to: CUdeviceptr, from: CUdeviceptr, size: usize, attributes: *mut c_void, stream: CUstream
            );
            cuMemcpy3DWithAttributesAsync cuMemcpy3DWithAttributesAsync_ptsz: (
                operation: *mut Operation3d, flags: u64, stream: CUstream
            );
            cuGraphNodeSetParams cuGraphNodeSetParams_v2: (node: CUgraphNode, parameters: *mut c_void);
            cuGraphExecNodeSetParams: (graph: CUgraphExec, node: CUgraphNode, parameters: *mut c_void);
            cuMemsetD8_v2 cuMemsetD8_v2_ptds: (to: CUdeviceptr, value: u8, count: usize);
            cuMemsetD16_v2 cuMemsetD16_v2_ptds: (to: CUdeviceptr, value: u16, count: usize);
            cuMemsetD32_v2 cuMemsetD32_v2_ptds: (to: CUdeviceptr, value: u32, count: usize);
            cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds: (
                to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize
            );
            cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds: (
                to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize
            );
            cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds: (
                to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize
            );

            cuStreamBeginCapture cuStreamBeginCapture_ptsz: (stream: CUstream);
            cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz: (stream: CUstream, mode: u32);
            cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz: (
                stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const c_void, count: usize,
                mode: u32
            );
            cuStreamBeginRecaptureToGraph cuStreamBeginRecaptureToGraph_ptsz: (
                stream: CUstream, mode: u32, graph: CUgraph, callback: *mut c_void, data: *mut c_void
            );
            cuStreamBeginCaptureToCig cuStreamBeginCaptureToCig_ptsz: (stream: CUstream, parameters: *mut c_void);
            cuStreamEndCapture cuStreamEndCapture_ptsz: (stream: CUstream, out: *mut CUgraph);
            cuStreamEndCaptureToCig cuStreamEndCaptureToCig_ptsz: (stream: CUstream);

            cuStreamCreate: (out: *mut CUstream, flags: u32);
            cuStreamCreateWithPriority: (out: *mut CUstream, flags: u32, priority: i32);
            cuStreamDestroy cuStreamDestroy_v2: (stream: CUstream);

            cuGetProcAddress: (name: *const c_char, out: *mut *mut c_void, version: i32, flags: u64);
            cuGetProcAddress_v2: (
                name: *const c_char, out: *mut *mut c_void, version: i32, flags: u64, status: *mut u32
            );
        }
    };
}

/// Functions that the library calls but does not hook.
macro_rules! called_driver_functions {
    ($then:ident) => {
        $crate::each_name! { $then
            cuDriverGetVersion: (out: *mut i32);
            cuCtxGetCurrent: (out: *mut CUcontext);
            cuCtxGetDevice: (out: *mut CUdevice);
            cuCtxPushCurrent_v2: (context: CUcontext);
            cuCtxPopCurrent_v2: (out: *mut CUcontext);
            cuDevicePrimaryCtxGetState: (device: CUdevice, flags: *mut u32, active: *mut i32);
            cuMemGetAllocationPropertiesFromHandle: (properties: *mut CUmemAllocationProp, handle: Handle);
            cuMemGetAllocationGranularity: (out: *mut usize, properties: *const CUmemAllocationProp, option: u32);
            cuDeviceGetAttribute: (out: *mut i32, attribute: u32, device: CUdevice);
            cuDeviceGetCount: (out: *mut i32);
            cuDeviceCanAccessPeer: (out: *mut i32, device: CUdevice, peer: CUdevice);
            cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz: (
                to: CUdeviceptr, context: CUcontext, from: CUdeviceptr, other: CUcontext, size: usize, stream: CUstream
            );
            cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz: (copy: *const Copy3d, stream: CUstream);
            cuDeviceGetName: (out: *mut c_char, length: i32, device: CUdevice);
            cuDeviceGetUuid cuDeviceGetUuid_v2: (out: *mut CUuuid, device: CUdevice);
            cuDeviceGetMemPool: (out: *mut CUmemoryPool, device: CUdevice);
            cuDeviceGetDefaultMemPool: (out: *mut CUmemoryPool, device: CUdevice);
            cuStreamGetCtx: (stream: CUstream, out: *mut CUcontext);
            cuStreamGetGreenCtx: (stream: CUstream, out: *mut CUgreenCtx);
            cuCtxFromGreenCtx: (out: *mut CUcontext, green: CUgreenCtx);
            cuMemPoolGetAttribute: (pool: CUmemoryPool, attribute: u32, value: *mut c_void);
            cuDeviceGetGraphMemAttribute: (device: CUdevice, attribute: u32, value: *mut c_void);
            cuStreamGetId: (stream: CUstream, out: *mut u64);
            cuStreamIsCapturing: (stream: CUstream, out: *mut u32);
            cuThreadExchangeStreamCaptureMode: (mode: *mut u32);
            cuCtxRecordEvent: (context: CUcontext, event: CUevent);
            cuEventDestroy_v2: (event: CUevent);
            cuEventCreate: (out: *mut CUevent, flags: u32);
            cuEventRecord: (event: CUevent, stream: CUstream);
            cuEventQuery: (event: CUevent);
        }
    };
}

macro_rules! forward_hooked {
    ($($list:tt)+) => { forward! { hooked or DriverError::NOT_FOUND.0 => $($list)+ } };
}
macro_rules! forward_called {
    ($($list:tt)+) => { forward! { called or DriverError::NOT_FOUND.0 => $($list)+ } };
}
hooked_driver_functions!(forward_hooked);
called_driver_functions!(forward_called);
