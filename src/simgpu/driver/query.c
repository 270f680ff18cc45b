/* Questions that a program may ask about memory. */
#include "sim.h"

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER_CONTEXT("cuMemGetInfo", context);
    int physical = physical_of(context->device);
    vmm_sweep();
    uint64_t all = config()->memory[physical];
    if (free_bytes) *free_bytes = all - state_used(physical);
    if (total) *total = all;
    return CUDA_SUCCESS;
}
API CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    size_t f, t;
    CUresult result = cuMemGetInfo_v2(&f, &t);
    if (result) return result;
    if (free_bytes) *free_bytes = f > 0xffffffffu ? 0xffffffffu : (unsigned)f;
    if (total) *total = t > 0xffffffffu ? 0xffffffffu : (unsigned)t;
    return CUDA_SUCCESS;
}

/* The entry that contains an address, whatever class it is of. */
static Allocation *whole(uint64_t address, uint64_t *start, uint64_t *size)
{
    Allocation *a = table_find(address);
    if (!a) a = table_find_registered(address);
    if (!a) return vmm_at(address, start, size);
    *start = a->address;
    *size = a->class == PITCHED ? a->reserved : a->span;
    return a;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    ENTER_CONTEXT("cuMemGetAddressRange", context);
    (void)context;
    REQUIRE(base || size);
    uint64_t start, bytes;
    if (!whole(address, &start, &bytes)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = start;
    if (size) *size = bytes;
    return CUDA_SUCCESS;
}
API CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned *size, CUdeviceptr_v1 address)
{
    CUdeviceptr start;
    size_t bytes;
    CUresult result = cuMemGetAddressRange_v2(&start, &bytes, address);
    if (result) return result;
    if (base) *base = (CUdeviceptr_v1)start;
    if (size) *size = (unsigned)bytes;
    return CUDA_SUCCESS;
}

static size_t attribute_size(int attribute)
{
    switch (attribute) {
    case 2: case 9: case 16: return 4;
    case 6: case 8: case 10: case 13: case 15: case 21: return 1;
    case 5: return 16;
    default: return 8;
    }
}

static unsigned access_flags(uint64_t address)
{
    struct Context *context = context_current();
    if (!context || !accessible(context->device, address, 1, false)) return 0;
    /* cuda.h 13.0:3691: without peer access, memory of another device "must be staged through accessible memory". */
    Allocation *a = table_find(address);
    bool of_device = a && (a->class == LINEAR || a->class == PITCHED);
    if (of_device && a->device != context->device && !context_has_access(context->device, a->device)) return 0;
    return vmm_accessible(context->device, address, 1, true) ? 3 : 1;
}

/* cuda.h 13.0:14252-14307, 915-921. Of mapped memory, the range is the reservation, mapped or not, and the mapping is
 * that of one handle (DALI#3064, ucx#11283), which also has the ID (cuda.h 13.0:14265). cuMemGetAddressRange tells the
 * mapping (ucx#11461, libfabric#12473, torchcomms#3078; nccl#2332 saw 500). */
