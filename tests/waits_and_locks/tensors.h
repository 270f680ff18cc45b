/* Memory for tensors: from the library's allocator for PyTorch, or without it from the driver in the order of a stream. */
#ifndef TENSORS_H
#define TENSORS_H

#include "scenes.h"

static __typeof__(&vramshim_torch_alloc) torch_alloc;
static __typeof__(&vramshim_torch_free) torch_free;
static __typeof__(&vramshim_torch_record_stream) torch_record_stream;

static inline void find_torch_functions(void)
{
    torch_alloc = library_function(vramshim_torch_alloc);
    torch_free = library_function(vramshim_torch_free);
    torch_record_stream = library_function(vramshim_torch_record_stream);
}

static inline CUresult ask_for_tensor(CUdeviceptr *address, int device, size_t size, CUstream stream)
{
    *address = 0;
    if (!torch_alloc) return ANSWER(cuMemAllocAsync(address, size, stream));
    const char *before = enter(HERE("vramshim_torch_alloc"));
    *address = (CUdeviceptr)torch_alloc((ptrdiff_t)size, device, stream);
    enter(before);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static inline CUdeviceptr tensor_on(int device, size_t size, CUstream stream)
{
    CUdeviceptr address;
    DO(ask_for_tensor(&address, device, size, stream));
    return address;
}

static inline void free_tensor_on(int device, CUdeviceptr address, size_t size, CUstream stream)
{
    const char *before = enter(HERE("vramshim_torch_free"));
    if (torch_free) torch_free((void *)address, (ptrdiff_t)size, device, stream);
    else DO(cuMemFreeAsync(address, stream));
    enter(before);
}

/* A job that records streams says that it names every stream which uses a block. */
static inline void records_streams(CUstream one, CUstream other)
{
    CUdeviceptr any = tensor_on(0, 512, one);
    if (torch_record_stream) torch_record_stream((void *)any, other);
    free_tensor_on(0, any, 512, one);
    DO(cuStreamSynchronize(one));
    DO(cuStreamSynchronize(other));
}

static inline uint64_t reserved(void) { return stats_of_library().reserved; }

#endif
