/* While a thread waits for work inside cuMemFree, cuMemFreeHost or a copy that is not asynchronous, it holds its context:
 * calls of other threads that allocate, launch, make a stream, or make, record or destroy an event wait too, until the work
 * is done. A wait in cuCtxSynchronize, cuStreamSynchronize or cuEventSynchronize holds up no other thread. Mapping,
 * questions, cuEventQuery and cuStreamWaitEvent never wait. Measured on an H100 and an H200 with driver 580
 * (tests/assumptions/beside.c).
 * SIMGPU_WAITS_HOLD=0 switches it off. */
#include "sim.h"

enum { MOST_HELD = 64 };
static struct { struct Context *context; uint64_t holder; unsigned depth; } held[MOST_HELD];
static unsigned held_count;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;

static int place_of(const struct Context *context)
{
    for (int i = 0; i < MOST_HELD; i++)
        if (held[i].context == context) return i;
    return -1;
}

void context_passes(struct Context *context)
{
    if (!held_count) return;
    uint64_t me = sim_thread();
    context = context_owner(context);
    for (int i; context && (i = place_of(context)) >= 0 && held[i].holder != me;) pthread_cond_wait(&let_go, &sim_mutex);
}

struct Context *context_hold(struct Context *context)
{
    context = context_owner(context);
    if (!config()->waits_hold || !context) return NULL;
    context_passes(context);
    int i = place_of(context);
    if (i < 0) i = place_of(NULL);
    if (i < 0) return NULL;
    held[i].context = context;
    held[i].holder = sim_thread();
    held_count += held[i].depth++ == 0;
    return context;
}

void context_let_go(const struct Context *hold)
{
    int i = hold ? place_of(hold) : -1;
    if (i < 0 || held[i].holder != sim_thread() || --held[i].depth) return;
    held[i].context = NULL;
    held_count--;
    pthread_cond_broadcast(&let_go);
}
