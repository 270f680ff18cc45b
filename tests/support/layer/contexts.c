/* The destruction of a context removes its memory from the book. */
#include "layer.h"

static CUcontext primary[16];

struct destroyed { CUcontext context; int device; };

static bool gone(const struct entry *entry, const void *data)
{
    const struct destroyed *d = data;
    if (entry->kind == HANDLE) return false; /* physical memory belongs to no context */
    return entry->context ? entry->context == d->context : entry->device == d->device;
}

API CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult result = driver()->cuCtxDestroy_v2(context);
    if (result == CUDA_SUCCESS) book_forget(gone, &(struct destroyed){context, -1});
    return result;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    layer_begin();
    CUresult result = driver()->cuDevicePrimaryCtxRetain(out, device);
    if (result == CUDA_SUCCESS) primary[device] = *out;
    return result;
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CUresult result = driver()->cuDevicePrimaryCtxReset_v2(device);
    if (result == CUDA_SUCCESS) book_forget(gone, &(struct destroyed){primary[device], device});
    return result;
}
