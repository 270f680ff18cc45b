/* With SIMGPU_DELAYED=1 work is done later than it is submitted, as on a device. Each stream has a queue. Its
 * operations are performed, oldest first, when a call waits for them, when a query polls, or when the queue is full. So
 * a too early reuse of memory is noticed: simgpu_hazard reports it, and the old work writes to the memory afterwards.
 *
 * An operation comes after the operations before it in its queue, and after the operation that its stream was told to
 * wait for. On the legacy default stream it comes after all earlier work of the context's blocking streams, and their
 * later work comes after it. Every operation has a number and waits only for operations with smaller numbers.
 *
 * Polling makes progress too: each query that finds pending work performs one operation. A queue holds a limited number
 * of operations, as a device's queue does. Kernels compute nothing, so they only keep their place in the order. Work
 * that is pending when the process ends is never done. */
#include "sim.h"

#define QUEUE_LIMIT 4096

struct Queue {
    enum queue_kind { UNUSED, LEGACY_QUEUE, THREAD_QUEUE, STREAM_QUEUE, ORPHAN } kind; /* ORPHAN: its stream was destroyed */
    bool blocking;
    struct Context *context;
    uint64_t thread; /* the thread whose default stream this is */
    struct Work *first, **last;
    unsigned length;
    uint64_t runner; /* the thread that is performing its first operation */
    uint64_t marked;
    struct Queue *next;
};

static struct Queue *queues; /* never shrinks; unused queues are reused */
static uint64_t newest;      /* the number of the last operation */
static uint64_t hazards;
static pthread_cond_t performed = PTHREAD_COND_INITIALIZER;

static uint64_t this_thread(void)
{
    static uint64_t threads;
    static __thread uint64_t number; /* unlike pthread_self, never reused by another thread */
    if (!number) number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    return number;
}

static struct Queue *queue_new(enum queue_kind kind, bool blocking, struct Context *context)
{
    struct Queue *q = queues;
    while (q && !(q->kind == UNUSED || (q->kind == ORPHAN && !q->first && !q->runner))) q = q->next;
    if (!q) {
        q = calloc(1, sizeof *q);
        q->next = queues;
        queues = q;
        sim_eventful = true;
    }
    q->kind = kind;
    q->blocking = blocking;
    q->context = context;
    q->thread = this_thread();
    q->first = NULL;
    q->last = &q->first;
    return q;
}

static struct Queue *default_queue(enum queue_kind kind, struct Context *context)
{
    for (struct Queue *q = queues; q; q = q->next)
        if (q->kind == kind && q->context == context && (kind == LEGACY_QUEUE || q->thread == this_thread())) return q;
    return NULL;
}

struct Queue *work_queue(CUstream stream)
{
    if (!config()->delayed) return NULL;
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
    case WORK_HOST:
        /* A host function of the job may run for long, and may wait for threads that call the driver. */
        pthread_mutex_unlock(&sim_mutex);
        w->function(w->data);
        pthread_mutex_lock(&sim_mutex);
        break;
    case WORK_CALLBACK:
        pthread_mutex_unlock(&sim_mutex);
        w->callback(w->stream, CUDA_SUCCESS, w->data);
        pthread_mutex_lock(&sim_mutex);
        break;
    case WORK_RELEASE: arena_give((uint64_t)w->to.base, w->width); break;
    case WORK_NOTHING: case WORK_WAIT: break;
    }
}

/* Visits every other queue whose operations come before an operation of `q`, with the number of the last of them. */
static void each_before(const struct Queue *q, const struct Work *w, void (*visit)(struct Queue *, uint64_t))
{
    if (w->kind == WORK_WAIT) visit(w->after, w->after_number);
    if (!q->blocking) return;
    for (struct Queue *other = queues; other; other = other->next) {
        if (other == q || other->context != q->context || !other->blocking) continue;
        if (q->kind == LEGACY_QUEUE || other->kind == LEGACY_QUEUE) visit(other, w->number - 1);
    }
}

static bool pending(const struct Queue *q, uint64_t last) { return q->first && q->first->number <= last; }

/* Performs the operations of `q` up to number `last`. May release the lock in between. */
static void run(struct Queue *q, uint64_t last)
{
    while (pending(q, last)) {
        if (q->runner == this_thread()) return; /* a host function called the driver, which CUDA forbids */
        if (q->runner) {
            pthread_cond_wait(&performed, &sim_mutex);
            continue;
        }
        struct Work *w = q->first;
        q->runner = this_thread();
        each_before(q, w, run);
        perform(w);
        q->first = w->next;
        if (!q->first) q->last = &q->first;
        q->length--;
        q->runner = 0;
        free(w->owned);
        free(w);
        pthread_cond_broadcast(&performed);
    }
}

