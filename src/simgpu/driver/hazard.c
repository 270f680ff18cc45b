/* Hazards: memory that has another owner, or none, while pending work of any device may still touch it. Work is pending
 * with SIMGPU_DELAYED=1, or behind a host function. */
#include "work.h"

static uint64_t hazards;

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

static uint64_t pending_on(uint64_t address, uint64_t size)
{
    uint64_t count = 0;
    for (struct Queue *q = work_queues; q; q = q->next)
        for (struct Work *w = q->first; w; w = w->next) count += touches(w, address, size);
    return count;
}

void work_unmapped(uint64_t address, uint64_t size)
{
    for (struct Queue *q = work_queues; q; q = q->next)
        for (struct Work *w = q->first; w; w = w->next)
            if (touches(w, address, size)) {
                hazards++;
                w->kind = WORK_NOTHING; /* on a device this would be an access to unmapped memory */
            }
}

void work_freed(uint64_t address, uint64_t size) { hazards += pending_on(address, size); }

static bool mark(struct Queue *q, uint64_t last)
{
    if (q->marked >= last) return true;
    uint64_t from = q->marked;
    q->marked = last;
    for (struct Work *w = q->first; w && w->number <= last; w = w->next)
        if (w->number > from) work_each_before(q, w, mark);
    return true;
}

/* The number of pending operations that touch the range and are not ordered before the next operation of `q`. */
static uint64_t unordered(struct Queue *q, uint64_t address, uint64_t size)
{
    uint64_t next = work_next_number(), count = 0;
    for (struct Queue *other = work_queues; other; other = other->next) other->marked = 0;
    mark(q, next - 1);
    work_each_before(q, &(struct Work){.kind = WORK_RELEASE, .number = next}, mark);
    for (struct Queue *other = work_queues; other; other = other->next)
        for (struct Work *w = other->first; w; w = w->next)
            if (w->number > other->marked && touches(w, address, size)) count++;
    return count;
}

bool work_release(CUstream stream, uint64_t address, uint64_t size, bool shared)
{
    struct Queue *q = work_queue(stream);
    if (!q) return false;
    /* Such work may still use the memory when it has another owner. */
    hazards += unordered(q, address, size);
    work_add(q, (struct Work){.kind = WORK_RELEASE, .to.base = (char *)address, .width = size, .shared = shared});
    return true;
}

API uint64_t simgpu_hazard(uint64_t address, uint64_t size)
{
    pthread_mutex_lock(&sim_mutex);
    uint64_t count = pending_on(address, size);
    pthread_mutex_unlock(&sim_mutex);
    return count;
}

API uint64_t simgpu_unordered(uint64_t address, uint64_t size, CUstream stream)
{
    pthread_mutex_lock(&sim_mutex);
    struct Queue *q = stream_valid(stream) ? work_queue(stream) : NULL;
    uint64_t count = q ? unordered(q, address, size) : 0;
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
