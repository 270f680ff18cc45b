/* Which calls return while another thread waits for work inside a call. */
#include "probe.h"
#include <pthread.h>

enum { SMALL = 2 * MIB, BEFORE_MS = 20 };

enum wait { CONTEXT, STREAM, EVENT, COPY, FREE, FREE_HOST };
static const char *const wait_names[] = {
    [CONTEXT] = "cuCtxSynchronize", [STREAM] = "cuStreamSynchronize", [EVENT] = "cuEventSynchronize",
    [COPY] = "cuMemcpyDtoH",        [FREE] = "cuMemFree",             [FREE_HOST] = "cuMemFreeHost",
};

static struct {
    enum wait wait;
    CUstream stream;
    CUevent event;
    CUdeviceptr memory;
    void *pinned;
} waiter;

static void *waits(void *unused)
{
    current(0);
    switch (waiter.wait) {
    case CONTEXT: CHECK(cu(cuCtxSynchronize)()); break;
    case STREAM: CHECK(cu(cuStreamSynchronize)(waiter.stream)); break;
    case EVENT: CHECK(cu(cuEventSynchronize)(waiter.event)); break;
    case COPY: CHECK(cu(cuMemcpyDtoH_v2)(waiter.pinned, waiter.memory, SMALL)); break;
    case FREE: CHECK(cu(cuMemFree_v2)(waiter.memory)); break;
    case FREE_HOST: CHECK(cu(cuMemFreeHost)(waiter.pinned)); break;
    }
    return unused;
}

static struct {
    CUdeviceptr block, start, mapped;
    CUmemGenericAllocationHandle handle;
    CUstream stream;
    CUevent event;
} own;

static void prepare(void)
{
    own.block = alloc(SMALL);
    own.start = reserve(granule());
    own.mapped = mapped(1, 0);
    own.stream = new_stream();
    CHECK(cu(cuEventCreate)(&own.event, 2));
    CHECK(cu(cuEventRecord)(own.event, own.stream));
    CHECK(cu(cuMemRetainAllocationHandle)(&own.handle, (void *)own.mapped));
    CHECK(cu(cuMemRelease)(own.handle));
}

static void allocates(void) { alloc(SMALL); }
static void allocates_more(void) { alloc(64 * MIB); }

static void maps(void)
{
    CUmemGenericAllocationHandle handle = create(granule(), 0);
    map(own.start, granule(), handle);
    grant(own.start, granule(), 0);
}

static void unmaps(void)
{
    CHECK(cu(cuMemUnmap)(own.mapped, granule()));
    CHECK(cu(cuMemRelease)(own.handle));
}

static void asks(void)
{
    size_t size, total;
    CUdeviceptr base;
    CHECK(cu(cuMemGetInfo_v2)(&size, &total));
    CHECK(cu(cuMemGetAddressRange_v2)(&base, &size, own.block));
}

static void asks_event(void) { CHECK(cu(cuEventQuery)(own.event)); }
static void records(void) { CHECK(cu(cuEventRecord)(own.event, own.stream)); }
static void records_context(void) { CHECK(cu(cuCtxRecordEvent)(contexts[0], own.event)); }
static void makes_an_event(void) { CHECK(cu(cuEventCreate)(&own.event, 2)); }
static void destroys_an_event(void) { CHECK(cu(cuEventDestroy_v2)(own.event)); }
static void waits_in_stream(void) { CHECK(cu(cuStreamWaitEvent)(own.stream, own.event, 0)); }
static void launches(void) { CHECK(cu(cuMemsetD8Async)(own.block, 1, SMALL, own.stream)); }
static void makes_a_stream(void) { new_stream(); }

static void allocates_in_order(void)
{
    CUdeviceptr address;
    CHECK(cu(cuMemAllocAsync)(&address, SMALL, own.stream));
    CHECK(cu(cuMemFreeAsync)(address, own.stream));
}

static void asks_the_rest(void)
{
    int status, mode = 2, value;
    CUcontext context;
    unsigned long long id;
    granule();
    CHECK(cu(cuStreamIsCapturing)(own.stream, &status));
    CHECK(cu(cuStreamGetCtx)(own.stream, &context));
    CHECK(cu(cuStreamGetId)(own.stream, &id));
    CHECK(cu(cuThreadExchangeStreamCaptureMode)(&mode));
    CHECK(cu(cuThreadExchangeStreamCaptureMode)(&mode));
    CHECK(cu(cuDeviceGetAttribute)(&value, 1, 0));
    CHECK(cu(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, own.block));
    CHECK(cu(cuCtxPushCurrent_v2)(contexts[0]));
    CHECK(cu(cuCtxPopCurrent_v2)(&context));
}

static void uses_addresses(void) { CHECK(cu(cuMemAddressFree)(reserve(granule()), granule())); }

static void captures(void)
{
    CUgraph graph;
    CHECK(cu(cuStreamBeginCapture_v2)(own.stream, 2));
    CHECK(cu(cuStreamEndCapture)(own.stream, &graph));
    CHECK(cu(cuGraphDestroy)(graph));
}

static void destroys_a_stream(void) { CHECK(cu(cuStreamDestroy_v2)(own.stream)); }

static void pins(void)
{
    void *memory;
    CHECK(cu(cuMemAllocHost_v2)(&memory, SMALL));
}

