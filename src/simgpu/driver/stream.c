/* Streams, events and stream captures. While a stream captures, its work becomes nodes of a CUDA graph. */
#include "sim.h"
#include <time.h>

static struct Stream *streams;
static uint64_t ids = 16;
static unsigned captures; /* streams that capture */
static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool stream_valid(CUstream stream)
{
    if ((uint64_t)stream <= 2) return true; /* default, legacy, per-thread */
    for (struct Stream *s = streams; s; s = s->next)
        if (s == stream) return true;
    return false;
}

struct Graph *stream_capture(CUstream stream)
{
    return (uint64_t)stream > 2 && stream_valid(stream) ? stream->capture : NULL;
}

struct Context *stream_context(CUstream stream, struct Context *current)
{
    return (uint64_t)stream > 2 && stream_valid(stream) ? stream->context : current;
}

bool stream_submit(CUstream stream, int node_type)
{
    struct Graph *graph = stream_capture(stream);
    if (graph) graph_add(graph, node_type);
    return !graph;
}

CUresult unsafe_while_capturing(void)
{
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (struct Stream *s = captures ? streams : NULL; s; s = s->next) {
        bool concerned = s->capture && (s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL
                                        || (s->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && s->owner == (uint64_t)pthread_self()));
        if (concerned) {
            s->invalidated = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

CUresult context_capturing(struct Context *context)
{
    CUresult result = unsafe_while_capturing();
    for (struct Stream *s = captures ? streams : NULL; s; s = s->next)
        if (s->capture && s->context == context) {
            s->invalidated = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    ENTER_CONTEXT("cuStreamCreate", context);
    REQUIRE(out && flags <= 1);
    struct Stream *s = calloc(1, sizeof *s);
    *s = (struct Stream){.context = context, .flags = flags, .priority = priority, .id = ++ids, .next = streams};
    streams = s;
    *out = s;
    return CUDA_SUCCESS;
}
API CUresult cuStreamCreate(CUstream *out, unsigned flags) { return create(out, flags, 0); }
API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) { return create(out, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority); }

static void unlink_stream(struct Stream *stream)
{
    for (struct Stream **s = &streams; *s; s = &(*s)->next)
        if (*s == stream) {
            *s = stream->next;
            break;
        }
    captures -= stream->capture != NULL;
    work_stream_gone(stream);
    free(stream);
}

API CUresult cuStreamDestroy_v2(CUstream stream)
{
    ENTER("cuStreamDestroy");
    if ((uint64_t)stream <= 2 || !stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
    unlink_stream(stream);
    return CUDA_SUCCESS;
}
API CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

void stream_forget_context(struct Context *context)
{
    for (struct Stream *s = streams, *next; s; s = next) {
        next = s->next;
        if (s->context == context) unlink_stream(s);
    }
}

#define STREAM_CALL(function) ENTER_WORKING(function); if (!stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE

API CUresult cuStreamSynchronize(CUstream stream)
{
    STREAM_CALL("cuStreamSynchronize");
    if (stream_capture(stream)) return unsafe_while_capturing();
    struct Context *context = (uint64_t)stream > 2 ? stream->context : context_current();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    int device = context->device;
    struct Queue *q = work_queue(stream);
    if (q) work_wait(q);
    pools_synchronised(device);
    return CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize_ptsz(CUstream stream) { return cuStreamSynchronize(of_thread(stream)); }
API CUresult cuStreamQuery(CUstream stream)
{
    STREAM_CALL("cuStreamQuery");
    if (stream_capture(stream)) return unsafe_while_capturing();
    return work_stream_pending(stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
API CUresult cuStreamQuery_ptsz(CUstream stream) { return cuStreamQuery(of_thread(stream)); }
API CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) { STREAM_CALL("cuStreamGetFlags"); REQUIRE(flags); *flags = (uint64_t)stream > 2 ? stream->flags : 0; return CUDA_SUCCESS; }
PTSZ(cuStreamGetFlags);
API CUresult cuStreamGetPriority(CUstream stream, int *priority) { STREAM_CALL("cuStreamGetPriority"); REQUIRE(priority); *priority = (uint64_t)stream > 2 ? stream->priority : 0; return CUDA_SUCCESS; }
PTSZ(cuStreamGetPriority);
API CUresult cuStreamGetId(CUstream stream, unsigned long long *id) { STREAM_CALL("cuStreamGetId"); REQUIRE(id); *id = (uint64_t)stream > 2 ? stream->id : (uint64_t)stream; return CUDA_SUCCESS; }
PTSZ(cuStreamGetId);
API CUresult cuStreamGetCtx(CUstream stream, CUcontext *out) { STREAM_CALL("cuStreamGetCtx"); REQUIRE(out); *out = (uint64_t)stream > 2 ? stream->context : context_current(); return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
PTSZ(cuStreamGetCtx);
API CUresult cuStreamGetDevice(CUstream stream, CUdevice *out)
{
    STREAM_CALL("cuStreamGetDevice");
    struct Context *context = (uint64_t)stream > 2 ? stream->context : context_current();
    REQUIRE(out);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    *out = context->device;
    return CUDA_SUCCESS;
}
PTSZ(cuStreamGetDevice);
API CUresult cuStreamCopyAttributes(CUstream to, CUstream from) { (void)to, (void)from; ENTER("cuStreamCopyAttributes"); return CUDA_SUCCESS; }
PTSZ(cuStreamCopyAttributes);
API CUresult cuStreamGetAttribute(CUstream stream, int attribute, void *value) { (void)attribute; STREAM_CALL("cuStreamGetAttribute"); REQUIRE(value); memset(value, 0, 64); return CUDA_SUCCESS; }
PTSZ(cuStreamGetAttribute);
API CUresult cuStreamSetAttribute(CUstream stream, int attribute, const void *value) { (void)attribute, (void)value; STREAM_CALL("cuStreamSetAttribute"); return CUDA_SUCCESS; }
PTSZ(cuStreamSetAttribute);

API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data)
{
    STREAM_CALL("cuLaunchHostFunc");
    if (stream_submit(stream, CU_GRAPH_NODE_TYPE_HOST))
        work_submit(stream, (struct Work){.kind = WORK_HOST, .function = function, .data = data});
    return CUDA_SUCCESS;
}
API CUresult cuLaunchHostFunc_ptsz(CUstream stream, void (*function)(void *), void *data) { return cuLaunchHostFunc(of_thread(stream), function, data); }
API CUresult cuStreamAddCallback(CUstream stream, void (*function)(CUstream, CUresult, void *), void *data, unsigned flags)
{
    (void)flags;
    STREAM_CALL("cuStreamAddCallback");
    work_submit(stream, (struct Work){.kind = WORK_CALLBACK, .callback = function, .stream = stream, .data = data});
    return CUDA_SUCCESS;
}
API CUresult cuStreamAddCallback_ptsz(CUstream stream, void (*function)(CUstream, CUresult, void *), void *data, unsigned flags) { return cuStreamAddCallback(of_thread(stream), function, data, flags); }

/* ---- events */

/* An event stands for the work that the stream had when the event was recorded. */
struct Event { uint64_t nanoseconds; struct Queue *queue; uint64_t number; };

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    STREAM_CALL("cuStreamWaitEvent");
    if (event && event->queue && !stream_capture(stream))
        work_submit(stream, (struct Work){.kind = WORK_WAIT, .after = event->queue, .after_number = event->number});
    return CUDA_SUCCESS;
}
API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) { return cuStreamWaitEvent(of_thread(stream), event, flags); }

API CUresult cuEventCreate(CUevent *out, unsigned flags) { (void)flags; ENTER_CONTEXT("cuEventCreate", context); (void)context; REQUIRE(out); *out = calloc(1, sizeof **out); return CUDA_SUCCESS; }
API CUresult cuEventDestroy_v2(CUevent event) { ENTER("cuEventDestroy"); if (!event) return CUDA_ERROR_INVALID_HANDLE; free(event); return CUDA_SUCCESS; }
API CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }
API CUresult cuEventRecord(CUevent event, CUstream stream)
{
    STREAM_CALL("cuEventRecord");
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->nanoseconds = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    event->queue = stream_capture(stream) ? NULL : work_queue(stream);
    if (event->queue) event->number = work_add(event->queue, (struct Work){.kind = WORK_NOTHING});
    return CUDA_SUCCESS;
}
API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return cuEventRecord(event, of_thread(stream)); }
API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) { (void)flags; return cuEventRecord(event, stream); }
API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags) { (void)flags; return cuEventRecord(event, of_thread(stream)); }
API CUresult cuEventQuery(CUevent event)
{
    ENTER_WORKING("cuEventQuery");
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    return work_pending(event->queue, event->number) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
API CUresult cuEventSynchronize(CUevent event)
{
    ENTER_WORKING("cuEventSynchronize");
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
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

/* ---- capture */

static CUresult begin(CUstream stream, int mode, struct Graph *graph)
{
    STREAM_CALL("cuStreamBeginCapture");
    if ((uint64_t)stream <= 2) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    stream->own_graph = !graph;
    stream->capture = graph ? graph : graph_new();
    captures++;
    sim_eventful = true;
    stream->mode = mode;
    stream->invalidated = false;
    stream->owner = (uint64_t)pthread_self();
    return CUDA_SUCCESS;
}
API CUresult cuStreamBeginCapture(CUstream stream) { return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL); }
PTSZ(cuStreamBeginCapture);
API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { return begin(stream, mode, NULL); }
PTSZ(cuStreamBeginCapture_v2);
API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *d, const void *edges, size_t n, int mode)
{
    (void)d, (void)edges, (void)n;
    return begin(stream, mode, graph);
}
PTSZ(cuStreamBeginCaptureToGraph);

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *out)
{
    STREAM_CALL("cuStreamEndCapture");
    REQUIRE(out);
    if ((uint64_t)stream <= 2 || !stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    *out = stream->invalidated ? NULL : stream->capture;
    stream->capture = NULL;
    captures--;
    return stream->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
PTSZ(cuStreamEndCapture);

static int status_of(CUstream stream)
{
    if ((uint64_t)stream <= 2 || !stream->capture) return 0;
    return stream->invalidated ? 2 : 1;
}
API CUresult cuStreamIsCapturing(CUstream stream, int *status) { STREAM_CALL("cuStreamIsCapturing"); REQUIRE(status); *status = status_of(stream); return CUDA_SUCCESS; }
PTSZ(cuStreamIsCapturing);

static CUresult info(CUstream stream, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count)
{
    STREAM_CALL("cuStreamGetCaptureInfo");
    REQUIRE(status);
    *status = status_of(stream);
    if (!*status) return CUDA_SUCCESS;
    if (id) *id = stream->id;
    if (graph) *graph = stream->capture;
    if (nodes) *nodes = NULL;
    if (count) *count = 0;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, unsigned long long *id) { return info(stream, status, id, NULL, NULL, NULL); }
PTSZ(cuStreamGetCaptureInfo);
API CUresult cuStreamGetCaptureInfo_v2(CUstream s, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count) { return info(s, status, id, graph, nodes, count); }
PTSZ(cuStreamGetCaptureInfo_v2);
API CUresult cuStreamGetCaptureInfo_v3(CUstream s, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes, const void **edges, size_t *count)
{
    if (edges) *edges = NULL;
    return info(s, status, id, graph, nodes, count);
}
PTSZ(cuStreamGetCaptureInfo_v3);
API CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *n, size_t count, unsigned flags) { (void)n, (void)count, (void)flags; STREAM_CALL("cuStreamUpdateCaptureDependencies"); return CUDA_SUCCESS; }
PTSZ(cuStreamUpdateCaptureDependencies);
API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *n, const void *edges, size_t count, unsigned flags) { (void)n, (void)edges, (void)count, (void)flags; STREAM_CALL("cuStreamUpdateCaptureDependencies"); return CUDA_SUCCESS; }
PTSZ(cuStreamUpdateCaptureDependencies_v2);
API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    REQUIRE(mode && *mode >= 0 && *mode <= 2);
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
