/* What may be called while a stream captures, and what that does to the capture. Sources: cuda.h 13.0:15429-15480
 * (cuThreadExchangeStreamCaptureMode), the CUDA programming guide on CUDA graphs (prohibited and unhandled operations,
 * invalidation), and what was measured on NVIDIA's hardware in rocm-systems#4508. */
#include "probe.h"
#include <pthread.h>

enum { GLOBAL, THREAD_LOCAL, RELAXED, MODES, ACTIVE = 1 };
static const char *const mode_names[MODES] = {"global", "thread-local", "relaxed"};
enum wanted { ALLOWED, REFUSED, EITHER }; /* refused: answers 900, and the capture is broken */

static void begin_capture(CUstream stream, int mode) { CHECK(cu(cuStreamBeginCapture_v2)(stream, mode)); }

/* Ends it; whether it is still whole. */
static bool end_capture(CUstream stream)
{
    int status = 0;
    CUgraph graph = NULL;
    cu(cuStreamIsCapturing)(stream, &status);
    bool ended = !cu(cuStreamEndCapture)(stream, &graph) && graph;
    if (ended) CHECK(cu(cuGraphDestroy)(graph));
    return ended && status == ACTIVE;
}

static void judge(const char *name, enum wanted wanted, CUresult result, bool whole)
{
    bool as_assumed = wanted == EITHER || (wanted == ALLOWED ? !result && whole : result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && !whole);
    claim(as_assumed, "%s %d %s", name, result, whole ? "kept" : "broken");
}

/* Calls `action` in a capture of each mode that the calling thread itself has open. */
static void in_each_mode(CUresult (*action)(void), enum wanted global, enum wanted local, enum wanted relaxed)
{
    const enum wanted wanted[] = {global, local, relaxed};
    for (int mode = GLOBAL; mode < MODES; mode++) {
        CUstream stream = new_stream();
        begin_capture(stream, mode);
        CUresult result = action();
        judge(mode_names[mode], wanted[mode], result, end_capture(stream));
    }
}

/* A probe of one call in a capture of each mode. */
#define CAPTURE_PROBE(name, weight, assumption, source, prepare, action, global, local, relaxed) \
    PROBE(name, weight, assumption, source)                                                          \
    {                                                                                                \
        prepare;                                                                                     \
        in_each_mode(action, global, local, relaxed);                                                \
    }

PROBE(begin_capture_does_not_wait, TELLS,
      "cuStreamBeginCapture returns while work blocks, on its own stream too",
      "cuda.h 13.0:15348, nothing is said to wait")
{
    begin();
    CHECK(cu(cuMemFree_v2)(alloc(4 * MIB))); /* what was freed before is no reason to wait either */
    WITH_EACH(kind)
    {
        CUstream stream = new_stream();
        struct blocked *work = told_block(kind, stream);
        RETURNS_AT_ONCE(work, "begin", cu(cuStreamBeginCapture_v2)(stream, RELAXED));
        claim(end_capture(stream), "end");
        release(work);
    }
}

PROBE(default_stream_and_capture, TELLS,
      "the legacy default stream cannot capture, a thread's default stream can",
      "cuda.h 13.0:15350")
{
    begin();
    CUstream legacy = (CUstream)1, per_thread = (CUstream)2;
    CUresult result = cu(cuStreamBeginCapture_v2)(legacy, RELAXED);
    claim(result != CUDA_SUCCESS, "legacy %d", result);
    result = cu(cuStreamBeginCapture_v2)(per_thread, RELAXED);
    claim(!result, "per thread %d", result);
    if (!result) claim(end_capture(per_thread), "ended");
}

PROBE(legacy_stream_breaks_capture, TELLS,
      "work on the legacy stream while a blocking stream captures answers 906 and breaks the capture",
      "cuda.h 13.0:3106, error 906; rocm-systems#4508")
{
    enum { STREAM_CAPTURE_IMPLICIT = 906 };
    begin();
    CUdeviceptr address = alloc(MIB);
    CUstream blocking;
    CHECK(cu(cuStreamCreate)(&blocking, 0));
    begin_capture(blocking, RELAXED);
    CUresult result = cu(cuMemsetD8Async)(address, 0, MIB, NULL);
    bool whole = end_capture(blocking);
    claim(result == STREAM_CAPTURE_IMPLICIT && !whole, "answered %d, %s", result, whole ? "kept" : "broken");
}