struct call { const char *name; void (*make)(void); };
static const struct call mapping[] = {
    {"create, map, access", maps},       {"unmap, release", unmaps},    {"questions", asks},
    {"questions of a request", asks_the_rest}, {"addresses", uses_addresses},
};
static const struct call of_events[] = {
    {"cuEventQuery", asks_event},      {"cuEventRecord", records},          {"cuEventCreate", makes_an_event},
    {"cuStreamWaitEvent", waits_in_stream}, {"cuEventDestroy", destroys_an_event},
};
static const struct call of_contexts[] = {{"cuCtxRecordEvent", records_context}};
static const struct call allocations[] = {{"cuMemAlloc 2 MiB", allocates}, {"cuMemAlloc 64 MiB", allocates_more}};
static const struct call others[] = {
    {"fill", launches},       {"new stream", makes_a_stream}, {"cuMemAllocAsync", allocates_in_order},
    {"cuMemAllocHost", pins},
};
static const struct call of_captures[] = {{"a capture", captures}, {"cuStreamDestroy", destroys_a_stream}};

/* Whether the call returns before the work that another thread waits for. */
static bool returns(enum kind kind, enum wait wait, const struct call *call)
{
    pthread_t thread;
    prepare();
    waiter.wait = wait;
    waiter.stream = wait == COPY ? NULL : new_stream();
    waiter.memory = alloc(SMALL);
    CHECK(cu(cuMemAllocHost_v2)(&waiter.pinned, SMALL));
    CHECK(cu(cuEventCreate)(&waiter.event, 2));
    CHECK(cu(cuCtxSynchronize)());
    struct blocked *work = block(kind, waiter.stream);
    CHECK(cu(cuEventRecord)(waiter.event, waiter.stream));
    pthread_create(&thread, NULL, waits, NULL);
    usleep(1000 * BEFORE_MS); /* the thread is in its call now */
    bool early = work->ended;
    call->make();
    bool before = !work->ended;
    release(work);
    pthread_join(thread, NULL);
    if (early) failed("%s: the work had ended before %s", kind_names[kind], call->name);
    return before;
}

enum wanted { NONE, ALL, ANY };

/* Makes each call beside the wait, and tells which of them waited too. Claims that none or all did. */
static void beside_wait(enum kind kind, enum wait wait, const struct call *calls, int count, enum wanted wanted)
{
    char said[256];
    int number = 0;
    snprintf(said, sizeof said, "%s, %s: ", kind_names[kind], wait_names[wait]);
    for (int i = 0; i < count; i++) {
        if (returns(kind, wait, &calls[i])) continue;
        snprintf(said + strlen(said), sizeof said - strlen(said), "%s%s", number ? " and " : "", calls[i].name);
        number++;
    }
    claim(wanted == ANY || number == (wanted == ALL ? count : 0), "%s%s", said, number ? " waited" : "none waited");
}

#define BESIDE(first, last, calls, wanted)                                                                      \
    for (enum wait wait = first; wait <= last; wait++)                                                          \
        beside_wait(kind, wait, calls, sizeof(calls) / sizeof *(calls), wanted)

PROBE(calls_beside_waits, TELLS,
      "while a thread waits for a context, a stream or an event, another one allocates, maps, asks and uses events at once",
      "the header names no wait for other threads; measured: H100, driver 580.159.04")
{
    begin();
    WITH_EACH(kind) {
        BESIDE(CONTEXT, EVENT, allocations, NONE);
        BESIDE(CONTEXT, EVENT, mapping, NONE);
        BESIDE(CONTEXT, EVENT, of_events, NONE);
    }
}

PROBE(mapping_beside_waiting_free, TELLS, "while a thread waits inside a copy, cuMemFree or cuMemFreeHost, another one maps and asks at once",
      "measured: H100 and H200, driver 580.159.04")
{
    begin();
    WITH_EACH(kind) BESIDE(COPY, FREE_HOST, mapping, NONE);
}

PROBE(alloc_waits_beside_waiting_free, TELLS, "while a thread waits inside a copy, cuMemFree or cuMemFreeHost, cuMemAlloc of another one waits too",
      "measured: H100 and H200, driver 580.159.04")
{
    begin();
    WITH_EACH(kind) BESIDE(COPY, FREE_HOST, allocations, ALL);
}

PROBE(events_beside_waits, TELLS, "which calls for events wait while a thread waits inside a copy, cuMemFree or cuMemFreeHost",
      "measured: H200, driver 580.159.04")
{
    begin();
    WITH_EACH(kind) BESIDE(COPY, FREE_HOST, of_events, ANY);
}

PROBE(others_beside_waits, TELLS, "what else waits while a thread waits inside a copy, cuMemFree or cuMemFreeHost",
      "measured: H100 and H200, driver 580.159.04")
{
    begin();
    WITH_EACH(kind) BESIDE(COPY, FREE_HOST, others, ANY);
}

/* On an H200 a probe with these calls did not end in ten seconds, for which the time of the waits may be the reason. */
PROBE(captures_beside_waits, TELLS, "whether a capture or the end of a stream waits, too", "not measured yet")
{
    begin();
    enum kind kind = HOST_FUNCTION;
    BESIDE(COPY, FREE_HOST, of_captures, ANY);
}

PROBE(context_event_beside_waits, TELLS,
      "while a thread waits inside a copy, cuMemFree or cuMemFreeHost, cuCtxRecordEvent of another one waits; otherwise not",
      "measured: H200, driver 580.159.04")
{
    begin();
    driver_function("cuCtxRecordEvent");
    WITH_EACH(kind) BESIDE(CONTEXT, FREE_HOST, of_contexts, wait >= COPY ? ALL : NONE);
}
