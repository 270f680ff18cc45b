/* Reuse of memory while work of its former owner is pending, on a simulator that does its work as late as possible
 * (SIMGPU_DELAYED=1). Exits with 1 if pending work may still write to a block that was just allocated, or did write.
 *
 *   reuse order      checks that the simulator delays, orders and waits as CUDA documents it (without the library)
 *   reuse streams    frees and allocates behind work on every kind of stream, from one thread and from two
 *   reuse capture    the same while another stream captures
 *   reuse once       frees 100 blocks and allocates as many; prints how often an allocation waited for the context
 *   reuse peer       frees a block that another device writes to, while a call of the driver may fail (SIMGPU_FAULTS)
 *   reuse irregular  tensors of random sizes after a large one; no call may be made again and again
 *   reuse tensors    200 tensors of random sizes below 24 MiB, which stay
 *   reuse aligned    blocks of cuMemAlloc, which lie at multiples of 2 MiB, come and go */
#include "delayed.h"
#include <pthread.h>

enum { BLOCK = 256 << 10 };
#define LEGACY ((CUstream)1)
#define PER_THREAD ((CUstream)2)

/* Allocates a block, and checks that no pending work may touch it. */
static CUdeviceptr allocate(size_t size)
{
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, size));
    if (simgpu_hazard(address, size)) {
        fprintf(stderr, "hazard: %#llx was handed out with work pending\n", address);
        exit(1);
    }
    return address;
}

static void holds(CUdeviceptr address, unsigned char value, size_t size)
{
    unsigned char *bytes = malloc(size);
    CHECK(cuMemcpyDtoH_v2(bytes, address, size));
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != value) {
            fprintf(stderr, "overwritten: byte %zu of %#llx is %d instead of %d\n", i, address, bytes[i], value);
            exit(1);
        }
    free(bytes);
}

/* ---- order */

static bool idle(CUdeviceptr address) { return simgpu_hazard(address, BLOCK) == 0; }

static int steps[3], step_count;
static void take_step(void *number) { steps[step_count++] = (int)(intptr_t)number; }

static void *waits_in_its_own_stream(void *address)
{
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamSynchronize(PER_THREAD));
    THAT(!idle((CUdeviceptr)address)); /* the work of another thread */
    return NULL;
}

