/* Stream-ordered memory. The requested bytes are charged, and not the bytes that the driver's pool has reserved.
 * With LAYER_POOLS=0 the layer answers that it does not support stream-ordered memory. */
#include "layer.h"

struct request { CUdeviceptr *out; size_t size; CUmemoryPool pool; CUstream stream; };

/* During a capture the request becomes a node of a graph and takes no memory yet. */
static bool capturing(CUresult (*ask)(CUstream, int *), CUstream stream)
{
    int status = 0;
    return ask(stream, &status) == CUDA_SUCCESS && status;
}

static enum kind list(void) { return habits.frees_what_it_lists ? STREAM_ORDERED : ADDRESS; }

static CUresult allocated(CUdeviceptr *out, size_t size, bool captured, CUresult (*below)(void *), void *request)
{
    if (!habits.pools) return CUDA_ERROR_NOT_SUPPORTED;
    bool of_own_pool = ((struct request *)request)->pool;
    if (captured || habits.linear_is_managed || (of_own_pool && habits.frees_what_it_lists)) return below(request);
    int device = current_device();
    if (!book_charge(device, size)) return habits.refusal;
    CUresult result = below(request);
    int where = device;
    if (result == CUDA_SUCCESS) driver()->cuPointerGetAttribute(&where, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, *out);
    /* The memory is on the device of the stream or of the pool, which need not be the current device. */
    if (where != device && !book_charge(where, size)) {
        driver()->cuMemFreeAsync(*out, NULL);
        result = habits.refusal;
    }
    if (result != CUDA_SUCCESS || where != device) book_refund(device, size);
    if (result == CUDA_SUCCESS) book_enter((struct entry){.kind = list(), .key = *out, .size = size, .device = where});
    return result;
}

#define ALLOCATES(suffix)                                                                                              \
    static CUresult async##suffix(void *data)                                                                          \
    {                                                                                                                  \
        struct request *r = data;                                                                                      \
        return driver()->cuMemAllocAsync##suffix(r->out, r->size, r->stream);                                          \
    }                                                                                                                  \
    API CUresult cuMemAllocAsync##suffix(CUdeviceptr *out, size_t size, CUstream stream)                               \
    {                                                                                                                  \
        bool captured = capturing(driver()->cuStreamIsCapturing##suffix, stream);                                      \
        return allocated(out, size, captured, async##suffix, &(struct request){out, size, NULL, stream});              \
    }                                                                                                                  \
    static CUresult from_pool##suffix(void *data)                                                                      \
    {                                                                                                                  \
        struct request *r = data;                                                                                      \
        return driver()->cuMemAllocFromPoolAsync##suffix(r->out, r->size, r->pool, r->stream);                         \
    }                                                                                                                  \
    API CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)    \
    {                                                                                                                  \
        bool captured = capturing(driver()->cuStreamIsCapturing##suffix, stream);                                      \
        return allocated(out, size, captured, from_pool##suffix, &(struct request){out, size, pool, stream});          \
    }                                                                                                                  \
    API CUresult cuMemFreeAsync##suffix(CUdeviceptr address, CUstream stream)                                          \
    {                                                                                                                  \
        struct entry entry;                                                                                            \
        bool captured = capturing(driver()->cuStreamIsCapturing##suffix, stream);                                      \
        bool known = !captured && book_take(list(), address, &entry);                                                  \
        if (!known && !captured && habits.frees_what_it_lists && address) return (CUresult)-1;                         \
        CUresult result = driver()->cuMemFreeAsync##suffix(address, stream);                                           \
        if (known && result == CUDA_SUCCESS && !habits.keeps_stream_ordered) book_refund(entry.device, entry.size);    \
        else if (known && result != CUDA_SUCCESS) book_enter(entry);                                                   \
        return result;                                                                                                 \
    }
ALLOCATES()
ALLOCATES(_ptsz)

API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
    return habits.pools ? driver()->cuMemPoolCreate(out, properties) : CUDA_ERROR_NOT_SUPPORTED;
}
