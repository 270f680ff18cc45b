/* Virtual memory management. Physical memory is charged when it is created and refunded with the last release of its
 * handle, mapped or not, as existing layers do. LAYER_VMM can switch virtual memory management off or break it. */
#include "layer.h"

enum { UNKNOWN = 999, MAPPINGS = 1 << 14 };

static struct { CUdeviceptr address; CUmemGenericAllocationHandle handle; } mappings[MAPPINGS];
static unsigned long long second_mappings; /* refused */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties, unsigned long long flags)
{
    if (habits.vmm == VMM_REFUSED || habits.vmm == VMM_CREATES_NOTHING) return CUDA_ERROR_NOT_SUPPORTED;
    if (habits.vmm == VMM_UNCOUNTED) return driver()->cuMemCreate(out, size, properties, flags);
    /* The memory is charged to the device in the properties, not to the current device. */
    bool on_device = properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    int device = on_device ? properties->location.id : -1;
    if (!book_charge(device, size)) return habits.refusal;
    CUresult result = driver()->cuMemCreate(out, size, properties, flags);
    if (result != CUDA_SUCCESS) book_refund(device, size);
    else book_enter((struct entry){.kind = HANDLE, .key = *out, .size = size, .device = device, .references = 1});
    return result;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct entry entry;
    bool known = book_take(HANDLE, handle, &entry), last = known && entry.references == 1;
    CUresult result = driver()->cuMemRelease(handle);
    if (last && result == CUDA_SUCCESS) book_refund(entry.device, entry.size);
    else if (last) book_enter(entry);
    else if (known && result != CUDA_SUCCESS) book_retain(handle);
    return result;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    CUresult result = driver()->cuMemRetainAllocationHandle(out, address);
    if (result == CUDA_SUCCESS) book_retain(*out);
    return result;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (habits.vmm == VMM_MAPS_NOTHING) return UNKNOWN;
    if (habits.vmm != VMM_MAPS_ONCE) return driver()->cuMemMap(address, size, offset, handle, flags);
    pthread_mutex_lock(&lock);
    int place = -1;
    bool mapped = false;
    for (int i = 0; i < MAPPINGS; i++) {
        if (!mappings[i].address) place = i;
        else if (mappings[i].handle == handle) mapped = true;
    }
    bool may = place >= 0 && !mapped;
    second_mappings += mapped;
    CUresult result = may ? driver()->cuMemMap(address, size, offset, handle, flags) : UNKNOWN;
    if (result == CUDA_SUCCESS) {
        mappings[place].address = address;
        mappings[place].handle = handle;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

API unsigned long long layer_second_mappings(void)
{
    pthread_mutex_lock(&lock);
    unsigned long long so_far = second_mappings;
    pthread_mutex_unlock(&lock);
    return so_far;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUresult result = driver()->cuMemUnmap(address, size);
    if (habits.vmm != VMM_MAPS_ONCE || result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAPPINGS; i++)
        if (mappings[i].address >= address && mappings[i].address < address + size) mappings[i].address = 0;
    pthread_mutex_unlock(&lock);
    return result;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr address, unsigned long long flags)
{
    if (habits.vmm == VMM_REFUSED) return CUDA_ERROR_NOT_SUPPORTED;
    return driver()->cuMemAddressReserve(out, size, alignment, address, flags);
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    if (habits.vmm == VMM_REFUSED) return CUDA_ERROR_NOT_SUPPORTED;
    return driver()->cuMemGetAllocationGranularity(granularity, properties, option);
}