static CUresult synchronise(void) { return cu(cuCtxSynchronize)(); }

CAPTURE_PROBE(synchronise_in_capture, TELLS, "cuCtxSynchronize answers 900 and breaks a capture of any mode",
              "TensorRT#2888; rocm-systems#4508; NVIDIA's CUDA graph best practices, Constraints",
              begin(), synchronise, REFUSED, REFUSED, REFUSED)

static CUstream idle_stream;
static CUresult synchronise_idle_stream(void) { return cu(cuStreamSynchronize)(idle_stream); }
static CUresult query_idle_stream(void) { return cu(cuStreamQuery)(idle_stream); }

CAPTURE_PROBE(stream_synchronise_in_capture, TELLS,
              "cuStreamSynchronize of another, idle stream is refused in global and thread-local captures, allowed in relaxed ones",
              "measured: H100 and H200, driver 580.159.04",
              (begin(), idle_stream = new_stream()), synchronise_idle_stream, REFUSED, REFUSED, ALLOWED)

CAPTURE_PROBE(stream_query_in_capture, TELLS, "so is cuStreamQuery",
              "as cuStreamSynchronize", (begin(), idle_stream = new_stream()), query_idle_stream, REFUSED, REFUSED, ALLOWED)

/* ---- questions. A program whose captures lived without the library lost them to two of these questions. */

static CUstream asked_stream;
static CUmemoryPool asked_pool;
static CUresult ask_id(void) { unsigned long long id; return cu(cuStreamGetId)(asked_stream, &id); }
static CUresult ask_context(void) { CUcontext context; return cu(cuStreamGetCtx)(asked_stream, &context); }
static CUresult ask_pool(void) { uint64_t value; return cu(cuMemPoolGetAttribute)(asked_pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value); }
static CUresult ask_default_pool(void) { return cu(cuDeviceGetDefaultMemPool)(&asked_pool, 0); }
static CUresult ask_graphs(void) { uint64_t value; return cu(cuDeviceGetGraphMemAttribute)(0, 0, &value); }
static CUresult ask_memory(void) { size_t size, total; return cu(cuMemGetInfo_v2)(&size, &total); }
static CUresult trim_pool(void) { return cu(cuMemPoolTrimTo)(asked_pool, 0); }

/* Makes the call in a capture of each mode, and once more with the thread's mode relaxed. */
static void tell_in_each_mode(const char *name, CUresult (*action)(void), bool on_the_stream)
{
    char said[200] = "";
    for (int mode = GLOBAL; mode < MODES; mode++)
        for (int relaxed = 0; relaxed < (mode == RELAXED ? 1 : 2); relaxed++) {
            CUstream stream = new_stream();
            if (!on_the_stream) asked_stream = new_stream();
            begin_capture(stream, mode);
            int own = RELAXED;
            if (on_the_stream) asked_stream = stream;
            if (relaxed) CHECK(cu(cuThreadExchangeStreamCaptureMode)(&own));
            CUresult result = action();
            if (relaxed) CHECK(cu(cuThreadExchangeStreamCaptureMode)(&own));
            bool kept = end_capture(stream);
            size_t used = strlen(said);
            snprintf(said + used, sizeof said - used, "%s%s%s %d %s", used ? ", " : "", mode_names[mode], relaxed ? " then relaxed" : "",
                result, kept ? "kept" : "broken");
        }
    figure("%s: %s", name, said);
}

PROBE(stream_id_in_capture, TELLS, "what cuStreamGetId and cuStreamGetCtx of a capturing stream, and of another one, do to the capture",
      "a program on an H200, driver 580.159.04: cuStreamGetId of the capturing stream breaks a thread-local capture")
{
    begin();
    tell_in_each_mode("ID of the stream", ask_id, true);
    tell_in_each_mode("of another", ask_id, false);
    tell_in_each_mode("context of the stream", ask_context, true);
    tell_in_each_mode("of another", ask_context, false);
}

PROBE(pool_question_in_capture, TELLS, "what questions for the memory of pools, graphs and devices do to a capture",
      "a program on an H200, driver 580.159.04: cuMemPoolGetAttribute breaks a thread-local capture")
{
    begin();
    CHECK(ask_default_pool());
    tell_in_each_mode("a pool", ask_pool, false);
    tell_in_each_mode("the default pool", ask_default_pool, false);
    tell_in_each_mode("trim", trim_pool, false);
    tell_in_each_mode("graphs", ask_graphs, false);
    tell_in_each_mode("cuMemGetInfo", ask_memory, false);
}

