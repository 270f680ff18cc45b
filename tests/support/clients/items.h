/* Allocations of every class, made and freed at random, on two devices and from several threads. `own` counts each one
 * when the call that makes it has succeeded.
 *
 * A client sets `tolerant` if the driver fails at random calls (SIMGPU_FAULTS). Then any call may fail, and what it
 * should have made is left out. Calls that free are made again: a free that failed has freed nothing. */
#ifndef ITEMS_H
#define ITEMS_H

#include "client.h"
#include "random.h"
#include <stdbool.h>

enum { DEVICES = 2, ITEMS = 48 };
enum kind {
    K_LINEAR, K_LINEAR_V1, K_PITCHED, K_MANAGED, K_HOST, K_HOST_ALLOC, K_REGISTERED, K_ASYNC, K_POOL, K_VMM, K_VMM_HOST,
    K_ARRAY, K_ARRAY_3D, K_MIPMAP, K_GRAPH, K_CAPTURE, KINDS
};
struct item {
    bool live, stays; /* allocated; never freed before its context ends */
    enum kind kind;
    int device, class, home;
    unsigned long long address, handle, bytes;
    size_t span;
    void *more;
};
struct worker { uint64_t seed; int number, steps; struct item items[ITEMS]; };

static CUcontext contexts[DEVICES];
static CUmemoryPool pools[DEVICES];
static bool tolerant, without_graphs;

/* Whether a call succeeded. Another result than `accepted` ends a client that is not tolerant. */
static bool succeeded(CUresult result, CUresult accepted, const char *call, int line)
{
    if (result == CUDA_SUCCESS || result == accepted || tolerant) return result == CUDA_SUCCESS;
    fprintf(stderr, "items.h:%d: %s: error %d\n", line, call, result);
    exit(1);
}
#define DONE(call) succeeded((call), CUDA_SUCCESS, #call, __LINE__)
/* Out of memory is accepted, because a test may fill the device. */
#define OBTAINED(call) succeeded((call), CUDA_ERROR_OUT_OF_MEMORY, #call, __LINE__)

/* Makes a call that must succeed. A tolerant client tries again, because the driver does not fail often in a row. */
#define INSIST(call)                                                       \
    do {                                                                   \
        CUresult again_ = (call);                                          \
        for (int n = 0; tolerant && again_ && n < 4; n++) again_ = (call); \
        if (again_) fprintf(stderr, "after %d faults, the last at %s:\n", faults_met(), last_fault()); \
        CHECK(again_);                                                     \
    } while (0)

static inline int faults_met(void)
{
    int (*met)(void) = (int (*)(void))optional_function("simgpu_faults_met");
    return met ? met() : 0;
}

static inline const char *last_fault(void)
{
    const char *(*last)(void) = (const char *(*)(void))optional_function("simgpu_last_fault");
    return last ? last() : "";
}

/* From now on no call fails by SIMGPU_FAULTS. */
static inline void end_faults(void)
{
    void (*end)(void) = (void (*)(void))optional_function("simgpu_end_faults");
    if (end) end();
}

static CUmemAllocationProp properties_on(int type, int id)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {type, id}};
}

/* Creates physical memory at a place and maps it, with access for a device. */
static bool create_and_map(struct item *i, int type, int id, int device)
{
    CUmemAllocationProp properties = properties_on(type, id);
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (!OBTAINED(cu(cuMemCreate)(&i->handle, i->span, &properties, 0))) return false;
    if (DONE(cu(cuMemAddressReserve)(&i->address, i->span, 0, 0, 0))) {
        if (DONE(cu(cuMemMap)(i->address, i->span, 0, i->handle, 0))) {
            if (DONE(cu(cuMemSetAccess)(i->address, i->span, &access, 1))) {
                *count_of(i->home, ADDRESS_RANGE) += (long long)i->span;
                return true;
            }
            INSIST(cu(cuMemUnmap)(i->address, i->span));
        }
        INSIST(cu(cuMemAddressFree)(i->address, i->span));
    }
    INSIST(cu(cuMemRelease)(i->handle));
    return false;
}

static bool launch(CUgraph graph, struct item *i)
{
    CUgraphExec exec = NULL;
    bool made = DONE(cu(cuGraphInstantiateWithFlags)(&exec, graph, 0)), launched = false;
    if (made) launched = OBTAINED(cu(cuGraphLaunch)(exec, NULL));
    INSIST(cu(cuGraphDestroy)(graph));
    if (made && !launched) INSIST(cu(cuGraphExecDestroy)(exec));
    i->more = exec;
    return launched;
}

