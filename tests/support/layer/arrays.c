/* Arrays: charged with the bytes that their shape has. */
#include "layer.h"

static size_t bytes_of_element(unsigned format)
{
    switch (format) { /* CUarray_format (cuda.h) */
    case 0x01: case 0x08: return 1; /* 8-bit integers */
    case 0x02: case 0x09: case CU_AD_FORMAT_HALF: return 2;
    default: return 4;
    }
}

static size_t or_one(size_t extent) { return extent ? extent : 1; }

static CUresult made(CUarray *out, size_t size, CUresult (*below)(CUarray *, const void *), const void *descriptor)
{
    int device = current_device();
    if (habits.arrays_uncounted || !out) return below(out, descriptor);
    if (!book_charge(device, size)) return habits.refusal;
    CUresult result = below(out, descriptor);
    if (result != CUDA_SUCCESS) book_refund(device, size);
    else book_enter((struct entry){.kind = ARRAY, .key = (uint64_t)*out, .size = size, .device = device, .context = current_context()});
    return result;
}

static CUresult plain(CUarray *out, const void *descriptor) { return driver()->cuArrayCreate_v2(out, descriptor); }
static CUresult deep(CUarray *out, const void *descriptor) { return driver()->cuArray3DCreate_v2(out, descriptor); }

API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
    size_t size = d ? d->Width * or_one(d->Height) * d->NumChannels * bytes_of_element(d->Format) : 0;
    return made(out, size, plain, d);
}

API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    size_t size = d ? d->Width * or_one(d->Height) * or_one(d->Depth) * d->NumChannels * bytes_of_element(d->Format) : 0;
    return made(out, size, deep, d);
}

API CUresult cuArrayDestroy(CUarray array)
{
    struct entry entry;
    bool known = book_take(ARRAY, (uint64_t)array, &entry);
    CUresult result = driver()->cuArrayDestroy(array);
    if (known && result == CUDA_SUCCESS) book_refund(entry.device, entry.size);
    else if (known) book_enter(entry);
    return result;
}