static CUevent event;
static CUresult query_event(void) { return cu(cuEventQuery)(event); }
static CUresult record_event(void) { return cu(cuEventRecord)(event, idle_stream); }

static void record_before(void)
{
    begin();
    idle_stream = new_stream();
    CHECK(cu(cuEventCreate)(&event, 0));
    CHECK(record_event());
    CHECK(cu(cuCtxSynchronize)());
}

CAPTURE_PROBE(event_query_in_capture, TELLS,
              "cuEventQuery of an event recorded before is refused in global and thread-local captures, allowed in relaxed ones",
              "pytorch#105182, #148594; cuda.h 13.0:15463",
              record_before(), query_event, REFUSED, REFUSED, ALLOWED)

CAPTURE_PROBE(event_record_in_capture, NEEDED, "cuEventRecord on a stream that does not capture is allowed in any capture",
              "CUDA programming guide: work on other streams is not captured",
              record_before(), record_event, ALLOWED, ALLOWED, ALLOWED)

static CUresult record_context_event(void) { return cu(cuCtxRecordEvent)(contexts[0], event); }

CAPTURE_PROBE(context_event_in_capture, TELLS,
              "cuCtxRecordEvent answers 900 and breaks a capture of any mode in the context",
              "cuda.h 13.0:7026, \"the call will invalidate all the conflicting captures\"",
              (record_before(), driver_function("cuCtxRecordEvent")), record_context_event, REFUSED, REFUSED, REFUSED)

static CUdeviceptr allocated;
static CUresult allocate(void) { return cu(cuMemAlloc_v2)(&allocated, 2 * MIB); }
static CUresult give_back(void) { return cu(cuMemFree_v2)(allocated); }

CAPTURE_PROBE(alloc_in_capture, TELLS, "cuMemAlloc is refused in global and thread-local captures, allowed in relaxed ones",
              "cuda.h 13.0:15442-15466", begin(), allocate, REFUSED, REFUSED, ALLOWED)

/* Refused twice, then freed */
CAPTURE_PROBE(free_in_capture, TELLS, "cuMemFree is refused in global and thread-local captures, allowed in relaxed ones",
              "cuda.h 13.0:15463; only cudaMalloc is named",
              (begin(), allocated = alloc(2 * MIB)), give_back, REFUSED, REFUSED, ALLOWED)

static CUdeviceptr reserved;
static CUresult map_and_unmap(void)
{
    size_t size = granule();
    CUmemAllocationProp properties = pinned_on(0);
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle handle;
    CUresult result = cu(cuMemCreate)(&handle, size, &properties, 0);
    if (!result) result = cu(cuMemMap)(reserved, size, 0, handle, 0);
    if (!result) result = cu(cuMemSetAccess)(reserved, size, &access, 1);
    if (!result) result = cu(cuMemUnmap)(reserved, size);
    return result ? result : cu(cuMemRelease)(handle);
}

CAPTURE_PROBE(vmm_in_capture, NEEDED, "create, map, set-access, unmap and release are allowed in a relaxed capture",
              "PyTorch grows expandable segments during captures; cuda.h 13.0:15463",
              (begin(), reserved = reserve(granule())), map_and_unmap, EITHER, EITHER, ALLOWED)

/* ---- another thread, while this one captures on device 0 */

static struct call { CUresult (*action)(void); int device, mode; } beside;
static CUresult answer_beside;

static void *call_beside(void *unused)
{
    current(beside.device);
    int mode = beside.mode;
    CHECK(cu(cuThreadExchangeStreamCaptureMode)(&mode));
    answer_beside = beside.action();
    return unused;
}

static void beside_capture(const char *name, int capture_mode, struct call call, enum wanted wanted)
{
    pthread_t thread;
    CUstream stream = new_stream();
    begin_capture(stream, capture_mode);
    beside = call;
    pthread_create(&thread, NULL, call_beside, NULL);
    pthread_join(thread, NULL);
    judge(name, wanted, answer_beside, end_capture(stream));
}

PROBE(event_query_beside_capture, TELLS,
      "cuEventQuery of another thread is refused while a global capture is open, unless that thread is thread-local",
      "pytorch#104487, #105182, #148594")
{
    record_before();
    beside_capture("global thread", GLOBAL, (struct call){query_event, 0, GLOBAL}, REFUSED);
    beside_capture("thread-local thread", GLOBAL, (struct call){query_event, 0, THREAD_LOCAL}, ALLOWED);
}