static bool launch_node(struct item *i, int device)
{
    CUgraph graph;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS p = {
        .poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}}, .bytesize = i->bytes};
    if (!DONE(cu(cuGraphCreate)(&graph, 0))) return false;
    if (DONE(cu(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &p))) return i->address = p.dptr, launch(graph, i);
    INSIST(cu(cuGraphDestroy)(graph));
    return false;
}

/* The allocation becomes a node of the graph, which holds no memory before its launch. */
static bool launch_capture(struct item *i)
{
    CUgraph graph = NULL;
    CUstream stream;
    bool captured = false;
    if (!DONE(cu(cuStreamCreate)(&stream, 1))) return false;
    if (DONE(cu(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))) {
        captured = DONE(cu(cuMemAllocAsync)(&i->address, i->bytes, stream));
        captured = DONE(cu(cuStreamEndCapture)(stream, &graph)) && captured;
    }
    INSIST(cu(cuStreamDestroy_v2)(stream));
    if (captured) return launch(graph, i);
    if (graph) INSIST(cu(cuGraphDestroy)(graph));
    return false;
}

/* The memory is on the stream's device, not on the current device. */
static bool allocate_on_stream(struct item *i, int device)
{
    CUstream stream;
    if (!DONE(cu(cuStreamCreate)(&stream, 1))) return false;
    bool obtained = DONE(cu(cuCtxSetCurrent)(contexts[(device + 1) % DEVICES]))
        && OBTAINED(cu(cuMemAllocAsync)(&i->address, i->bytes, stream));
    INSIST(cu(cuStreamDestroy_v2)(stream));
    return obtained;
}

/* The memory is on the pool's device. The pool is one of the client's or the default pool. */
static bool allocate_from_pool(struct item *i, int device)
{
    CUmemoryPool pool = pools[device];
    if (i->bytes % 2 && !DONE(cu(cuDeviceGetDefaultMemPool)(&pool, device))) return false;
    if (!DONE(cu(cuCtxSetCurrent)(contexts[(device + 1) % DEVICES]))) return false;
    return OBTAINED(cu(cuMemAllocFromPoolAsync)(&i->address, i->bytes, pool, NULL));
}

/* Makes the item's memory, and says whether it did. The device that pays is `device`, if the kind sets no other. */
static bool make(struct worker *w, struct item *i)
{
    size_t size = i->bytes;
    int device = i->device;
    switch (i->kind) {
    case K_LINEAR:
        i->class = LINEAR;
        return OBTAINED(cu(cuMemAlloc_v2)(&i->address, size));
    case K_LINEAR_V1: {
        CUdeviceptr_v1 small = 0;
        i->class = LINEAR;
        i->bytes = size % 65536 + 1;
        bool obtained = OBTAINED(cu(cuMemAlloc)(&small, (unsigned)i->bytes));
        i->address = small;
        return obtained;
    }
    case K_PITCHED: {
        size_t pitch, width = size % 4000 + 1, height = draw(&w->seed, 64) + 1;
        i->class = PITCHED;
        i->bytes = width * height;
        return OBTAINED(cu(cuMemAllocPitch_v2)(&i->address, &pitch, width, height, 4));
    }
    case K_MANAGED:
        i->class = MANAGED;
        return OBTAINED(cu(cuMemAllocManaged)(&i->address, size, 1));
    case K_HOST:
    case K_HOST_ALLOC: {
        void *host = NULL;
        i->class = HOST;
        i->device = -1;
        bool made = i->kind == K_HOST ? DONE(cu(cuMemAllocHost_v2)(&host, size))
                                      : DONE(cu(cuMemHostAlloc)(&host, size, 0));
        i->address = (unsigned long long)host;
        return made;
    }
    case K_REGISTERED:
        i->class = HOST_REGISTERED;
        i->device = -1;
        i->more = malloc(size);
        if (DONE(cu(cuMemHostRegister_v2)(i->more, size, 0))) return true;
        free(i->more);
        return false;
    case K_ASYNC:
        i->class = ASYNC;
        return allocate_on_stream(i, device);
    case K_POOL:
        i->class = ASYNC;
        return allocate_from_pool(i, device);
    case K_VMM:
        /* The memory is charged to the device in the properties, not to the current device. */
        i->device = (device + 1) % DEVICES;
        i->class = VMM;
        i->bytes = i->span = (size / (2 << 20) + 1) * (2 << 20);
        return create_and_map(i, CU_MEM_LOCATION_TYPE_DEVICE, i->device, i->device);
    case K_VMM_HOST:
        i->device = -1;
        i->class = VMM;
        i->bytes = i->span = 2 << 20;
        return create_and_map(i, CU_MEM_LOCATION_TYPE_HOST, 0, device);
    case K_ARRAY: {
        CUDA_ARRAY_DESCRIPTOR d = {size % 512 + 1, draw(&w->seed, 64), CU_AD_FORMAT_FLOAT, 4};
        i->class = ARRAY;
        i->bytes = d.Width * (d.Height ? d.Height : 1) * 16;
        return OBTAINED(cu(cuArrayCreate_v2)((CUarray *)&i->handle, &d));
    }
    case K_ARRAY_3D: {
        CUDA_ARRAY3D_DESCRIPTOR d = {size % 64 + 1, 8, 6, CU_AD_FORMAT_HALF, 2, draw(&w->seed, 2) ? CUDA_ARRAY3D_LAYERED : 0};
        i->class = ARRAY;
        i->bytes = d.Width * 8 * 6 * 4;
        return OBTAINED(cu(cuArray3DCreate_v2)((CUarray *)&i->handle, &d));
    }
    case K_MIPMAP: {
        CUDA_ARRAY3D_DESCRIPTOR d = {64, 32, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0};
        i->class = MIPMAP;
        i->bytes = (64 * 32 + 32 * 16 + 16 * 8) * 4;
        return OBTAINED(cu(cuMipmappedArrayCreate)((CUmipmappedArray *)&i->handle, &d, 3));
    }
    case K_GRAPH:
        i->class = GRAPH;
        return launch_node(i, device);
    case K_CAPTURE:
        i->class = GRAPH;
        return launch_capture(i);
    case KINDS: break;
    }
    return false;
}

