/* A scheduler gives one process after the other the device. A process without its lock sleeps before the call that needs
 * the device. In nvshare (its hook.c) these are kernels and copies, and a daemon gives the lock. Here a thread stands for
 * the daemon, and allocations wait as well, which is stricter. Nothing waits for the context when the lock is taken away,
 * as nvshare does: that would break stream captures at random. */
#include "layer.h"
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER, given = PTHREAD_COND_INITIALIZER;
static bool runs, is_wanted, is_ours;
static unsigned long long waits;

static void sleep_a_slice(void)
{
    pthread_mutex_unlock(&lock);
    nanosleep(&(struct timespec){.tv_nsec = (long)habits.slice_microseconds * 1000}, NULL);
    pthread_mutex_lock(&lock);
}

/* Gives the lock a slice after it is asked for, and takes it away a slice later. */
static void *schedule(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!is_wanted) pthread_cond_wait(&asked, &lock);
        sleep_a_slice();
        is_ours = true;
        pthread_cond_broadcast(&given);
        sleep_a_slice();
        is_wanted = is_ours = false;
    }
    return NULL;
}

static void begin(void)
{
    pthread_t thread;
    runs = pthread_create(&thread, NULL, schedule, NULL) == 0;
}

void scheduler_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (habits.slice_microseconds) pthread_once(&once, begin);
}

void scheduler_admit(void)
{
    if (!runs) return;
    pthread_mutex_lock(&lock);
    if (!is_ours) waits++;
    while (!is_ours) {
        is_wanted = true;
        pthread_cond_signal(&asked);
        pthread_cond_wait(&given, &lock);
    }
    pthread_mutex_unlock(&lock);
}

API unsigned long long layer_waits(void)
{
    pthread_mutex_lock(&lock);
    unsigned long long so_far = waits;
    pthread_mutex_unlock(&lock);
    return so_far;
}
