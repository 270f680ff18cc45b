/* The queues of work.c, for the files that run host functions and count hazards. */
#ifndef SIMGPU_WORK_H
#define SIMGPU_WORK_H

#include "sim.h"

struct Queue {
    enum queue_kind { UNUSED, LEGACY_QUEUE, THREAD_QUEUE, STREAM_QUEUE, ORPHAN } kind; /* ORPHAN: its stream was destroyed */
    bool blocking;
    struct Context *context; /* NULL after its end */
    uint64_t thread; /* the thread whose default stream this is */
    struct Work *first, **last;
    unsigned length, host_functions;
    bool has_thread;     /* host_function.c runs the host functions of this queue on a thread of their own */
    pthread_cond_t turn; /* for this thread: a host function may begin, or was added */
    uint64_t marked;
    struct Queue *next;
};
extern struct Queue *work_queues; /* never shrinks; unused queues are reused */

/* Also a wait for a value in memory, which takes as long as somebody needs to write it. */
static inline bool is_host_function(const struct Work *w) { return w->kind == WORK_HOST || w->kind == WORK_CALLBACK || w->kind == WORK_VALUE; }
void value_wait(const struct Work *w); /* values.c */
static inline bool work_remains(const struct Queue *q, uint64_t last) { return q->first && q->first->number <= last; }

/* Performs the operations of `q` up to number `last`, and those that come before them. Never waits and keeps the lock.
 * Returns false if host functions hold some of them back: those that may begin have begun. */
bool work_run(struct Queue *q, uint64_t last);
void work_pop(struct Queue *q); /* removes the first operation, which was performed */
/* Visits every other queue whose operations come before an operation of `q`, with the number of the last of them.
 * Returns whether all visits returned true. */
bool work_each_before(struct Queue *q, const struct Work *w, bool (*visit)(struct Queue *, uint64_t));

/* ---- host_function.c */
void host_function_added(struct Queue *q, struct Work *w);
void host_functions_progress(void); /* called before a wait */

#endif