static void allocate(struct worker *w, struct item *i)
{
    size_t size = 1 + draw(&w->seed, draw(&w->seed, 4) ? 1 << 16 : 8 << 20);
    int device = (int)draw(&w->seed, DEVICES);
    enum kind kind = (enum kind)draw(&w->seed, without_graphs ? K_GRAPH : KINDS);
    *i = (struct item){.kind = kind, .device = device, .home = device, .bytes = size};
    if (!DONE(cu(cuCtxSetCurrent)(contexts[device]))) return;
    if (make(w, i)) {
        *count_of(i->device, i->class) += (long long)i->bytes;
        i->live = true;
    }
}

static void release(struct worker *w, struct item *i)
{
    /* Any device may be current. The freed memory alone decides which device gets the bytes back. */
    INSIST(cu(cuCtxSetCurrent)(contexts[draw(&w->seed, DEVICES)]));
    switch (i->kind) {
    case K_LINEAR: case K_PITCHED: case K_MANAGED: INSIST(cu(cuMemFree_v2)(i->address)); break;
    case K_LINEAR_V1: INSIST(cu(cuMemFree)((CUdeviceptr_v1)i->address)); break;
    case K_HOST: case K_HOST_ALLOC: INSIST(cu(cuMemFreeHost)((void *)i->address)); break;
    case K_REGISTERED: INSIST(cu(cuMemHostUnregister)(i->more)); free(i->more); break;
    case K_ASYNC: case K_POOL:
        if (draw(&w->seed, 4)) INSIST(cu(cuMemFreeAsync)(i->address, NULL));
        else INSIST(cu(cuMemFree_v2)(i->address));
        break;
    case K_VMM: case K_VMM_HOST: {
        CUmemGenericAllocationHandle again = 0;
        bool retained = draw(&w->seed, 2), release_first = draw(&w->seed, 2);
        if (retained) INSIST(cu(cuMemRetainAllocationHandle)(&again, (void *)i->address));
        if (release_first) INSIST(cu(cuMemRelease)(i->handle));
        INSIST(cu(cuMemUnmap)(i->address, i->span));
        if (!release_first) INSIST(cu(cuMemRelease)(i->handle));
        if (retained) INSIST(cu(cuMemRelease)(again));
        INSIST(cu(cuMemAddressFree)(i->address, i->span));
        *count_of(i->home, ADDRESS_RANGE) -= (long long)i->span;
        break;
    }
    case K_ARRAY: case K_ARRAY_3D: INSIST(cu(cuArrayDestroy)((CUarray)i->handle)); break;
    case K_MIPMAP: INSIST(cu(cuMipmappedArrayDestroy)((CUmipmappedArray)i->handle)); break;
    case K_GRAPH: case K_CAPTURE:
        INSIST(cu(cuMemFree_v2)(i->address));
        INSIST(cu(cuGraphExecDestroy)(i->more));
        INSIST(cu(cuDeviceGraphMemTrim)(i->device));
        break;
    case KINDS: break;
    }
    *count_of(i->device, i->class) -= (long long)i->bytes;
    i->live = false;
}

