/* Functions that clients look up besides memory: writes of values on streams, and features that this device reports as
 * missing (multicast objects, tensor maps). */
#include "sim.h"

static CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, size_t size)
{
    ENTER("cuStreamWriteValue");
    CHECK_STREAM(stream);
    REQUIRE(address);
    struct Work work = {.kind = WORK_FILL, .to.base = (char *)address, .element = size, .width = size, .height = 1, .depth = 1};
    memcpy(work.value, &value, size);
    SUBMIT_TO_CAPTURE(stream, CU_GRAPH_NODE_TYPE_MEMSET, &work);
    work_submit(stream, work);
    return CUDA_SUCCESS;
}
API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) { (void)flags; return write_value(stream, address, value, 4); }
API CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) { (void)flags; return write_value(of_thread(stream), address, value, 4); }
API CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) { (void)flags; return write_value(stream, address, value, 8); }
API CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) { (void)flags; return write_value(of_thread(stream), address, value, 8); }

API CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) { (void)flags; return write_value(stream, address, value, 4); }
API CUresult cuStreamWriteValue32_ptsz(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) { (void)flags; return write_value(of_thread(stream), address, value, 4); }
API CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) { (void)flags; return write_value(stream, address, value, 8); }
API CUresult cuStreamWriteValue64_ptsz(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) { (void)flags; return write_value(of_thread(stream), address, value, 8); }

#define ABSENT(name) API CUresult name(void) { return CUDA_ERROR_NOT_SUPPORTED; }
ABSENT(cuStreamWaitValue32)
ABSENT(cuStreamWaitValue64)
ABSENT(cuStreamWaitValue32_v2)
ABSENT(cuStreamWaitValue64_v2)
ABSENT(cuMulticastAddDevice)
ABSENT(cuMulticastBindMem)
ABSENT(cuMulticastCreate)
ABSENT(cuMulticastGetGranularity)
ABSENT(cuMulticastUnbind)
ABSENT(cuTensorMapEncodeTiled)
/* Names that tables of layers and runtimes ask for, and features that this device does not have: semaphores of other APIs,
 * batches of memory operations, sparse arrays, decompression, checkpoints, graphics. */
ABSENT(cuImportExternalSemaphore)
/* No semaphore can be imported, so no handle is one. */
#define NO_HANDLE(name) API CUresult name(void) { return CUDA_ERROR_INVALID_HANDLE; }
NO_HANDLE(cuDestroyExternalSemaphore)
NO_HANDLE(cuSignalExternalSemaphoresAsync)
NO_HANDLE(cuWaitExternalSemaphoresAsync)
ABSENT(cuExternalMemoryGetMappedMipmappedArray)
ABSENT(cuStreamBatchMemOp)
ABSENT(cuStreamBatchMemOp_v2)
ABSENT(cuArrayGetSparseProperties)
ABSENT(cuMipmappedArrayGetSparseProperties)
ABSENT(cuArrayGetPlane)
ABSENT(cuMemMapArrayAsync)
ABSENT(cuMemBatchDecompressAsync)
ABSENT(cuMulticastBindAddr)
ABSENT(cuTensorMapEncodeIm2col)
ABSENT(cuTensorMapReplaceAddress)
ABSENT(cuDeviceGetNvSciSyncAttributes)
ABSENT(cuDeviceGetExecAffinitySupport)
ABSENT(cuCtxGetExecAffinity)
ABSENT(cuCheckpointProcessCheckpoint)
ABSENT(cuCheckpointProcessGetRestoreThreadId)
ABSENT(cuCheckpointProcessGetState)
ABSENT(cuCheckpointProcessLock)
ABSENT(cuCheckpointProcessRestore)
ABSENT(cuCheckpointProcessUnlock)
ABSENT(cuCoredumpGetAttribute)
ABSENT(cuCoredumpGetAttributeGlobal)
ABSENT(cuCoredumpSetAttribute)
ABSENT(cuCoredumpSetAttributeGlobal)
ABSENT(cuGraphicsMapResources)
ABSENT(cuGraphicsUnmapResources)
ABSENT(cuGraphicsUnregisterResource)
ABSENT(cuGraphicsResourceGetMappedMipmappedArray)
ABSENT(cuGraphicsResourceGetMappedPointer_v2)
ABSENT(cuGraphicsResourceSetMapFlags_v2)
ABSENT(cuGraphicsSubResourceGetMappedArray)
ABSENT(cuGraphAddBatchMemOpNode)
ABSENT(cuGraphBatchMemOpNodeGetParams)
ABSENT(cuGraphBatchMemOpNodeSetParams)
ABSENT(cuGraphExecBatchMemOpNodeSetParams)
ABSENT(cuGraphExecExternalSemaphoresSignalNodeSetParams)
ABSENT(cuGraphExecExternalSemaphoresWaitNodeSetParams)
ABSENT(cuGraphExternalSemaphoresSignalNodeGetParams)
ABSENT(cuGraphExternalSemaphoresSignalNodeSetParams)
ABSENT(cuGraphExternalSemaphoresWaitNodeGetParams)
ABSENT(cuGraphExternalSemaphoresWaitNodeSetParams)
ABSENT(cuGraphAddExternalSemaphoresSignalNode)
ABSENT(cuGraphAddExternalSemaphoresWaitNode)
