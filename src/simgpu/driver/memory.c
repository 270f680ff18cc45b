/* Linear, pitched, managed and host memory. */
#include "sim.h"
#include <sys/mman.h>

/* Allocates `reserved` bytes on the current context's device. Returns NULL if there is no room. Managed memory may take
 * none of the device's memory (SIMGPU_MANAGED_BEYOND). */
static Allocation *obtain(enum class class, struct Context *context, uint64_t requested, uint64_t reserved, const char *api)
{
    struct extent *extents = NULL;
    bool taken = device_take(context->device, reserved, &extents);
    if (!taken && !(class == MANAGED && config()->managed_beyond)) return NULL;
    uint64_t address = arena_take(reserved);
    if (!address && taken) state_give(physical_of(context->device), reserved, &extents);
    if (!address) return NULL;
    Allocation *a = table_new(class, context->device, requested, reserved, api);
    a->address = address;
    a->span = reserved;
    a->taken = taken ? reserved : 0;
    a->extents = extents;
    a->context = context_owner(context);
    a->from_arena = true;
    table_add(a);
    return a;
}

#define MEMORY_CALL(function)                      \
    ENTER_CONTEXT(function, context);              \
    CUresult forbidden = unsafe_while_capturing(); \
    if (forbidden) return forbidden;               \
    context_passes(context)

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
    PRICED;
    MEMORY_CALL("cuMemAlloc");
    REQUIRE(out && size);
    Allocation *a = obtain(LINEAR, context, size, size, "cuMemAlloc");
    if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
    price += price_of(ALLOC, size);
    *out = a->address;
    return CUDA_SUCCESS;
}

/* Memory whose addresses fit into 32 bits. Only x86-64 has a flag for that; for others the address is a wish. */
static void *map_low(size_t size)
{
    int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#ifdef MAP_32BIT
    return mmap(NULL, size, protection, flags | MAP_32BIT, -1, 0);
#else
    for (uint64_t wish = 1u << 28; wish + size <= UINT32_MAX; wish += 1u << 26) {
        void *map = mmap((void *)wish, size, protection, flags, -1, 0);
        if (map == MAP_FAILED || (uint64_t)map + size <= UINT32_MAX) return map;
        munmap(map, size);
    }
    return MAP_FAILED;
#endif
}

/* The 32-bit function: its addresses must fit. */
API CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned size)
{
    MEMORY_CALL("cuMemAlloc");
    REQUIRE(out && size);
    struct extent *extents = NULL;
    if (!device_take(context->device, size, &extents)) return CUDA_ERROR_OUT_OF_MEMORY;
    void *map = map_low(size);
    if (map == MAP_FAILED) return state_give(physical_of(context->device), size, &extents), CUDA_ERROR_OUT_OF_MEMORY;
    if (config()->fresh >= 0) memset(map, config()->fresh, fresh_bytes(size));
    Allocation *a = table_new(LINEAR, context->device, size, size, "cuMemAlloc_v1");
    a->address = (uint64_t)map;
    a->span = size;
    a->taken = size;
    a->extents = extents;
    a->context = context_owner(context);
    table_add(a);
    *out = (CUdeviceptr_v1)(uint64_t)map;
    return CUDA_SUCCESS;
}

/* A free waits for the work of the memory's context, whether it uses the memory or not, and for that of every device that
 * was granted access to it. pytorch#50925 quotes NVIDIA: cudaFree waits for its device and the peers that can reach the
 * memory. rmm#1655 and pytorch#19222 rely on it. Against it: pytorch#196257 saw no wait for peers (H200, CUDA 13), and
 * cuda.h 13.0:8684 says that the call "may perform implicit synchronization". The strict reading is the default, because
 * a program that relies on the wait must work; SIMGPU_FREE_WAITS_FOR_PEERS=0 gives the other one.
 *
 * Stream-ordered memory is not waited for: cuda.h 13.0:8680, "This API will not perform any implict synchronization when
 * the pointer was allocated with cuMemAllocAsync". Work that still uses it is a hazard. */
static void wait_before_free(const Allocation *a, struct Context *current)
{
    if (a->class == ASYNC) return work_freed(a->address, a->span);
    struct Context *owner = a->context ? a->context : current;
    struct Context *hold = context_hold(owner);
    if (config()->free_waits_for_peers) work_wait_users(owner);
    else work_wait_context(owner);
    context_let_go(hold);
}

