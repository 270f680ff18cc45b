/* Streams and their host functions. */
#include "sim.h"

static struct Stream *streams;
static uint64_t ids = 16;

bool stream_valid(CUstream stream)
{
    if ((uint64_t)stream <= 2) return true; /* default, legacy, per-thread */
    for (struct Stream *s = streams; s; s = s->next)
        if (s == stream) return true;
    return false;
}

CUresult stream_check(CUstream stream)
{
    if (!stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
    return (uint64_t)stream > 2 && stream->orphan ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

struct Stream *stream_object(CUstream stream)
{
    if ((uint64_t)stream > 2) return stream;
    struct Context *context = stream == PER_THREAD ? context_current() : NULL;
    for (struct Stream *s = context ? streams : NULL; s; s = s->next)
        if (s->thread == sim_thread() && s->context == context) return s;
    return NULL;
}

static struct Stream *add(struct Stream wanted)
{
    struct Stream *s = malloc(sizeof *s);
    *s = wanted;
    s->id = ++ids;
    s->next = streams;
    return streams = s;
}

struct Stream *stream_new(struct Context *context, unsigned flags, int priority)
{
    return add((struct Stream){.context = context, .flags = flags, .priority = priority < -5 ? -5 : priority > 0 ? 0 : priority});
}

struct Stream *stream_object_new(CUstream stream)
{
    struct Stream *found = stream_object(stream);
    struct Context *context = stream == PER_THREAD ? context_current() : NULL;
    return found || !context ? found : add((struct Stream){.context = context, .thread = sim_thread()});
}

struct Stream *stream_next(const struct Stream *after, bool (*wanted)(const struct Stream *, const void *), const void *data)
{
    struct Stream *s = after ? after->next : streams;
    while (s && !wanted(s, data)) s = s->next;
    return s;
}

struct Context *stream_context(CUstream stream, struct Context *current)
{
    return (uint64_t)stream > 2 && stream_valid(stream) ? stream->context : current;
}

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    ENTER_CONTEXT("cuStreamCreate", context);
    context_passes(context);
    REQUIRE(out && flags <= 1);
    *out = stream_new(context, flags, priority);
    return CUDA_SUCCESS;
}
API CUresult cuStreamCreate(CUstream *out, unsigned flags) { return create(out, flags, 0); }
API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) { return create(out, flags, priority); }

static void unlink_stream(struct Stream *stream)
{
    capture_stream_gone(stream);
    for (struct Stream **s = &streams; *s; s = &(*s)->next)
        if (*s == stream) {
            *s = stream->next;
            break;
        }
    work_stream_gone(stream);
    free(stream);
}

API CUresult cuStreamDestroy_v2(CUstream stream)
{
    ENTER("cuStreamDestroy");
    if ((uint64_t)stream <= 2) return CUDA_ERROR_INVALID_HANDLE;
    CHECK_STREAM(stream);
    unlink_stream(stream);
    return CUDA_SUCCESS;
}
API CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

void stream_orphan(struct Context *context, struct Context *heir)
{
    for (struct Stream *s = streams; s; s = s->next)
        if (s->context == context) {
            capture_stream_gone(s);
            s->context = heir;
            s->queue = NULL;
            s->orphan = true;
        }
}

void stream_forget_context(struct Context *context)
{
    for (struct Stream *s = streams, *next; s; s = next) {
        next = s->next;
        if (s->context == context) unlink_stream(s);
    }
}

/* As unsafe beside a capture as a question for an event. Measured on an H200 with driver 580 (tests/assumptions/captures.c). */
static CUresult waiting_refused(CUstream stream)
{
    CUresult refused = capture_refuses(stream);
    return refused ? refused : unsafe_while_capturing();
}

API CUresult cuStreamSynchronize(CUstream stream)
{
    STREAM_CALL("cuStreamSynchronize");
    CUresult refused = waiting_refused(stream);
    if (refused) return refused;
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
    CUresult refused = waiting_refused(stream);
    if (refused) return refused;
    return work_stream_pending(stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
API CUresult cuStreamQuery_ptsz(CUstream stream) { return cuStreamQuery(of_thread(stream)); }
API CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) { STREAM_CALL("cuStreamGetFlags"); REQUIRE(flags); *flags = (uint64_t)stream > 2 ? stream->flags : 0; return CUDA_SUCCESS; }
PTSZ(cuStreamGetFlags);
API CUresult cuStreamGetPriority(CUstream stream, int *priority) { STREAM_CALL("cuStreamGetPriority"); REQUIRE(priority); *priority = (uint64_t)stream > 2 ? stream->priority : 0; return CUDA_SUCCESS; }
PTSZ(cuStreamGetPriority);
API CUresult cuStreamGetId(CUstream stream, unsigned long long *id) { STREAM_CALL("cuStreamGetId"); REQUIRE(id); CUresult refused = capture_refuses(stream); if (refused) return refused; *id = (uint64_t)stream > 2 ? stream->id : (uint64_t)stream; return CUDA_SUCCESS; }
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
    context_passes(context_current());
    struct Work work = {.kind = WORK_HOST, .function = function, .data = data};
    SUBMIT_TO_CAPTURE(stream, CU_GRAPH_NODE_TYPE_HOST, &work);
    work_submit(stream, work);
    return CUDA_SUCCESS;
}
API CUresult cuLaunchHostFunc_ptsz(CUstream stream, void (*function)(void *), void *data) { return cuLaunchHostFunc(of_thread(stream), function, data); }
API CUresult cuLaunchHostFunc_v2(CUstream stream, void (*function)(void *), void *data, unsigned mode) { (void)mode; return cuLaunchHostFunc(stream, function, data); }
API CUresult cuLaunchHostFunc_v2_ptsz(CUstream stream, void (*function)(void *), void *data, unsigned mode) { (void)mode; return cuLaunchHostFunc(of_thread(stream), function, data); }
/* cuda.h 13.0:15275: not supported in captures, unlike cuLaunchHostFunc. */
API CUresult cuStreamAddCallback(CUstream stream, void (*function)(CUstream, CUresult, void *), void *data, unsigned flags)
{
    (void)flags;
    STREAM_CALL("cuStreamAddCallback");
    CUresult refused = capture_refuses(stream);
    if (refused) return refused;
    work_submit(stream, (struct Work){.kind = WORK_CALLBACK, .callback = function, .stream = stream, .data = data});
    return CUDA_SUCCESS;
}
API CUresult cuStreamAddCallback_ptsz(CUstream stream, void (*function)(CUstream, CUresult, void *), void *data, unsigned flags) { return cuStreamAddCallback(of_thread(stream), function, data, flags); }
