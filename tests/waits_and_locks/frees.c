/* cuMemFree returns when all work that was launched before and may use the memory is done. Every scene ends without the
 * library. A block may be used on the streams of each context of its device, also of green ones.
 *
 *   frees streams     work on every kind of stream and of another thread, also of a graph and of a stream that is gone;
 *                     another context is current at the free, or none
 *   frees asked       another thread asks about the memory while the free waits
 *   frees peers       device 1 writes a block of device 0, which device 0 frees and allocates again; the access was granted
 *                     after the block was allocated, and taken back after the work was launched
 *   frees green       streams and contexts are those of green contexts
 *   frees one-pool    what was freed in a green context or the primary one serves a request in another
 *   frees defaults    the default stream of a green context is another one than that of the primary context
 *   frees destroyed   a green context is destroyed while its streams have work
 *   frees last        the primary context goes with the last green context */
#include "tensors.h"

enum { SIZE = 2 * MIB, DEFAULT_STREAM = 1, SM = 1, LEAST = 8 };

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);

struct work {
    CUstream stream;
    CUcontext allocates, frees;
    bool goes, in_graph, of_thread;
    CUdeviceptr block;
    volatile unsigned char *copy;
    struct flag done;
};

/* Some time, a fill, a copy to pinned memory, some time, a flag. */
static void *launches(void *data)
{
    struct work *work = data;
    if (work->of_thread) DO(cuCtxSetCurrent(context));
    DO(cuLaunchHostFunc(work->stream, takes_50_ms, NULL));
    DO(cuMemsetD8Async(work->block, 9, SIZE, work->stream));
    DO(cuMemcpyDtoHAsync_v2((void *)work->copy, work->block, SIZE, work->stream));
    DO(cuLaunchHostFunc(work->stream, takes_50_ms_and_sets, &work->done));
    return NULL;
}

