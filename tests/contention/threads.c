/* Threads that use the same memory, pages and pools at the same time.
 *
 *   threads crossing   several contexts have segments in the same pages of 2 MiB; some threads make subpools and borrow slabs,
 *                      some ask about addresses, some obtain segments and give them back. A deadlock hangs the program
 *   threads rivals     several threads free the same blocks, which is an error of the job: for each block one succeeds, and
 *                      CUDA reports an error to the others. Prints how many frees succeeded, and a checkpoint
 *   threads pools      each thread has a pool of the driver, which gives memory back at each wait. A round ends with memory
 *                      live in the pools of the threads with odd numbers. Prints a checkpoint in the last round */
#include "client.h"
#include <pthread.h>

static CUcontext context;
static pthread_barrier_t all_there;

enum { BLOCKS = 600, CONTEXTS = 4, STEPS = 200 };
/* Larger than a chunk, so a block of this size takes a segment of its own; and no multiple of a page. */
static const size_t SEGMENT = (1 << 20) + 8192;

static CUcontext contexts[CONTEXTS];
static atomic_int crowding;

static void *crowds(void *number)
{
    CUdeviceptr blocks[BLOCKS];
    unsigned seed = (unsigned)(size_t)number;
    CHECK(cuCtxSetCurrent(contexts[0]));
    for (int step = 0; step < STEPS; step++) {
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

static void crossing(void)
{
    static void *(*const work[])(void *) = {crowds, crowds, crowds, crowds, asks, asks, asks, asks, grows, grows, grows, grows, grows, grows};
    enum { THREADS = sizeof work / sizeof *work };
    pthread_t threads[THREADS];
    CUdeviceptr address;
    CHECK(cuInit(0));
    for (int device = 0; device < CONTEXTS; device++) CHECK(cuDevicePrimaryCtxRetain(&contexts[device], device));
    for (int i = 0; i < 20 * CONTEXTS; i++) {
        CHECK(cuCtxSetCurrent(contexts[i % CONTEXTS]));
        CHECK(cuMemAlloc_v2(&address, SEGMENT));
    }
    for (int n = 0; n < THREADS; n++) crowding += work[n] == crowds;
    for (size_t n = 0; n < THREADS; n++) pthread_create(&threads[n], NULL, work[n], (void *)n);
    for (size_t n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
}

enum { RIVALS = 4, CONTESTED = 20000 };
static CUdeviceptr addresses[CONTESTED];
static _Atomic long freed;

static void *free_all(void *unused)
{
    (void)unused;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&all_there);
    for (size_t i = 0; i < CONTESTED; i++) {
        CUresult result = cuMemFree_v2(addresses[i]);
        THAT(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
        freed += result == CUDA_SUCCESS;
    }
    return NULL;
}

static void rivals(void)
{
    pthread_t ids[RIVALS];
    context = start_cuda();
    for (size_t i = 0; i < CONTESTED; i++) CHECK(cuMemAlloc_v2(&addresses[i], 512 * (1 + i % 64)));
    pthread_barrier_init(&all_there, NULL, RIVALS);
    for (int n = 0; n < RIVALS; n++) pthread_create(&ids[n], NULL, free_all, NULL);
    for (int n = 0; n < RIVALS; n++) pthread_join(ids[n], NULL);
    printf("freed %ld\n", freed);
    checkpoint();
}

enum { POOLS = 16, ROUNDS = 200, BYTES = 20 << 20 };
static CUmemoryPool pools[POOLS];

static void *grows_and_shrinks(void *number)
{
    size_t own = (size_t)number;
    CUdeviceptr address;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&all_there);
    CHECK(cuMemAllocFromPoolAsync(&address, BYTES, pools[own], NULL));
    CHECK(cuMemFreeAsync(address, NULL));
    CHECK(cuMemPoolTrimTo(pools[own], 0));
    if (own % 2 == 0) return NULL;
    CHECK(cuMemAllocFromPoolAsync(&address, BYTES, pools[own], NULL));
    *count_of(0, ASYNC) += BYTES;
    return (void *)(size_t)address;
}

static void driver_pools(void)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    context = start_cuda();
    pthread_barrier_init(&all_there, NULL, POOLS);
    for (size_t n = 0; n < POOLS; n++) CHECK(cuMemPoolCreate(&pools[n], &properties));
    for (int round = ROUNDS; round > 0; round--) {
        pthread_t ids[POOLS];
        void *kept[POOLS];
        for (size_t n = 0; n < POOLS; n++) pthread_create(&ids[n], NULL, grows_and_shrinks, (void *)n);
        for (size_t n = 0; n < POOLS; n++) pthread_join(ids[n], &kept[n]);
        if (round == 1) checkpoint();
        for (size_t n = 0; n < POOLS; n++) {
            if (round == 1 || !kept[n]) continue;
            CHECK(cuMemFreeAsync((CUdeviceptr)(size_t)kept[n], NULL));
            *count_of(0, ASYNC) -= BYTES;
        }
        CHECK(cuCtxSynchronize());
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"crossing", crossing}, {"rivals", rivals}, {"pools", driver_pools}};
    return PLAY(scenes, argc, argv);
}
