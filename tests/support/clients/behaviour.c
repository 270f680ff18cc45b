/* One scene for each fault that other interposing libraries have had. Each scene makes documented calls and exits with
 * 1 if an answer is not the documented one. Results that only the test can judge are printed.
 *
 *   behaviour SCENE */
#include "client.h"
#include "shim.h"
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

static CUcontext contexts[2];

static void begin(void)
{
    CHECK(cuInit(0));
    for (int device = 2; device-- > 0;) {
        CHECK(cuDevicePrimaryCtxRetain(&contexts[device], device));
        CHECK(cuCtxSetCurrent(contexts[device]));
    }
}

static CUdeviceptr allocate(size_t size)
{
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, size));
    return address;
}

static size_t free_bytes(void)
{
    size_t bytes, total;
    CHECK(cuMemGetInfo_v2(&bytes, &total));
    return bytes;
}

/* Prints the results of unusual and wrong calls. They must be the same under every strategy and without the library. */
static void codes(void)
{
    CUdeviceptr address = 0, other;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 7}};
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR three_channels = {8, 8, CU_AD_FORMAT_FLOAT, 3};
    CUmemoryPool pool;
    size_t size;
    void *host;
#define SAY(call) printf("%s: %d\n", #call, call)
    SAY(cuMemAlloc_v2(&address, 1000)); /* before cuInit */
    SAY(cuMemFree_v2(4096));
    SAY(cuMemGetInfo_v2(&size, NULL));
    begin();
    CHECK(cuCtxSetCurrent(NULL));
    SAY(cuMemAlloc_v2(&address, 1000)); /* no context */
    SAY(cuMemGetInfo_v2(&size, NULL));
    CHECK(cuCtxSetCurrent(contexts[0]));
    SAY(cuMemGetInfo_v2(NULL, &size));
    SAY(cuMemGetInfo_v2(&size, NULL));
    SAY(cuMemGetInfo_v2(NULL, NULL));
    SAY(cuMemAlloc_v2(NULL, 1000));
    SAY(cuMemAlloc_v2(&address, 0));
    SAY(cuMemAlloc_v2(&address, ~0ull));
    SAY(cuMemAlloc_v2(&address, ~0ull - 511));
    SAY(cuMemAlloc_v2(&address, 1ull << 40));
    SAY(cuMemFree_v2(0));
    SAY(cuMemFree_v2(1));
    SAY(cuMemFree_v2(0xdead0000));
    SAY(cuMemFree_v2((CUdeviceptr)&address));
    SAY(cuMemFreeAsync(0, NULL));
    SAY(cuMemFreeAsync(0xdead0000, NULL));
    SAY(cuMemFreeHost(&address));
    SAY(cuMemHostUnregister(&address));
    SAY(cuMemAllocHost_v2(NULL, 100));
    SAY(cuMemAllocHost_v2(&host, 0));
    SAY(cuMemAllocManaged(&address, 100, 77));
    SAY(cuMemAllocPitch_v2(&address, NULL, 10, 10, 4));
    SAY(cuMemAllocAsync(&address, 0, NULL));
    SAY(cuMemCreate(&handle, 2 << 20, NULL, 0));
    SAY(cuMemCreate(&handle, 2 << 20, &properties, 0));
    SAY(cuMemCreate(NULL, 2 << 20, &properties, 0));
    SAY(cuMemRelease(0xdead0000));
    SAY(cuMemUnmap(0xdead0000, 2 << 20));
    SAY(cuMemAddressFree(0xdead0000, 2 << 20));
    SAY(cuMemRetainAllocationHandle(&handle, &address));
    SAY(cuMemPoolCreate(&pool, NULL));
    SAY(cuMemPoolDestroy(NULL));
    SAY(cuArrayCreate_v2(&array, NULL));
    SAY(cuArrayCreate_v2(&array, &three_channels));
    SAY(cuArrayDestroy(NULL));
    SAY(cuIpcCloseMemHandle(0xdead0000));
    SAY(cuMemGetAddressRange_v2(NULL, NULL, 0xdead0000));
    SAY(cuMemGetAddressRange_v2(&address, &size, 0xdead0000));
    SAY(cuPointerGetAttribute(NULL, 11, 0xdead0000));
    SAY(cuPointerGetAttribute(&address, 11, 0xdead0000));
    SAY(cuCtxDestroy_v2(NULL));
    SAY(cuDevicePrimaryCtxReset_v2(9));
    /* Frees an address inside a block, a block twice, a block in another context, and one without a context. The other
     * blocks keep their bytes. */
    CUdeviceptr first = allocate(100000), second = allocate(100000), third = allocate(100000);
    CHECK(cuMemsetD8_v2(first, 1, 100000));
    SAY(cuMemFree_v2(second + 512));
    SAY(cuMemFree_v2(second + 1));
    SAY(cuMemFreeAsync(second, NULL));
    CHECK(cuCtxSetCurrent(contexts[1]));
    SAY(cuMemFree_v2(second));
    CHECK(cuCtxSetCurrent(contexts[0]));
    SAY(cuMemFree_v2(second));
    SAY(cuMemFree_v2(second + 512));
    CHECK(cuCtxSetCurrent(NULL));
    SAY(cuMemFree_v2(third));
    CHECK(cuCtxSetCurrent(contexts[0]));
    other = allocate(100000);
    CHECK(cuMemsetD8_v2(other, 9, 100000));
    unsigned char byte;
    CHECK(cuMemcpyDtoH_v2(&byte, first + 99999, 1));
    printf("byte %d\n", byte);
    SAY(cuMemFree_v2(first));
    SAY(cuMemFree_v2(other));
    *count_of(0, LINEAR) = 0;
    checkpoint();
}