static void launches_a_graph(struct work *work)
{
    DO(cuStreamBeginCapture_v2(work->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launches(work);
    DO(cuGraphLaunch(captured_on(work->stream), work->stream));
}

static void behind(const char *what, struct work work)
{
    pthread_t thread;
    void *pinned;
    DO(cuCtxSetCurrent(work.allocates ? work.allocates : context));
    DO(cuMemAllocHost_v2(&pinned, SIZE));
    work.copy = memset(pinned, 0, SIZE);
    work.block = allocate(SIZE);
    if (work.in_graph) launches_a_graph(&work);
    else if (work.of_thread) pthread_create(&thread, NULL, launches, &work), join(thread);
    else launches(&work);
    if (work.goes) DO(cuStreamDestroy_v2(work.stream));
    DO(cuCtxSetCurrent(work.frees));
    release(work.block);
    if (!work.done.set || work.copy[0] != 9 || work.copy[SIZE - 1] != 9)
        fprintf(stderr, "%s: cuMemFree returned before the work on the memory was done\n", what), exit(1);
    use(0);
    CUdeviceptr next = allocate(SIZE);
    DO(cuMemsetD8_v2(next, 0x55, SIZE));
    holds(next, 0x55, SIZE);
    release(next);
    THAT(simgpu_hazards() == 0);
}

static void streams(void)
{
    CUcontext other;
    DO(cuCtxCreate_v2(&other, 0, 0));
    use(0);
    for (int round = 0; round < 2; round++) {
        CUstream own = new_stream(NON_BLOCKING);
        behind("a non-blocking stream", (struct work){own, .frees = context});
        behind("a blocking stream", (struct work){new_stream(0), .frees = context});
        behind("the default stream of the thread", (struct work){PER_THREAD, .frees = context});
        behind("the legacy default stream", (struct work){LEGACY, .frees = context});
        behind("the default stream", (struct work){NULL, .frees = context});
        behind("the default stream of another thread", (struct work){PER_THREAD, .frees = context, .of_thread = true});
        behind("a stream that is gone", (struct work){new_stream(NON_BLOCKING), .frees = context, .goes = true});
        behind("a graph in flight", (struct work){own, .frees = context, .in_graph = true});
        behind("another context", (struct work){own, .frees = other});
        behind("no context", (struct work){own, .frees = NULL});
    }
}

struct green { void *handle; CUcontext context; CUstream stream; };

static struct green new_green(void)
{
    struct green green;
    CUdevResource whole, part, rest;
    unsigned groups = 1;
    void *description;
    DO(cuDeviceGetDevResource(0, &whole, SM));
    DO(cuDevSmResourceSplitByCount(&part, &groups, &whole, &rest, 0, LEAST));
    DO(cuDevResourceGenerateDesc(&description, &part, 1));
    DO(cuGreenCtxCreate(&green.handle, description, 0, DEFAULT_STREAM));
    DO(cuCtxFromGreenCtx(&green.context, green.handle));
    DO(cuGreenCtxStreamCreate(&green.stream, green.handle, NON_BLOCKING, 0));
    return green;
}

static void green(void)
{
    struct green one = new_green(), another = new_green();
    CUstream stream = new_stream(NON_BLOCKING);
    behind("primary, allocated and freed in a green one", (struct work){stream, one.context, .frees = one.context});
    behind("primary, allocated in a green one", (struct work){stream, one.context, .frees = context});
    behind("green", (struct work){one.stream, context, .frees = context});
    behind("green, freed in another", (struct work){one.stream, context, .frees = another.context});
    behind("green, allocated in another", (struct work){another.stream, one.context, .frees = context});
}

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
    static const size_t sizes[] = {1000, 96 * MIB};
    for (int i = 0; i < 2; i++) {
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

static void peers(void)
{
    enum { BLOCKS = 4 };
    open_devices(2);
    CUstream writer = stream_on(1), own = stream_on(0);
    use(1);
    CUdeviceptr source = allocate(SIZE);
    DO(cuMemsetD8_v2(source, 0xee, SIZE));
    for (int round = 0; round < 6; round++) {
        CUdeviceptr blocks[BLOCKS];
        use(0);
        for (int i = 0; i < BLOCKS; i++) blocks[i] = allocate(SIZE);
        use(1);
        DO(cuCtxEnablePeerAccess(contexts[0], 0));
        DO(cuLaunchHostFunc(writer, takes_50_ms, NULL));
        for (int i = 0; i < BLOCKS; i++) DO(cuMemcpyDtoDAsync_v2(blocks[i], source, SIZE, writer));
        DO(cuCtxDisablePeerAccess(contexts[0]));
        use(round % 2);
        for (int i = 0; i < BLOCKS; i++) release(blocks[i]);
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

static void one_pool(void)
{
    enum { LARGE = 300 * MIB }; /* of 1 GiB: one of them fits into each of three pools */
    struct green greens[] = {new_green(), new_green()};
    CUcontext all[] = {context, greens[0].context, greens[1].context};
    uint64_t settled = 0;
    for (int round = 0; round < 9; round++) {
        DO(cuCtxSetCurrent(all[round % 3]));
        CUdeviceptr block = allocate(LARGE);
        DO(cuCtxSetCurrent(all[(round + 1) % 3]));
        CUcontext owner;
        DO(cuPointerGetAttribute(&owner, 1 /* CU_POINTER_ATTRIBUTE_CONTEXT */, block));
        THAT(owner == context);
        release(block);
        if (!settled) settled = reserved();
        THAT(reserved() == settled || !has_policy());
    }
}

static CUdeviceptr obtain(CUstream stream)
{
    CUdeviceptr address = tensor_on(0, SIZE, stream);
    nothing_pending(address, SIZE);
    return address;
}

static void give_back(CUdeviceptr address, CUstream stream) { free_tensor_on(0, address, SIZE, stream); }

static void defaults(void)
{
    struct green green = new_green();
    CUcontext contexts[] = {context, green.context};
    records_streams(new_stream(NON_BLOCKING), NULL);
    for (int round = 0; round < 10; round++) {
        struct flag flag = {0};
        DO(cuCtxSetCurrent(contexts[round % 2]));
        CUdeviceptr tensor = obtain(NULL);
        DO(cuLaunchHostFunc(NULL, waits_for, &flag));
        DO(cuMemsetD8Async(tensor, 0xee, SIZE, NULL));
        give_back(tensor, NULL);
        DO(cuCtxSetCurrent(contexts[(round + 1) % 2]));
        CUdeviceptr next = obtain(NULL); /* nothing pending uses it */
        set(&flag);
        give_back(next, NULL);
        DO(cuCtxSetCurrent(context));
        DO(cuCtxSynchronize());
    }
}

static void destroyed(void)
{
    enum { ROUNDS = 40, SETTLED = 8 };
    uint64_t settled = 0;
    CUstream own = new_stream(NON_BLOCKING);
    records_streams(own, NULL);
    for (int round = 1; round <= ROUNDS; round++) {
        struct flag flag = {0};
        struct green green = new_green();
        DO(cuCtxSetCurrent(green.context));
        CUdeviceptr block = allocate(SIZE), tensor = obtain(green.stream);
        DO(cuLaunchHostFunc(green.stream, waits_for, &flag));
        DO(cuMemsetD8Async(tensor, 0xee, SIZE, green.stream));
        if (torch_free) give_back(tensor, green.stream);
        DO(cuCtxSetCurrent(context));
        DO(cuGreenCtxDestroy(green.handle));
        CUdeviceptr next = obtain(own);
        set(&flag);
        DO(cuMemsetD8_v2(block, (unsigned char)round, SIZE)); /* it outlives the green context */
        holds(block, (unsigned char)round, SIZE);
        release(block);
        if (!torch_free) give_back(tensor, own);
        give_back(next, own);
        DO(cuStreamSynchronize(own));
        if (round == SETTLED) settled = reserved();
    }
    THAT(reserved() <= settled);
    THAT(simgpu_hazards() == 0);
}

static void last(void)
{
    for (int round = 0; round < 4; round++) {
        struct green green = new_green();
        int active;
        unsigned flags;
        DO(cuDevicePrimaryCtxRelease_v2(0));
        DO(cuCtxSetCurrent(green.context));
        allocate(SIZE);
        DO(cuGreenCtxDestroy(green.handle));
        DO(cuDevicePrimaryCtxGetState(0, &flags, &active));
        THAT(!active);
        THAT(reserved() == 0);
        context = use_device(0);
        release(allocate(SIZE));
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"streams", streams}, {"asked", asked}, {"peers", peers}, {"green", green}, {"one-pool", one_pool}, {"defaults", defaults},
        {"destroyed", destroyed}, {"last", last},
    };
    find_torch_functions();
    start_watchdog();
    open_devices(1);
    return PLAY(scenes, argc, argv);
}
