/* Which calls wait for work that is not finished. Sources: NVIDIA's engineers in pytorch#50925 (a free waits for its
 * device and its peers), reports of clients that measured otherwise, and the header's words at each function. */
#include "probe.h"
#include <pthread.h>
#include <stdatomic.h>

enum { SIZE = 4 * MIB };

PROBE(free_waits, TELLS,
      "cuMemFree returns after the work on a non-blocking stream that uses the memory: pinned memory can be read then",
      "rmm#1655; pytorch#19222; only \"may\" in cuda.h 13.0:8684")
{
    begin();
    WITH_EACH(kind)
    {
        CUstream stream = new_stream();
        CUdeviceptr address = alloc(SIZE);
        void *pinned;
        CHECK(cu(cuMemAllocHost_v2)(&pinned, SIZE));
        struct blocked *work = block(kind, stream);
        CHECK(cu(cuMemsetD8Async)(address, 7, SIZE, stream));
        CHECK(cu(cuMemcpyDtoHAsync_v2)(pinned, address, SIZE, stream));
        CHECK(cu(cuMemFree_v2)(address));
        bool copied = ((volatile unsigned char *)pinned)[SIZE - 1] == 7;
        claim(work->ended && copied, "%s: returned %s", kind_names[kind],
              !work->ended ? "before its end" : copied ? "after its end" : "before the copy");
    }
}

PROBE(free_waits_for_unrelated_work, NEEDED, "cuMemFree also waits for work of its context that does not use the memory",
      "pytorch#50925 quoting NVIDIA; cupy#2898; kokkos#9307 denies it for CUDA 12 and 13")
{
    begin();
    WITH_EACH(kind)
    {
        CUdeviceptr address = alloc(SIZE);
        struct blocked *work = block(kind, new_stream());
        CHECK(cu(cuMemFree_v2)(address));
        claim(work->ended, "%s: returned %s its end", kind_names[kind], work->ended ? "after" : "before");
    }
}

static void enable_access(int from, int to)
{
    enum { ALREADY = 704 };
    current(from);
    CUresult result = cu(cuCtxEnablePeerAccess)(contexts[to], 0);
    if (result && result != ALREADY) failed("cuCtxEnablePeerAccess answered %d", result);
}

PROBE(free_waits_for_peers, TELLS, "cuMemFree of device 0's memory waits for a copy of device 1 that writes it by peer access",
      "pytorch#50925 quoting NVIDIA; pytorch#196257 denies it (H200, CUDA 13)")
{
    begin_on(2);
    need_peers();
    WITH_EACH(kind)
    {
        enable_access(1, 0);
        CUdeviceptr from = alloc(SIZE);
        CUstream stream = new_stream();
        current(0);
        CUdeviceptr to = alloc(SIZE);
        current(1);
        struct blocked *work = block(kind, stream);
        CHECK(cu(cuMemcpyAsync)(to, from, SIZE, stream));
        current(0);
        CHECK(cu(cuMemFree_v2)(to));
        claim(work->ended, "%s: returned %s its end", kind_names[kind], work->ended ? "after" : "before");
    }
}

/* A stream of a green context on device 0 with the least number of multiprocessors. */
static CUstream green_stream(void)
{
    enum { SM = 1, DEFAULT_STREAM = 1, NON_BLOCKING = 1, LEAST = 8 };
    CUdevResource whole, part, rest;
    unsigned groups = 1;
    void *description, *green;
    CUstream stream;
    NEED(cu(cuDeviceGetDevResource)(0, &whole, SM));
    NEED(cu(cuDevSmResourceSplitByCount)(&part, &groups, &whole, &rest, 0, LEAST));
    NEED(cu(cuDevResourceGenerateDesc)(&description, &part, 1));
    NEED(cu(cuGreenCtxCreate)(&green, description, 0, DEFAULT_STREAM));
    NEED(cu(cuGreenCtxStreamCreate)(&stream, green, NON_BLOCKING, 0));
    return stream;
}

PROBE(free_waits_for_green_contexts, TELLS, "cuMemFree in the primary context waits for the work of its green contexts",
      "cuda.h 13.0:24813, a green context is part of the primary one")
{
    begin();
    CUstream stream = green_stream();
    WITH_EACH(kind)
    {
        CUdeviceptr address = alloc(SIZE);
        struct blocked *work = block(kind, stream);
        CHECK(cu(cuMemsetD8Async)(address, 7, SIZE, stream));
        CHECK(cu(cuMemFree_v2)(address));
        claim(work->ended, "%s: returned %s its end", kind_names[kind], work->ended ? "after" : "before");
    }
}

