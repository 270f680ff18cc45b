/* Several contexts have segments in the same pages of 2 MiB, and threads use these pages at the same time. Some threads
 * make subpools and borrow slabs, some ask about addresses, and some obtain segments and give them back. If there is a
 * deadlock, the program hangs.
 *
 *   crossing STEPS */
#include "client.h"
#include <pthread.h>

enum { BLOCKS = 600, CONTEXTS = 4 };
/* Larger than a chunk, so a block of this size takes a segment of its own; and no multiple of a page. */
static const size_t SEGMENT = (1 << 20) + 8192;

static CUcontext contexts[CONTEXTS];
static int steps;
static atomic_int crowding;

static void *crowds(void *number)
{
    CUdeviceptr blocks[BLOCKS];
    unsigned seed = (unsigned)(size_t)number;
    CHECK(cuCtxSetCurrent(contexts[0]));
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < BLOCKS; i++) CHECK(cuMemAlloc_v2(&blocks[i], 512 + (size_t)rand_r(&seed) % (512 << 10)));
        for (int i = 0; i < BLOCKS; i++) CHECK(cuMemFree_v2(blocks[i]));
    }
    crowding--;
    return NULL;
}

static void *asks(void *unused)
{
    CUdeviceptr address, base;
    size_t size;
    CHECK(cuCtxSetCurrent(contexts[0]));
    while (crowding) {
        CHECK(cuMemAlloc_v2(&address, 700));
        for (int i = 0; i < 50; i++) CHECK(cuMemGetAddressRange_v2(&base, &size, address + (CUdeviceptr)i));
        CHECK(cuMemFree_v2(address));
    }
    return unused;
}

static void *grows(void *number)
{
    CUdeviceptr blocks[4];
    CHECK(cuCtxSetCurrent(contexts[1 + (size_t)number % (CONTEXTS - 1)]));
    while (crowding) {
        for (int i = 0; i < 4; i++) CHECK(cuMemAlloc_v2(&blocks[i], SEGMENT));
        for (int i = 0; i < 4; i++) CHECK(cuMemFree_v2(blocks[i]));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static void *(*const work[])(void *) = {crowds, crowds, crowds, crowds, asks, asks, asks, asks, grows, grows, grows, grows, grows, grows};
    enum { THREADS = sizeof work / sizeof *work };
    pthread_t threads[THREADS];
    CUdeviceptr address;
    if (argc != 2) return fprintf(stderr, "usage: crossing STEPS\n"), 2;
    steps = atoi(argv[1]);
    CHECK(cuInit(0));
    for (int device = 0; device < CONTEXTS; device++) CHECK(cuDevicePrimaryCtxRetain(&contexts[device], device));
    for (int i = 0; i < 20 * CONTEXTS; i++) {
        CHECK(cuCtxSetCurrent(contexts[i % CONTEXTS]));
        CHECK(cuMemAlloc_v2(&address, SEGMENT));
    }
    for (int n = 0; n < THREADS; n++) crowding += work[n] == crowds;
    for (size_t n = 0; n < THREADS; n++) pthread_create(&threads[n], NULL, work[n], (void *)n);
    for (size_t n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    return 0;
}
