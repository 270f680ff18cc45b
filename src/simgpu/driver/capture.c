/* Stream captures. While a stream captures, its work becomes nodes of a CUDA graph. A stream joins the capture of another
 * one when it waits for an event that was recorded there, and has to be joined to the first stream again by an event
 * before the end. Each stream of a capture has a place. It counts its own nodes there, and knows how many nodes of every
 * other place come before its next one. It also knows on which nodes its next one depends (edges.c).
 *
 * Sources: cuda.h 13.0:3070-3123 (the errors), 15344-15520 (begin, modes of threads, end); CUDA programming guide, CUDA
 * Graphs, "Creating a Graph Using Stream Capture" (cross-stream dependencies, prohibited and unhandled operations,
 * invalidation); the driver API reference of CUDA 13.3 for recapture and CIG. */
#include "sim.h"

enum { PLACES = 64 };

struct Capture {
    struct Graph *graph;
    struct Stream *origin;
    int mode;
    bool invalidated, to_graphics;
    bool recaptures; /* into the nodes of its graph, which have to come in the same order */
    uint64_t owner, id;
    unsigned places, nodes[PLACES];
    struct Capture *next;
};
static struct Capture *captures;
static uint64_t ids = 1000;
static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static struct Capture *capture_of(CUstream stream)
{
    struct Stream *s = captures && stream_valid(stream) ? stream_object(stream) : NULL;
    return s ? s->capture : NULL;
}

bool stream_captures(CUstream stream) { return capture_of(stream) != NULL; }

static CUresult break_capture(struct Capture *capture, CUresult result)
{
    capture->invalidated = true;
    return result;
}