API CUresult cuMemFree_v2(CUdeviceptr address)
{
    PRICED;
    ENTER_WORKING("cuMemFree");
    struct Context *context = context_current();
    Allocation *a = table_at(address);
    /* On an H100 no context has to be current for memory of cuMemAlloc, nor for address 0 (free_without_context in
     * tests/assumptions). Other memory was not tried; cuda.h 13.0:8692. */
    if (!context && address && !(a && a->class == LINEAR)) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult forbidden = unsafe_while_capturing();
    if (forbidden) return forbidden;
    context_passes(context);
    if (!address) return CUDA_SUCCESS;
    a = table_at(address); /* a wait releases the lock */
    REQUIRE(a);
    wait_before_free(a, context);
    a = table_at(address);
    REQUIRE(a);
    switch (a->class) {
    case GRAPH: graph_freed(a); return CUDA_SUCCESS;
    case ASYNC: pool_freed(a->pool, a->requested); break;
    case LINEAR: case PITCHED: case MANAGED: break;
    case IMPORTED:
        if (a->pool) return pool_close(a), CUDA_SUCCESS;
        if (a->data == NULL) break;
        return CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (!a->from_arena && a->class == LINEAR) munmap((void *)a->address, a->span);
    int device = a->class == ASYNC ? -1 : a->device;
    price += price_of(FREE, a->requested);
    table_remove(a);
    if (device >= 0) pools_synchronised(device); /* a free waits for the device, which is when pools give memory back */
    return CUDA_SUCCESS;
}
API CUresult cuMemFree(CUdeviceptr_v1 address) { return cuMemFree_v2(address); }

API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
    MEMORY_CALL("cuMemAllocPitch");
    REQUIRE(out && pitch && width && height && (element == 4 || element == 8 || element == 16));
    size_t row = rounded_up(width, 512);
    Allocation *a = obtain(PITCHED, context, times(width, height), times(row, height), "cuMemAllocPitch");
    if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = a->address;
    *pitch = row;
    return CUDA_SUCCESS;
}
API CUresult cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    (void)out, (void)pitch, (void)width, (void)height, (void)element;
    return CUDA_ERROR_OUT_OF_MEMORY; /* this memory never has a 32-bit address */
}

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    MEMORY_CALL("cuMemAllocManaged");
    REQUIRE(out && size && (flags == 1 || flags == 2));
    Allocation *a = obtain(MANAGED, context, size, size, "cuMemAllocManaged");
    if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = a->address;
    return CUDA_SUCCESS;
}

static CUresult host(void **out, size_t size, const char *api, struct Context *context)
{
    REQUIRE(out && size);
    uint64_t address = arena_take(size);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    Allocation *a = table_new(HOST, -1, size, size, api);
    a->address = address;
    a->span = size;
    a->context = context_owner(context);
    a->from_arena = true;
    table_add(a);
    *out = (void *)address;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocHost_v2(void **out, size_t size) { MEMORY_CALL("cuMemAllocHost"); return host(out, size, "cuMemAllocHost", context); }
API CUresult cuMemAllocHost(void **out, unsigned size) { return cuMemAllocHost_v2(out, size); }
API CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags) { (void)flags; MEMORY_CALL("cuMemHostAlloc"); return host(out, size, "cuMemHostAlloc", context); }

API CUresult cuMemFreeHost(void *address)
{
    MEMORY_CALL("cuMemFreeHost");
    struct Context *hold = context_hold(context);
    work_wait_context(context);
    context_let_go(hold);
    Allocation *a = table_at((uint64_t)address);
    REQUIRE(a && a->class == HOST);
    table_remove(a);
    return CUDA_SUCCESS;
}

/* Whether an address is of memory or address space that a device has and the host has not. */
static bool of_device(uint64_t address)
{
    Allocation *a = table_find(address);
    return a ? a->class != HOST && a->class != MANAGED : table_find_range(address) != NULL;
}

API CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned flags)
{
    (void)flags;
    MEMORY_CALL("cuMemHostRegister");
    REQUIRE(address && size && (uint64_t)address + size > (uint64_t)address);
    REQUIRE(!of_device((uint64_t)address)); /* cuda.h 13.0:9519: a "host pointer to memory to page-lock" */
    if (table_find_registered((uint64_t)address)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    Allocation *a = table_new(HOST_REGISTERED, -1, size, size, "cuMemHostRegister");
    a->address = (uint64_t)address;
    a->span = size;
    (void)context;
    table_add(a);
    return CUDA_SUCCESS;
}
API CUresult cuMemHostRegister(void *address, size_t size, unsigned flags) { return cuMemHostRegister_v2(address, size, flags); }

API CUresult cuMemHostUnregister(void *address)
{
    MEMORY_CALL("cuMemHostUnregister");
    REQUIRE(address);
    work_wait_context(context);
    Allocation *a = table_find_registered((uint64_t)address);
    if (!a || a->address != (uint64_t)address) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    table_remove(a);
    return CUDA_SUCCESS;
}

static bool is_host(const void *address)
{
    Allocation *a = table_find((uint64_t)address);
    return (a && a->class == HOST) || table_find_registered((uint64_t)address);
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned flags)
{
    ENTER("cuMemHostGetDevicePointer");
    REQUIRE(out && flags == 0 && is_host(address));
    *out = (CUdeviceptr)address;
    return CUDA_SUCCESS;
}
API CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *out, void *address, unsigned flags) { (void)out, (void)address, (void)flags; return CUDA_ERROR_INVALID_VALUE; }
API CUresult cuMemHostGetFlags(unsigned *flags, void *address) { ENTER("cuMemHostGetFlags"); REQUIRE(flags && is_host(address)); *flags = 1; return CUDA_SUCCESS; }

