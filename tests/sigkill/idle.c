/* Allocates once, says so, and then makes no call until it is killed. It has a second thread, as every process that
 * uses a GPU has threads of the driver. */
#include "client.h"
#include <pthread.h>
#include <unistd.h>

static void *rests(void *unused)
{
    for (;;) pause();
    return unused;
}

int main(void)
{
    CUdeviceptr memory;
    pthread_t thread;
    if (pthread_create(&thread, NULL, rests, NULL)) return 1;
    start_cuda();
    CHECK(cuMemAlloc_v2(&memory, 1 << 20));
    printf("idle\n");
    fflush(stdout);
    for (;;) pause();
}
