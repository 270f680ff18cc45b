/* Memory of every class but arrays and pools. Each runtime call is one driver call. */
#include "cudart.h"

/* A request for 0 bytes succeeds and returns NULL; the driver would return an invalid value. */
API cudaError_t cudaMalloc(void **out, size_t size)
{
    ENTER(cu, 0);
    if (out == NULL) return done(INVALID_VALUE);
    *out = NULL;
    return size == 0 ? SUCCESS : done(cu->cuMemAlloc(out, size));
}

/* A free of NULL frees nothing, but makes the context: programs call cudaFree(0) for this. */
API cudaError_t cudaFree(void *memory)
{
    ENTER(cu, 0);
    return memory == NULL ? SUCCESS : done(cu->cuMemFree(memory));
}

enum { PITCH_ELEMENT = 4 };

API cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height)
{
    ENTER(cu, 0);
    if (out == NULL || pitch == NULL) return done(INVALID_VALUE);
    *out = NULL;
    *pitch = 0;
    if (width == 0 || height == 0) return SUCCESS;
    return done(cu->cuMemAllocPitch(out, pitch, width, height, PITCH_ELEMENT));
}

API cudaError_t cudaMalloc3D(PitchedPtr *out, Extent extent)
{
    ENTER(cu, 0);
    if (out == NULL) return done(INVALID_VALUE);
    *out = (PitchedPtr){.xsize = extent.width, .ysize = extent.height};
    size_t rows;
    /* No device has that many rows. The driver says so; see `times` in driver/sim.h. */
    if (__builtin_mul_overflow(extent.height, extent.depth, &rows)) rows = SIZE_MAX;
    if (extent.width == 0 || rows == 0) return SUCCESS;
    return done(cu->cuMemAllocPitch(&out->ptr, &out->pitch, extent.width, rows, PITCH_ELEMENT));
}

API cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags)
{
    ENTER(cu, 0);
    return done(cu->cuMemAllocManaged(out, size, flags));
}

API cudaError_t cudaMallocHost(void **out, size_t size)
{
    ENTER(cu, 0);
    if (out == NULL) return done(INVALID_VALUE);
    *out = NULL;
    return size == 0 ? SUCCESS : done(cu->cuMemAllocHost(out, size));
}

API cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags)
{
    ENTER(cu, 0);
    if (out == NULL) return done(INVALID_VALUE);
    *out = NULL;
    return size == 0 ? SUCCESS : done(cu->cuMemHostAlloc(out, size, flags));
}

API cudaError_t cudaFreeHost(void *memory)
{
    ENTER(cu, 0);
    return memory == NULL ? SUCCESS : done(cu->cuMemFreeHost(memory));
}

FORWARD(cudaHostRegister, cuMemHostRegister, (void *memory, size_t size, unsigned flags), memory, size, flags)
FORWARD(cudaHostUnregister, cuMemHostUnregister, (void *memory), memory)
FORWARD(cudaHostGetDevicePointer, cuMemHostGetDevicePointer, (void **out, void *host, unsigned flags), out, host, flags)
FORWARD(cudaHostGetFlags, cuMemHostGetFlags, (unsigned *flags, void *host), flags, host)
FORWARD(cudaMemGetInfo, cuMemGetInfo, (size_t *free, size_t *total), free, total)

FORWARD(cudaIpcGetMemHandle, cuIpcGetMemHandle, (IpcHandle *handle, void *memory), handle, memory)
FORWARD(cudaIpcOpenMemHandle, cuIpcOpenMemHandle, (void **out, IpcHandle handle, unsigned flags), out, handle, flags)
FORWARD(cudaIpcCloseMemHandle, cuIpcCloseMemHandle, (void *memory), memory)
FORWARD(cudaIpcGetEventHandle, cuIpcGetEventHandle, (IpcHandle *handle, Handle event), handle, event)
FORWARD(cudaIpcOpenEventHandle, cuIpcOpenEventHandle, (Handle *event, IpcHandle handle), event, handle)

FORWARD(cudaImportExternalMemory, cuImportExternalMemory, (Handle *out, const void *description), out, description)
FORWARD(cudaExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedBuffer,
        (void **out, Handle memory, const void *description), out, memory, description)
FORWARD(cudaDestroyExternalMemory, cuDestroyExternalMemory, (Handle memory), memory)

FORWARD(cudaMemRangeGetAttribute, cuMemRangeGetAttribute,
        (void *data, size_t data_size, int attribute, const void *memory, size_t size),
        data, data_size, attribute, memory, size)
FORWARD(cudaMemRangeGetAttributes, cuMemRangeGetAttributes,
        (void **data, size_t *data_sizes, int *attributes, size_t count, const void *memory, size_t size),
        data, data_sizes, attributes, count, memory, size)

/* Version 13 gave the plain names the parameters that the _v2 names have in version 12. */
#if CUDART_VERSION >= 13000
FORWARD(cudaMemAdvise, advise_at, (const void *memory, size_t size, int advice, Location where),
        memory, size, advice, where)
FORWARD_STREAM(cudaMemPrefetchAsync, _ptsz, prefetch_to,
               (const void *memory, size_t size, Location where, unsigned flags, Stream stream),
               memory, size, where, flags, stream)
#else
FORWARD(cudaMemAdvise, cuMemAdvise, (const void *memory, size_t size, int advice, int device),
        memory, size, advice, device)
FORWARD(cudaMemAdvise_v2, advise_at, (const void *memory, size_t size, int advice, Location where),
        memory, size, advice, where)
FORWARD_STREAM(cudaMemPrefetchAsync, _ptsz, cuMemPrefetchAsync,
               (const void *memory, size_t size, int device, Stream stream), memory, size, device, stream)
FORWARD_STREAM(cudaMemPrefetchAsync_v2, _ptsz, prefetch_to,
               (const void *memory, size_t size, Location where, unsigned flags, Stream stream),
               memory, size, where, flags, stream)
#endif

/* cudaPointerAttributes */
typedef struct {
    int type, device;
    void *device_pointer, *host_pointer;
#if CUDART_VERSION >= 13000
    long reserved[8];
#endif
} PointerAttributes;

/* Memory that the driver does not know is no error. Its type is "unregistered", and its host address is the pointer. */
API cudaError_t cudaPointerGetAttributes(PointerAttributes *out, const void *memory)
{
    enum { UNREGISTERED, HOST, DEVICE, MANAGED };
    enum { MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, IS_MANAGED = 8, DEVICE_ORDINAL = 9 };
    ENTER(cu, 0);
    if (out == NULL) return done(INVALID_VALUE);
    int wanted[] = {MEMORY_TYPE, DEVICE_ORDINAL, DEVICE_POINTER, HOST_POINTER, IS_MANAGED};
    unsigned type = 0, managed = 0;
    int device = -2; /* the runtime documents this value for memory of no device */
    void *on_device = NULL, *on_host = NULL;
    void *answers[] = {&type, &device, &on_device, &on_host, &managed};
    memset(out, 0, sizeof *out);
    cudaError_t error = cu->cuPointerGetAttributes(5, wanted, answers, memory);
    if (error != SUCCESS && error != INVALID_VALUE) return done(error);
    if (error != SUCCESS || type == 0) {
        *out = (PointerAttributes){.type = UNREGISTERED, .device = -2, .host_pointer = (void *)(uintptr_t)memory};
        return SUCCESS;
    }
    int kind = managed ? MANAGED : type == MEMORY_HOST ? HOST : DEVICE;
    *out = (PointerAttributes){.type = kind, .device = device, .device_pointer = on_device, .host_pointer = on_host};
    return SUCCESS;
}