static CUresult attribute_value(void *out, int attribute, uint64_t address)
{
    uint64_t start = 0, size = 0;
    Allocation *a = whole(address, &start, &size), *reservation = table_find_range(address);
    memset(out, 0, attribute_size(attribute));
    if (!a && reservation && attribute >= 11 && attribute <= 13) {
        if (attribute != 13) *(uint64_t *)out = attribute == 11 ? reservation->address : reservation->span;
        return CUDA_SUCCESS;
    }
    if (!a) {
        if (attribute == 9) *(int *)out = -2;
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool host = a->device < 0;
    switch (attribute) {
    case 1: *(void **)out = a->context ? a->context : host ? NULL : primary_of(a->device); break;
    case 5: /* To ask for the tokens of cuMemAlloc's memory sets SYNC_MEMOPS (cuda.h 13.0:14240). An H100 gives some for mapped memory too. */
        if (a->class != LINEAR && a->class != VMM) return CUDA_ERROR_INVALID_VALUE;
        a->sync_memops |= a->class == LINEAR;
        break;
    case 6: *(bool *)out = a->sync_memops; break;
    case 2: *(unsigned *)out = host ? 1 : 2; break;
    case 3: *(uint64_t *)out = address; break;
    case 4: if (!host && a->class != MANAGED) return CUDA_ERROR_INVALID_VALUE; *(uint64_t *)out = address; break;
    case 7: case 20: *(uint64_t *)out = a->id; break;
    case 8: *(bool *)out = a->class == MANAGED; break;
    case 9: *(int *)out = host ? 0 : a->device; break;
    case 10: *(bool *)out = a->class == LINEAR || a->class == PITCHED; break;
    case 11: *(uint64_t *)out = a->class == VMM && reservation ? reservation->address : start; break;
    case 12: *(size_t *)out = a->class == VMM && reservation ? reservation->span : size; break;
    case 13: *(bool *)out = true; break;
    case 14: *(uint64_t *)out = a->class == VMM ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0; break;
    case 15: *(bool *)out = a->class == VMM ? a->reachable : !host; break;
    case 16: *(unsigned *)out = access_flags(address); break;
    case 17: *(void **)out = a->pool; break;
    case 18: *(size_t *)out = size; break;
    case 19: *(uint64_t *)out = start; break;
    case 21: *(bool *)out = can_decompress(a); break;
    default: break;
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address)
{
    ENTER_WORKING("cuPointerGetAttribute");
    REQUIRE(out && attribute > 0 && attribute < 32);
    return attribute_value(out, attribute, address);
}
/* For an unknown pointer this function succeeds and sets every attribute to zero. */
API CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **out, CUdeviceptr address)
{
    ENTER_WORKING("cuPointerGetAttributes");
    REQUIRE(attributes && out);
    for (unsigned i = 0; i < count; i++) {
        REQUIRE(attributes[i] > 0 && attributes[i] < 32);
        attribute_value(out[i], attributes[i], address);
    }
    return CUDA_SUCCESS;
}

/* SYNC_MEMOPS is kept for the allocation that the address is in (cuda.h 13.0:14813, ucx#4188). Mapped memory refuses it
 * (ucx#9895 with driver 535, lupine#646). No other attribute can be set. */
API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
    enum { SYNC_MEMOPS = 6 };
    ENTER_WORKING("cuPointerSetAttribute");
    uint64_t start, size;
    if (vmm_at(address, &start, &size)) return CUDA_ERROR_NOT_SUPPORTED;
    Allocation *a = table_find(address);
    REQUIRE(value && a && attribute == SYNC_MEMOPS);
    a->sync_memops = *(const unsigned *)value;
    /* cuda.h 13.0:14815: synchronous operations that are pending are waited for. */
    struct Queue *q = a->sync_memops ? work_queue(NULL) : NULL;
    if (q) work_wait(q);
    return CUDA_SUCCESS;
}

/* What a device may do with memory that is mapped at an address; -1 if none is. */
static int access_from(int device, uint64_t address)
{
    uint64_t start, size;
    if (!vmm_at(address, &start, &size)) return -1;
    return vmm_accessible(device, address, 1, false) | vmm_accessible(device, address, 1, true) << 1;
}

API int simgpu_access(CUdeviceptr address, int device)
{
    pthread_mutex_lock(&sim_mutex);
    int access = access_from(device, address);
    pthread_mutex_unlock(&sim_mutex);
    return access;
}

/* Memory of cuMemAlloc has no flags (access_of_alloc in tests/assumptions, on an H200). Other memory was not tried. */
API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    ENTER_WORKING("cuMemGetAccess");
    REQUIRE(flags && location);
    bool device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    uint64_t start, size;
    Allocation *a = table_find(address);
    REQUIRE(vmm_at(address, &start, &size) || (a && a->class == LINEAR));
    if (device && !device_valid(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    int access = device ? access_from(location->id, address) : 0;
    *flags = access > 0 ? access : 0;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    ENTER_WORKING("cuMemGetAllocationPropertiesFromHandle");
    Allocation *a = vmm_handle(handle);
    REQUIRE(properties && a);
    *properties = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {a->device >= 0 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST, a->device >= 0 ? a->device : 0},
    };
    return CUDA_SUCCESS;
}
