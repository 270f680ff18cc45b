/* Memory that is freed while work may still use it, in places where the free cannot wait; and where blocks lie. Without the
 * library, cuMemAlloc or cuMemAllocAsync stands for the allocator for PyTorch, and every scene ends.
 *
 *   memory exhausted       nearly all memory is freed during a capture with work pending, and is asked for again
 *   memory helped          the same; the pending work waits for another thread, which allocates first
 *   memory hopeless        a request that no device can serve fails without a wait
 *   memory per-thread      the allocator for PyTorch: another stream, also the default one of the thread, gets other memory
 *                          at once, and the block when its work is done
 *   memory threads         the default streams of several threads; a thread frees a block of another one; threads end
 *   memory aligned         where large blocks lie */
#include "tensors.h"

static const size_t MOST = 700 * MIB; /* of 1 GiB */

/* Takes the first and the last part of a block, which are enough to see an overwriting. */
static void fill(CUdeviceptr block, size_t size, unsigned char value, CUstream stream)
{
    DO(cuMemsetD8Async(block, value, MIB, stream));
    DO(cuMemsetD8Async(block + size - MIB, value, MIB, stream));
}

static void check(CUdeviceptr block, size_t size, unsigned char value)
{
    holds(block, value, MIB);
    holds(block + size - MIB, value, MIB);
}

static void *helps(void *flag)
{
    DO(cuCtxSetCurrent(context));
    usleep(50000);
    allocate(64 * KIB);
    size_t free_bytes, total;
    DO(cuMemGetInfo_v2(&free_bytes, &total));
    set(flag);
    return NULL;
}