static void order(void)
{
    CUstream free_one = new_stream(NON_BLOCKING), blocking = new_stream(0), other = new_stream(NON_BLOCKING);
    CUdeviceptr a = allocate(BLOCK), b = allocate(BLOCK);
    unsigned char byte;

    CHECK(cuMemsetD8Async(a, 1, BLOCK, free_one));
    THAT(simgpu_hazard(a, BLOCK) == 1 && simgpu_hazard(a + BLOCK - 1, 1) == 1 && simgpu_hazard(a + BLOCK, 1) == 0 && simgpu_hazard(a - 1, 1) == 0);
    CHECK(cuMemcpyDtoH_v2(&byte, a, 1)); /* the default stream does not wait for this one */
    THAT(byte == 0);
    EXPECT(cuStreamQuery(free_one), CUDA_ERROR_NOT_READY);
    while (cuStreamQuery(free_one) != CUDA_SUCCESS) continue; /* polling lets the work proceed */
    holds(a, 1, BLOCK);

    CHECK(cuMemsetD8Async(a, 2, BLOCK, blocking));
    CHECK(cuStreamSynchronize(free_one));
    THAT(!idle(a));
    CHECK(cuMemcpyDtoH_v2(&byte, a, 1)); /* the default stream waits for a blocking stream */
    THAT(byte == 2);
    CHECK(cuMemsetD8_v2(a, 3, BLOCK)); /* a memset does not wait */
    THAT(!idle(a));
    CHECK(cuMemsetD8Async(b, 3, BLOCK, blocking));
    CHECK(cuStreamSynchronize(blocking)); /* its work comes after the work of the default stream */
    THAT(idle(a) && idle(b));

    CUevent event;
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuMemsetD8Async(a, 4, BLOCK, free_one));
    CHECK(cuEventRecord(event, free_one));
    CHECK(cuMemsetD8Async(b, 4, BLOCK, free_one));
    EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    CHECK(cuStreamWaitEvent(other, event, 0));
    CHECK(cuMemcpyDtoDAsync_v2(b, a, 16, other));
    THAT(simgpu_hazard(b, BLOCK) == 2);
    CHECK(cuStreamSynchronize(other)); /* waits for the work before the event, and no more */
    THAT(idle(a) && simgpu_hazard(b, BLOCK) == 1);
    CHECK(cuEventSynchronize(event));
    CHECK(cuEventQuery(event));
    THAT(!idle(b));

    pthread_t thread;
    CHECK(cuMemsetD8Async(a, 5, BLOCK, PER_THREAD));
    pthread_create(&thread, NULL, waits_in_its_own_stream, (void *)a);
    pthread_join(thread, NULL);
    CHECK(cuStreamSynchronize(PER_THREAD));
    THAT(idle(a) && !idle(b));

    for (intptr_t i = 0; i < 3; i++) CHECK(cuLaunchHostFunc(free_one, take_step, (void *)i));
    THAT(step_count == 0);
    CHECK(cuCtxSynchronize());
    THAT(step_count == 3 && steps[0] == 0 && steps[2] == 2 && idle(b));

    CHECK(cuMemsetD8Async(a, 6, BLOCK, free_one));
    CHECK(cuMemcpyDtoHAsync_v2(&byte, a, 1, free_one)); /* a copy to pageable memory waits */
    THAT(byte == 6);
    CHECK(cuMemsetD8Async(a, 7, BLOCK, free_one));
    CHECK(cuMemFree_v2(b)); /* a free waits for all work */
    THAT(idle(a));

    CUdeviceptr c;
    CHECK(cuMemAllocAsync(&c, BLOCK, free_one));
    CHECK(cuMemsetD8Async(c, 8, BLOCK, free_one));
    CHECK(cuMemFreeAsync(c, free_one)); /* in the order of the stream */
    THAT(simgpu_hazards() == 0);
    CHECK(cuMemAllocAsync(&c, BLOCK, free_one));
    CHECK(cuMemsetD8Async(c, 8, BLOCK, free_one));
    CHECK(cuMemFreeAsync(c, other)); /* not ordered after the use: a hazard */
    THAT(simgpu_hazards() == 1);
    CHECK(cuCtxSynchronize());

    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t size = 2 << 20;
    CHECK(cuMemAddressReserve(&c, size, 0, 0, 0));
    CHECK(cuMemCreate(&handle, size, &properties, 0));
    CHECK(cuMemMap(c, size, 0, handle, 0));
    CHECK(cuMemSetAccess(c, size, &access, 1));
    CHECK(cuMemRelease(handle));
    CHECK(cuMemsetD8Async(c, 9, size, free_one));
    CHECK(cuMemUnmap(c, size));
    THAT(simgpu_hazards() == 2);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemAddressFree(c, size));
    THAT(simgpu_calls("cuCtxSynchronize") == 3 && simgpu_calls("cuNothing") == 0);
}

/* ---- streams */

enum { ROUNDS = 40, OWNERS = 8 };

/* Starts work on `stream`, frees the blocks, and allocates blocks for streams that are not ordered after that work. */
static void behind(CUstream stream, CUstream mine, unsigned seed)
{
    CUdeviceptr owners[OWNERS];
    for (int round = 0; round < ROUNDS; round++) {
        CUdeviceptr old[3];
        for (int i = 0; i < 3; i++) old[i] = allocate(BLOCK);
        for (int i = 0; i < 3; i++) {
            CHECK(cuMemsetD8Async(old[i], 0xee, BLOCK, stream));
            CHECK(cuMemFree_v2(old[i]));
        }
        for (int i = 0; i < OWNERS; i++) {
            owners[i] = allocate(BLOCK);
            CHECK(cuMemsetD8Async(owners[i], (unsigned char)(seed + (unsigned)i), BLOCK, mine));
            CHECK(cuStreamSynchronize(mine));
        }
        CHECK(cuCtxSynchronize());
        for (int i = 0; i < OWNERS; i++) holds(owners[i], (unsigned char)(seed + (unsigned)i), BLOCK);
        for (int i = 0; i < OWNERS; i++) CHECK(cuMemFree_v2(owners[i]));
    }
}

