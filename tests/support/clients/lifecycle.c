/* Processes that start, fork, exec and end in every way while they hold GPU memory.
 *
 *   lifecycle SCENE      prints the results of its calls */
#ifdef STATIC /* a statically linked program, into which no library can be preloaded */
#include <stdio.h>
int main(void) { return puts("static") < 0; }
#else
#include "client.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static CUdeviceptr allocate(size_t size)
{
    static CUcontext context;
    CUdeviceptr address = 0;
    if (!context) context = start_cuda();
    printf("allocate %zu: %d\n", size, cuMemAlloc_v2(&address, size));
    fflush(stdout);
    return address;
}

static void wait_for(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child) exit(1);
    printf("child: %s %d\n", WIFEXITED(status) ? "exit" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static atomic_int stop;
static CUcontext shared;

static void *churn(void *unused)
{
    CHECK(cuCtxSetCurrent(shared));
    while (!stop) {
        CUdeviceptr address;
        CHECK(cuMemAlloc_v2(&address, 4096));
        CHECK(cuMemFree_v2(address));
    }
    return unused;
}

/* Forks while other threads are inside CUDA calls. A child that hangs ends by SIGALRM. */
static void fork_in_a_storm(int forks)
{
    pthread_t threads[3];
    allocate(100);
    CHECK(cuCtxGetCurrent(&shared));
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, churn, NULL);
    int good = 0;
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        if (child == 0) {
            CUdeviceptr address;
            alarm(60);
            _exit(cuMemAlloc_v2(&address, 4096) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
        }
        int status;
        waitpid(child, &status, 0);
        good += status == 0;
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    printf("good children: %d\n", good);
}

int main(int argc, char **argv)
{
    const char *scene = argc == 2 ? argv[1] : "";
    pid_t child;
    if (!strcmp(scene, "none")) return puts("nothing"), 0;
    if (!strcmp(scene, "use")) return cuMemFree_v2(allocate(1000)), 0;
    if (!strcmp(scene, "hold")) return allocate(1000), allocate(3000), 0;
    if (!strcmp(scene, "status")) return allocate(1000), 33;
    if (!strcmp(scene, "_exit")) allocate(1000), _exit(9);
    if (!strcmp(scene, "abort")) allocate(1000), abort();
    if (!strcmp(scene, "fork before")) {
        fflush(stdout);
        if ((child = fork()) == 0) return allocate(4096), 3;
        wait_for(child);
        allocate(8192);
        return 4;
    }
    if (!strcmp(scene, "fork after")) {
        allocate(8192);
        if ((child = fork()) == 0) {
            CUdeviceptr address;
            printf("child allocates: %d\n", cuMemAlloc_v2(&address, 4096));
            exit(3);
        }
        wait_for(child);
        allocate(100);
        return 4;
    }
    if (!strcmp(scene, "fork idle")) { /* the child makes no CUDA call and exits */
        allocate(8192);
        if ((child = fork()) == 0) exit(3);
        wait_for(child);
        raise(SIGKILL);
    }
    if (!strcmp(scene, "vfork")) {
        allocate(8192);
        if ((child = vfork()) == 0) _exit(7);
        wait_for(child);
        fflush(stdout);
        raise(SIGKILL);
    }
    if (!strcmp(scene, "exec")) {
        allocate(8192);
        fflush(stdout);
        execl("/proc/self/exe", "lifecycle", "hold", NULL);
    }
    if (!strcmp(scene, "threads")) {
        allocate(1000);
        char line[256];
        FILE *status = fopen("/proc/self/status", "r");
        while (fgets(line, sizeof line, status))
            if (!strncmp(line, "Threads", 7)) fputs(line, stdout);
        return 0;
    }
    if (!strcmp(scene, "storm")) return fork_in_a_storm(200), 0;
    fprintf(stderr, "no such scene: %s\n", scene);
    return 2;
}
#endif
