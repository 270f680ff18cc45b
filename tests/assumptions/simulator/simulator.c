/* What the simulated GPU does beyond the answers of the probes. Exits with 1 if it does otherwise.
 *
 *   simulator collective  host functions of two streams wait for each other, with a call that waits and without one
 *   simulator devices     a blocked device blocks no other, and no lock is held while a call waits
 *   simulator captures    forks and joins, crossing dependencies, recapture, captures for graphics
 *   simulator order       which calls and streams wait for which work (SIMGPU_DELAYED=1)
 *   simulator graphs      a launched graph does the captured work, and faults if its memory is gone
 *   simulator dmabuf      a dma-buf writes to the memory that it was made of, wherever that is mapped now
 *   simulator faults      an illegal copy is answered by every later call, until the context is reset
 *   simulator green       streams of a destroyed green context
 *   simulator growth      creates, maps and unmaps 64 granules; prints the microseconds of each (SIMGPU_LATENCY=prices)
 *   simulator latch       another thread is held in cuMemCreate, and this one allocates and asks (SIMGPU_LATCH) */
#include "delayed.h"
#include "more_api.h"
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 4 * MIB, GLOBAL = CU_STREAM_CAPTURE_MODE_GLOBAL };

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static CUevent record(CUstream stream)
{
    CUevent event;
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventRecord(event, stream));
    return event;
}

static volatile int arrived;
static void arrive(void *unused)
{
    (void)unused;
    __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
}
static void meet(void *parties)
{
    arrive(NULL);
    while (arrived < (int)(intptr_t)parties) usleep(100);
}
static void until_set(void *flag)
{
    while (!*(volatile int *)flag) usleep(100);
}

static void collective(void)
{
    CUstream one = new_stream(NON_BLOCKING), other = new_stream(NON_BLOCKING), third = new_stream(NON_BLOCKING);
    CHECK(cuLaunchHostFunc(one, meet, (void *)2));
    CHECK(cuLaunchHostFunc(other, meet, (void *)2));
    CHECK(cuStreamSynchronize(one)); /* asks for one half alone */
    CHECK(cuStreamSynchronize(other));
    CHECK(cuLaunchHostFunc(third, arrive, NULL));
    while (arrived < 3) usleep(100); /* no call waits */
}

static int flag;
static void *sets_flag(void *unused)
{
    CHECK(cuCtxSetCurrent(context));
    CUdeviceptr address = linear_memory(SIZE); /* the other thread waits in its free meanwhile */
    CUcontext found;
    size_t bytes, total;
    CHECK(cuCtxGetCurrent(&found));
    CHECK(cuMemGetInfo_v2(&bytes, &total));
    THAT(address);
    usleep(20000);
    __atomic_store_n(&flag, 1, __ATOMIC_SEQ_CST);
    return unused;
}

static void devices(void)
{
    pthread_t thread;
    CUstream stream = new_stream(NON_BLOCKING);
    CUdeviceptr address = linear_memory(SIZE);
    CHECK(cuLaunchHostFunc(stream, until_set, &flag));
    CHECK(cuMemsetD8Async(address, 1, SIZE, stream));
    CUevent event = record(stream);
    EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    EXPECT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    use_device(1);
    CUdeviceptr there = linear_memory(SIZE);
    CHECK(cuMemsetD8Async(there, 1, SIZE, NULL));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree_v2(there));
    THAT(simgpu_hazard(address, SIZE) == 1 && !flag);
    CHECK(cuCtxSetCurrent(context));
    pthread_create(&thread, NULL, sets_flag, NULL);
    CHECK(cuMemFree_v2(address));
    THAT(flag == 1 && simgpu_hazard(address, SIZE) == 0);
    CHECK(cuEventQuery(event));
    pthread_join(thread, NULL);
}

static CUgraph end(CUstream stream, CUresult wanted)
{
    CUgraph graph = NULL;
    EXPECT(cuStreamEndCapture(stream, &graph), wanted);
    THAT(!graph == (wanted != CUDA_SUCCESS));
    return graph;
}