/* ---- managed memory */

static bool is_managed(const Allocation *a) { return a->class == MANAGED || (a->class == ASYNC && a->pool->managed); }

/* Whether advice, prefetches and attachments may name the range: "managed memory allocated via cuMemAllocManaged or
 * declared via __managed__ variables", or "system-allocated pageable memory provided it represents a valid,
 * host-accessible region" (cuda.h 13.0:14442-14446; 15660-15665 and 14569-14571 for devices with
 * CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, which these have). Variables of modules are memory of the host here. So
 * memory of a device, page-locked memory that the driver made, and freed memory are refused. */
bool memory_migrates(uint64_t address, uint64_t size)
{
    if (!size || address + size < address) return false;
    Allocation *a = table_find(address);
    if (a) return is_managed(a) && size <= a->address + a->span - address;
    if (table_find_range(address) || arena_holds(address)) return false;
    uint64_t first = address & ~4095ull;
    return !msync((void *)first, address + size - first, MS_ASYNC); /* fails if a page is not mapped */
}

static CUmemLocation location_of(int device)
{
    return device == -1 ? (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0} : (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

CUresult memory_location(CUmemLocation where)
{
    enum { HOST_NUMA_CURRENT = 4 };
    int device = location_device(&where);
    if (device >= 0) return device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    REQUIRE(where.type >= CU_MEM_LOCATION_TYPE_HOST && where.type <= HOST_NUMA_CURRENT);
    return CUDA_SUCCESS;
}

API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, CUmemLocation where)
{
    enum { SET_READ_MOSTLY = 1, UNSET_READ_MOSTLY, SET_LOCATION, UNSET_LOCATION, SET_ACCESSED_BY, UNSET_ACCESSED_BY };
    ENTER("cuMemAdvise");
    REQUIRE(advice >= SET_READ_MOSTLY && advice <= UNSET_ACCESSED_BY && memory_migrates(address, size));
    /* cuda.h 13.0:14448-14505: the others ignore the location */
    return advice == SET_LOCATION || advice >= SET_ACCESSED_BY ? memory_location(where) : CUDA_SUCCESS;
}
API CUresult cuMemAdvise(CUdeviceptr address, size_t size, int advice, int device) { return cuMemAdvise_v2(address, size, advice, location_of(device)); }

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation where, unsigned flags, CUstream stream)
{
    (void)stream;
    ENTER("cuMemPrefetchAsync");
    REQUIRE(!flags && memory_migrates(address, size)); /* cuda.h 13.0:14419: the flags "must be zero now" */
    return memory_location(where);
}
API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, int device, CUstream stream) { return cuMemPrefetchAsync_v2(address, size, location_of(device), 0, stream); }
PTSZ(cuMemPrefetchAsync);
PTSZ(cuMemPrefetchAsync_v2);

/* cuda.h 13.0:14684-14686 wants managed memory alone. Memory of the host is let through, because variables are such memory. */
API CUresult cuMemRangeGetAttribute(void *data, size_t bytes, int attribute, CUdeviceptr address, size_t size)
{
    (void)attribute;
    ENTER("cuMemRangeGetAttribute");
    REQUIRE(data && bytes && memory_migrates(address, size));
    memset(data, 0, bytes);
    return CUDA_SUCCESS;
}
API CUresult cuMemRangeGetAttributes(void **data, size_t *bytes, int *attributes, size_t count, CUdeviceptr address, size_t size)
{
    ENTER("cuMemRangeGetAttributes");
    REQUIRE(data && bytes && attributes && count && memory_migrates(address, size));
    for (size_t i = 0; i < count; i++) memset(data[i], 0, bytes[i]);
    return CUDA_SUCCESS;
}

/* cuda.h 13.0:15667-15672: of managed memory the length is 0 or the whole size; of the host's it is not 0. 15674: "must be
 * one of CUmemAttach_flags". 15685: "illegal to attach singly to the NULL stream". The driver's function lists no
 * CUDA_ERROR_INVALID_VALUE; that of the runtime does (cudaStreamAttachMemAsync: cudaErrorInvalidValue). */
API CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t size, unsigned flags)
{
    enum { GLOBAL = 1, TO_HOST = 2, SINGLE = 4 };
    ENTER("cuStreamAttachMemAsync");
    REQUIRE(flags == GLOBAL || flags == TO_HOST || (flags == SINGLE && stream));
    Allocation *a = table_at(address);
    if (a && is_managed(a)) REQUIRE(!size || size == a->requested);
    else REQUIRE(!a && memory_migrates(address, size));
    return CUDA_SUCCESS;
}
PTSZ(cuStreamAttachMemAsync);
