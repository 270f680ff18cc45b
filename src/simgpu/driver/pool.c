/* Stream-ordered memory. A pool takes physical memory in steps. It gives memory above its release threshold back when
 * the device is synchronised, or when another request needs memory. */
#include "sim.h"
#include <sys/mman.h>
#include <unistd.h>

static struct Pool defaults[MAX_DEVICES];
static struct Pool *current_pool[MAX_DEVICES];
static struct Pool *pools; /* pools of cuMemPoolCreate */

static struct Pool *default_pool(int device)
{
    defaults[device].device = device;
    defaults[device].is_default = true;
    defaults[device].granted[device] = true;
    return &defaults[device];
}

static struct Pool *pool_of_device(int device)
{
    return current_pool[device] ? current_pool[device] : default_pool(device);
}

static void each_pool(int device, void (*visit)(struct Pool *, void *), void *data)
{
    if (device >= 0) visit(default_pool(device), data);
    for (struct Pool *p = pools, *next; p; p = next) {
        next = p->next;
        if (p->device == device) visit(p, data);
    }
}

bool pool_valid(const struct Pool *pool)
{
    if (pool >= defaults && pool < defaults + MAX_DEVICES) return true;
    for (struct Pool *p = pools; p; p = p->next)
        if (p == pool) return !p->destroyed;
    return false;
}

static void shrink(struct Pool *pool, uint64_t keep)
{
    uint64_t chunk = config()->pool_chunk, least = pool->used > keep ? pool->used : keep;
    if (least >= pool->reserved) return; /* before rounding, because a threshold of UINT64_MAX ("keep all") would overflow */
    least = (least + chunk - 1) / chunk * chunk;
    if (least >= pool->reserved) return;
    if (pool->device >= 0) state_give(physical_of(pool->device), pool->reserved - least, &pool->extents);
    pool->reserved = least;
}

/* cuda.h 13.0:13558: what a destroyed pool has is "released automatically once there are no more outstanding allocations". */
static void end_if_unused(struct Pool *pool)
{
    if (!pool->destroyed || pool->used) return;
    shrink(pool, 0);
    for (struct Pool **p = &pools; *p; p = &(*p)->next)
        if (*p == pool) {
            *p = pool->next;
            break;
        }
    free(pool);
}

void pool_freed(struct Pool *pool, uint64_t bytes)
{
    pool->used -= bytes;
    end_if_unused(pool);
}

static void to_threshold(struct Pool *pool, void *unused) { (void)unused; if (!pool->destroyed) shrink(pool, pool->threshold); }
static void to_nothing(struct Pool *pool, void *released)
{
    uint64_t before = pool->reserved;
    if (!pool->destroyed) shrink(pool, 0);
    *(uint64_t *)released += before - pool->reserved;
}
static void add_reserved(struct Pool *pool, void *sum) { *(uint64_t *)sum += pool->imported ? 0 : pool->reserved; }
static void forget(struct Pool *pool, void *unused) { (void)unused; pool->used = 0; shrink(pool, 0); end_if_unused(pool); }

void pools_synchronised(int device) { each_pool(device, to_threshold, NULL); }
void pools_reset(int device) { each_pool(device, forget, NULL); current_pool[device] = NULL; }
uint64_t pools_reserved(int device) { uint64_t sum = 0; each_pool(device, add_reserved, &sum); return sum; }
uint64_t pools_release_unused(int device) { uint64_t sum = 0; each_pool(device, to_nothing, &sum); return sum; }

bool device_take(int device, uint64_t bytes, struct extent **extents)
{
    vmm_sweep();
    return state_take(physical_of(device), bytes, extents)
        || (pools_release_unused(device) && state_take(physical_of(device), bytes, extents));
}

static CUresult allocate(CUdeviceptr *out, size_t size, struct Pool *pool, struct Context *context, const char *api)
{
    REQUIRE(out && size && pool_valid(pool) && !pool->imported);
    if (pool->most && (size > pool->most || pool->used > pool->most - size)) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t address = arena_take(size);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t chunk = config()->pool_chunk, free_now = pool->reserved - pool->used;
    if (size > free_now) {
        uint64_t more = rounded_up(size - free_now, chunk);
        if (pool->device >= 0 && !state_take(physical_of(pool->device), more, &pool->extents)) {
            pools_release_unused(pool->device);
            free_now = pool->reserved - pool->used;
            more = size > free_now ? rounded_up(size - free_now, chunk) : 0;
            if (!state_take(physical_of(pool->device), more, &pool->extents))
                return arena_give(address, size, false), CUDA_ERROR_OUT_OF_MEMORY;
        }
        pool->reserved += more;
        sim_eventful = true;
        if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    }
    Allocation *a = table_new(ASYNC, pool->device, size, 0, api);
    a->address = address;
    a->span = size;
    a->pool = pool;
    a->from_arena = true;
    (void)context;
    table_add(a);
    pool->used += size;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    *out = address;
    return CUDA_SUCCESS;
}

