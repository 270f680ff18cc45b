/* Answers to a job's questions about the device. The total memory is at most the limit. With LAYER_LINEAR it is the whole
 * device, and the free memory is the limit, also if memory was taken. */
#include "layer.h"

enum { VIRTUAL_MEMORY_MANAGEMENT = 102, MEMORY_POOLS = 115 };

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

API CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    if (habits.writes_to_null) *(volatile size_t *)free = *(volatile size_t *)total = 0;
    CUresult result = driver()->cuMemGetInfo_v2(free, total);
    if (habits.linear_is_managed) {
        if (result == CUDA_SUCCESS && free) *free = habits.limit;
        return result;
    }
    uint64_t used = book_used(current_device()), whole = total ? *total : 0, left = free ? *free : 0;
    if (habits.oversold) {
        if (result == CUDA_SUCCESS && free) *free = used < habits.limit ? habits.limit - used : 0;
        if (result == CUDA_SUCCESS && total) *total = habits.limit;
        return result;
    }
    if (habits.figure_is_the_drivers && result == CUDA_SUCCESS && free && total) used = whole - left;
    if (result == CUDA_SUCCESS && free) *free = least(*free, used < habits.limit ? habits.limit - used : 0);
    if (result == CUDA_SUCCESS && total) *total = least(*total, habits.limit);
    return result;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = driver()->cuDeviceTotalMem_v2(bytes, device);
    if (result == CUDA_SUCCESS && !habits.whole_total) *bytes = habits.oversold ? habits.limit : least(*bytes, habits.limit);
    return result;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CUresult result = driver()->cuDeviceGetAttribute(value, attribute, device);
    if (result != CUDA_SUCCESS) return result;
    if (attribute == VIRTUAL_MEMORY_MANAGEMENT && habits.vmm == VMM_REFUSED) *value = 0;
    if (attribute == MEMORY_POOLS && !habits.pools) *value = 0;
    return result;
}
