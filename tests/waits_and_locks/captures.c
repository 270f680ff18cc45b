/* Stream captures beside work in flight, and beside allocations and frees. Every scene ends without the library.
 *
 *   captures often    a relaxed or thread-local capture begins at any point of a free of other threads, and stays valid
 *   captures filled   a thread fills a device with memory that it frees, while another one captures anywhere
 *   captures again    a capture into a graph that exists, and into the nodes of one, while other threads free
 *   captures missed   captures that begin and end by functions which passed no other library; a policy breaks at most one
 *   captures cig      a capture into a command list of a graphics client */
#include "scenes.h"
#include "random.h"

enum { SIZE = MIB };

static void valid(CUstream stream)
{
    int status;
    DO(cuStreamIsCapturing(stream, &status));
    THAT(status == CAPTURING);
}

static atomic_int turns;
static atomic_bool stop;

static void *allocates_and_frees(void *seed)
{
    uint64_t random = (uintptr_t)seed;
    DO(cuCtxSetCurrent(context));
    CUstream stream = new_stream(NON_BLOCKING);
    for (unsigned char turn = 1; !stop; turn++) {
        size_t size = 512 * (1 + draw(&random, 4096));
        CUdeviceptr block = allocate(size), other = allocate(2 * size);
        DO(cuMemsetD8Async(block, turn, size, stream));
        DO(cuMemsetD8Async(other, turn, size, stream));
        release(other);
        DO(cuStreamSynchronize(stream));
        unsigned char *bytes = malloc(size);
        DO(cuMemcpyDtoHAsync_v2(bytes, block, size, stream));
        all_bytes_are(bytes, turn, size, block);
        free(bytes);
        release(block);
        turns++;
    }
    return NULL;
}

static void often(void)
{
    enum { THREADS = 3, ROUNDS = 400 };
    pthread_t threads[THREADS];
    CUstream captured = new_stream(NON_BLOCKING);
    CUdeviceptr used = allocate(SIZE);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, allocates_and_frees, (void *)(i + 1));
    for (int round = 0; round < ROUNDS; round++) {
        DO(cuStreamBeginCapture_v2(captured, round % 2 ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        DO(cuMemsetD8Async(used, 1, SIZE, captured));
        for (int before = turns; turns == before;) usleep(50);
        valid(captured);
        DO(cuGraphExecDestroy(captured_on(captured)));
        usleep((useconds_t)round % 100);
    }
    stop = true;
    for (int i = 0; i < THREADS; i++) join(threads[i]);
    THAT(simgpu_hazards() == 0);
}

static struct capture { CUcontext context; struct flag begun, ends; } elsewhere;

static void *captures_elsewhere(void *unused)
{
    (void)unused;
    DO(cuCtxSetCurrent(elsewhere.context));
    CUstream captured = new_stream(NON_BLOCKING);
    DO(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    set(&elsewhere.begun);
    waits_for(&elsewhere.ends);
    valid(captured);
    DO(cuGraphExecDestroy(captured_on(captured)));
    return NULL;
}

/* Together the blocks are three times as large as the device. Each free waits for the work that uses the block. */
static void filled_beside(CUcontext capturing)
{
    enum { BLOCKS = 12 };
    pthread_t thread;
    CUstream worker = new_stream(NON_BLOCKING);
    size_t free_bytes, total;
    DO(cuMemGetInfo_v2(&free_bytes, &total));
    elsewhere = (struct capture){.context = capturing};
    pthread_create(&thread, NULL, captures_elsewhere, NULL);
    waits_for(&elsewhere.begun);
    for (unsigned char i = 0; i < BLOCKS; i++) {
        CUdeviceptr block = allocate(total / 4);
        DO(cuMemsetD8Async(block, i, SIZE, worker));
        DO(cuLaunchHostFunc(worker, takes_50_ms, NULL));
        DO(cuMemsetD8Async(block, i, SIZE, worker));
        release(block);
        DO(cuStreamQuery(worker));
    }
    set(&elsewhere.ends);
    join(thread);
    DO(cuStreamDestroy_v2(worker));
    THAT(simgpu_hazards() == 0);
}

static void filled(void)
{
    CUcontext other, of_other_device = use_device(1);
    DO(cuCtxCreate_v2(&other, 0, 0));
    DO(cuCtxSetCurrent(context));
    CUcontext capturing[] = {context, other, of_other_device};
    for (int i = 0; i < 3; i++) filled_beside(capturing[i]);
}

/* ---- again, cig: the entry points that CUDA 12.3 and 13 added */

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count, int mode);
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count, int mode);
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph, void *callback, void *data);