/* The rules of the thread's mode: cuda.h 13.0:15451-15466. */
static bool forbids(const struct Capture *c)
{
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || c->mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (c->owner == sim_thread()) return true;
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult unsafe_while_capturing(void)
{
    CUresult result = CUDA_SUCCESS;
    for (struct Capture *c = captures; c; c = c->next)
        if (forbids(c)) result = break_capture(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return result;
}

static bool captures_in(const struct Stream *s, const void *context) { return s->capture && context_covers(context, s->context); }

/* rocm-systems#4508 measured on CUDA that a context's synchronise breaks the captures of its own streams in every mode,
 * and those of other devices in none. TensorRT#2888 has the first part too. */
CUresult context_capturing(struct Context *context)
{
    CUresult result = CUDA_SUCCESS;
    for (struct Stream *s = captures ? stream_next(NULL, captures_in, context) : NULL; s; s = stream_next(s, captures_in, context))
        result = break_capture(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return result;
}

/* The legacy stream waits for the blocking streams of its context, so it cannot be used while one of them captures
 * (cuda.h 13.0:3106; the programming guide: nor queried or synchronised). */
static bool blocking_captures(const struct Stream *s, const void *context)
{
    return s->capture && s->context == context && !(s->flags & 1);
}

CUresult legacy_captured(CUstream stream)
{
    struct Context *context = captures && (uint64_t)stream <= 1 ? context_current() : NULL;
    CUresult result = CUDA_SUCCESS;
    for (struct Stream *s = context ? stream_next(NULL, blocking_captures, context) : NULL; s; s = stream_next(s, blocking_captures, context))
        result = break_capture(s->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    return result;
}

/* ---- nodes */

/* The driver API reference, cuStreamBeginCaptureToCig: not allowed on such a stream. */
static bool not_for_graphics(int type)
{
    return type == CU_GRAPH_NODE_TYPE_HOST || type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE;
}

CUresult stream_capture(CUstream stream, int type, struct Graph **graph)
{
    struct Capture *c = capture_of(stream);
    *graph = NULL;
    if (!c) return legacy_captured(stream);
    if (c->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (c->to_graphics && not_for_graphics(type)) return break_capture(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    struct Stream *s = stream_object(stream);
    s->seen[s->place] = ++c->nodes[s->place];
    *graph = c->graph;
    return graph_next(c->graph, s->ends.at, s->ends.count, &s->ends);
}

CUresult stream_submit(CUstream stream, int type, const struct Work *work, bool *captured)
{
    struct Graph *graph;
    CUresult result = stream_capture(stream, type, &graph);
    *captured = graph;
    struct Node *node = graph ? graph_add(graph, type) : NULL;
    if (graph && !node) result = capture_failed(stream);
    if (node && work) graph_work(node, work);
    return result;
}

CUresult capture_failed(CUstream stream) { return break_capture(capture_of(stream), CUDA_ERROR_GRAPH_RECAPTURE_FAILURE); }

/* A capturing stream can be neither synchronised nor queried, in any mode (programming guide, Prohibited and Unhandled
 * Operations). */
CUresult capture_refuses(CUstream stream)
{
    struct Capture *c = capture_of(stream);
    return c ? break_capture(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : legacy_captured(stream);
}

/* ---- streams join and leave */

static void join(struct Stream *s, struct Capture *c, unsigned place)
{
    s->capture = c;
    s->place = place;
    s->seen = calloc(PLACES, sizeof *s->seen);
}

static void leave(struct Stream *s)
{
    s->capture = NULL;
    free(s->seen);
    s->seen = NULL;
    nodes_clear(&s->ends);
}

static bool of_capture(const struct Stream *s, const void *capture) { return s->capture == capture; }

static void end(struct Capture *c)
{
    for (struct Stream *s = stream_next(NULL, of_capture, c); s; s = stream_next(s, of_capture, c)) leave(s);
    for (struct Capture **at = &captures; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    free(c);
}

void capture_stream_gone(struct Stream *s)
{
    struct Capture *c = s->capture;
    if (!c) return;
    if (c->origin == s) return end(c);
    c->invalidated = true;
    leave(s);
}

/* ---- events: an event that was recorded in a capture stands for nodes of it */

void capture_forget(struct CapturedEvent *event)
{
    free(event->seen);
    nodes_clear(&event->ends);
    *event = (struct CapturedEvent){0};
}

bool capture_record(CUstream stream, struct CapturedEvent *event, CUresult *result)
{
    struct Capture *c = capture_of(stream);
    capture_forget(event);
    *result = c && c->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    if (!c || *result) return c;
    event->capture = c->id;
    event->seen = malloc(PLACES * sizeof *event->seen);
    memcpy(event->seen, stream_object(stream)->seen, PLACES * sizeof *event->seen);
    nodes_add_all(&event->ends, &stream_object(stream)->ends);
    return true;
}

static struct Capture *with_id(uint64_t id)
{
    struct Capture *c = id ? captures : NULL;
    while (c && c->id != id) c = c->next;
    return c;
}

/* A stream that waits for an event: 902 to 905 and 907 as cuda.h 13.0:3081-3116 tells of them. */
CUresult capture_wait(CUstream stream, const struct CapturedEvent *event, bool recorded, bool external)
{
    enum { MERGE = 902, ISOLATION = 905, CAPTURED_EVENT = 907 };
    struct Capture *mine = capture_of(stream), *theirs = with_id(event->capture);
    if (event->capture && !theirs) return CAPTURED_EVENT;
    if (mine && mine->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!theirs) return mine && recorded && !external ? break_capture(mine, ISOLATION) : CUDA_SUCCESS;
    if (theirs->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (mine && mine != theirs) return break_capture(mine, break_capture(theirs, MERGE));
    if (!mine) {
        struct Stream *s = stream_object_new(stream);
        if (!s || theirs->places == PLACES) return break_capture(theirs, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT); /* the legacy stream */
        join(s, theirs, theirs->places++);
    }
    struct Stream *s = stream_object(stream);
    for (int i = 0; i < PLACES; i++)
        if (s->seen[i] < event->seen[i]) s->seen[i] = event->seen[i];
    nodes_add_all(&s->ends, &event->ends);
    return CUDA_SUCCESS;
}

/* ---- begin and end */

/* cuda.h 13.0:15608-15636: adds to the set of nodes on which the stream's next node depends, or replaces that set. */
API CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags)
{
    enum { SET = 1 };
    ENTER_WORKING("cuStreamUpdateCaptureDependencies");
    CHECK_STREAM(stream);
    REQUIRE(flags <= SET && (nodes || !count));
    struct Capture *c = capture_of(stream);
    if (!c) return CUDA_ERROR_ILLEGAL_STATE;
    if (c->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct Nodes *ends = &stream_object(stream)->ends, wanted = {0};
    if (flags != SET) nodes_add_all(&wanted, ends);
    nodes_add_all(&wanted, &(struct Nodes){nodes, count});
    nodes_clear(ends);
    *ends = wanted;
    return CUDA_SUCCESS;
}
PTSZ(cuStreamUpdateCaptureDependencies);
API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes, const void *edges, size_t count, unsigned flags) { (void)edges; return cuStreamUpdateCaptureDependencies(stream, nodes, count, flags); }
PTSZ(cuStreamUpdateCaptureDependencies_v2);

static CUresult begin(CUstream stream, struct Capture wanted)
{
    ENTER_WORKING("cuStreamBeginCapture");
    CHECK_STREAM(stream);
    REQUIRE(wanted.mode >= 0 && wanted.mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    struct Stream *s = stream_object_new(stream);
    if (!s) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* cuda.h 13.0:15350: not on the legacy stream */
    if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (wanted.to_graphics && !s->context->graphics) return CUDA_ERROR_INVALID_CONTEXT;
    struct Capture *c = malloc(sizeof *c);
    *c = wanted;
    if (!c->graph) c->graph = graph_new();
    if (c->recaptures) graph_begin_recapture(c->graph);
    c->origin = s;
    c->owner = sim_thread();
    c->id = ++ids;
    c->places = 1;
    c->next = captures;
    captures = c;
    sim_eventful = true;
    join(s, c, 0);
    return CUDA_SUCCESS;
}
API CUresult cuStreamBeginCapture(CUstream stream) { return begin(stream, (struct Capture){.mode = CU_STREAM_CAPTURE_MODE_GLOBAL}); }
API CUresult cuStreamBeginCapture_ptsz(CUstream stream) { return cuStreamBeginCapture(of_thread(stream)); }
API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { return begin(stream, (struct Capture){.mode = mode}); }
API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) { return cuStreamBeginCapture_v2(of_thread(stream), mode); }
API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *d, const void *edges, size_t n, int mode)
{
    (void)edges;
    REQUIRE(graph && (d || !n));
    CUresult result = begin(stream, (struct Capture){.mode = mode, .graph = graph});
    if (!result && n) result = cuStreamUpdateCaptureDependencies(stream, (CUgraphNode *)d, n, 0);
    return result;
}
API CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph graph, const CUgraphNode *d, const void *edges, size_t n, int mode) { return cuStreamBeginCaptureToGraph(of_thread(s), graph, d, edges, n, mode); }

/* The driver API reference of CUDA 13.3: the nodes have to be created in the order of the graph, or error 918; the
 * callback is told of other parameters of a node. Nodes have no parameters here, except those of memory. */
API CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, CUresult (*callback)(void *), void *data)
{
    (void)callback, (void)data;
    REQUIRE(graph);
    return begin(stream, (struct Capture){.mode = mode, .graph = graph, .recaptures = true});
}
API CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream s, int mode, CUgraph graph, CUresult (*callback)(void *), void *data) { return cuStreamBeginRecaptureToGraph(of_thread(s), mode, graph, callback, data); }

/* The driver API reference: "operates similarly to cuStreamBeginCapture with the CU_STREAM_CAPTURE_MODE_RELAXED option",
 * in a context that was created for a graphics client. */
API CUresult cuStreamBeginCaptureToCig(CUstream stream, void *const *parameters)
{
    REQUIRE((uint64_t)stream > 1 && parameters && *parameters);
    return begin(stream, (struct Capture){.mode = CU_STREAM_CAPTURE_MODE_RELAXED, .to_graphics = true});
}
API CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *const *parameters) { return cuStreamBeginCaptureToCig(of_thread(stream), parameters); }

static bool joined(const struct Capture *c)
{
    for (unsigned i = 0; i < c->places; i++)
        if (c->origin->seen[i] < c->nodes[i]) return false;
    return true;
}

static CUresult verdict(struct Capture *c)
{
    enum { UNJOINED = 904 };
    bool complete = !c->recaptures || graph_end_recapture(c->graph);
    if (c->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!complete) return CUDA_ERROR_GRAPH_RECAPTURE_FAILURE;
    return joined(c) ? CUDA_SUCCESS : UNJOINED;
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *out)
{
    enum { UNMATCHED = 903, WRONG_THREAD = 908 };
    ENTER_WORKING("cuStreamEndCapture");
    CHECK_STREAM(stream);
    REQUIRE(out);
    struct Capture *c = capture_of(stream);
    if (!c || c->to_graphics) return CUDA_ERROR_ILLEGAL_STATE;
    if (c->origin != stream_object(stream)) return break_capture(c, UNMATCHED);
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->owner != sim_thread()) return WRONG_THREAD;
    CUresult result = verdict(c);
    *out = result ? NULL : c->graph;
    end(c);
    return result;
}
API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *out) { return cuStreamEndCapture(of_thread(stream), out); }

API CUresult cuStreamEndCaptureToCig(CUstream stream)
{
    ENTER_WORKING("cuStreamEndCaptureToCig");
    struct Capture *c = capture_of(stream);
    REQUIRE(c && c->to_graphics && c->origin == stream_object(stream));
    CUresult result = verdict(c);
    end(c);
    return result;
}
API CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream) { return cuStreamEndCaptureToCig(of_thread(stream)); }

