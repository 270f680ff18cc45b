/* A thread that is cancelled at once. It must go through all its calls, and end at a cancellation point of its own. */
#ifndef CANCELLED_H
#define CANCELLED_H

#include "client.h"
#include <pthread.h>
#include <stdbool.h>

static bool went_through;

static void *is_cancelled(void *calls)
{
    CHECK(pthread_cancel(pthread_self()));
    ((void (*)(void))calls)();
    went_through = true;
    pthread_testcancel();
    return NULL;
}

static void cancelled_during(void (*calls)(void))
{
    pthread_t thread;
    void *end = NULL;
    pthread_create(&thread, NULL, is_cancelled, (void *)calls);
    pthread_join(thread, &end);
    THAT(went_through && end == PTHREAD_CANCELED);
}

#endif