static void *frees_many(void *unused)
{
    DO(cuCtxSetCurrent(context));
    CUstream stream = new_stream(NON_BLOCKING);
    for (int i = 0; i < 20; i++) {
        CUdeviceptr block = allocate(SIZE);
        DO(cuMemsetD8Async(block, 1, SIZE, stream));
        release(block);
    }
    DO(cuStreamSynchronize(stream));
    return unused;
}

/* A free of another thread while `stream` captures. It waits for the context, if the capture is not known. */
static void free_beside(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, frees_many, NULL);
    join(thread);
}

static void again(void)
{
    enum { LOCAL = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, RELAXED = CU_STREAM_CAPTURE_MODE_RELAXED };
    CUdeviceptr used = allocate(SIZE);
    for (int round = 0; round < 8; round++) {
        CUstream stream = round % 4 < 2 ? new_stream(NON_BLOCKING) : PER_THREAD, handle = round % 4 < 2 ? stream : NULL;
        CUgraph graph, same;
        struct flag flag = {0};
        int mode = round % 2 ? LOCAL : RELAXED;
        DO(cuStreamBeginCapture_v2(stream, mode));
        DO(cuMemsetD8Async(used, 1, SIZE, stream));
        DO(cuStreamEndCapture(stream, &graph));
        DO(cuLaunchHostFunc(stream, waits_for, &flag));
        if (handle) DO(round / 4 ? cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, mode) : cuStreamBeginRecaptureToGraph(stream, mode, graph, NULL, NULL));
        else DO(round / 4 ? cuStreamBeginCaptureToGraph_ptsz(NULL, graph, NULL, NULL, 0, mode) : cuStreamBeginRecaptureToGraph_ptsz(NULL, mode, graph, NULL, NULL));
        DO(cuMemsetD8Async(used, 1, SIZE, stream));
        set(&flag);
        free_beside();
        valid(stream);
        DO(cuStreamEndCapture(stream, &same));
        THAT(same == graph);
        DO(cuGraphDestroy(graph));
        release(allocate(SIZE)); /* waits again */
    }
}

static void cig(void)
{
    struct { void *affinity; int count; void *graphics; } parameters = {NULL, 0, &parameters};
    void *list[] = {&parameters};
    CUcontext primary = context;
    DO(cuCtxCreate_v4(&context, &parameters, 0, 0));
    CUstream stream = new_stream(NON_BLOCKING);
    CUdeviceptr used = allocate(SIZE);
    for (int round = 0; round < 4; round++) {
        struct flag done = {0};
        DO(cuStreamBeginCaptureToCig(stream, list));
        DO(cuMemsetD8Async(used, 1, SIZE, stream));
        free_beside();
        valid(stream);
        DO(cuStreamEndCaptureToCig(stream));
        /* The library knows that the capture has ended: a free waits again. */
        CUdeviceptr block = allocate(SIZE);
        CUstream worker = new_stream(NON_BLOCKING);
        DO(cuMemsetD8Async(block, 1, SIZE, worker));
        DO(cuLaunchHostFunc(worker, takes_50_ms_and_sets, &done));
        release(block);
        THAT(done.set);
    }
    DO(cuCtxDestroy_v2(context));
    DO(cuCtxSetCurrent(context = primary));
}

static void missed(void)
{
    CUresult (*begin)(CUstream, int) = (CUresult (*)(CUstream, int))simgpu_function("cuStreamBeginCapture", 10010);
    CUresult (*end)(CUstream, CUgraph *) = (CUresult (*)(CUstream, CUgraph *))simgpu_function("cuStreamEndCapture", 10000);
    CUstream captured = new_stream(NON_BLOCKING), worker = new_stream(NON_BLOCKING);
    THAT(begin && end);
    int broken = 0;
    for (int round = 0; round < 10; round++) {
        CUdeviceptr block = allocate(SIZE);
        CUgraph graph;
        DO(cuMemsetD8Async(block, 1, SIZE, worker));
        DO(begin(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
        release(block);
        release(allocate(SIZE / 2));
        CUresult result = ANSWER(end(captured, &graph));
        THAT(!result || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        broken += result != CUDA_SUCCESS;
        DO(cuStreamSynchronize(worker));
    }
    THAT(broken <= has_policy());
    THAT(simgpu_hazards() == 0);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"often", often}, {"filled", filled}, {"again", again}, {"cig", cig}, {"missed", missed}};
    start_watchdog();
    open_devices(1);
    return PLAY(scenes, argc, argv);
}