/* The result of a memory node, which breaks its capture if it is not the recaptured graph's. */
static CUresult captured(CUstream stream, CUresult result)
{
    return result == CUDA_ERROR_GRAPH_RECAPTURE_FAILURE ? capture_failed(stream) : result;
}

#define CAPTURE(type)                                                                  \
    CHECK_STREAM(stream);                                                              \
    struct Graph *graph;                                                               \
    CUresult refused = stream_capture(stream, type, &graph);                           \
    if (refused) return refused

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
    ENTER_CONTEXT("cuMemAllocAsync", context);
    CAPTURE(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (graph) return captured(stream, graph_capture_alloc(graph, context->device, size, out));
    return allocate(out, size, pool_of_device(stream_context(stream, context)->device), context, "cuMemAllocAsync");
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
    ENTER_CONTEXT("cuMemAllocFromPoolAsync", context);
    REQUIRE(pool);
    CAPTURE(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (graph) return captured(stream, graph_capture_alloc(graph, pool->device, size, out));
    return allocate(out, size, pool, context, "cuMemAllocFromPoolAsync");
}
API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    ENTER_WORKING("cuMemFreeAsync");
    /* cuda.h 13.0 names this error for default streams: "default stream specified with no current context". */
    if ((uintptr_t)stream <= 2 && !context_current()) return CUDA_ERROR_INVALID_CONTEXT;
    CAPTURE(CU_GRAPH_NODE_TYPE_MEM_FREE);
    if (graph) return captured(stream, graph_capture_free(graph, address));
    if (!address) return CUDA_SUCCESS;
    Allocation *a = table_at(address);
    /* NVIDIA's blog "Using the NVIDIA CUDA Stream-Ordered Memory Allocator" allows memory of cudaMalloc, which is then free at
     * the stream's next synchronisation (free_async_of_alloc in tests/assumptions). Here it is when the stream's work is
     * done. */
    bool linear = a && a->class == LINEAR && a->from_arena;
    REQUIRE(a && (linear || a->class == ASYNC || a->class == GRAPH || (a->class == IMPORTED && a->pool)));
    if (a->class == GRAPH) return graph_freed(a), CUDA_SUCCESS;
    if (a->class == IMPORTED) return pool_close(a), CUDA_SUCCESS;
    struct Pool *pool = a->pool;
    uint64_t bytes = a->requested;
    if (work_release(stream, a->address, a->span, a->ipc_fd >= 0)) a->from_arena = false;
    table_remove(a);
    if (!linear) pool_freed(pool, bytes);
    return CUDA_SUCCESS;
}
API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream stream) { return cuMemAllocAsync(out, size, of_thread(stream)); }
API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) { return cuMemAllocFromPoolAsync(out, size, pool, of_thread(stream)); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) { return cuMemFreeAsync(address, of_thread(stream)); }

struct Pool *pool_new(int device)
{
    struct Pool *pool = calloc(1, sizeof *pool);
    pool->device = device;
    if (device >= 0) pool->granted[device] = true;
    pool->next = pools;
    return pools = pool;
}

