/* Allocates and frees memory of every class at random, on two devices and from several threads, and counts its own
 * requests.
 *
 *   exercise SEED STEPS THREADS */
#include "client.h"
#include "random.h"
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

enum { DEVICES = 2, ITEMS = 48 };
enum kind {
    K_LINEAR, K_LINEAR_V1, K_PITCHED, K_MANAGED, K_HOST, K_HOST_ALLOC, K_REGISTERED, K_ASYNC, K_POOL, K_VMM, K_VMM_HOST,
    K_ARRAY, K_ARRAY_3D, K_MIPMAP, K_GRAPH, K_CAPTURE, KINDS
};
struct item { bool live; enum kind kind; int device, class, home; unsigned long long address, handle, bytes; size_t span; void *more; };
struct worker { uint64_t seed; int number, steps; struct item items[ITEMS]; };

static CUcontext contexts[DEVICES];
static CUmemoryPool pools[DEVICES];
static pthread_barrier_t barrier;

static CUmemAllocationProp properties_on(int type, int id)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {type, id}};
}

static void map_whole(struct item *i, int device)
{
    CHECK(cu(cuMemAddressReserve)(&i->address, i->span, 0, 0, 0));
    *count_of(i->home, ADDRESS_RANGE) += (long long)i->span;
    CHECK(cu(cuMemMap)(i->address, i->span, 0, i->handle, 0));
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cu(cuMemSetAccess)(i->address, i->span, &access, 1));
}

/* Whether the request succeeded. Out of memory is accepted, because a test may fill the device. */
static bool obtained(CUresult result, struct item *i)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY) CHECK(result);
    return i->live = result == CUDA_SUCCESS;
}

#define TRY(call) do { if (!obtained((call), i)) return; } while (0)

