/* cuMemFree returns when all work that was launched before and may use the memory is done. Every scene ends without the
 * library.
 *
 *   frees streams   work on every kind of stream; what it writes to pinned memory can be read after the free
 *   frees gone      the stream of the work was destroyed before the free
 *   frees contexts  another context of the device is current at the free
 *   frees nowhere   no context is current at the free
 *   frees others    work that other threads launched, on their own default streams too
 *   frees managed   the host reads managed memory that work of the same stream wrote before a free
 *   frees graphs    the work is a CUDA graph in flight
 *   frees asked     another thread asks about the memory while the free waits
 *   frees green     work on the stream of a green context (left out if the driver has none)
 *   frees peers     device 1 writes a block of device 0, which device 0 frees and allocates again
 *   frees granted   the same; the access was granted after the block was allocated
 *   frees revoked   the same; the access was taken back after the work was launched */
#include "scenes.h"

enum { SIZE = 2 * MIB };

static volatile unsigned char *pinned(size_t size)
{
    void *memory;
    DO(cuMemAllocHost_v2(&memory, size));
    memset(memory, 0, size);
    return memory;
}

/* Work on the stream: some time, a fill, a copy to pinned memory, some time, a flag. */
static void launch(CUstream stream, CUdeviceptr block, unsigned char value, volatile unsigned char *copy, struct flag *done)
{
    DO(cuLaunchHostFunc(stream, takes_50_ms, NULL));
    DO(cuMemsetD8Async(block, value, SIZE, stream));
    DO(cuMemcpyDtoHAsync_v2((void *)copy, block, SIZE, stream));
    DO(cuLaunchHostFunc(stream, takes_50_ms_and_sets, done));
}

static void check(const struct flag *done, volatile unsigned char *copy, unsigned char value, const char *what)
{
    if (done->set && copy[0] == value && copy[SIZE - 1] == value) return;
    fprintf(stderr, "%s: cuMemFree returned before the work on the memory was done\n", what);
    exit(1);
}

static void behind(CUstream stream, const char *what)
{
    volatile unsigned char *copy = pinned(SIZE);
    for (unsigned char round = 1; round <= 2; round++) {
        struct flag done = {0};
        CUdeviceptr block = allocate(SIZE);
        launch(stream, block, round, copy, &done);
        release(block);
        check(&done, copy, round, what);
        CUdeviceptr next = allocate(SIZE);
        DO(cuMemsetD8_v2(next, 0x55, SIZE));
        holds(next, 0x55, SIZE);
        release(next);
    }
    DO(cuMemFreeHost((void *)copy));
}

static void streams(void)
{
    behind(new_stream(NON_BLOCKING), "a non-blocking stream");
    behind(new_stream(0), "a blocking stream");
    behind(PER_THREAD, "the default stream of the thread");
    behind(LEGACY, "the legacy default stream");
    behind(NULL, "the default stream");
}

/* ---- gone, contexts */

static void gone(void)
{
    volatile unsigned char *copy = pinned(SIZE);
    for (unsigned char round = 1; round <= 4; round++) {
        struct flag done = {0};
        CUstream stream = new_stream(round % 2 ? NON_BLOCKING : 0);
        CUdeviceptr block = allocate(SIZE);
        launch(stream, block, round, copy, &done);
        DO(cuStreamDestroy_v2(stream));
        release(block);
        check(&done, copy, round, "a stream that was destroyed");
    }
}

static void other_context(void)
{
    volatile unsigned char *copy = pinned(SIZE);
    CUstream stream = new_stream(NON_BLOCKING);
    CUcontext other;
    DO(cuCtxCreate_v2(&other, 0, 0));
    for (unsigned char round = 1; round <= 4; round++) {
        struct flag done = {0};
        DO(cuCtxSetCurrent(context));
        CUdeviceptr block = allocate(SIZE);
        launch(stream, block, round, copy, &done);
        DO(cuCtxSetCurrent(other));
        release(block);
        check(&done, copy, round, "another context");
        release(allocate(SIZE));
    }
}

/* ---- others */

struct task { CUstream stream; CUdeviceptr block; volatile unsigned char *copy; struct flag done; };

static void *launches(void *data)
{
    struct task *task = data;
    CHECK(cuCtxSetCurrent(context));
    launch(task->stream, task->block, 9, task->copy, &task->done);
    return NULL;
}

