/* Host functions (cuLaunchHostFunc, cuStreamAddCallback). They run on threads of the simulator, one for each queue, and
 * never on a thread of the job (cuda.h 13.0:18068: "The function will be called after currently enqueued work and will
 * block work added after it"). The lock is free while one runs, so it may run for long and wait for threads that call
 * the driver. The driver may run host functions of independent streams one by one (cuda.h 13.0:18073). Here they run at
 * once, because tests use them for what kernels do: the halves of a collective wait for each other.
 *
 * A host function may call no CUDA function (cuda.h 13.0:18070); see sim_enter.
 *
 * Without SIMGPU_DELAYED a host function begins as soon as the work before it is done. With it, a host function begins
 * when a call waits for it, or waits for any other host function, because host functions may wait for each other. If
 * no call does so, it begins after BEGIN_MS, because a program may wait for it without a call. */
#include "work.h"
#include <errno.h>
#include <signal.h>
#include <time.h>

enum { BEGIN_MS = 500 };

unsigned host_functions_pending;
IN_HOST_FUNCTION;

static struct Work *next_host_function(const struct Queue *q)
{
    struct Work *w = q->host_functions ? q->first : NULL;
    while (w && (w->running || !is_host_function(w))) w = w->next;
    return w;
}

static void call_first(struct Queue *q)
{
    struct Work work = *q->first;
    pthread_mutex_unlock(&sim_mutex);
    in_host_function = true;
    if (work.kind == WORK_VALUE) value_wait(&work);
    else if (work.kind == WORK_HOST) work.function(work.data);
    else work.callback(work.stream, CUDA_SUCCESS, work.data);
    in_host_function = false;
    pthread_mutex_lock(&sim_mutex);
    q->host_functions--;
    host_functions_pending--;
    work_pop(q);
    for (struct Queue *other = config()->delayed ? NULL : work_queues; other; other = other->next) work_run(other, ~0ull);
}

static void *host_thread(void *queue)
{
    struct Queue *q = queue;
    pthread_mutex_lock(&sim_mutex);
    for (;;) {
        struct Work *next = next_host_function(q);
        if (q->first && q->first->running) call_first(q);
        else if (!next) pthread_cond_wait(&q->turn, &sim_mutex);
        else if (pthread_cond_timedwait(&q->turn, &sim_mutex, &next->begin) == ETIMEDOUT && (next = next_host_function(q))) {
            next->begin.tv_sec++; /* if it has to wait for others now */
            work_run(q, next->number);
        }
    }
    return NULL;
}

static void start_thread(struct Queue *q)
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_cond_init(&q->turn, NULL);
    if (pthread_create(&thread, NULL, host_thread, q)) abort();
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    q->has_thread = true;
}

void host_function_added(struct Queue *q, struct Work *w)
{
    clock_gettime(CLOCK_REALTIME, &w->begin);
    w->begin.tv_nsec += BEGIN_MS * 1000000l;
    if (w->begin.tv_nsec >= 1000000000) w->begin.tv_sec++, w->begin.tv_nsec -= 1000000000;
    host_functions_pending++;
    if (q->host_functions++ == 0 && q->has_thread) pthread_cond_signal(&q->turn);
    if (!q->has_thread) start_thread(q);
}

void host_functions_progress(void)
{
    for (struct Queue *q = host_functions_pending ? work_queues : NULL; q; q = q->next) {
        struct Work *next = next_host_function(q);
        if (next) work_run(q, next->number);
    }
}