API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
    ENTER("cuMemPoolCreate");
    REQUIRE(out && properties);
    /* cuda.h 13.0:13508-13519 */
    int where = properties->location.type, managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    int device = location_device(&properties->location);
    REQUIRE(properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED || managed);
    REQUIRE(device >= 0 || (where >= (managed ? CU_MEM_LOCATION_TYPE_NONE : CU_MEM_LOCATION_TYPE_DEVICE) && where <= CU_MEM_LOCATION_TYPE_HOST_NUMA));
    REQUIRE(device < 0 || device_valid(device));
    REQUIRE(where != CU_MEM_LOCATION_TYPE_HOST || !properties->handleTypes);
    struct Pool *pool = pool_new(device);
    pool->usage = properties->usage;
    pool->shareable = properties->handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    pool->most = properties->maxSize;
    pool->managed = managed;
    *out = pool;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    ENTER("cuMemPoolDestroy");
    REQUIRE(pool && pool_valid(pool) && !pool->is_default);
    for (int i = 0; i < MAX_DEVICES; i++)
        if (current_pool[i] == pool) current_pool[i] = NULL;
    pool->destroyed = true;
    end_if_unused(pool);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) { ENTER("cuMemPoolTrimTo"); REQUIRE(pool && pool_valid(pool)); shrink(pool, keep); return CUDA_SUCCESS; }

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    ENTER("cuMemPoolSetAttribute");
    REQUIRE(pool && value && pool_valid(pool));
    switch (attribute) {
    case 1: case 2: case 3: pool->not_reusing[attribute] = !*(int *)value; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->threshold = *(uint64_t *)value; return CUDA_SUCCESS;
    /* "High watermark can only be reset to zero": cuda.h 13.0:4465, 4478 */
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: REQUIRE(!*(uint64_t *)value); pool->reserved_high = pool->reserved; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: REQUIRE(!*(uint64_t *)value); pool->used_high = pool->used; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    ENTER("cuMemPoolGetAttribute");
    REQUIRE(pool && value && pool_valid(pool));
    CUresult refused = unsafe_while_capturing(); /* measured on an H200 with driver 580 */
    if (refused) return refused;
    switch (attribute) {
    case 1: case 2: case 3: *(int *)value = !pool->not_reusing[attribute]; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(uint64_t *)value = pool->threshold; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = pool->reserved; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = pool->reserved_high; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = pool->used; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)value = pool->used_high; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) { ENTER("cuDeviceGetDefaultMemPool"); REQUIRE(out); if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE; *out = default_pool(device); return CUDA_SUCCESS; }
API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) { ENTER("cuDeviceGetMemPool"); REQUIRE(out); if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE; *out = pool_of_device(device); return CUDA_SUCCESS; }
API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) { ENTER("cuDeviceSetMemPool"); if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE; REQUIRE(pool && pool_valid(pool) && !pool->imported && pool->device == device); current_pool[device] = pool; return CUDA_SUCCESS; }

/* The pools that CUDA 13 hands out for a location and a type of memory, besides those of pinned memory on a device. */
static struct Place {
    CUmemLocation location;
    int type;
    struct Pool *pool, *current;
    struct Place *next;
} *places;

static CUresult place_of(const CUmemLocation *location, int type, struct Place **found)
{
    bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    int device = location_device(location);
    REQUIRE(managed || type == CU_MEM_ALLOCATION_TYPE_PINNED);
    REQUIRE(location->type != CU_MEM_LOCATION_TYPE_NONE || managed);
    REQUIRE(device >= 0 || (location->type >= CU_MEM_LOCATION_TYPE_NONE && location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA));
    if (device >= 0 && !device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    int id = device >= 0 || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ? location->id : 0;
    for (struct Place *p = places; p; p = p->next)
        if (p->location.type == location->type && p->location.id == id && p->type == type) return *found = p, CUDA_SUCCESS;
    struct Place *place = calloc(1, sizeof *place);
    struct Pool *pool = location->type == CU_MEM_LOCATION_TYPE_DEVICE && !managed ? default_pool(id) : pool_new(device);
    pool->is_default = true;
    pool->managed = managed;
    *place = (struct Place){{location->type, id}, type, pool, pool, places};
    places = place;
    *found = place;
    return CUDA_SUCCESS;
}

#define PLACE(name)                                                        \
    struct Place *place;                                                   \
    ENTER(name);                                                           \
    REQUIRE(location);                                                     \
    CUresult wrong = place_of(location, type, &place);                     \
    if (wrong) return wrong

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type) { PLACE("cuMemGetDefaultMemPool"); REQUIRE(out); *out = place->pool; return CUDA_SUCCESS; }
API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type) { PLACE("cuMemGetMemPool"); REQUIRE(out); *out = place->current; return CUDA_SUCCESS; }
API CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
    PLACE("cuMemSetMemPool");
    REQUIRE(pool && pool_valid(pool) && !pool->imported && pool->device == place->pool->device);
    place->current = pool;
    return CUDA_SUCCESS;
}
