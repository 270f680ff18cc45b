/* Several threads free the same blocks, which is an error of the job. For each block one thread succeeds, and CUDA
 * reports an error to the others.
 *
 *   rivals THREADS BLOCKS
 *
 * Prints how many frees succeeded, and a checkpoint. */
#include "client.h"
#include <pthread.h>

enum { MOST = 100000 };

static CUcontext context;
static CUdeviceptr addresses[MOST];
static size_t blocks;
static _Atomic long freed;
static pthread_barrier_t all_there;

static void *free_all(void *unused)
{
    (void)unused;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&all_there);
    for (size_t i = 0; i < blocks; i++) {
        CUresult result = cuMemFree_v2(addresses[i]);
        THAT(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
        freed += result == CUDA_SUCCESS;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "usage: rivals THREADS BLOCKS\n"), 2;
    unsigned threads = (unsigned)atoi(argv[1]);
    blocks = (size_t)atoi(argv[2]);
    context = start_cuda();
    for (size_t i = 0; i < blocks; i++) CHECK(cuMemAlloc_v2(&addresses[i], 512 * (1 + i % 64)));
    pthread_t ids[16];
    pthread_barrier_init(&all_there, NULL, threads);
    for (unsigned n = 0; n < threads; n++) pthread_create(&ids[n], NULL, free_all, NULL);
    for (unsigned n = 0; n < threads; n++) pthread_join(ids[n], NULL);
    printf("freed %ld\n", freed);
    checkpoint();
    return 0;
}