PROBE(stream_calls_beside_capture, TELLS,
      "cuStreamSynchronize and cuStreamQuery of another thread are refused while a global capture is open, unless that thread "
      "is thread-local",
      "as cuEventQuery")
{
    begin();
    idle_stream = new_stream();
    beside_capture("wait, global thread", GLOBAL, (struct call){synchronise_idle_stream, 0, GLOBAL}, REFUSED);
    beside_capture("wait, thread-local thread", GLOBAL, (struct call){synchronise_idle_stream, 0, THREAD_LOCAL}, ALLOWED);
    beside_capture("question, global thread", GLOBAL, (struct call){query_idle_stream, 0, GLOBAL}, REFUSED);
    beside_capture("question, thread-local thread", GLOBAL, (struct call){query_idle_stream, 0, THREAD_LOCAL}, ALLOWED);
}

PROBE(relaxed_thread_beside_capture, NEEDED,
      "a thread in relaxed mode may query events, allocate and map beside a global capture",
      "cuda.h 13.0:15463; pytorch#105182")
{
    record_before();
    reserved = reserve(granule());
    beside_capture("query", GLOBAL, (struct call){query_event, 0, RELAXED}, ALLOWED);
    beside_capture("alloc", GLOBAL, (struct call){allocate, 0, RELAXED}, ALLOWED);
    beside_capture("map", GLOBAL, (struct call){map_and_unmap, 0, RELAXED}, ALLOWED);
}

PROBE(synchronise_beside_capture, TELLS, "cuCtxSynchronize of another, relaxed thread breaks a capture of any mode on its device",
      "rocm-systems#4508, measured on CUDA; a comment in rocm-systems#11698 denies it for thread-local captures")
{
    begin();
    for (int mode = GLOBAL; mode < MODES; mode++)
        beside_capture(mode_names[mode], mode, (struct call){synchronise, 0, RELAXED}, REFUSED);
}

PROBE(synchronise_other_device_beside_capture, TELLS,
      "cuCtxSynchronize of another device breaks no capture, whatever the thread's mode",
      "rocm-systems#4508, measured on CUDA")
{
    begin_on(2);
    for (int mode = GLOBAL; mode < MODES; mode++)
        beside_capture(mode_names[mode], mode, (struct call){synchronise, 1, GLOBAL}, ALLOWED);
    beside_capture("relaxed thread", GLOBAL, (struct call){synchronise, 1, RELAXED}, ALLOWED);
}

PROBE(peer_copy_in_capture, TELLS, "cuMemcpyPeerAsync is refused on a capturing stream",
      "JohannesGaessler/llama.cpp#5, by NVIDIA; connollydavid/wsl2-cuda-peercopy-capture, measured on CUDA 13.3")
{
    begin_on(2);
    current(1);
    CUdeviceptr to = alloc(MIB);
    current(0);
    CUdeviceptr from = alloc(MIB);
    CUstream stream = new_stream();
    begin_capture(stream, RELAXED);
    CUresult result = cu(cuMemcpyPeerAsync)(to, contexts[1], from, contexts[0], MIB, stream);
    judge("copy", REFUSED, result, end_capture(stream));
}

PROBE(copy_of_vmm_in_capture, NEEDED, "a captured copy between devices works on mapped memory that the device has access to",
      "connollydavid/wsl2-cuda-peercopy-capture: a plain copy is captured; cuda.h 13.0:13089")
{
    begin_on(2);
    need_peers();
    current(1);
    size_t size = granule();
    CUdeviceptr to = mapped(1, 1);
    fill_on(1, to, 1, size);
    current(0);
    CUdeviceptr from = mapped(1, 0);
    fill_on(0, from, 6, size);
    CUstream stream = new_stream();
    CUgraph graph;
    CUgraphExec exec;
    begin_capture(stream, RELAXED);
    grant(to, size, 0);
    CUresult result = cu(cuMemcpyAsync)(to, from, size, stream);
    CHECK(cu(cuStreamEndCapture)(stream, &graph));
    CHECK(cu(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    CUresult launched = cu(cuGraphLaunch)(exec, stream), end = cu(cuStreamSynchronize)(stream);
    current(1);
    bool right = !result && !launched && !end && holds_only(to, 6, size);
    claim(right, "copy %d, launch %d, synchronise %d, bytes %s", result, launched, end, right ? "arrived" : "did not arrive");
}
