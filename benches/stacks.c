/* Allocates and frees at a depth of 20 calls. Prints the nanoseconds of a pair in each round.
 *
 *   stacks ROUNDS PAIRS */
#include "cuda_api.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long rounds, pairs;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

__attribute__((noinline)) int work(int depth)
{
    /* The result is used, so that no call is a jump. */
    if (depth > 1) return work(depth - 1) + 1;
    CUdeviceptr address;
    for (long round = 0; round < rounds; round++) {
        double begin = now();
        for (long pair = 0; pair < pairs; pair++)
            if (cuMemAlloc_v2(&address, 4096) || cuMemFree_v2(address)) exit(1);
        printf("%.1f\n", (now() - begin) / pairs);
    }
    return 1;
}

int main(int count, char **arguments)
{
    CUcontext context;
    if (count < 3 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    rounds = atol(arguments[1]), pairs = atol(arguments[2]);
    /* main is the twentieth frame. */
    return work(19) != 19;
}
