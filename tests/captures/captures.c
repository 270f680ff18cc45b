/* A policy and stream captures: it must not wait for the device while a capture is open, and must wait if none is.
 * Exits with 1 otherwise. In all scenes but `idle`, most of the device is one block. A free waits for the work that may
 * use the block, but not during a capture. What is freed then can be used again only after a later wait, which a request
 * makes before it fails.
 *
 *   captures stream     the capturing stream is destroyed
 *   captures context    the capturing stream's context is destroyed
 *   captures threads    two threads capture CU_STREAM_PER_THREAD, each its own (over a layer)
 *   captures refused    another thread begins a capture of the stream, which is refused; the first thread frees
 *   captures failed     the end fails and the stream goes on capturing; or it ends invalidated (with SIMGPU_FAULTS)
 *   captures meanwhile  a capture begins while a free of another thread waits for a host function
 *   captures idle       a job does nothing but capture while its memory is given back (with VRAMSHIM_IDLE_RELEASE) */
#include "delayed.h"
#include <pthread.h>
#include <unistd.h>

#define PER_THREAD ((CUstream)2)

static const size_t MOST = 3ull << 30; /* of 4 GiB */

static void begin_capture(CUstream stream, int mode) { CHECK(cuStreamBeginCapture_v2(stream, mode)); }

static void end_capture(CUstream stream, CUresult wanted)
{
    CUgraph graph;
    EXPECT(cuStreamEndCapture(stream, &graph), wanted);
}

/* Allocates and frees most of the device. Afterwards only the policy can serve a block of this size. */
static void use_most(void)
{
    CHECK(cuMemFree_v2(linear_memory(MOST)));
}

static CUresult most(void)
{
    CUdeviceptr address;
    CUresult result = cuMemAlloc_v2(&address, MOST);
    if (!result) CHECK(cuMemFree_v2(address));
    return result;
}

/* A block that was freed before the capture can be allocated during it, once. */
static void begin_with_most(CUstream stream)
{
    begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    CHECK(most());
}

static void may_wait(void)
{
    for (int i = 0; i < 3; i++) CHECK(most());
}

static void may_not_wait(void)
{
    uint64_t before = synchronisations();
    EXPECT(most(), CUDA_ERROR_OUT_OF_MEMORY);
    THAT(synchronisations() == before);
}

static void stream_goes(void)
{
    CUstream stream = new_stream(NON_BLOCKING);
    use_most();
    begin_with_most(stream);
    may_not_wait();
    CHECK(cuStreamDestroy_v2(stream));
    may_wait();
}

static void context_goes(void)
{
    CUcontext other;
    use_most();
    CHECK(cuCtxCreate_v2(&other, 0, 0));
    begin_capture(new_stream(NON_BLOCKING), CU_STREAM_CAPTURE_MODE_RELAXED);
    CHECK(cuCtxSetCurrent(context));
    CHECK(most());
    may_not_wait();
    CHECK(cuCtxDestroy_v2(other));
    may_wait();
}

static pthread_barrier_t both;

static void *captures_its_own(void *unused)
{
    CHECK(cuCtxSetCurrent(context));
    begin_capture(PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED);
    pthread_barrier_wait(&both); /* both threads capture */
    pthread_barrier_wait(&both); /* the other thread's capture has ended */
    end_capture(PER_THREAD, CUDA_SUCCESS);
    return unused;
}

static void threads(void)
{
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    use_most();
    begin_with_most(PER_THREAD);
    pthread_create(&thread, NULL, captures_its_own, NULL);
    pthread_barrier_wait(&both);
    end_capture(PER_THREAD, CUDA_SUCCESS);
    may_not_wait();
    pthread_barrier_wait(&both);
    pthread_join(thread, NULL);
    may_wait();
}

static CUstream captured;

static void *begins_in_vain(void *unused)
{
    enum { ILLEGAL_STATE = 401 };
    CHECK(cuCtxSetCurrent(context));
    EXPECT(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED), ILLEGAL_STATE);
    return unused;
}

static void refused(void)
{
    pthread_t thread;
    CUdeviceptr block = linear_memory(MIB);
    captured = new_stream(NON_BLOCKING);
    begin_capture(captured, CU_STREAM_CAPTURE_MODE_RELAXED);
    pthread_create(&thread, NULL, begins_in_vain, NULL);
    pthread_join(thread, NULL);
    /* A wait in the middle of a capture of another thread allocates and frees a few bytes of the driver. */
    uint64_t before = simgpu_calls("cuMemFree");
    CHECK(cuMemFree_v2(block));
    THAT(simgpu_calls("cuMemFree") == before);
    end_capture(captured, CUDA_SUCCESS);
}

static void failed(void)
{
    enum { WRONG_THREAD = 908 };
    CUstream stream = new_stream(NON_BLOCKING);
    use_most();
    begin_with_most(stream);
    end_capture(stream, WRONG_THREAD);
    may_not_wait();
    end_capture(stream, CUDA_SUCCESS);
    may_wait();
    begin_with_most(stream);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); /* invalidates the capture */
    may_not_wait();
    end_capture(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    may_wait();
}

static _Atomic bool running, has_begun;

static void runs_until_a_capture_began(void *unused)
{
    (void)unused;
    running = true;
    while (!has_begun) usleep(1000);
}

/* The free waits for the host function. */
static void *waits(void *unused)
{
    CHECK(cuCtxSetCurrent(context));
    CHECK(most());
    return unused;
}

static void meanwhile(void)
{
    CUstream stream = new_stream(NON_BLOCKING);
    pthread_t thread;
    use_most();
    CHECK(cuLaunchHostFunc(new_stream(NON_BLOCKING), runs_until_a_capture_began, NULL));
    pthread_create(&thread, NULL, waits, NULL);
    while (!running) continue;
    usleep(100000); /* the free waits now */
    alarm(60);      /* ends a capture that waits for the free */
    begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    has_begun = true;
    pthread_join(thread, NULL);
    end_capture(stream, CUDA_SUCCESS);
}

static void idle(void)
{
    enum { BLOCKS = 40, SIZE = 32 * MIB, ROUNDS = 50 };
    CUdeviceptr blocks[BLOCKS];
    CUstream stream = new_stream(NON_BLOCKING);
    for (int i = 0; i < BLOCKS; i++) blocks[i] = linear_memory(SIZE);
    for (int i = 0; i < BLOCKS; i++) CHECK(cuMemFree_v2(blocks[i]));
    THAT(library_function(vramshim_stats));
    /* Runs until the memory was given back. */
    for (int round = 0; round < ROUNDS || stats_of_library().reserved >= BLOCKS * (uint64_t)SIZE; round++) {
        begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        usleep(2000);
        end_capture(stream, CUDA_SUCCESS);
        usleep(2000);
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"stream", stream_goes}, {"context", context_goes}, {"threads", threads}, {"refused", refused},
                                          {"failed", failed},      {"meanwhile", meanwhile},  {"idle", idle}};
    begin();
    return PLAY(scenes, argc, argv);
}
