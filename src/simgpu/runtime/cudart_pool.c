/* Stream-ordered memory and its pools. The structures of runtime and driver have the same layout and are passed on. */
#include "cudart.h"

STREAM_FUNCTION(cudaMallocAsync, _ptsz, (void **out, size_t size, Stream stream), out, size, stream)
{
    if (out == NULL) return INVALID_VALUE;
    *out = NULL;
    return size == 0 ? SUCCESS : cu->cuMemAllocAsync(out, size, stream);
}

STREAM_FUNCTION(cudaMallocFromPoolAsync, _ptsz, (void **out, size_t size, Handle pool, Stream stream),
                out, size, pool, stream)
{
    if (out == NULL) return INVALID_VALUE;
    *out = NULL;
    return size == 0 ? SUCCESS : cu->cuMemAllocFromPoolAsync(out, size, pool, stream);
}

STREAM_FUNCTION(cudaFreeAsync, _ptsz, (void *memory, Stream stream), memory, stream)
{
    return memory == NULL ? SUCCESS : cu->cuMemFreeAsync(memory, stream);
}

FORWARD(cudaMemPoolCreate, cuMemPoolCreate, (Handle *pool, const void *properties), pool, properties)
FORWARD(cudaMemPoolDestroy, cuMemPoolDestroy, (Handle pool), pool)
FORWARD(cudaMemPoolTrimTo, cuMemPoolTrimTo, (Handle pool, size_t keep), pool, keep)
FORWARD(cudaMemPoolSetAttribute, cuMemPoolSetAttribute, (Handle pool, int attribute, void *value),
        pool, attribute, value)
FORWARD(cudaMemPoolGetAttribute, cuMemPoolGetAttribute, (Handle pool, int attribute, void *value),
        pool, attribute, value)
FORWARD(cudaMemPoolSetAccess, cuMemPoolSetAccess, (Handle pool, const void *access, size_t count),
        pool, access, count)
FORWARD(cudaMemPoolGetAccess, cuMemPoolGetAccess, (int *flags, Handle pool, Location *where), flags, pool, where)
FORWARD(cudaMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle,
        (void *handle, Handle pool, int type, unsigned flags), handle, pool, type, flags)
FORWARD(cudaMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle,
        (Handle *pool, void *handle, int type, unsigned flags), pool, handle, type, flags)
FORWARD(cudaMemPoolExportPointer, cuMemPoolExportPointer, (void *data, void *memory), data, memory)
FORWARD(cudaMemPoolImportPointer, cuMemPoolImportPointer, (void **memory, Handle pool, void *data),
        memory, pool, data)
FORWARD(cudaDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, (Handle *pool, int device), pool, device)
FORWARD(cudaDeviceGetMemPool, cuDeviceGetMemPool, (Handle *pool, int device), pool, device)
FORWARD(cudaDeviceSetMemPool, cuDeviceSetMemPool, (int device, Handle pool), device, pool)
