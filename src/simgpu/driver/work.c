/* Work on streams. Each stream has a queue of operations. An operation comes after the operations before it in its queue,
 * and after the operation that its stream was told to wait for. On the legacy default stream it comes after all earlier
 * work of the context's blocking streams, and their later work comes after it (cuda.h 13.0, CU_STREAM_LEGACY; CUDA
 * programming guide, Implicit Synchronization). Every operation has a number and waits only for operations with smaller
 * numbers. Queues of different contexts and devices are independent: they are ordered by events alone.
 *
 * An operation is performed as soon as it is submitted, unless a host function (host_function.c) holds it back. With
 * SIMGPU_DELAYED=1 it is performed later, as on a device: when a call waits for it and no sooner. So a too early reuse of
 * memory is noticed: the old work really writes to it afterwards, and simgpu_hazard reports it before.
 *
 * No query waits (cuda.h 13.0:16047: cuEventQuery answers CUDA_ERROR_NOT_READY). A query that finds pending work
 * performs one operation of it if it can, so that polling makes progress. A queue holds a limited number of operations,
 * as a device's queue does. Kernels compute nothing, so they only keep their place in the order. Work that is pending
 * when the process ends is never done. */
#include "work.h"

#define QUEUE_LIMIT 4096

struct Queue *work_queues;
static uint64_t newest; /* the number of the last operation */
static pthread_cond_t performed = PTHREAD_COND_INITIALIZER;

uint64_t sim_thread(void)
{
    static uint64_t threads;
    static __thread uint64_t number; /* unlike pthread_self, never reused by another thread */
    if (!number) number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    return number;
}

static struct Queue *queue_new(enum queue_kind kind, bool blocking, struct Context *context)
{
    struct Queue *q = work_queues;
    while (q && !(q->kind == UNUSED || (q->kind == ORPHAN && !q->first))) q = q->next;
    if (!q) {
        q = calloc(1, sizeof *q);
        q->next = work_queues;
        work_queues = q;
        sim_eventful = true;
    }
    q->kind = kind;
    q->blocking = blocking;
    q->context = context;
    q->thread = sim_thread();
    q->first = NULL;
    q->last = &q->first;
    return q;
}

static struct Queue *default_queue(enum queue_kind kind, struct Context *context)
{
    for (struct Queue *q = work_queues; q; q = q->next)
        if (q->kind == kind && q->context == context && (kind == LEGACY_QUEUE || q->thread == sim_thread())) return q;
    return NULL;
}

static struct Queue *queue_of(CUstream stream)
{
    if ((uint64_t)stream > 2) {
        if (!stream->queue) stream->queue = queue_new(STREAM_QUEUE, !(stream->flags & 1), stream->context);
        return stream->queue;
    }
    struct Context *context = context_current();
    if (!context) return NULL;
    enum queue_kind kind = stream == PER_THREAD ? THREAD_QUEUE : LEGACY_QUEUE;
    struct Queue *q = default_queue(kind, context);
    return q ? q : queue_new(kind, true, context);
}

struct Queue *work_queue(CUstream stream)
{
    return config()->delayed || host_functions_pending ? queue_of(stream) : NULL;
}

static void perform(const struct Work *w)
{
    switch (w->kind) {
    case WORK_FILL:
        for (size_t y = 0; y < w->height; y++) {
            char *row = w->to.base + y * w->to.pitch;
            if (w->element == 1) memset(row, w->value[0], w->width);
            else
                for (size_t x = 0; x < w->width; x += w->element) memcpy(row + x, w->value, w->element);
        }
        break;
    case WORK_COPY:
        for (size_t z = 0; z < w->depth; z++)
            for (size_t y = 0; y < w->height; y++)
                memmove(w->to.base + z * w->to.slice + y * w->to.pitch, w->from.base + z * w->from.slice + y * w->from.pitch,
                        w->width);
        break;
    case WORK_RELEASE: arena_give((uint64_t)w->to.base, w->width, w->shared); break;
    case WORK_NOTHING: case WORK_WAIT: case WORK_HOST: case WORK_CALLBACK: case WORK_VALUE: break;
    }
}

bool work_each_before(struct Queue *q, const struct Work *w, bool (*visit)(struct Queue *, uint64_t))
{
    bool all = w->kind != WORK_WAIT || visit(w->after, w->after_number);
    for (struct Queue *other = q->blocking ? work_queues : NULL; other; other = other->next) {
        if (other == q || other->context != q->context || !other->blocking) continue;
        if (q->kind == LEGACY_QUEUE || other->kind == LEGACY_QUEUE) all &= visit(other, w->number - 1);
    }
    return all;
}