static void used_up(bool helped)
{
    CUstream captured = new_stream(NON_BLOCKING), worker = new_stream(NON_BLOCKING), mine = new_stream(NON_BLOCKING);
    for (unsigned char round = 1; round <= 5; round++) {
        CUdeviceptr block = allocate(MOST), next = 0;
        CUgraph graph;
        pthread_t helper;
        struct flag flag = {0}, done = {0};
        allocate(64 * KIB); /* so that the other thread finds a segment with room */
        DO(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
        DO(cuLaunchHostFunc(worker, helped ? waits_for : takes_50_ms, &flag));
        fill(block, MOST, 0xee, worker);
        DO(cuLaunchHostFunc(worker, sets, &done));
        if (helped) pthread_create(&helper, NULL, helps, &flag);
        release(block);
        /* During the capture a policy may be unable to tell whether the work is done. */
        CUresult result = ANSWER(cuMemAlloc_v2(&next, MOST));
        if (result) EXPECT(result, CUDA_ERROR_OUT_OF_MEMORY);
        else nothing_pending(next, MOST);
        int status;
        DO(cuStreamIsCapturing(captured, &status));
        THAT(status == CAPTURING);
        DO(cuStreamEndCapture(captured, &graph));
        if (result) next = allocate(MOST);
        THAT(done.set);
        fill(next, MOST, round, mine);
        DO(cuStreamSynchronize(mine));
        check(next, MOST, round);
        release(next);
        if (helped) join(helper);
    }
    THAT(simgpu_hazards() == 0);
}

static void exhausted(void) { used_up(false); }
static void helped(void) { used_up(true); }

static uint64_t waits(void)
{
    return simgpu_calls("cuCtxSynchronize") + simgpu_calls("cuStreamSynchronize") + simgpu_calls("cuEventSynchronize");
}

/* A tensor where memory is left: no call that waits is made. */
static CUdeviceptr obtain_at_once(size_t size, CUstream stream)
{
    uint64_t before = waits();
    CUdeviceptr address = tensor_on(0, size, stream);
    THAT(waits() == before);
    return address;
}

static void hopeless(void)
{
    CUstream stream = new_stream(NON_BLOCKING);
    for (int round = 0; round < 10; round++) {
        struct flag flag = {0};
        CUdeviceptr block;
        release(allocate(8 * MIB));
        DO(cuLaunchHostFunc(stream, waits_for, &flag));
        CUresult result = ANSWER(cuMemAlloc_v2(&block, 64 * GIB));
        EXPECT(result, CUDA_ERROR_OUT_OF_MEMORY);
        set(&flag);
        DO(cuStreamSynchronize(stream));
    }
}

static void per_thread(void)
{
    enum { SIZE = 4 * MIB, SETTLED = 5, ROUNDS = 60 };
    CUstream streams[] = {new_stream(NON_BLOCKING), new_stream(NON_BLOCKING), PER_THREAD};
    uint64_t settled = 0;
    records_streams(streams[0], streams[1]);
    records_streams(streams[2], streams[1]);
    for (unsigned char round = 1; round <= ROUNDS; round++) {
        CUstream one = streams[round % 3], next = streams[(round + 1) % 3];
        struct flag flag = {0};
        CUdeviceptr tensor = obtain_at_once(SIZE, one);
        DO(cuMemsetD8Async(tensor, 0xee, SIZE, one));
        DO(cuLaunchHostFunc(one, waits_for, &flag));
        DO(cuMemsetD8Async(tensor, 0xee, SIZE, one));
        free_tensor_on(0, tensor, SIZE, one);
        CUdeviceptr fresh = obtain_at_once(SIZE, next);
        nothing_pending(fresh, SIZE);
        THAT(fresh != tensor);
        DO(cuMemsetD8Async(fresh, round, SIZE, next));
        set(&flag);
        DO(cuStreamSynchronize(one));
        DO(cuStreamSynchronize(next));
        fill(fresh, SIZE, round, next);
        DO(cuStreamSynchronize(next));
        check(fresh, SIZE, round);
        free_tensor_on(0, fresh, SIZE, next);
        if (round == SETTLED) settled = reserved();
    }
    THAT(reserved() <= settled);
    THAT(simgpu_hazards() == 0);
}

/* ---- threads: CU_STREAM_PER_THREAD is another stream in each thread */

enum { TENSOR = 4 * MIB };

static struct step { pthread_barrier_t both; struct flag flag; CUdeviceptr kept, passed; } step;

static void meet(void)
{
    const char *before = enter(HERE("pthread_barrier_wait"));
    pthread_barrier_wait(&step.both);
    enter(before);
}

static CUdeviceptr tensor_in_use(void)
{
    CUdeviceptr tensor = tensor_on(0, TENSOR, PER_THREAD);
    DO(cuLaunchHostFunc(PER_THREAD, waits_for, &step.flag));
    DO(cuMemsetD8Async(tensor, 0xee, TENSOR, PER_THREAD));
    return tensor;
}

static void *uses_its_own_stream(void *unused)
{
    DO(cuCtxSetCurrent(context));
    step.kept = tensor_in_use();
    step.passed = tensor_in_use();
    free_tensor_on(0, step.kept, TENSOR, PER_THREAD);
    if (!torch_alloc) free_tensor_on(0, step.passed, TENSOR, PER_THREAD); /* the order of the other stream would be wrong */
    meet(); /* the other thread asks for the freed tensor, and frees the passed one */
    meet();
    THAT(!has_policy() || obtain_at_once(TENSOR, PER_THREAD) == step.kept);
    if (has_policy()) free_tensor_on(0, step.kept, TENSOR, PER_THREAD);
    return unused;
}

static void threads(void)
{
    enum { ROUNDS = 20, SETTLED = 4, FRESH = 3 };
    uint64_t settled = 0;
    records_streams(new_stream(NON_BLOCKING), PER_THREAD);
    pthread_barrier_init(&step.both, NULL, 2);
    for (unsigned char round = 1; round <= ROUNDS; round++) {
        CUdeviceptr fresh[FRESH];
        pthread_t thread;
        step.flag.set = 0;
        pthread_create(&thread, NULL, uses_its_own_stream, NULL);
        meet();
        if (torch_alloc) free_tensor_on(0, step.passed, TENSOR, PER_THREAD); /* work of the other thread uses it */
        meet();
        join(thread); /* its work goes on */
        for (int i = 0; i < FRESH; i++) {
            fresh[i] = obtain_at_once(TENSOR, PER_THREAD);
            nothing_pending(fresh[i], TENSOR);
            DO(cuMemsetD8Async(fresh[i], round, TENSOR, PER_THREAD));
        }
        set(&step.flag);
        DO(cuCtxSynchronize());
        for (int i = 0; i < FRESH; i++) check(fresh[i], TENSOR, round), free_tensor_on(0, fresh[i], TENSOR, PER_THREAD);
        DO(cuStreamSynchronize(PER_THREAD));
        if (round == SETTLED) settled = reserved();
    }
    THAT(reserved() <= settled);
    THAT(simgpu_hazards() == 0);
}

static void aligned(void)
{
    enum { DMA_BUF_FD = 1, NOT_SUPPORTED = 801, BLOCKS = 10 };
    static const size_t sizes[BLOCKS] = {64 * KIB,      64 * KIB + 1, 100 * KIB, MIB,      2 * MIB - 512,
                                         2 * MIB,       2 * MIB + 512, 3 * MIB,  64 * MIB, 96 * MIB + 1024};
    CUresult (*export)(void *, CUdeviceptr, size_t, int, unsigned long long) = optional_function("cuMemGetHandleForAddressRange");
    CUdeviceptr blocks[BLOCKS], small[BLOCKS];
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            small[i] = allocate(512 * (size_t)(1 + (i + round) % 5));
            blocks[i] = allocate(sizes[(i + 3 * round) % BLOCKS]);
        }
        for (int i = 0; i < BLOCKS; i++) {
            size_t size = sizes[(i + 3 * round) % BLOCKS], least = size < 2 * MIB ? 64 * KIB : 2 * MIB;
            if (has_policy() && blocks[i] % least) {
                fprintf(stderr, "a block of %zu bytes at %#llx, which is no multiple of %zu\n", size, blocks[i], least);
                exit(1);
            }
            if (!export || size < 2 * MIB) continue;
            int descriptor = -1;
            CUresult result = ANSWER(export(&descriptor, blocks[i], 2 * MIB, DMA_BUF_FD, 0));
            if (result) EXPECT(result, NOT_SUPPORTED);
            else THAT(descriptor >= 0 && close(descriptor) == 0);
        }
        /* Half of the blocks stay, so that the next round has holes to fill. */
        for (int i = 0; i < BLOCKS; i++)
            if ((i + round) % 2) release(blocks[i]);
            else release(small[i]);
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"exhausted", exhausted}, {"helped", helped}, {"hopeless", hopeless}, {"per-thread", per_thread}, {"threads", threads},
        {"aligned", aligned},
    };
    find_torch_functions();
    start_watchdog();
    open_devices(1);
    return PLAY(scenes, argc, argv);
}