/* ---- questions */

static CUresult info(CUstream stream, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count)
{
    ENTER_WORKING("cuStreamGetCaptureInfo");
    CHECK_STREAM(stream);
    REQUIRE(status);
    struct Context *context = (uint64_t)stream <= 1 ? context_current() : NULL;
    if (context && stream_next(NULL, blocking_captures, context)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* cuda.h 13.0:15527; breaks nothing */
    struct Capture *c = capture_of(stream);
    *status = !c ? 0 : c->invalidated ? 2 : 1;
    if (*status != 1) return CUDA_SUCCESS;
    if (id) *id = c->id;
    if (graph) *graph = c->graph;
    struct Stream *s = stream_object(stream);
    if (nodes) *nodes = s->ends.at;
    if (count) *count = s->ends.count;
    return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(CUstream stream, int *status) { return info(stream, status, NULL, NULL, NULL, NULL); }
API CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) { return cuStreamIsCapturing(of_thread(stream), status); }
API CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, unsigned long long *id) { return info(stream, status, id, NULL, NULL, NULL); }
API CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, int *status, unsigned long long *id) { return cuStreamGetCaptureInfo(of_thread(stream), status, id); }
API CUresult cuStreamGetCaptureInfo_v2(CUstream s, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count) { return info(s, status, id, graph, nodes, count); }
API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream s, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count) { return info(of_thread(s), status, id, graph, nodes, count); }
API CUresult cuStreamGetCaptureInfo_v3(CUstream s, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes, const void **edges, size_t *count)
{
    if (edges) *edges = NULL;
    return info(s, status, id, graph, nodes, count);
}
API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream s, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes, const void **edges, size_t *count) { return cuStreamGetCaptureInfo_v3(of_thread(s), status, id, graph, nodes, edges, count); }

API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    REQUIRE(mode && *mode >= 0 && *mode <= 2);
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