static void others(void)
{
    enum { TASKS = 4 };
    struct task tasks[TASKS];
    pthread_t threads[TASKS];
    for (int round = 0; round < 4; round++) {
        CUdeviceptr block = allocate(TASKS * SIZE);
        for (int i = 0; i < TASKS; i++) {
            CUstream stream = i < 2 ? PER_THREAD : new_stream(NON_BLOCKING);
            tasks[i] = (struct task){.stream = stream, .block = block + (size_t)i * SIZE, .copy = pinned(SIZE)};
            pthread_create(&threads[i], NULL, launches, &tasks[i]);
        }
        for (int i = 0; i < TASKS; i++) join(threads[i]);
        release(block);
        for (int i = 0; i < TASKS; i++) check(&tasks[i].done, tasks[i].copy, 9, "another thread's work");
        for (int i = 0; i < TASKS; i++) DO(cuMemFreeHost((void *)tasks[i].copy));
    }
}

/* ---- managed */

static void managed(void)
{
    CUstream stream = new_stream(NON_BLOCKING);
    CUdeviceptr shared;
    DO(cuMemAllocManaged(&shared, SIZE, 1));
    for (unsigned char round = 1; round <= 4; round++) {
        struct flag done = {0};
        CUdeviceptr block = allocate(SIZE);
        DO(cuMemsetD8Async(block, round, SIZE, stream));
        DO(cuLaunchHostFunc(stream, takes_50_ms, NULL));
        DO(cuMemcpyDtoDAsync_v2(shared, block, SIZE, stream));
        DO(cuLaunchHostFunc(stream, sets, &done));
        release(block);
        check(&done, (volatile unsigned char *)shared, round, "managed memory");
    }
    release(shared);
}

/* ---- graphs */

static void graphs(void)
{
    CUstream stream = new_stream(NON_BLOCKING);
    for (int round = 0; round < 4; round++) {
        struct flag done = {0};
        CUgraph graph;
        CUgraphExec exec;
        CUdeviceptr block = allocate(SIZE);
        DO(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL + round % 3));
        DO(cuMemsetD8Async(block, 3, SIZE, stream));
        DO(cuStreamEndCapture(stream, &graph));
        DO(cuGraphInstantiateWithFlags(&exec, graph, 0));
        DO(cuLaunchHostFunc(stream, takes_50_ms, NULL));
        DO(cuGraphLaunch(exec, stream));
        DO(cuLaunchHostFunc(stream, takes_50_ms_and_sets, &done));
        release(block);
        if (!done.set) fprintf(stderr, "cuMemFree returned while a CUDA graph that uses the memory was in flight\n"), exit(1);
        CUdeviceptr next = allocate(SIZE);
        DO(cuMemsetD8_v2(next, 4, SIZE));
        holds(next, 4, SIZE);
        release(next);
        DO(cuGraphExecDestroy(exec));
        DO(cuGraphDestroy(graph));
    }
}

/* ---- asked */

struct asked { CUdeviceptr block; struct flag freed; };

static void *frees(void *data)
{
    struct asked *asked = data;
    CHECK(cuCtxSetCurrent(context));
    release(asked->block);
    set(&asked->freed);
    return NULL;
}

enum { RANGE_START = 11, RANGE_SIZE = 12, BUFFER_ID = 7 };

static void ask(CUdeviceptr block, size_t size)
{
    CUdeviceptr base = 0, start = 0;
    size_t bytes = 0, length = 0;
    DO(cuMemGetAddressRange_v2(&base, &bytes, block + size - 1));
    DO(cuPointerGetAttribute(&start, RANGE_START, block + size - 1));
    DO(cuPointerGetAttribute(&length, RANGE_SIZE, block));
    THAT(base == block && bytes == size && start == block && length == size);
}

/* Until its free returns, a block is an allocation. What is asked then says nothing about the next block. */
static void asked(void)
{
    static const size_t sizes[] = {1000, 4 * MIB, 96 * MIB};
    for (int i = 0; i < 3; i++) {
        struct flag go_on = {0};
        struct asked asked = {.block = allocate(sizes[i])};
        CUstream stream = new_stream(NON_BLOCKING);
        DO(cuLaunchHostFunc(stream, waits_for, &go_on));
        pthread_t thread;
        pthread_create(&thread, NULL, frees, &asked);
        uint64_t id = 0;
        for (int tries = 0; tries < 20; tries++, usleep(10000)) {
            ask(asked.block, sizes[i]);
            DO(cuPointerGetAttribute(&id, BUFFER_ID, asked.block));
        }
        THAT(!asked.freed.set);
        set(&go_on);
        join(thread);
        CUdeviceptr base;
        THAT(ANSWER(cuMemGetAddressRange_v2(&base, NULL, asked.block)) == CUDA_ERROR_NOT_FOUND);
        CUdeviceptr next = allocate(sizes[i]);
        uint64_t next_id = 0;
        DO(cuPointerGetAttribute(&next_id, BUFFER_ID, next));
        THAT(next_id != id);
        release(next);
    }
}

