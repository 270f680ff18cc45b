/* Allocates and frees memory of every class at random, on two devices and from several threads, and counts its own
 * requests.
 *
 *   exercise SEED STEPS THREADS */
#include "items.h"
#include <pthread.h>
#include <unistd.h>

static pthread_barrier_t barrier;

static void *work(void *data)
{
    struct worker *w = data;
    for (int step = 1; step <= w->steps; step++) {
        struct item *i = &w->items[draw(&w->seed, ITEMS)];
        if (i->live) release(w, i);
        else allocate(w, i);
        if (step % 16 == 0) failures(w);
        if (step % 50 == 0) context_with_memory(w);
        if (step % 40 == 0) {
            CHECK(cu(cuCtxSetCurrent)(contexts[w->number & 1]));
            CHECK(cu(cuStreamSynchronize)(NULL));
            if (step % 80 == 0) CHECK(cu(cuMemPoolTrimTo)(pools[w->number & 1], 0));
            pthread_barrier_wait(&barrier);
            pthread_barrier_wait(&barrier); /* the main thread prints a checkpoint in between */
        }
    }
    return NULL;
}

/* Allocates on device 1 after its reset. The library must not mix the state before the reset with the new state. */
static void after_the_reset(struct worker *w)
{
    retain_and_make_pool(1);
    for (int step = 0; step < 100; step++) {
        struct item *i = &w->items[draw(&w->seed, ITEMS)];
        if (i->live) release(w, i);
        else allocate(w, i);
    }
    checkpoint();
}

static void destroy_pools(struct worker *workers, int threads)
{
    for (int t = 0; t < threads; t++)
        for (int n = 0; n < ITEMS; n++)
            if (workers[t].items[n].live && workers[t].items[n].kind == K_POOL) release(&workers[t], &workers[t].items[n]);
    for (int device = 0; device < DEVICES; device++) CHECK(cu(cuMemPoolDestroy)(pools[device]));
    checkpoint();
}

int main(int argc, char **argv)
{
    if (argc != 4) return fprintf(stderr, "usage: exercise SEED STEPS THREADS\n"), 2;
    int steps = atoi(argv[2]), threads = atoi(argv[3]);
    CHECK(cu(cuInit)(0));
    for (int device = 0; device < DEVICES; device++) retain_and_make_pool(device);
    checkpoint();
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    pthread_t ids[64];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (int t = 0; t < threads; t++) {
        workers[t] = (struct worker){.seed = strtoull(argv[1], NULL, 10) * 1000 + (unsigned)t, .number = threads == 1 ? -1 : t, .steps = steps};
        pthread_create(&ids[t], NULL, work, &workers[t]);
    }
    for (int round = 0; round < steps / 40; round++) {
        pthread_barrier_wait(&barrier);
        checkpoint();
        pthread_barrier_wait(&barrier);
    }
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    checkpoint();
    CHECK(cu(cuDevicePrimaryCtxReset_v2)(1));
    forget_memory_of(1, workers, threads);
    checkpoint();
    after_the_reset(&workers[0]);
    destroy_pools(workers, threads);
    print_live(workers, threads);
    return 0;
}
