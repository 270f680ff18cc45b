/* Threads whose pools of the driver grow and shrink on one device at the same time.
 *
 *   pools THREADS ROUNDS
 *
 * Each thread has a pool of its own, which gives memory back at each wait. A round ends with memory live in the pools of
 * the threads with odd numbers. Prints a checkpoint at the end of the last round. */
#include "client.h"
#include <pthread.h>

enum { MOST = 64, BYTES = 20 << 20 };

static CUcontext context;
static CUmemoryPool pools[MOST];
static pthread_barrier_t start;

static void *work(void *number)
{
    size_t own = (size_t)number;
    CUdeviceptr address;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&start);
    CHECK(cuMemAllocFromPoolAsync(&address, BYTES, pools[own], NULL));
    CHECK(cuMemFreeAsync(address, NULL));
    CHECK(cuMemPoolTrimTo(pools[own], 0));
    if (own % 2 == 0) return NULL;
    CHECK(cuMemAllocFromPoolAsync(&address, BYTES, pools[own], NULL));
    *count_of(0, ASYNC) += BYTES;
    return (void *)(size_t)address;
}

int main(int argc, char **argv)
{
    if (argc != 3 || atoi(argv[1]) > MOST) return fprintf(stderr, "usage: pools THREADS ROUNDS\n"), 2;
    size_t threads = (size_t)atoi(argv[1]);
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    context = start_cuda();
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (size_t n = 0; n < threads; n++) CHECK(cuMemPoolCreate(&pools[n], &properties));
    for (int round = atoi(argv[2]); round > 0; round--) {
        pthread_t ids[MOST];
        void *kept[MOST];
        for (size_t n = 0; n < threads; n++) pthread_create(&ids[n], NULL, work, (void *)n);
        for (size_t n = 0; n < threads; n++) pthread_join(ids[n], &kept[n]);
        if (round == 1) checkpoint();
        for (size_t n = 0; n < threads; n++) {
            if (round == 1 || !kept[n]) continue;
            CHECK(cuMemFreeAsync((CUdeviceptr)(size_t)kept[n], NULL));
            *count_of(0, ASYNC) -= BYTES;
        }
        CHECK(cuCtxSynchronize());
    }
    return 0;
}