/* ---- nowhere */

static void nowhere(void)
{
    CUstream stream = new_stream(NON_BLOCKING);
    volatile unsigned char *copy = pinned(SIZE);
    for (unsigned char round = 1; round <= 3; round++) {
        struct flag done = {0};
        CUdeviceptr block = allocate(SIZE);
        launch(stream, block, round, copy, &done);
        DO(cuCtxSetCurrent(NULL));
        release(block);
        check(&done, copy, round, "no context is current");
        use(0);
    }
    DO(cuMemFreeHost((void *)copy));
}

/* ---- green */

static bool green_stream(CUstream *stream)
{
    enum { SM = 1, DEFAULT_STREAM = 1, LEAST = 8 };
    typedef struct { unsigned char bytes[256]; } resource; /* CUdevResource of cuda.h, with room to spare */
    CUresult (*get)(CUdevice, resource *, int) = optional_function("cuDeviceGetDevResource");
    CUresult (*split)(resource *, unsigned *, const resource *, resource *, unsigned, unsigned) = optional_function("cuDevSmResourceSplitByCount");
    CUresult (*describe)(void **, resource *, unsigned) = optional_function("cuDevResourceGenerateDesc");
    CUresult (*create)(void **, void *, CUdevice, unsigned) = optional_function("cuGreenCtxCreate");
    CUresult (*create_stream)(CUstream *, void *, unsigned, int) = optional_function("cuGreenCtxStreamCreate");
    if (!get || !split || !describe || !create || !create_stream) return false;
    resource whole, part, rest;
    unsigned groups = 1;
    void *description, *green;
    if (ANSWER(get(0, &whole, SM)) || ANSWER(split(&part, &groups, &whole, &rest, 0, LEAST))) return false;
    if (ANSWER(describe(&description, &part, 1)) || ANSWER(create(&green, description, 0, DEFAULT_STREAM))) return false;
    return !ANSWER(create_stream(stream, green, NON_BLOCKING, 0));
}

static void green(void)
{
    CUstream stream;
    if (green_stream(&stream)) behind(stream, "the stream of a green context");
    else printf("left out: this driver has no green contexts\n");
}

/* ---- peers, granted */

static void written_by_a_peer(bool grant_late, bool revoke)
{
    enum { BLOCKS = 4 };
    open_devices(2);
    CUstream writer = stream_on(1), own = stream_on(0);
    use(1);
    CUdeviceptr source = allocate(SIZE);
    DO(cuMemsetD8_v2(source, 0xee, SIZE));
    if (!grant_late) enable_access(1, 0);
    for (int round = 0; round < 6; round++) {
        CUdeviceptr blocks[BLOCKS];
        use(0);
        for (int i = 0; i < BLOCKS; i++) blocks[i] = allocate(SIZE);
        if (grant_late && !round) enable_access(1, 0);
        use(1);
        DO(cuLaunchHostFunc(writer, takes_50_ms, NULL));
        for (int i = 0; i < BLOCKS; i++) DO(cuMemcpyDtoDAsync_v2(blocks[i], source, SIZE, writer));
        if (revoke) DO(cuCtxDisablePeerAccess(contexts[0]));
        use(round % 2);
        for (int i = 0; i < BLOCKS; i++) release(blocks[i]);
        if (revoke) enable_access(1, 0);
        use(0);
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = allocate(SIZE);
            DO(cuMemsetD8Async(blocks[i], (unsigned char)i, SIZE, own));
        }
        DO(cuStreamSynchronize(own));
        DO(cuStreamSynchronize(writer));
        for (int i = 0; i < BLOCKS; i++) holds(blocks[i], (unsigned char)i, SIZE), release(blocks[i]);
    }
    THAT(simgpu_hazards() == 0);
}

static void peers(void) { written_by_a_peer(false, false); }
static void granted(void) { written_by_a_peer(true, false); }
static void revoked(void) { written_by_a_peer(false, true); }

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"streams", streams}, {"gone", gone}, {"contexts", other_context}, {"nowhere", nowhere}, {"others", others}, {"managed", managed}, {"graphs", graphs}, {"asked", asked},
                                          {"green", green},     {"peers", peers},   {"granted", granted}, {"revoked", revoked}};
    start_watchdog();
    open_devices(1);
    return PLAY(scenes, argc, argv);
}