void work_pop(struct Queue *q)
{
    struct Work *w = q->first;
    q->first = w->next;
    if (!q->first) q->last = &q->first;
    q->length--;
    free(w->owned);
    free(w);
    pthread_cond_broadcast(&performed);
}

bool work_run(struct Queue *q, uint64_t last)
{
    while (work_remains(q, last)) {
        struct Work *w = q->first;
        if (w->running || !work_each_before(q, w, work_run)) return false;
        if (is_host_function(w)) {
            w->running = true;
            pthread_cond_signal(&q->turn);
            return false;
        }
        perform(w);
        work_pop(q);
    }
    return true;
}

static void wait_for(struct Queue *q, uint64_t last)
{
    while (!work_run(q, last)) {
        if (config()->delayed) host_functions_progress();
        pthread_cond_wait(&performed, &sim_mutex);
    }
}

uint64_t work_next_number(void) { return newest + 1; }

uint64_t work_add(struct Queue *q, struct Work work)
{
    while (q->length >= QUEUE_LIMIT) wait_for(q, q->first->number);
    struct Work *w = malloc(sizeof *w);
    *w = work;
    w->next = NULL;
    uint64_t number = w->number = ++newest;
    *q->last = w;
    q->last = &w->next;
    q->length++;
    if (is_host_function(w)) host_function_added(q, w);
    if (!config()->delayed) work_run(q, number);
    return number;
}

void work_submit(CUstream stream, struct Work work)
{
    struct Queue *q = is_host_function(&work) ? queue_of(stream) : work_queue(stream);
    if (q) work_add(q, work);
    else perform(&work);
}

void work_wait(struct Queue *q)
{
    /* The end of the legacy stream comes after the work of the blocking streams. */
    uint64_t last = q->kind == LEGACY_QUEUE ? work_add(q, (struct Work){.kind = WORK_NOTHING}) : newest;
    wait_for(q, last);
}

void work_wait_for(struct Queue *q, uint64_t number) { if (q) wait_for(q, number); }

static bool covered(const struct Context *user, const struct Context *context) { return context_covers(context, user); }
static bool any(const struct Context *user, const struct Context *context) { (void)user, (void)context; return true; }

static void wait_where(bool (*wanted)(const struct Context *, const struct Context *), const struct Context *context)
{
    uint64_t last = newest;
    for (struct Queue *q = work_queues; q; q = q->next)
        if (q->first && q->context && wanted(q->context, context)) wait_for(q, last);
}

/* The end of all work that a context has now, as the number of an operation in a queue that no stream has. NULL if all
 * work is done. */
struct Queue *work_context_end(struct Context *context, uint64_t *number)
{
    if (!config()->delayed && !host_functions_pending) return NULL;
    struct Queue *end = queue_new(ORPHAN, false, context);
    uint64_t last = newest;
    for (struct Queue *q = work_queues; q; q = q->next)
        if (q != end && q->first && q->context && covered(q->context, context))
            work_add(end, (struct Work){.kind = WORK_WAIT, .after = q, .after_number = last});
    *number = work_add(end, (struct Work){.kind = WORK_NOTHING});
    return end;
}

void work_wait_context(struct Context *context) { wait_where(covered, context); }
void work_wait_users(struct Context *owner) { wait_where(context_may_touch, owner); }
void work_wait_all(void) { wait_where(any, NULL); }

bool work_pending(struct Queue *q, uint64_t number)
{
    if (!q || !work_remains(q, number)) return false;
    work_run(q, q->first->number);
    return true;
}

bool work_stream_pending(CUstream stream)
{
    struct Queue *q = work_queue(stream);
    if (!q) return false;
    bool others = false;
    for (struct Queue *other = work_queues; other && q->kind == LEGACY_QUEUE; other = other->next)
        others |= other->context == q->context && other->blocking && other->first;
    if (others && !q->first) work_add(q, (struct Work){.kind = WORK_NOTHING});
    return work_pending(q, newest);
}

void work_stream_gone(struct Stream *stream)
{
    if (stream->queue) stream->queue->kind = ORPHAN;
}

void work_context_gone(struct Context *context)
{
    for (struct Queue *q = work_queues; q; q = q->next)
        if (q->context == context) {
            q->kind = q->first ? ORPHAN : UNUSED;
            q->context = NULL;
        }
}

void work_context_moves(struct Context *from, struct Context *to)
{
    for (struct Queue *q = work_queues; q; q = q->next)
        if (q->context == from) {
            q->kind = q->first ? ORPHAN : UNUSED;
            q->context = to;
        }
}
