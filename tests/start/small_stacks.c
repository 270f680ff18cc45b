/* Threads with small stacks allocate and free. The first one starts the library.
 *
 *   small_stacks KIB    the size of the stacks */
#include "client.h"
#include <pthread.h>

enum { THREADS = 3, MIB = 1 << 20 };

static CUcontext context;

static void *runs(void *unused)
{
    CUdeviceptr large, small;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc_v2(&large, 3 * MIB));
    CHECK(cuMemAlloc_v2(&small, 100));
    CHECK(cuMemFree_v2(large));
    CHECK(cuMemFree_v2(small));
    return unused;
}

int main(int argc, char **argv)
{
    if (argc != 2) return fprintf(stderr, "usage: small_stacks KIB\n"), 2;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    pthread_attr_t attributes;
    THAT(!pthread_attr_init(&attributes) && !pthread_attr_setstacksize(&attributes, (size_t)atoi(argv[1]) << 10));
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        THAT(!pthread_create(&thread, &attributes, runs, NULL) && !pthread_join(thread, NULL));
    }
    return 0;
}
