/* Forks children that use CUDA, while threads of the parent format local time and so often hold the C library's lock of the
 * time zone. A child in which that lock is held can format no local time. Prints the number of children that did not end
 * within 20 seconds. */
#include "client.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHILDREN = 40, THREADS = 3 };

static void *format_times(void *unused)
{
    for (time_t now = 0;; now += 3600) {
        struct tm parts;
        localtime_r(&now, &parts);
    }
    return unused;
}

static void use_cuda(void)
{
    CUcontext context;
    CUdeviceptr address;
    alarm(60);
    CHECK(cu(cuInit)(0));
    CHECK(cu(cuCtxCreate_v2)(&context, 0, 0));
    CHECK(cu(cuMemAlloc_v2)(&address, 4096));
    CHECK(cu(cuMemFree_v2)(address));
    _exit(0);
}

int main(void)
{
    int stuck = 0;
    setenv("TZ", "Europe/Zurich", 1);
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, format_times, NULL);
    }
    for (int i = 0; i < CHILDREN; i++) {
        usleep(1000);
        pid_t child = fork();
        if (child == 0) use_cuda();
        int status = 0;
        waitpid(child, &status, 0);
        if (status != 0) stuck++;
        if (stuck) break;
    }
    printf("%d\n", stuck);
    return 0;
}
