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

#define ABSENT(name) API CUresult name(void) { return CUDA_ERROR_NOT_SUPPORTED; }
ABSENT(cuStreamWaitValue32_v2)
ABSENT(cuStreamWaitValue64_v2)
ABSENT(cuMulticastAddDevice)
ABSENT(cuMulticastBindMem)
ABSENT(cuMulticastCreate)
ABSENT(cuMulticastGetGranularity)
ABSENT(cuMulticastUnbind)
ABSENT(cuTensorMapEncodeTiled)
