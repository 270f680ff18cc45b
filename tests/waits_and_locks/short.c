/* Memory runs out while the thread holds a mutex that a host function wants. A driver says so at once. The thread lets go
 * of the mutex then, and goes on with less memory. An allocator that waits for the work before it fails never returns.
 *
 *   short idle       free memory lies in segments that could be given back
 *   short async      the same; the request is cuMemAllocAsync
 *   short graph      the same; the request is the launch of a graph that allocates
 *   short queued     another thread is in a free, which waits for the work
 *   short tensors    free memory is memory that the work may still use (allocator for PyTorch)
 *   short lasting    work without the mutex that takes a while does not make the request fail, as the memory is there */
#include "tensors.h"

enum { BLOCKS = 10 };
static const size_t PART = 40 * MIB, MOST = 600 * MIB; /* of 1 GiB */

/* One block stays live; the memory of the others is free, in segments of their own. */
static CUdeviceptr leaves_idle_memory(void)
{
    CUdeviceptr blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) blocks[i] = allocate(PART);
    for (int i = 1; i < BLOCKS; i++) release(blocks[i]);
    return blocks[0];
}

/* Fails under the mutex in some way, as there is work that wants it, and succeeds afterwards with `fewer` bytes. */
static void tries_fails_and_falls_back(CUstream stream, CUresult (*request)(CUdeviceptr *, size_t))
{
    CUdeviceptr kept = leaves_idle_memory(), large = 0, small;
    for (int round = 0; round < 3; round++) {
        lock_mutex();
        DO(cuMemsetD8Async(kept, 1, KIB, stream));
        DO(cuLaunchHostFunc(stream, takes_the_mutex, NULL));
        small = allocate(PART + MIB);
        EXPECT(request(&large, 1000 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT(request(&large, 1000 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        pthread_mutex_unlock(&job_mutex);
        DO(cuStreamSynchronize(stream));
        release(small);
        release(allocate(MOST));
    }
    release(kept);
}

static CUresult allocates(CUdeviceptr *out, size_t size) { return ANSWER(cuMemAlloc_v2(out, size)); }
static CUresult allocates_in_order(CUdeviceptr *out, size_t size) { return ANSWER(cuMemAllocAsync(out, size, NULL)); }

static void idle(void) { tries_fails_and_falls_back(new_stream(NON_BLOCKING), allocates); }
static void async(void) { tries_fails_and_falls_back(new_stream(NON_BLOCKING), allocates_in_order); }

static CUresult launches(CUdeviceptr *out, size_t size)
{
    CUstream stream = new_stream(NON_BLOCKING);
    DO(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DO(cuMemAllocAsync(out, size, stream));
    DO(cuMemsetD8Async(*out, 1, KIB, stream));
    DO(cuMemFreeAsync(*out, stream));
    CUgraphExec exec = captured_on(stream);
    CUresult result = ANSWER(cuGraphLaunch(exec, stream));
    DO(cuGraphExecDestroy(exec));
    DO(cuStreamDestroy_v2(stream));
    return result;
}

static void graph(void)
{
    tries_fails_and_falls_back(new_stream(NON_BLOCKING), launches);
    /* Without work, idle memory goes back and the launch succeeds. */
    CUdeviceptr kept = leaves_idle_memory(), of_graph;
    for (int round = 0; round < 3; round++) EXPECT(launches(&of_graph, 800 * MIB), CUDA_SUCCESS);
    release(kept);
}

static void *releases(void *block)
{
    DO(cuCtxSetCurrent(context));
    release((CUdeviceptr)(uintptr_t)block);
    return NULL;
}

static void queued(void)
{
    CUstream stream = new_stream(NON_BLOCKING);
    for (int round = 0; round < 3; round++) {
        CUdeviceptr kept = leaves_idle_memory(), freed = allocate(300 * MIB), large;
        pthread_t thread;
        lock_mutex();
        DO(cuMemsetD8Async(freed, 1, KIB, stream));
        DO(cuLaunchHostFunc(stream, takes_the_mutex, NULL));
        pthread_create(&thread, NULL, releases, (void *)(uintptr_t)freed);
        usleep(50000); /* the thread is in its free now, or soon */
        EXPECT(allocates(&large, 1000 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        pthread_mutex_unlock(&job_mutex);
        join(thread);
        release(allocate(MOST));
        release(kept);
    }
}

static void tensors(void)
{
    CUstream stream = new_stream(NON_BLOCKING);
    for (int round = 0; round < 3; round++) {
        CUdeviceptr kept = allocate(PART), first = tensor_on(0, MOST, stream), large;
        lock_mutex();
        DO(cuMemsetD8Async(first, 1, MIB, stream));
        if (!torch_free) free_tensor_on(0, first, MOST, stream);
        DO(cuLaunchHostFunc(stream, takes_the_mutex, NULL));
        if (torch_free) free_tensor_on(0, first, MOST, stream);
        EXPECT(allocates(&large, 1010 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        pthread_mutex_unlock(&job_mutex);
        DO(cuStreamSynchronize(stream));
        release(allocate(MOST));
        release(kept);
    }
}

static void lasting(void)
{
    CUstream streams[] = {new_stream(NON_BLOCKING), new_stream(NON_BLOCKING)};
    for (int round = 0; round < 3; round++) {
        CUdeviceptr first = tensor_on(0, MOST, streams[0]);
        for (int i = 0; i < 3; i++) DO(cuLaunchHostFunc(streams[0], takes_50_ms, NULL));
        DO(cuMemsetD8Async(first, 1, MIB, streams[0]));
        free_tensor_on(0, first, MOST, streams[0]);
        if (!torch_free) DO(cuStreamSynchronize(streams[0]));
        release(allocate(MOST));
    }
    THAT(simgpu_hazards() == 0);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"idle", idle},       {"async", async},     {"graph", graph},
                                          {"queued", queued},   {"tensors", tensors}, {"lasting", lasting}};
    if (has_policy()) { /* in passthrough a free for PyTorch waits, as cuMemFree does */
        find_torch_functions();
    }
    start_watchdog();
    open_devices(1);
    return PLAY(scenes, argc, argv);
}
