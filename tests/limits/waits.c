/* A thread is held by a latch of the simulator inside a wait of the library, in the free of the few bytes by which the
 * library waits beside captures. Meanwhile the device is measured, because memory of it grows. Prints what the quota counts
 * and what the process holds, after the wait has ended. */
#include "client.h"
#include "shim.h"
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static CUcontext context;
static CUdeviceptr block;

/* The library does not wait beside captures before the job has begun one. */
static void capture(void)
{
    CUstream stream;
    CUgraph graph;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuStreamDestroy_v2(stream));
}

static void *frees(void *unused)
{
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemFree_v2(block));
    return unused;
}

int main(void)
{
    pthread_t thread;
    CUdeviceptr grown;
    struct vramshim_limit limit;
    __typeof__(&vramshim_limit) limit_of = library_function(vramshim_limit);
    context = start_cuda();
    capture();
    CHECK(cuMemAlloc_v2(&block, MIB));
    /* A device is measured once a second at most. */
    usleep(1100000);
    pthread_create(&thread, NULL, frees, NULL);
    while (access("cuMemFree.waiting", F_OK)) usleep(1000);
    /* The one grows, and the other finds that the device is to be measured. */
    CHECK(cuMemAlloc_v2(&grown, 256 * MIB));
    CHECK(cuMemAlloc_v2(&grown, MIB));
    close(creat("cuMemFree.open", 0600));
    pthread_join(thread, NULL);
    THAT(limit_of && limit_of(0, &limit) == 0);
    printf("{\"used\":%llu}\n", (unsigned long long)limit.used);
    checkpoint();
    return 0;
}