uint64_t work_add(struct Queue *q, struct Work work)
{
    while (q->length >= QUEUE_LIMIT && q->runner != this_thread()) run(q, q->first->number);
    struct Work *w = malloc(sizeof *w);
    *w = work;
    w->next = NULL;
    w->number = ++newest;
    *q->last = w;
    q->last = &w->next;
    q->length++;
    return w->number;
}

void work_submit(CUstream stream, struct Work work)
{
    struct Queue *q = work_queue(stream);
    if (q) work_add(q, work);
    else perform(&work);
}

void work_wait(struct Queue *q)
{
    /* The end of the legacy stream comes after the work of the blocking streams. */
    uint64_t last = q->kind == LEGACY_QUEUE ? work_add(q, (struct Work){.kind = WORK_NOTHING}) : newest;
    run(q, last);
}

void work_wait_for(struct Queue *q, uint64_t number) { if (q) run(q, number); }

void work_wait_context(struct Context *context)
{
    uint64_t last = newest;
    for (struct Queue *q = queues; q; q = q->next)
        if (q->context == context && q->kind != UNUSED) run(q, last);
}

void work_wait_all(void)
{
    uint64_t last = newest;
    for (struct Queue *q = queues; q; q = q->next) run(q, last);
}

/* Whether operations up to `number` are pending. If so, the first operation of the queue is performed before the
 * return, so a job that asks again and again sees the work end. */
bool work_pending(struct Queue *q, uint64_t number)
{
    if (!q || !pending(q, number)) return false;
    run(q, q->first->number);
    return true;
}

bool work_stream_pending(CUstream stream)
{
    struct Queue *q = work_queue(stream);
    if (!q) return false;
    bool others = false;
    for (struct Queue *other = queues; other && q->kind == LEGACY_QUEUE; other = other->next)
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
    for (struct Queue *q = queues; q; q = q->next)
        if (q->context == context) q->kind = q->first ? ORPHAN : UNUSED;
}

/* ---- hazards */

static bool meets(const struct side *s, const struct Work *w, uint64_t address, uint64_t size)
{
    uint64_t start = (uint64_t)s->base;
    uint64_t end = start + (w->depth - 1) * s->slice + (w->height - 1) * s->pitch + w->width;
    return start < address + size && address < end;
}

static bool touches(const struct Work *w, uint64_t address, uint64_t size)
{
    if ((w->kind != WORK_FILL && w->kind != WORK_COPY) || !w->width || !w->height || !w->depth) return false;
    return meets(&w->to, w, address, size) || (w->kind == WORK_COPY && !w->owned && meets(&w->from, w, address, size));
}

void work_unmapped(uint64_t address, uint64_t size)
{
    for (struct Queue *q = queues; q; q = q->next)
        for (struct Work *w = q->first; w; w = w->next)
            if (touches(w, address, size)) {
                hazards++;
                w->kind = WORK_NOTHING; /* on a device this would be an access to unmapped memory */
            }
}

static void mark(struct Queue *q, uint64_t last)
{
    if (q->marked >= last) return;
    uint64_t from = q->marked;
    q->marked = last;
    for (struct Work *w = q->first; w && w->number <= last; w = w->next)
        if (w->number > from) each_before(q, w, mark);
}

bool work_release(CUstream stream, uint64_t address, uint64_t size)
{
    struct Queue *q = work_queue(stream);
    if (!q) return false;
    uint64_t freed = work_add(q, (struct Work){.kind = WORK_RELEASE, .to.base = (char *)address, .width = size});
    /* Work that is not ordered before the free may still use the memory when it has another owner. */
    for (struct Queue *other = queues; other; other = other->next) other->marked = 0;
    mark(q, freed);
    for (struct Queue *other = queues; other; other = other->next)
        for (struct Work *w = other->first; w; w = w->next)
            if (w->number > other->marked && touches(w, address, size)) hazards++;
    return true;
}

API uint64_t simgpu_hazard(uint64_t address, uint64_t size)
{
    uint64_t count = 0;
    pthread_mutex_lock(&sim_mutex);
    for (struct Queue *q = queues; q; q = q->next)
        for (struct Work *w = q->first; w; w = w->next) count += touches(w, address, size);
    pthread_mutex_unlock(&sim_mutex);
    return count;
}

API uint64_t simgpu_hazards(void)
{
    pthread_mutex_lock(&sim_mutex);
    uint64_t count = hazards;
    pthread_mutex_unlock(&sim_mutex);
    return count;
}
