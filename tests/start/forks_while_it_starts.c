/* Forks while another thread starts the library. The child asks for memory and is told that CUDA is not initialised there.
 *
 *   forks_while_it_starts FORKS    prints how many children did not end by themselves */
#include "client.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 60 };

static CUcontext context;
static pthread_barrier_t both;

static void *starts(void *unused)
{
    CUdeviceptr address;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&both);
    CHECK(cuMemAlloc_v2(&address, 4096));
    CHECK(cuMemFree_v2(address));
    return unused;
}

int main(int argc, char **argv)
{
    int waits = 0, status;
    CUdeviceptr address;
    pthread_t thread;
    if (argc != 2) return fprintf(stderr, "usage: forks_while_it_starts FORKS\n"), 2;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, starts, NULL);
    pthread_barrier_wait(&both);
    for (int i = 0; i < atoi(argv[1]) && !waits; i++) {
        pid_t child = fork();
        if (!child) {
            alarm(SECONDS);
            _exit(cuMemAlloc_v2(&address, 4096) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
        }
        THAT(waitpid(child, &status, 0) == child);
        if (WIFSIGNALED(status)) waits++;
        else THAT(WEXITSTATUS(status) == 0);
    }
    pthread_join(thread, NULL);
    printf("%d\n", waits);
    return 0;
}