static void *free_elsewhere(void *address)
{
    CHECK(cuCtxSetCurrent(contexts[1]));
    CHECK(cuMemFreeAsync((CUdeviceptr)address, NULL));
    return NULL;
}

/* Memory of each class is charged to the device that holds it, and not to the current device. */
static void devices(void)
{
    begin();
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp on_one = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemAllocationProp on_host = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
    CHECK(cuMemCreate(&handle, 4 << 20, &on_one, 0));
    *count_of(1, VMM) += 4 << 20;
    checkpoint();
    CHECK(cuMemCreate(&handle, 2 << 20, &on_host, 0));
    *count_of(-1, VMM) += 2 << 20;
    checkpoint();
    CUdeviceptr kept, gone;
    CUmemoryPool pool;
    pthread_t thread;
    CHECK(cuMemAllocAsync(&kept, 5000, NULL));
    CHECK(cuMemAllocAsync(&gone, 7000, NULL));
    *count_of(0, ASYNC) += 12000;
    checkpoint();
    pthread_create(&thread, NULL, free_elsewhere, (void *)gone);
    pthread_join(thread, NULL);
    *count_of(0, ASYNC) -= 7000;
    checkpoint();
    CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CHECK(cuMemPoolCreate(&pool, &properties));
    CHECK(cuMemAllocFromPoolAsync(&kept, 9000, pool, NULL));
    *count_of(1, ASYNC) += 9000;
    checkpoint();
    CUdeviceptr linear = allocate(3000);
    *count_of(0, LINEAR) += 3000;
    CHECK(cuCtxSetCurrent(contexts[1]));
    checkpoint();
    CHECK(cuMemFree_v2(linear));
    *count_of(0, LINEAR) -= 3000;
    checkpoint();
}

/* Arrays are counted in bytes: 64 x 32 elements of four floats. Each mipmap level halves width and height, but not the
 * number of layers. */
static void arrays(void)
{
    begin();
    CUarray array;
    CUmipmappedArray mipmap;
    CHECK(cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){64, 32, CU_AD_FORMAT_FLOAT, 4}));
    *count_of(0, ARRAY) += 64 * 32 * 16;
    checkpoint();
    CHECK(cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){100, 0, CU_AD_FORMAT_HALF, 1}));
    *count_of(0, ARRAY) += 200;
    checkpoint();
    CHECK(cuMipmappedArrayCreate(&mipmap, &(CUDA_ARRAY3D_DESCRIPTOR){16, 16, 6, CU_AD_FORMAT_HALF, 2, CUDA_ARRAY3D_LAYERED}, 3));
    *count_of(0, MIPMAP) += (16 * 16 + 8 * 8 + 4 * 4) * 6 * 4;
    checkpoint();
}