static void *every_stream(void *seed)
{
    CHECK(cuCtxSetCurrent(context));
    CUstream mine = new_stream(NON_BLOCKING);
    CUstream streams[] = {new_stream(NON_BLOCKING), PER_THREAD, LEGACY, new_stream(0), NULL};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) behind(streams[i], mine, (unsigned)(uintptr_t)seed);
    return NULL;
}

static void streams(void)
{
    every_stream((void *)1);
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) pthread_create(&threads[i], NULL, every_stream, (void *)(100 * i));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    THAT(simgpu_hazards() == 0);
}

/* ---- capture */

/* Allocates and frees while another stream captures. A relaxed capture allows both. During any other capture only calls
 * that need no driver succeed, and if a call fails, the capture is invalidated. */
static void beside_a_capture(bool relaxed)
{
    CUstream worker = new_stream(NON_BLOCKING), captured = new_stream(NON_BLOCKING), mine = new_stream(NON_BLOCKING);
    CUdeviceptr before[16], fresh[8];
    CUgraph graph = NULL;
    int status, made = 0, freed = 0, result = CUDA_SUCCESS;
    for (int i = 0; i < 16; i++) {
        before[i] = allocate(BLOCK);
        CHECK(cuMemsetD8Async(before[i], 0xee, BLOCK, worker));
    }
    for (int i = 0; i < 8; i++) CHECK(cuMemFree_v2(before[i])); /* frees some blocks before the capture, */
    for (int i = 8; i < 16; i++) CHECK(cuMemsetD8Async(before[i], 0xee, BLOCK, worker));
    CHECK(cuStreamBeginCapture_v2(captured, relaxed ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuMemsetD8Async(before[15], 1, BLOCK, captured));
    for (int i = 8; i < 12 && !result; i++) freed += (result = cuMemFree_v2(before[i])) == CUDA_SUCCESS; /* and some during it */
    CHECK(cuStreamIsCapturing(captured, &status));
    THAT(result ? !relaxed && result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : status == CAPTURING);
    while (made < 8 && !result)
        if ((result = cuMemAlloc_v2(&fresh[made], BLOCK)) == CUDA_SUCCESS) {
            THAT(simgpu_hazard(fresh[made], BLOCK) == 0);
            CHECK(cuMemsetD8Async(fresh[made], (unsigned char)made, BLOCK, mine));
            if (relaxed) CHECK(cuStreamSynchronize(mine)); /* refused in a global capture */
            made++;
        }
    if (result) EXPECT(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT(cuStreamEndCapture(captured, &graph), result ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    THAT(!relaxed || (made == 8 && graph));
    CHECK(cuCtxSynchronize());
    for (int i = 0; i < made; i++) holds(fresh[i], (unsigned char)i, BLOCK);
    for (int i = 0; i < made; i++) CHECK(cuMemFree_v2(fresh[i]));
    for (int i = 8 + freed; i < 16; i++) CHECK(cuMemFree_v2(before[i]));
    printf("%s: freed %d made %d\n", relaxed ? "relaxed" : "global", freed, made);
}

static void capture(void)
{
    for (int round = 0; round < 10; round++) {
        beside_a_capture(true);
        beside_a_capture(false);
    }
    THAT(simgpu_hazards() == 0);
}

/* ---- once */

static void once(void)
{
    CUstream worker = new_stream(NON_BLOCKING);
    static CUdeviceptr blocks[100];
    for (int i = 0; i < 100; i++) {
        blocks[i] = allocate(BLOCK);
        CHECK(cuMemsetD8Async(blocks[i], 1, BLOCK, worker));
    }
    for (int i = 0; i < 100; i++) CHECK(cuMemFree_v2(blocks[i]));
    uint64_t before = synchronisations();
    for (int i = 0; i < 100; i++) blocks[i] = allocate(BLOCK);
    printf("%llu\n", (unsigned long long)(synchronisations() - before));
    THAT(simgpu_hazards() == 0);
}

/* ---- peer */

static void peer(void)
{
    CUcontext other;
    CUdeviceptr block = allocate(BLOCK);
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK(cuCtxSetCurrent(other));
    CHECK(cuCtxEnablePeerAccess(context, 0));
    CUstream stream = new_stream(NON_BLOCKING);
    CHECK(cuMemsetD8Async(block, 0xee, BLOCK, stream));
    CHECK(cuCtxSetCurrent(context));
    CUresult freed = cuMemFree_v2(block);
    /* A free that could not wait says so, and the block is not handed out. */
    THAT(freed == CUDA_SUCCESS || simgpu_hazard(block, BLOCK));
    CUdeviceptr next = allocate(BLOCK);
    CHECK(cuMemsetD8_v2(next, 0x11, BLOCK));
    CHECK(cuCtxSetCurrent(other));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuCtxSetCurrent(context));
    holds(next, 0x11, BLOCK);
    THAT(simgpu_hazards() == 0);
    printf("%llu %llu %llu\n", (unsigned long long)simgpu_calls("cuEventCreate"),
           (unsigned long long)simgpu_calls("cuCtxRecordEvent"), (unsigned long long)simgpu_calls("cuEventSynchronize"));
}

/* ---- irregular and aligned */

static size_t drawn(void)
{
    static unsigned state = 7;
    state = state * 1664525 + 1013904223;
    return state >> 4;
}

static void irregular(void)
{
    void *(*tensor)(ptrdiff_t, int, void *) = dlsym(RTLD_DEFAULT, "vramshim_torch_alloc");
    void (*leave)(void *, ptrdiff_t, int, void *) = dlsym(RTLD_DEFAULT, "vramshim_torch_free");
    void *blocks[400];
    size_t sizes[400];
    void *large = tensor(2 * GIB, 0, NULL);
    THAT(large);
    leave(large, 2 * GIB, 0, NULL);
    CHECK(cuCtxSynchronize());
    for (int i = 0; i < 400; i++) {
        sizes[i] = drawn() % (200 * MIB) + 2 * MIB;
        THAT((blocks[i] = tensor(sizes[i], 0, NULL)));
        if (i % 3 != 2 || i <= 60) continue;
        for (int back = 1; back <= 2; back++) leave(blocks[i - back], sizes[i - back], 0, NULL);
        CHECK(cuCtxSynchronize());
    }
    printf("%llu\n", (unsigned long long)simgpu_calls("cuMemUnmap"));
}

static void tensors(void)
{
    void *(*tensor)(ptrdiff_t, int, void *) = dlsym(RTLD_DEFAULT, "vramshim_torch_alloc");
    for (int i = 0; i < 200; i++) THAT(tensor(drawn() % (20 * MIB) + 2 * MIB, 0, NULL));
}

static void aligned(void)
{
    CUdeviceptr blocks[64];
    int count = 0;
    for (int i = 0; i < 600; i++) {
        for (int freed = 0; count > 60 && freed < 2; freed++) {
            int which = (int)(drawn() % (size_t)count);
            CHECK(cuMemFree_v2(blocks[which]));
            blocks[which] = blocks[--count];
        }
        CHECK(cuMemAlloc_v2(&blocks[count], drawn() % (12 * MIB) + 3 * MIB));
        THAT(blocks[count++] % (2 * MIB) == 0);
    }
    printf("%llu\n", (unsigned long long)simgpu_calls("cuMemMap"));
}

static const struct scene scenes[] = {
    {"order", order}, {"streams", streams}, {"capture", capture}, {"once", once},
    {"peer", peer}, {"irregular", irregular}, {"tensors", tensors}, {"aligned", aligned},
};

int main(int argc, char **argv)
{
    begin();
    return PLAY(scenes, argc, argv);
}
