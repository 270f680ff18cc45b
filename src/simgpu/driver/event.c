/* Events. An event stands for the work that the stream had when the event was recorded. */
#include "sim.h"

struct Event {
    struct Context *owner; /* a primary context owns the events of its green contexts */
    uint64_t nanoseconds;
    struct Queue *queue;
    uint64_t number;
    struct CapturedEvent captured;
    unsigned held; /* by nodes of graphs */
    bool destroyed;
};
enum { EXTERNAL = 1 }; /* CU_EVENT_RECORD_EXTERNAL and CU_EVENT_WAIT_EXTERNAL: a node of the capture */

void event_hold(struct Event *event) { event->held++; }

static void end(struct Event *event)
{
    if (event->held || !event->destroyed) return;
    capture_forget(&event->captured);
    free(event);
}

void event_drop(struct Event *event)
{
    if (!event) return;
    event->held--;
    end(event);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void set(struct Event *event, CUstream stream)
{
    event->nanoseconds = now_ns();
    event->queue = work_queue(stream);
    if (event->queue) event->number = work_add(event->queue, (struct Work){.kind = WORK_NOTHING});
}

static void wait_for(const struct Event *event, CUstream stream)
{
    if (event->queue) work_submit(stream, (struct Work){.kind = WORK_WAIT, .after = event->queue, .after_number = event->number});
}

CUresult event_launch(struct Event *event, CUstream stream, bool wait)
{
    if (event->destroyed) return CUDA_ERROR_INVALID_HANDLE;
    if (wait) wait_for(event, stream);
    else capture_forget(&event->captured), set(event, stream);
    return CUDA_SUCCESS;
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    STREAM_CALL("cuStreamWaitEvent");
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    bool external = flags & EXTERNAL;
    CUresult refused = legacy_captured(stream);
    if (!refused) refused = capture_wait(stream, &event->captured, event->nanoseconds, external);
    if (refused) return refused;
    bool captured = false;
    if (external) refused = graph_capture_event(stream, event, true, &captured);
    if (refused || captured) return refused;
    if (!stream_captures(stream)) wait_for(event, stream);
    return CUDA_SUCCESS;
}
API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) { return cuStreamWaitEvent(of_thread(stream), event, flags); }

API CUresult cuEventCreate(CUevent *out, unsigned flags) { (void)flags; ENTER_CONTEXT("cuEventCreate", context); context_passes(context); REQUIRE(out); *out = calloc(1, sizeof **out); (*out)->owner = context_owner(context); return CUDA_SUCCESS; }
API CUresult cuEventDestroy_v2(CUevent event) { ENTER("cuEventDestroy"); context_passes(context_current()); if (!event) return CUDA_ERROR_INVALID_HANDLE; event->destroyed = true; end(event); return CUDA_SUCCESS; }
API CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }
static CUresult record(CUevent event, CUstream stream, unsigned flags)
{
    STREAM_CALL("cuEventRecord");
    context_passes(context_current());
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    /* "hEvent and hStream must be from the same context" (cuda.h 13.0, cuEventRecord). */
    if (context_owner(stream_context(stream, context_current())) != event->owner) return CUDA_ERROR_INVALID_HANDLE;
    bool captured = false;
    CUresult result = flags & EXTERNAL ? graph_capture_event(stream, event, false, &captured) : CUDA_SUCCESS;
    if (result || captured) return result;
    result = legacy_captured(stream);
    if (result) return result;
    event->nanoseconds = now_ns();
    event->queue = NULL;
    if (capture_record(stream, &event->captured, &result)) return result;
    set(event, stream);
    return CUDA_SUCCESS;
}
API CUresult cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, 0); }
API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return record(event, of_thread(stream), 0); }
API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) { return record(event, stream, flags); }
API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags) { return record(event, of_thread(stream), flags); }

/* All work that the context has now, and that of its green contexts. A stream of the context that captures is broken by
 * it (cuda.h 13.0:7010-7026). */
API CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
{
    ENTER_WORKING("cuCtxRecordEvent");
    context_passes(context_current()); /* as cuEventRecord */
    if (context_device(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    CUresult refused = context_capturing(context);
    if (refused) return refused;
    event->queue = work_context_end(context, &event->number);
    return CUDA_SUCCESS;
}

/* Waiting for an event and asking for it: never for one that stands for nodes of a capture (cuda.h 13.0:3113), and as
 * unsafe as an allocation for any other beside a capture (pytorch#105182, #148594; cuda.h 13.0:15463). */
static CUresult forbidden(const struct Event *event)
{
    return event->captured.capture ? CUDA_ERROR_CAPTURED_EVENT : unsafe_while_capturing();
}

API CUresult cuEventQuery(CUevent event)
{
    ENTER_WORKING("cuEventQuery");
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    CUresult refused = forbidden(event);
    if (refused) return refused;
    return work_pending(event->queue, event->number) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
API CUresult cuEventSynchronize(CUevent event)
{
    ENTER_WORKING("cuEventSynchronize");
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    CUresult refused = forbidden(event);
    if (refused) return refused;
    work_wait_for(event->queue, event->number);
    if (context_current()) pools_synchronised(context_current()->device);
    return CUDA_SUCCESS;
}
API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    ENTER_WORKING("cuEventElapsedTime");
    REQUIRE(milliseconds && start && end && start->nanoseconds && end->nanoseconds);
    if (work_pending(start->queue, start->number) || work_pending(end->queue, end->number)) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(end->nanoseconds - start->nanoseconds) / 1e6);
    return CUDA_SUCCESS;
}
API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) { return cuEventElapsedTime(milliseconds, start, end); }

/* An event of another process has always completed, because work is done at once. With SIMGPU_DELAYED there are
 * none. */
#define EVENT_MAGIC "simgpu event"
API CUresult cuIpcGetEventHandle(CUipcMemHandle *out, CUevent event)
{
    ENTER("cuIpcGetEventHandle");
    REQUIRE(out);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (config()->delayed) return CUDA_ERROR_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    memcpy(out, EVENT_MAGIC, sizeof EVENT_MAGIC);
    return CUDA_SUCCESS;
}
API CUresult cuIpcOpenEventHandle(CUevent *out, CUipcMemHandle handle)
{
    ENTER_CONTEXT("cuIpcOpenEventHandle", context);
    (void)context;
    REQUIRE(out && memcmp(&handle, EVENT_MAGIC, sizeof EVENT_MAGIC) == 0);
    *out = calloc(1, sizeof **out);
    return CUDA_SUCCESS;
}