/* Checks that a call failed with `wanted`. Out of memory is accepted too, because a test may fill the device. The
 * checkpoints show whether the call changed anything. */
static void refused(CUresult result, CUresult wanted)
{
    if (tolerant) THAT(result != CUDA_SUCCESS);
    else if (result != CUDA_ERROR_OUT_OF_MEMORY) EXPECT(result, wanted);
}

static void failures(struct worker *w)
{
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = properties_on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    INSIST(cu(cuCtxSetCurrent)(contexts[0]));
    switch (draw(&w->seed, 7)) {
    case 0: refused(cu(cuMemAlloc_v2)(&address, 0), CUDA_ERROR_INVALID_VALUE); break;
    case 1: refused(cu(cuMemAlloc_v2)(&address, 1ull << 50), CUDA_ERROR_OUT_OF_MEMORY); break;
    case 2: refused(cu(cuMemAlloc_v2)(&address, ~0ull), CUDA_ERROR_OUT_OF_MEMORY); break;
    case 3: refused(cu(cuMemFree_v2)(0x123456), CUDA_ERROR_INVALID_VALUE); break;
    case 4: INSIST(cu(cuMemFree_v2)(0)); break;
    case 5: refused(cu(cuMemCreate)(&handle, 1ull << 50, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY); break;
    case 6:
        if (!OBTAINED(cu(cuMemAlloc_v2)(&address, 100000))) break;
        refused(cu(cuMemFree_v2)(address + 512), CUDA_ERROR_INVALID_VALUE);
        INSIST(cu(cuMemFree_v2)(address));
        /* Another thread may get the same address at once, so a block is freed twice only if one thread runs. */
        if (w->number < 0) refused(cu(cuMemFree_v2)(address), CUDA_ERROR_INVALID_VALUE);
        break;
    }
}

static void context_with_memory(struct worker *w)
{
    CUcontext context;
    CUdeviceptr address;
    CUarray array;
    void *host;
    CUDA_ARRAY_DESCRIPTOR d = {64, 64, CU_AD_FORMAT_FLOAT, 1};
    if (!DONE(cu(cuCtxCreate_v2)(&context, 0, (int)draw(&w->seed, DEVICES)))) return;
    for (int n = 0; n < 5; n++) (void)OBTAINED(cu(cuMemAlloc_v2)(&address, 1000 + draw(&w->seed, 100000)));
    (void)OBTAINED(cu(cuArrayCreate_v2)(&array, &d));
    (void)DONE(cu(cuMemAllocHost_v2)(&host, 4096));
    INSIST(cu(cuCtxDestroy_v2)(context));
}

/* Forgets everything that the primary context of a device held, after its reset. */
static void forget_memory_of(int device, struct worker *workers, int threads)
{
    for (int t = 0; t < threads; t++)
        for (int n = 0; n < ITEMS; n++) {
            struct item *i = &workers[t].items[n];
            bool dies = i->home == device && i->class != VMM && i->class != HOST_REGISTERED;
            if (!i->live || !dies) continue;
            *count_of(i->device, i->class) -= (long long)i->bytes;
            i->live = false;
        }
}

static void retain_and_make_pool(int device)
{
    CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    INSIST(cu(cuDevicePrimaryCtxRetain)(&contexts[device], device));
    INSIST(cu(cuCtxSetCurrent)(contexts[device]));
    INSIST(cu(cuMemPoolCreate)(&pools[device], &properties));
}

/* Prints what is still allocated, with the library's names of the calls. Memory of graphs belongs to the driver's pool
 * and is in no list. */
static void print_live(const struct worker *workers, int threads)
{
    static const char *const apis[KINDS] = {
        "cuMemAlloc", "cuMemAlloc_v1", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocHost", "cuMemHostAlloc",
        "cuMemHostRegister", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemCreate", "cuMemCreate", "cuArrayCreate",
        "cuArray3DCreate", "cuMipmappedArrayCreate", NULL, NULL,
    };
    const char *comma = "";
    printf("{\"live\":[");
    for (int t = 0; t < threads; t++)
        for (int n = 0; n < ITEMS; n++) {
            const struct item *i = &workers[t].items[n];
            if (!i->live || i->class == GRAPH) continue;
            printf("%s{\"api\":\"%s\",\"size\":%llu,\"device\":%d}", comma, apis[i->kind], i->bytes, i->device);
            comma = ",";
            if (i->span)
                printf(",{\"api\":\"cuMemAddressReserve\",\"size\":%zu,\"device\":%d}", i->span, i->home);
        }
    printf("]}\n");
}

#endif