PROBE(synchronise_covers_green_contexts, NEEDED,
      "cuCtxSynchronize of the primary context waits for the work of its green contexts",
      "cuda.h 13.0:6595")
{
    begin();
    CUstream stream = green_stream();
    WITH_EACH(kind)
    {
        struct blocked *work = block(kind, stream);
        CHECK(cu(cuCtxSynchronize)());
        claim(work->ended, "%s: returned %s its end", kind_names[kind], work->ended ? "after" : "before");
    }
}

PROBE(context_event_covers_its_streams, NEEDED,
      "an event of a context is pending while a non-blocking stream of the context has work, and done after it",
      "cuda.h 13.0:7013, \"all the activities of the context\"")
{
    begin();
    driver_function("cuCtxRecordEvent");
    CUevent event;
    CHECK(cu(cuEventCreate)(&event, 2));
    WITH_EACH(kind)
    {
        struct blocked *work = block(kind, new_stream());
        CHECK(cu(cuCtxRecordEvent)(contexts[0], event));
        CUresult pending = cu(cuEventQuery)(event);
        claim(pending == CUDA_ERROR_NOT_READY && !work->ended, "%s: %d while it is blocked", kind_names[kind], pending);
        release(work);
        CHECK(cu(cuEventSynchronize)(event));
        claim(work->ended && !cu(cuEventQuery)(event), "%s after the wait", work->ended ? "ended" : "not ended");
    }
}

PROBE(alloc_does_not_wait, TELLS, "cuMemAlloc returns while other work blocks, also of a size that was freed before",
      "cupy#2898; nccl#239 and pytorch#880 rely on it; forum 110906")
{
    begin();
    WITH_EACH(kind)
    {
        CUdeviceptr again = alloc(64 * MIB), address;
        CHECK(cu(cuMemFree_v2)(again));
        struct blocked *work = told_block(kind, new_stream());
        RETURNS_AT_ONCE(work, "64 MiB freed before", cu(cuMemAlloc_v2)(&again, 64 * MIB));
        RETURNS_AT_ONCE(work, "2 MiB", cu(cuMemAlloc_v2)(&address, 2 * MIB));
        RETURNS_AT_ONCE(work, "1 GiB", cu(cuMemAlloc_v2)(&address, 1 << 30));
        release(work);
    }
}

PROBE(alloc_does_not_wait_for_peers, TELLS,
      "cuMemAlloc on device 0 returns while work of device 1 blocks, with peer access both ways",
      "nccl#239, pytorch#880: one thread launches both halves of a collective")
{
    begin_on(2);
    need_peers();
    enable_access(0, 1);
    WITH_EACH(kind)
    {
        enable_access(1, 0);
        struct blocked *work = told_block(kind, new_stream());
        CUdeviceptr address;
        current(0);
        RETURNS_AT_ONCE(work, "64 MiB", cu(cuMemAlloc_v2)(&address, 64 * MIB));
        release(work);
    }
}

PROBE(create_map_access_beside_blocked_work, NEEDED, "cuMemCreate, cuMemMap and cuMemSetAccess return while other work blocks",
      "PyTorch's expandable segments grow so; pytorch#96995 says that changing mappings involves the GPU")
{
    begin();
    size_t size = granule();
    CUmemAllocationProp properties = pinned_on(0);
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle handle;
    WITH_EACH(kind)
    {
        CUdeviceptr start = reserve(size), large = reserve(256 * MIB);
        struct blocked *work = told_block(kind, new_stream());
        RETURNS_AT_ONCE(work, "create", cu(cuMemCreate)(&handle, size, &properties, 0));
        RETURNS_AT_ONCE(work, "map", cu(cuMemMap)(start, size, 0, handle, 0));
        RETURNS_AT_ONCE(work, "access", cu(cuMemSetAccess)(start, size, &access, 1));
        RETURNS_AT_ONCE(work, "create 256 MiB", cu(cuMemCreate)(&handle, 256 * MIB, &properties, 0));
        RETURNS_AT_ONCE(work, "map", cu(cuMemMap)(large, 256 * MIB, 0, handle, 0));
        RETURNS_AT_ONCE(work, "access", cu(cuMemSetAccess)(large, 256 * MIB, &access, 1));
        release(work);
    }
}

