/* Linear, pitched and managed memory: charged to the device of the current context. With LAYER_LINEAR only linear memory
 * is charged, and it is managed memory. */
#include "layer.h"

static CUresult charged(CUresult result, int device, uint64_t size, uint64_t address)
{
    if (result != CUDA_SUCCESS) book_refund(device, size);
    else book_enter((struct entry){.kind = ADDRESS, .key = address, .size = size, .device = device, .context = current_context()});
    return result;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
    layer_begin();
    int device = current_device();
    if (!book_charge(device, size)) return habits.refusal;
    enum { ATTACH_GLOBAL = 1 }; /* CU_MEM_ATTACH_GLOBAL (cuda.h) */
    CUresult result = habits.linear_is_managed || habits.oversold ? driver()->cuMemAllocManaged(out, size, ATTACH_GLOBAL)
                                               : driver()->cuMemAlloc_v2(out, size);
    return charged(result, device, size, result ? 0 : *out);
}

API CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned size)
{
    int device = current_device();
    if (!book_charge(device, size)) return habits.refusal;
    CUresult result = driver()->cuMemAlloc(out, size);
    return charged(result, device, size, result ? 0 : *out);
}

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    if (habits.linear_is_managed) return driver()->cuMemAllocManaged(out, size, flags);
    int device = current_device();
    if (!book_charge(device, size)) return habits.refusal;
    CUresult result = driver()->cuMemAllocManaged(out, size, flags);
    return charged(result, device, size, result ? 0 : *out);
}

/* The pitch is known only after the allocation, so memory above the limit is given back. */
API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
    int device = current_device();
    CUresult result = driver()->cuMemAllocPitch_v2(out, pitch, width, height, element);
    if (result != CUDA_SUCCESS || habits.linear_is_managed) return result;
    size_t charge = *pitch * height * (habits.pitched_twice ? 2 : 1);
    if (!book_charge(device, charge)) {
        driver()->cuMemFree_v2(*out);
        return habits.refusal;
    }
    return charged(result, device, charge, *out);
}

/* An address that is not in the book goes to the driver unchanged, except with LAYER_FREES=listed. */
static CUresult freed(CUdeviceptr address, CUresult (*below)(CUdeviceptr))
{
    struct entry entry;
    bool known = book_take(ADDRESS, address, &entry);
    if (!known && habits.frees_what_it_lists && address) return (CUresult)-1;
    CUresult result = below(address);
    if (known && result == CUDA_SUCCESS) book_refund(entry.device, entry.size);
    else if (known) book_enter(entry);
    return result;
}

static CUresult free_v1(CUdeviceptr address) { return driver()->cuMemFree((CUdeviceptr_v1)address); }

API CUresult cuMemFree_v2(CUdeviceptr address) { return freed(address, driver()->cuMemFree_v2); }
API CUresult cuMemFree(CUdeviceptr_v1 address) { return freed(address, free_v1); }