static bool launch(CUgraph graph, struct item *i)
{
    CUgraphExec exec;
    CHECK(cu(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    bool launched = obtained(cu(cuGraphLaunch)(exec, NULL), i);
    CHECK(cu(cuGraphDestroy)(graph));
    if (!launched) CHECK(cu(cuGraphExecDestroy)(exec));
    i->more = exec;
    return launched;
}

static void allocate(struct worker *w, struct item *i)
{
    size_t size = 1 + draw(&w->seed, draw(&w->seed, 4) ? 1 << 16 : 8 << 20);
    int device = (int)draw(&w->seed, DEVICES);
    *i = (struct item){.live = true, .kind = (enum kind)draw(&w->seed, KINDS), .device = device, .home = device, .bytes = size};
    CHECK(cu(cuCtxSetCurrent)(contexts[device]));
    switch (i->kind) {
    case K_LINEAR:
        i->class = LINEAR;
        TRY(cu(cuMemAlloc_v2)(&i->address, size));
        break;
    case K_LINEAR_V1: {
        CUdeviceptr_v1 small;
        i->class = LINEAR;
        i->bytes = size = size % 65536 + 1;
        TRY(cu(cuMemAlloc)(&small, (unsigned)size));
        i->address = small;
        break;
    }
    case K_PITCHED: {
        size_t pitch, width = size % 4000 + 1, height = draw(&w->seed, 64) + 1;
        i->class = PITCHED;
        i->bytes = width * height;
        TRY(cu(cuMemAllocPitch_v2)(&i->address, &pitch, width, height, 4));
        break;
    }
    case K_MANAGED:
        i->class = MANAGED;
        TRY(cu(cuMemAllocManaged)(&i->address, size, 1));
        break;
    case K_HOST:
    case K_HOST_ALLOC: {
        void *host;
        i->class = HOST;
        i->device = -1;
        if (i->kind == K_HOST) CHECK(cu(cuMemAllocHost_v2)(&host, size));
        else CHECK(cu(cuMemHostAlloc)(&host, size, 0));
        i->address = (unsigned long long)host;
        break;
    }
    case K_REGISTERED:
        i->class = HOST_REGISTERED;
        i->device = -1;
        i->more = malloc(size);
        CHECK(cu(cuMemHostRegister_v2)(i->more, size, 0));
        break;
    case K_ASYNC: {
        /* The memory is on the stream's device, not on the current device. */
        CUstream stream;
        i->class = ASYNC;
        CHECK(cu(cuStreamCreate)(&stream, 1));
        CHECK(cu(cuCtxSetCurrent)(contexts[(device + 1) % DEVICES]));
        CUresult result = cu(cuMemAllocAsync)(&i->address, size, stream);
        CHECK(cu(cuStreamDestroy_v2)(stream));
        TRY(result);
        break;
    }
    case K_POOL: {
        /* The memory is on the pool's device. The pool is one of this client's or the default pool. */
        CUmemoryPool pool = pools[device];
        i->class = ASYNC;
        if (size % 2) CHECK(cu(cuDeviceGetDefaultMemPool)(&pool, device));
        CHECK(cu(cuCtxSetCurrent)(contexts[(device + 1) % DEVICES]));
        TRY(cu(cuMemAllocFromPoolAsync)(&i->address, size, pool, NULL));
        break;
    }
    case K_VMM: {
        /* The memory is charged to the device in the properties, not to the current device. */
        i->device = (device + 1) % DEVICES;
        CUmemAllocationProp properties = properties_on(CU_MEM_LOCATION_TYPE_DEVICE, i->device);
        i->class = VMM;
        i->bytes = i->span = (size / (2 << 20) + 1) * (2 << 20);
        TRY(cu(cuMemCreate)(&i->handle, i->span, &properties, 0));
        map_whole(i, i->device);
        break;
    }
    case K_VMM_HOST: {
        i->device = -1;
        CUmemAllocationProp properties = properties_on(CU_MEM_LOCATION_TYPE_HOST, 0);
        i->class = VMM;
        i->bytes = i->span = 2 << 20;
        TRY(cu(cuMemCreate)(&i->handle, i->span, &properties, 0));
        map_whole(i, device);
        break;
    }
    case K_ARRAY: {
        CUDA_ARRAY_DESCRIPTOR d = {size % 512 + 1, draw(&w->seed, 64), CU_AD_FORMAT_FLOAT, 4};
        CUarray array;
        i->class = ARRAY;
        i->bytes = d.Width * (d.Height ? d.Height : 1) * 16;
        TRY(cu(cuArrayCreate_v2)(&array, &d));
        i->handle = (unsigned long long)array;
        break;
    }
    case K_ARRAY_3D: {
        CUDA_ARRAY3D_DESCRIPTOR d = {size % 64 + 1, 8, 6, CU_AD_FORMAT_HALF, 2, draw(&w->seed, 2) ? CUDA_ARRAY3D_LAYERED : 0};
        CUarray array;
        i->class = ARRAY;
        i->bytes = d.Width * 8 * 6 * 4;
        TRY(cu(cuArray3DCreate_v2)(&array, &d));
        i->handle = (unsigned long long)array;
        break;
    }
    case K_MIPMAP: {
        CUDA_ARRAY3D_DESCRIPTOR d = {64, 32, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0};
        CUmipmappedArray array;
        i->class = MIPMAP;
        i->bytes = (64 * 32 + 32 * 16 + 16 * 8) * 4;
        TRY(cu(cuMipmappedArrayCreate)(&array, &d, 3));
        i->handle = (unsigned long long)array;
        break;
    }
    case K_GRAPH: {
        CUgraph graph;
        CUgraphNode node;
        CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}}, .bytesize = size};
        i->class = GRAPH;
        CHECK(cu(cuGraphCreate)(&graph, 0));
        CHECK(cu(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &p));
        i->address = p.dptr;
        if (!launch(graph, i)) return;
        break;
    }
    case K_CAPTURE: {
        /* The allocation becomes a node of the graph, which holds no memory before its launch. */
        CUgraph graph;
        CUstream stream;
        i->class = GRAPH;
        CHECK(cu(cuStreamCreate)(&stream, 1));
        CHECK(cu(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        CHECK(cu(cuMemAllocAsync)(&i->address, size, stream));
        CHECK(cu(cuStreamEndCapture)(stream, &graph));
        CHECK(cu(cuStreamDestroy_v2)(stream));
        if (!launch(graph, i)) return;
        break;
    }
    case KINDS: break;
    }
    *count_of(i->device, i->class) += (long long)i->bytes;
}

static void release(struct worker *w, struct item *i)
{
    /* Any device may be current. The freed memory alone decides which device gets the bytes back. */
    CHECK(cu(cuCtxSetCurrent)(contexts[draw(&w->seed, DEVICES)]));
    switch (i->kind) {
    case K_LINEAR: case K_PITCHED: case K_MANAGED: CHECK(cu(cuMemFree_v2)(i->address)); break;
    case K_LINEAR_V1: CHECK(cu(cuMemFree)((CUdeviceptr_v1)i->address)); break;
    case K_HOST: case K_HOST_ALLOC: CHECK(cu(cuMemFreeHost)((void *)i->address)); break;
    case K_REGISTERED: CHECK(cu(cuMemHostUnregister)(i->more)); free(i->more); break;
    case K_ASYNC: case K_POOL:
        if (draw(&w->seed, 4)) CHECK(cu(cuMemFreeAsync)(i->address, NULL));
        else CHECK(cu(cuMemFree_v2)(i->address));
        break;
    case K_VMM: case K_VMM_HOST: {
        CUmemGenericAllocationHandle again = 0;
        bool retained = draw(&w->seed, 2), release_first = draw(&w->seed, 2);
        if (retained) CHECK(cu(cuMemRetainAllocationHandle)(&again, (void *)i->address));
        if (release_first) CHECK(cu(cuMemRelease)(i->handle));
        CHECK(cu(cuMemUnmap)(i->address, i->span));
        if (!release_first) CHECK(cu(cuMemRelease)(i->handle));
        if (retained) CHECK(cu(cuMemRelease)(again));
        CHECK(cu(cuMemAddressFree)(i->address, i->span));
        *count_of(i->home, ADDRESS_RANGE) -= (long long)i->span;
        break;
    }
    case K_ARRAY: case K_ARRAY_3D: CHECK(cu(cuArrayDestroy)((CUarray)i->handle)); break;
    case K_MIPMAP: CHECK(cu(cuMipmappedArrayDestroy)((CUmipmappedArray)i->handle)); break;
    case K_GRAPH: case K_CAPTURE:
        CHECK(cu(cuMemFree_v2)(i->address));
        CHECK(cu(cuGraphExecDestroy)(i->more));
        CHECK(cu(cuDeviceGraphMemTrim)(i->device));
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
    if (result != CUDA_ERROR_OUT_OF_MEMORY) EXPECT(result, wanted);
}

static void failures(struct worker *w)
{
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = properties_on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CHECK(cu(cuCtxSetCurrent)(contexts[0]));
    switch (draw(&w->seed, 7)) {
    case 0: refused(cu(cuMemAlloc_v2)(&address, 0), CUDA_ERROR_INVALID_VALUE); break;
    case 1: EXPECT(cu(cuMemAlloc_v2)(&address, 1ull << 50), CUDA_ERROR_OUT_OF_MEMORY); break;
    case 2: EXPECT(cu(cuMemAlloc_v2)(&address, ~0ull), CUDA_ERROR_OUT_OF_MEMORY); break;
    case 3: EXPECT(cu(cuMemFree_v2)(0x123456), CUDA_ERROR_INVALID_VALUE); break;
    case 4: CHECK(cu(cuMemFree_v2)(0)); break;
    case 5: EXPECT(cu(cuMemCreate)(&handle, 1ull << 50, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY); break;
    case 6:
        if (!obtained(cu(cuMemAlloc_v2)(&address, 100000), &(struct item){0})) break;
        EXPECT(cu(cuMemFree_v2)(address + 512), CUDA_ERROR_INVALID_VALUE);
        CHECK(cu(cuMemFree_v2)(address));
        /* Another thread may get the same address at once, so a block is freed twice only if one thread runs. */
        if (w->number < 0) EXPECT(cu(cuMemFree_v2)(address), CUDA_ERROR_INVALID_VALUE);
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
    CHECK(cu(cuCtxCreate_v2)(&context, 0, (int)draw(&w->seed, DEVICES)));
    for (int n = 0; n < 5; n++) obtained(cu(cuMemAlloc_v2)(&address, 1000 + draw(&w->seed, 100000)), &(struct item){0});
    obtained(cu(cuArrayCreate_v2)(&array, &d), &(struct item){0});
    CHECK(cu(cuMemAllocHost_v2)(&host, 4096));
    CHECK(cu(cuCtxDestroy_v2)(context));
}

static void *work(void *data)
{
    struct worker *w = data;
    for (int step = 1; step <= w->steps; step++) {
        struct item *i = &w->items[draw(&w->seed, ITEMS)];
        if (i->live) release(w, i);
        else allocate(w, i);
        if (step % 16 == 0) failures(w);
        if (step % 50 == 0) context_with_memory(w);
        if (step % 40 == 0) {
            CHECK(cu(cuCtxSetCurrent)(contexts[w->number & 1]));
            CHECK(cu(cuStreamSynchronize)(NULL));
            if (step % 80 == 0) CHECK(cu(cuMemPoolTrimTo)(pools[w->number & 1], 0));
            pthread_barrier_wait(&barrier);
            pthread_barrier_wait(&barrier); /* the main thread prints a checkpoint in between */
        }
    }
    return NULL;
}

/* Resets device 1, and forgets everything that its primary context held. */
static void reset_device_one(struct worker *workers, int threads)
{
    CHECK(cu(cuDevicePrimaryCtxReset_v2)(1));
    for (int t = 0; t < threads; t++)
        for (int n = 0; n < ITEMS; n++) {
            struct item *i = &workers[t].items[n];
            bool dies = i->home == 1 && i->class != VMM && i->class != HOST_REGISTERED;
            if (!i->live || !dies) continue;
            *count_of(i->device, i->class) -= (long long)i->bytes;
            i->live = false;
        }
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

/* Allocates on device 1 after its reset. The library must not mix the state before the reset with the new state. */
static void after_the_reset(struct worker *w)
{
    CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CHECK(cu(cuDevicePrimaryCtxRetain)(&contexts[1], 1));
    CHECK(cu(cuCtxSetCurrent)(contexts[1]));
    CHECK(cu(cuMemPoolCreate)(&pools[1], &properties));
    for (int step = 0; step < 100; step++) {
        struct item *i = &w->items[draw(&w->seed, ITEMS)];
        if (i->live) release(w, i);
        else allocate(w, i);
    }
    checkpoint();
}

/* Destroys the pools, after all of their memory was freed. */
static void destroy_pools(struct worker *workers, int threads)
{
    for (int t = 0; t < threads; t++)
        for (int n = 0; n < ITEMS; n++)
            if (workers[t].items[n].live && workers[t].items[n].kind == K_POOL) release(&workers[t], &workers[t].items[n]);
    for (int device = 0; device < DEVICES; device++) CHECK(cu(cuMemPoolDestroy)(pools[device]));
    checkpoint();
}

int main(int argc, char **argv)
{
    if (argc != 4) return fprintf(stderr, "usage: exercise SEED STEPS THREADS\n"), 2;
    int steps = atoi(argv[2]), threads = atoi(argv[3]);
    CHECK(cu(cuInit)(0));
    for (int device = 0; device < DEVICES; device++) {
        CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
        CHECK(cu(cuDevicePrimaryCtxRetain)(&contexts[device], device));
        CHECK(cu(cuCtxSetCurrent)(contexts[device]));
        CHECK(cu(cuMemPoolCreate)(&pools[device], &properties));
    }
    checkpoint();
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    pthread_t ids[64];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (int t = 0; t < threads; t++) {
        workers[t] = (struct worker){.seed = strtoull(argv[1], NULL, 10) * 1000 + (unsigned)t, .number = threads == 1 ? -1 : t, .steps = steps};
        pthread_create(&ids[t], NULL, work, &workers[t]);
    }
    for (int round = 0; round < steps / 40; round++) {
        pthread_barrier_wait(&barrier);
        checkpoint();
        pthread_barrier_wait(&barrier);
    }
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    checkpoint();
    reset_device_one(workers, threads);
    checkpoint();
    after_the_reset(&workers[0]);
    destroy_pools(workers, threads);
    print_live(workers, threads);
    return 0;
}