/* Prints what cuGetProcAddress answers for every name on stdin, with several versions and flags. Last, prints the
 * answer for a name that does not exist. */
static void look_ups(void)
{
    static const int versions[] = {2000, 3010, 3020, 6000, 10000, 11020, 12000, 12030, 13000};
    char name[128];
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    while (scanf("%127s", name) == 1) {
        printf("%s: dlsym %d\n", name, dlsym(library, name) != NULL);
        char *suffix = strstr(name, "_v2");
        if (suffix) *suffix = 0;
        for (size_t v = 0; v < sizeof versions / sizeof *versions; v++)
            for (unsigned long long flags = 0; flags <= 2; flags++) {
                void *first = (void *)1, *second = (void *)1;
                int status = -1, one = cuGetProcAddress(name, &first, versions[v], flags);
                int two = cuGetProcAddress_v2(name, &second, versions[v], flags, &status);
                printf("%s %d %llu: %d %d %d %d %d\n", name, versions[v], flags, one, two, status, first != NULL, second != NULL);
                Dl_info place;
                /* Copies and fills of the first generation reach 32-bit addresses alone, which no policy hands out. */
                bool narrow = versions[v] < 3020 && (!strncmp(name, "cuMemcpy", 8) || !strncmp(name, "cuMemset", 8));
                if (getenv("EXPECT_OURS") && second && !narrow && !(dladdr(second, &place) && strstr(place.dli_fname, "vramshim")))
                    exit((fprintf(stderr, "%s %d %llu is not ours\n", name, versions[v], flags), 1));
            }
    }
    printf("%d\n", cuGetProcAddress_v2("cuNothing", (void **)&library, 13000, 0, NULL));
}

/* Calls the v2 function and the 32-bit function of one name, and a function of the per-thread default stream. */
static void generations(void)
{
    void *found;
    CUresult (*get)(const char *, void **, int, unsigned long long, int *);
    begin();
    CHECK(cuGetProcAddress("cuGetProcAddress", &found, 12000, 0));
    get = (__typeof__(get))found; /* cuGetProcAddress itself, from a look-up */
    CUdeviceptr wide = 0;
    CHECK(get("cuMemAlloc", &found, 3020, 0, NULL));
    CHECK(((CUresult (*)(CUdeviceptr *, size_t))found)(&wide, 1000));
    CUdeviceptr_v1 narrow = 0;
    CHECK(get("cuMemAlloc", &found, 3010, 0, NULL));
    CHECK(((CUresult (*)(CUdeviceptr_v1 *, unsigned))found)(&narrow, 3000));
    CHECK(get("cuMemAllocAsync", &found, 12000, 2, NULL));
    CHECK(((CUresult (*)(CUdeviceptr *, size_t, CUstream))found)(&wide, 5000, NULL));
    *count_of(0, LINEAR) = 4000;
    *count_of(0, ASYNC) = 5000;
    checkpoint();
}