PROBE(unmap_beside_blocked_work, TELLS, "cuMemUnmap and cuMemRelease of memory that no work uses return while other work blocks",
      "cuda-python#2886, vllm#43020: unmap does not wait; pytorch#96995 and note_sync of cuda.h 13.0:13078 leave it open")
{
    begin();
    WITH_EACH(kind)
    {
        CUdeviceptr start = mapped(1, 0);
        CUmemGenericAllocationHandle handle;
        CHECK(cu(cuMemRetainAllocationHandle)(&handle, (void *)start));
        CHECK(cu(cuMemRelease)(handle));
        struct blocked *work = told_block(kind, new_stream());
        RETURNS_AT_ONCE(work, "unmap", cu(cuMemUnmap)(start, granule()));
        RETURNS_AT_ONCE(work, "release", cu(cuMemRelease)(handle));
        release(work);
    }
}

PROBE(questions_beside_blocked_work, NEEDED,
      "cuMemGetInfo, cuPointerGetAttribute and cuMemGetAddressRange return while other work blocks",
      "no function that only reports is said to wait; PyTorch asks them at any time")
{
    begin();
    CUdeviceptr address = alloc(SIZE), base;
    size_t size, total;
    int device;
    WITH_EACH(kind)
    {
        struct blocked *work = told_block(kind, new_stream());
        RETURNS_AT_ONCE(work, "info", cu(cuMemGetInfo_v2)(&size, &total));
        RETURNS_AT_ONCE(work, "attribute", cu(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
        RETURNS_AT_ONCE(work, "range", cu(cuMemGetAddressRange_v2)(&base, &size, address));
        release(work);
    }
}

PROBE(event_query_beside_blocked_work, NEEDED,
      "cuEventQuery answers 600 at once while the work before the event blocks",
      "cuda.h 13.0:16047")
{
    begin();
    WITH_EACH(kind)
    {
        CUstream stream = new_stream();
        CUevent event;
        CHECK(cu(cuEventCreate)(&event, 0));
        struct blocked *work = block(kind, stream);
        CHECK(cu(cuEventRecord)(event, stream));
        double before = now_us();
        CUresult result = cu(cuEventQuery)(event);
        claim(result == CUDA_ERROR_NOT_READY && !work->ended, "%s: %d after %.0f us", kind_names[kind], result, now_us() - before);
        release(work);
        CHECK(cu(cuEventSynchronize)(event));
    }
}

static struct { pthread_t thread; CUresult result; } seen;

static void see_thread(void *unused)
{
    (void)unused;
    seen.thread = pthread_self();
}

PROBE(host_function_runs_on_own_thread, TELLS, "a host function runs on a thread of the driver, not on one that calls the driver",
      "cuda.h 13.0:18068 and the ban on calls in it; PyTorch's watchdogs take locks in callers meanwhile")
{
    begin();
    CHECK(cu(cuLaunchHostFunc)(new_stream(), see_thread, NULL));
    CHECK(cu(cuCtxSynchronize)());
    bool own = pthread_equal(seen.thread, pthread_self());
    claim(!own, "ran on %s", own ? "the thread that synchronised" : "another thread");
}

static void call_driver(void *unused)
{
    (void)unused;
    CUdeviceptr address;
    seen.result = cu(cuMemAlloc_v2)(&address, MIB);
}

PROBE(host_function_may_not_call_cuda, TELLS,
      "a call of the driver inside a host function answers 800",
      "cuda.h 13.0:18070, \"but this is not required\"")
{
    begin();
    seen.result = -1;
    CHECK(cu(cuLaunchHostFunc)(new_stream(), call_driver, NULL));
    CHECK(cu(cuCtxSynchronize)());
    claim(seen.result == CUDA_ERROR_NOT_PERMITTED, "cuMemAlloc answered %d", seen.result);
}

/* Notes when a host function ran, and how many ran beside it. */
static struct { atomic_int running, most; } together;

static void runs_for_a_while(void *unused)
{
    (void)unused;
    int now = atomic_fetch_add(&together.running, 1) + 1;
    if (now > together.most) together.most = now;
    usleep(50 * 1000);
    atomic_fetch_sub(&together.running, 1);
}

PROBE(host_functions_at_once, TELLS, "how many host functions of independent streams run at the same time",
      "cuda.h 13.0:18074, they \"may be serialized\"")
{
    begin();
    enum { FUNCTIONS = 4 };
    for (int i = 0; i < FUNCTIONS; i++) CHECK(cu(cuLaunchHostFunc)(new_stream(), runs_for_a_while, NULL));
    CHECK(cu(cuCtxSynchronize)());
    figure("at most %d of %d", together.most, FUNCTIONS);
}