static void begin_on(CUstream stream) { CHECK(cuStreamBeginCapture_v2(stream, GLOBAL)); }
static void work(CUstream stream, CUdeviceptr address) { CHECK(cuMemsetD8Async(address, 1, SIZE, stream)); }

static void forks(CUstream stream, CUstream side, CUdeviceptr address)
{
    enum { MERGE = 902, UNJOINED = 904, ISOLATION = 905 };
    int status;
    CUevent before = record(side);
    begin_on(stream);
    CHECK(cuStreamWaitEvent(side, record(stream), 0));
    CHECK(cuStreamIsCapturing(side, &status));
    THAT(status == CAPTURING);
    work(side, address);
    CHECK(cuStreamWaitEvent(stream, record(side), 0));
    CHECK(cuGraphDestroy(end(stream, CUDA_SUCCESS)));
    CHECK(cuStreamIsCapturing(side, &status));
    THAT(status == 0);

    begin_on(stream);
    CHECK(cuStreamWaitEvent(side, record(stream), 0));
    CUevent early = record(side);
    EXPECT(cuEventQuery(early), CUDA_ERROR_CAPTURED_EVENT);
    work(side, address);
    CHECK(cuStreamWaitEvent(stream, early, 0)); /* not the work after it */
    end(stream, UNJOINED);

    begin_on(stream);
    EXPECT(cuStreamWaitEvent(stream, before, 0), ISOLATION);
    EXPECT(cuMemsetD8Async(address, 1, SIZE, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    begin_on(stream);
    begin_on(side);
    EXPECT(cuStreamWaitEvent(side, record(stream), 0), MERGE);
    end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end(side, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void recaptures(CUstream stream, CUdeviceptr address)
{
    CUdeviceptr first, again;
    begin_on(stream);
    CHECK(cuMemAllocAsync(&first, SIZE, stream));
    work(stream, address);
    CUgraph graph = end(stream, CUDA_SUCCESS);
    CHECK(cuStreamBeginRecaptureToGraph(stream, GLOBAL, graph, NULL, NULL));
    CHECK(cuMemAllocAsync(&again, SIZE, stream));
    work(stream, address);
    THAT(end(stream, CUDA_SUCCESS) == graph && again == first);
    CHECK(cuStreamBeginRecaptureToGraph(stream, GLOBAL, graph, NULL, NULL));
    EXPECT(cuMemsetD8Async(address, 1, SIZE, stream), CUDA_ERROR_GRAPH_RECAPTURE_FAILURE);
    end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(cuStreamBeginRecaptureToGraph(stream, GLOBAL, graph, NULL, NULL));
    end(stream, CUDA_ERROR_GRAPH_RECAPTURE_FAILURE);
}

static void graphics(CUdeviceptr address)
{
    int status, client;
    void *parameters[] = {&client};
    struct { void *affinity; int count; void *graphics; } wanted = {NULL, 0, &client};
    CUcontext drawing;
    EXPECT(cuStreamBeginCaptureToCig(new_stream(NON_BLOCKING), parameters), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuCtxCreate_v4(&drawing, &wanted, 0, 0));
    CUstream stream = new_stream(NON_BLOCKING);
    CHECK(cuStreamBeginCaptureToCig(stream, parameters));
    work(stream, address);
    CHECK(cuStreamIsCapturing(stream, &status));
    THAT(status == CAPTURING);
    CHECK(cuStreamEndCaptureToCig(stream));
    CHECK(cuStreamBeginCaptureToCig(stream, parameters));
    EXPECT(cuLaunchHostFunc(stream, arrive, NULL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT(cuStreamEndCaptureToCig(stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void captures(void)
{
    CUstream stream = new_stream(NON_BLOCKING);
    CUdeviceptr address = linear_memory(SIZE);
    forks(stream, new_stream(NON_BLOCKING), address);
    recaptures(stream, address);
    graphics(address);
}

/* ---- what waits for what, if work is done as late as possible; differential relies on it */

static bool idle(CUdeviceptr address) { return simgpu_hazard(address, SIZE) == 0; }

static void *waits_in_its_own_stream(void *address)
{
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamSynchronize((CUstream)2));
    THAT(!idle((CUdeviceptr)address)); /* the work of another thread */
    return NULL;
}

static void order(void)
{
    CUstream one = new_stream(NON_BLOCKING), blocking = new_stream(0), other = new_stream(NON_BLOCKING);
    CUdeviceptr a = linear_memory(SIZE), b = linear_memory(SIZE);
    pthread_t thread;
    work(one, a);
    THAT(byte_at(a) == 0); /* the default stream does not wait for this one */
    EXPECT(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
    CHECK(cuStreamSynchronize(one));
    THAT(byte_at(a) == 1);
    work(blocking, b);
    CHECK(cuStreamSynchronize(one));
    THAT(!idle(b) && byte_at(b) == 1 && idle(b)); /* it waits for a blocking one */
    CHECK(cuMemsetD8_v2(a, 3, SIZE)); /* a memset does not wait, but a blocking stream waits for it */
    THAT(!idle(a));
    work(blocking, b);
    CHECK(cuStreamSynchronize(blocking));
    THAT(idle(a) && idle(b));
    work(one, a);
    CUevent event = record(one);
    work(one, b);
    EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    CHECK(cuStreamWaitEvent(other, event, 0));
    CHECK(cuStreamSynchronize(other)); /* waits for the work before the event, and no more */
    THAT(idle(a) && !idle(b));
    work((CUstream)2, a);
    CHECK(pthread_create(&thread, NULL, waits_in_its_own_stream, (void *)a) || pthread_join(thread, NULL));
    CHECK(cuMemFree_v2(b)); /* waits for all work */
    THAT(idle(a) && simgpu_hazards() == 0);
    CHECK(cuMemAllocAsync(&b, SIZE, one));
    work(one, b);
    THAT(cuMemFreeAsync(b, other) == 0 && simgpu_hazards() == 1); /* not ordered after the work */
}

enum { GRANULE = 2 * MIB };

static CUmemGenericAllocationHandle create(void) { return physical_memory(GRANULE); }
static void map(CUdeviceptr address, CUmemGenericAllocationHandle handle) { map_memory(address, GRANULE, handle); }

static void dmabuf(void)
{
    enum { DMA_BUF_FD = 1 };
    int fd;
    CUdeviceptr start;
    CHECK(cuMemAddressReserve(&start, 4 * GRANULE, 0, 0, 0));
    CUmemGenericAllocationHandle first = create(), second = create();
    map(start, first), map(start + GRANULE, second);
    CHECK(cuMemGetHandleForAddressRange(&fd, start, 2 * GRANULE, DMA_BUF_FD, 0));
    THAT(simgpu_dmabuf_write(fd, GRANULE - 1, "\7\7", 2) == 2);
    THAT(byte_at(start + GRANULE - 1) == 7 && byte_at(start + GRANULE) == 7);
    CHECK(cuMemUnmap(start, GRANULE));
    map(start + 2 * GRANULE, first); /* the memory moves, and the card writes to it there */
    map(start, create());
    THAT(simgpu_dmabuf_write(fd, 0, "\11", 1) == 1);
    THAT(byte_at(start + 2 * GRANULE) == 9 && byte_at(start) == 0);
    CHECK(cuMemUnmap(start + 2 * GRANULE, GRANULE));
    CHECK(cuMemRelease(first));
    THAT(simgpu_dmabuf_write(fd, 0, "\11", 1) == 0);
    start = linear_memory(SIZE);
    CHECK(cuMemGetHandleForAddressRange(&fd, start + 4096, 4096, DMA_BUF_FD, 0));
    THAT(simgpu_dmabuf_write(fd, 5, "\3", 1) == 1 && byte_at(start + 4096 + 5) == 3);
    CHECK(cuMemFree_v2(start));
    THAT(simgpu_dmabuf_write(fd, 5, "\3", 1) == 0);
}

static void graphs(void)
{
    CUgraphExec exec, other;
    CUstream stream = new_stream(NON_BLOCKING);
    CUdeviceptr start, address = linear_memory(SIZE);
    CHECK(cuMemAddressReserve(&start, GRANULE, 0, 0, 0));
    map(start, create());
    begin_on(stream);
    work(stream, address);
    CHECK(cuLaunchHostFunc(stream, until_set, &flag));
    CHECK(cuMemcpyDtoDAsync_v2(address + 8, address, 8, stream));
    CHECK(cuGraphInstantiateWithFlags(&exec, end(stream, CUDA_SUCCESS), 0));
    begin_on(stream);
    CHECK(cuMemsetD8Async(start, 1, GRANULE, stream));
    CHECK(cuGraphInstantiateWithFlags(&other, end(stream, CUDA_SUCCESS), 0));
    THAT(byte_at(address) == 0 && !flag);
    CHECK(cuGraphLaunch(exec, stream));
    THAT(simgpu_hazard(address, 16) > 0);
    EXPECT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    flag = 1;
    CHECK(cuStreamSynchronize(stream));
    THAT(byte_at(address) == 1);
    CHECK(cuGraphLaunch(other, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemUnmap(start, GRANULE));
    EXPECT(cuGraphLaunch(other, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void faults(void)
{
    CUdeviceptr here = linear_memory(SIZE), there, other;
    CHECK(cuMemAddressReserve(&there, GRANULE, 0, 0, 0));
    CHECK(cuMemMap(there, GRANULE, 0, create(), 0));
    EXPECT(cuMemcpyAsync(there, here, GRANULE, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuMemAlloc_v2(&other, SIZE), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuMemFree_v2(here), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuMemUnmap(there, GRANULE), CUDA_ERROR_ILLEGAL_ADDRESS);
    create(); /* succeeds, as on an H100 */
    use_device(1);
    linear_memory(SIZE); /* the other device works on */
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    begin();
    linear_memory(SIZE);
}

static bool can_write(CUdeviceptr address)
{
    int fds[2];
    THAT(pipe(fds) == 0 && write(fds[1], "x", 1) == 1);
    bool can = read(fds[0], (void *)address, 1) == 1; /* EFAULT without access */
    close(fds[0]), close(fds[1]);
    return can;
}

/* Granules 1 and 3 of 5 are mapped. A hole between them is passed over, and one at an end is not. */
static void holes(void)
{
    const char *refuses = getenv("SIMGPU_HOLES");
    CUresult answer = refuses ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
    CUmemGenericAllocationHandle found;
    CUdeviceptr start, granules[5];
    CHECK(cuMemAddressReserve(&start, 5 * GRANULE, 0, 0, 0));
    for (int i = 0; i < 5; i++) granules[i] = start + (CUdeviceptr)i * GRANULE;
    CHECK(cuMemMap(granules[1], GRANULE, 0, create(), 0));
    CHECK(cuMemMap(granules[3], GRANULE, 0, create(), 0));
    EXPECT(cuMemSetAccess(granules[0], 2 * GRANULE, &access, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemSetAccess(granules[3], 2 * GRANULE, &access, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemSetAccess(granules[1], 3 * GRANULE, &access, 1), answer);
    THAT(can_write(granules[1]) == !refuses && can_write(granules[3]) == !refuses && !can_write(granules[2]));
    EXPECT(cuMemUnmap(granules[0], 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemUnmap(granules[3], 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemUnmap(granules[1], 3 * GRANULE), answer);
    for (int i = 1; i < 5; i += 2) EXPECT(cuMemRetainAllocationHandle(&found, (void *)granules[i]), refuses ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* A free without a current context: of memory of cuMemAlloc, and of other memory. */
static void nowhere(void)
{
    CUdeviceptr plain = linear_memory(SIZE), managed;
    CHECK(cuMemAllocManaged(&managed, SIZE, 1));
    CHECK(cuCtxSetCurrent(NULL));
    CHECK(cuMemFree_v2(plain));
    EXPECT(cuMemFree_v2(plain), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuMemFree_v2(managed), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuCtxSetCurrent(context));
    EXPECT(cuMemFree_v2(plain), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree_v2(managed));
}

static void green(void)
{
    CUdevResource resource;
    void *description, *share;
    CUcontext shared;
    CUstream stream;
    CHECK(cuDeviceGetDevResource(0, &resource, 1));
    CHECK(cuDevResourceGenerateDesc(&description, &resource, 1));
    CHECK(cuGreenCtxCreate(&share, description, 0, 1));
    CHECK(cuCtxFromGreenCtx(&shared, share));
    CHECK(cuGreenCtxStreamCreate(&stream, share, NON_BLOCKING, 0));
    CHECK(cuCtxSetCurrent(shared));
    CUdeviceptr address = linear_memory(SIZE);
    CHECK(cuLaunchHostFunc(stream, until_set, &flag));
    work(stream, address);
    CHECK(cuGreenCtxDestroy(share));
    EXPECT(cuStreamQuery(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT(cuMemsetD8Async(address, 1, SIZE, stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CUdeviceptr other;
    EXPECT(cuMemAlloc_v2(&other, SIZE), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuCtxSetCurrent(context));
    THAT(simgpu_hazard(address, SIZE) == 1);
    flag = 1;
    CHECK(cuMemFree_v2(address)); /* belongs to the primary context, and waits for the work */
    THAT(simgpu_hazard(address, SIZE) == 0);
}

static void growth(void)
{
    enum { COUNT = 64 };
    CUdeviceptr start;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cuMemAddressReserve(&start, COUNT * (size_t)GRANULE, 0, 0, 0));
    uint64_t begun = now_us();
    for (size_t i = 0; i < COUNT; i++) CHECK(cuMemMap(start + i * GRANULE, GRANULE, 0, create(), 0));
    uint64_t made = now_us();
    CHECK(cuMemSetAccess(start, COUNT * (size_t)GRANULE, &access, 1));
    uint64_t granted = now_us();
    CHECK(cuMemUnmap(start, COUNT * (size_t)GRANULE));
    printf("%llu %llu %llu\n", (unsigned long long)(made - begun), (unsigned long long)(granted - made), (unsigned long long)(now_us() - granted));
}

static volatile int created;
static void *creates(void *unused)
{
    CHECK(cuCtxSetCurrent(context));
    create();
    created = 1;
    return unused;
}

static void latch(void)
{
    char waiting[4096], open_file[4096];
    size_t bytes, total;
    pthread_t thread;
    snprintf(waiting, sizeof waiting, "%s/cuMemCreate.waiting", getenv("SIMGPU_LATCH_DIR"));
    snprintf(open_file, sizeof open_file, "%s/cuMemCreate.open", getenv("SIMGPU_LATCH_DIR"));
    pthread_create(&thread, NULL, creates, NULL);
    while (access(waiting, F_OK)) usleep(100);
    for (int i = 0; i < 1000; i++) {
        CHECK(cuMemFree_v2(linear_memory(SIZE)));
        CHECK(cuMemGetInfo_v2(&bytes, &total));
    }
    THAT(!created);
    fclose(fopen(open_file, "w"));
    pthread_join(thread, NULL);
    THAT(created);
    create();
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"collective", collective}, {"devices", devices}, {"captures", captures}, {"graphs", graphs}, {"dmabuf", dmabuf},
        {"faults", faults},         {"green", green},     {"growth", growth}, {"latch", latch},
        {"order", order},           {"holes", holes},           {"nowhere", nowhere},
    };
    begin();
    return PLAY(scenes, argc, argv);
}