/* Questions that a program may ask about a block that is a part of a larger segment. */
static void questions(void)
{
    begin();
    CUcontext current, owner = NULL;
    CHECK(cuCtxCreate_v2(&current, 0, 0)); /* not the primary one */
    size_t before = free_bytes(), size;
    CUdeviceptr a = allocate(1000), b = allocate(5000), base;
    bool pooled = getenv("POOLED") != NULL;
    THAT(before - free_bytes() == (pooled ? 1024 + 5120 : 6000));
    for (int from = 0; from < 5000; from += 4999) {
        CHECK(cuMemGetAddressRange_v2(&base, &size, b + (unsigned)from));
        THAT(base == b && size == 5000);
        CHECK(cuMemGetAddressRange_v2(NULL, &size, b + (unsigned)from));
        CHECK(cuMemGetAddressRange_v2(&base, NULL, b + (unsigned)from));
        THAT(base == b && size == 5000);
    }
    CUdeviceptr start = 0;
    int device = -1;
    unsigned kind = 0;
    CHECK(cuPointerGetAttribute(&start, 11, b + 100));
    CHECK(cuPointerGetAttribute(&size, 12, b + 100));
    THAT(start == b && size == 5000);
    int which[] = {11, 12, 9, 2};
    void *out[] = {&start, &size, &device, &kind};
    start = size = 0;
    CHECK(cuPointerGetAttributes(4, which, out, a + 10));
    THAT(start == a && size == 1000 && device == 0 && kind == 2);
    CHECK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, b + 100));
    THAT(owner == current);
    _Bool reachable = 0;
    CHECK(cuPointerGetAttribute(&reachable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, b + 100));
    THAT(reachable);
    uint64_t types = 1;
    CHECK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, b + 100));
    THAT(types == 0);
    CUipcMemHandle handle;
    _Bool capable = 0;
    CHECK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, b));
    int result = cuIpcGetMemHandle(&handle, b);
    printf("ipc %d\n", result);
    THAT(capable == (result == CUDA_SUCCESS));
    CHECK(cuMemFree_v2(b));
    THAT(before - free_bytes() == (pooled ? 1024 : 1000));
    EXPECT(cuMemGetAddressRange_v2(&base, &size, b + 100), CUDA_ERROR_NOT_FOUND);
    EXPECT(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, b + 100), CUDA_ERROR_INVALID_VALUE);
    start = kind = 1;
    CHECK(cuPointerGetAttributes(4, which, out, b + 100));
    THAT(start == 0 && size == 0 && kind == 0);
}

/* cuMemFree promises that all work on the block has finished. So each free waits, and no request does. */
static void reuse(void)
{
    int (*count)(void) = dlsym(RTLD_DEFAULT, "waits");
    THAT(count);
    begin();
    CUdeviceptr blocks[8], fresh, keep = allocate(100000);
    CUstream stream;
    CUgraph graph;
    (void)keep;
    for (int i = 0; i < 8; i++) blocks[i] = allocate(100000);
    THAT(count() == 0);
    for (int i = 0; i < 8; i += 2) CHECK(cuMemFree_v2(blocks[i]));
    THAT(count() == 4);
    blocks[0] = allocate(100000);
    blocks[2] = allocate(100000);
    blocks[4] = allocate(100000);
    THAT(count() == 4);
    CHECK(cuMemFree_v2(blocks[4]));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    THAT(count() == 5); /* The capture begins without a wait. */
    CHECK(cuMemFree_v2(blocks[2]));
    for (int i = 0; i < 4; i++) {
        fresh = allocate(100000);
        THAT(fresh != blocks[2]); /* A block freed during a capture needs a wait, which would invalidate it. */
    }
    THAT(count() == 5);
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuMemFree_v2(fresh));
    THAT(count() == 6);
    for (int i = 0; i < 8; i++) allocate(100000);
    THAT(count() == 6);
}

/* A free that the next layer refuses frees nothing. */
static void refused(void)
{
    begin();
    CUdeviceptr address = allocate(1000);
    *count_of(0, LINEAR) = 1000;
    checkpoint();
    EXPECT(cuMemFree_v2(address), 999);
    checkpoint();
    CHECK(cuMemFree_v2(address));
    *count_of(0, LINEAR) = 0;
    checkpoint();
}

/* Makes more events than fit on a small disk. */
static void many(void)
{
    begin();
    for (int i = 0; i < 60000; i++) CHECK(cuMemFree_v2(allocate(1000)));
    allocate(5000);
    *count_of(0, LINEAR) = 5000;
    checkpoint();
}

static const struct { const char *name; void (*play)(void); } scenes[] = {
    {"codes", codes}, {"devices", devices}, {"arrays", arrays}, {"look-ups", look_ups},
    {"generations", generations}, {"questions", questions}, {"reuse", reuse}, {"refused", refused}, {"many", many},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof scenes / sizeof *scenes; i++)
        if (!strcmp(scenes[i].name, argv[1])) return scenes[i].play(), 0;
    return fprintf(stderr, "usage: behaviour SCENE\n"), 2;
}
