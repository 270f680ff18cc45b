/* Kernels and copies, which a scheduler or a watcher holds back, and cuInit, with which both begin. */
#include "layer.h"

API CUresult cuInit(unsigned flags)
{
    CUresult result = driver()->cuInit(flags);
    if (result == CUDA_SUCCESS) watcher_begin(), scheduler_begin();
    return result;
}

API CUresult cuLaunchKernel(void *kernel, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared, CUstream stream, void **parameters, void **extra)
{
    watcher_admit();
    scheduler_admit();
    return driver()->cuLaunchKernel(kernel, x, y, z, block_x, block_y, block_z, shared, stream, parameters, extra);
}

#define COPIES(name, To, From)                         \
    API CUresult name(To to, From from, size_t size)   \
    {                                                  \
        scheduler_admit();                             \
        return driver()->name(to, from, size);         \
    }
#define COPIES_ASYNC(name, To, From)                                     \
    API CUresult name(To to, From from, size_t size, CUstream stream)    \
    {                                                                    \
        scheduler_admit();                                               \
        return driver()->name(to, from, size, stream);                   \
    }
COPIES(cuMemcpy, CUdeviceptr, CUdeviceptr)
COPIES(cuMemcpyHtoD_v2, CUdeviceptr, const void *)
COPIES(cuMemcpyDtoH_v2, void *, CUdeviceptr)
COPIES(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr)
COPIES_ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
COPIES_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
COPIES_ASYNC(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
COPIES_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)
