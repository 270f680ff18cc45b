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
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
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

/* Memory that does not come by cuMemAlloc: of a stream, of graphs, and physical memory. Prints the results. */
static void allocate_otherwise(void)
{
    CUdeviceptr address;
    CUgraph graph;
    CUgraphNode node;
    CUmemGenericAllocationHandle handle;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = 4 << 20};
    CUmemAllocationProp physical = {.type = 1, .location = {1, 0}};
    start_cuda();
    CUstream stream = new_stream(NON_BLOCKING);
    CHECK(cuGraphCreate(&graph, 0));
    printf("%d", cuMemAllocAsync(&address, 4 << 20, stream));
    printf(" %d", cuGraphAddMemAllocNode(&node, graph, NULL, 0, &allocation));
    printf(" %d", cuMemCreate(&handle, 4 << 20, &physical, 0));
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    printf(" %d\n", cuMemAllocAsync(&address, 4 << 20, stream));
}

static void wait_for(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child) exit(1);
    printf("child: %s %d\n", WIFEXITED(status) ? "exit" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static atomic_int stop;
static CUcontext shared;
static pthread_barrier_t both;

static void share_a_context(void)
{
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&shared, 0));
}

static void *use_memory(void *unused)
{
    CUdeviceptr large, small;
    CHECK(cuCtxSetCurrent(shared));
    if (unused) pthread_barrier_wait(unused);
    do {
        CHECK(cuMemAlloc_v2(&large, 3 << 20));
        CHECK(cuMemAlloc_v2(&small, 4096));
        CHECK(cuMemFree_v2(large));
        CHECK(cuMemFree_v2(small));
    } while (unused && !stop);
    return NULL;
}

/* A child that hangs ends by SIGALRM. */
static int ends_well(void (*work)(void))
{
    int status = 1;
    pid_t child = fork();
    if (child == 0) alarm(60), work(), _exit(0);
    return waitpid(child, &status, 0) == child && status == 0;
}

static void is_refused(void)
{
    CUdeviceptr address;
    EXPECT(cuMemAlloc_v2(&address, 4096), CUDA_ERROR_NOT_INITIALIZED);
}

static void uses_cuda(void)
{
    shared = start_cuda();
    use_memory(NULL);
}

/* Forks while other threads start the library, and then are inside CUDA calls. */
static void fork_in_a_storm(int forks)
{
    pthread_t threads[3];
    share_a_context();
    pthread_barrier_init(&both, NULL, 4);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, use_memory, &both);
    pthread_barrier_wait(&both);
    for (int i = 0; i < forks; i++) THAT(ends_well(is_refused));
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

static void *format_times(void *unused)
{
    for (time_t now = 0; !unused; now += 3600) localtime_r(&now, &(struct tm){0});
    return unused;
}

/* Forks children that use CUDA, while threads format local time and so often hold the C library's lock of the time zone. A
 * child in which that lock is held can format no local time. */
static void fork_while_time_is_formatted(void)
{
    pthread_t thread;
    setenv("TZ", "Europe/Zurich", 1);
    for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, format_times, NULL);
    for (int i = 0; i < 40; i++) {
        usleep(1000);
        THAT(ends_well(uses_cuda));
    }
}

/* The first thread starts the library. */
static void use_small_stacks(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    share_a_context();
    THAT(!pthread_attr_init(&attributes) && !pthread_attr_setstacksize(&attributes, 28 << 10));
    for (int i = 0; i < 3; i++) THAT(!pthread_create(&thread, &attributes, use_memory, NULL) && !pthread_join(thread, NULL));
}

static atomic_int armed;

/* The library calls this as it grows its journal. A signal whose handler calls _exit arrives behind the system call. */
int fallocate(int fd, int mode, off_t offset, off_t length)
{
    long result = syscall(SYS_fallocate, fd, mode, offset, length);
    if (armed) raise(SIGTERM);
    return (int)result;
}

static void on_signal(int number) { _exit(number == SIGTERM ? 7 : 1); }

static void exit_in_a_handler(void)
{
    signal(SIGTERM, on_signal);
    shared = start_cuda();
    use_memory(NULL);
    armed = 1;
    for (int i = 0; i < 50000; i++) use_memory(NULL);
}

static void *rests(void *unused)
{
    for (;;) pause();
    return unused;
}

int main(int argc, char **argv)
{
    const char *scene = argc == 2 ? argv[1] : "";
    pid_t child;
    if (!strcmp(scene, "none")) return puts("nothing"), 0;
    if (!strcmp(scene, "use")) return cuMemFree_v2(allocate(1000)), 0;
    if (!strcmp(scene, "hold")) return allocate(1000), allocate(3000), 0;
    if (!strcmp(scene, "otherwise")) return allocate_otherwise(), 0;
    if (!strcmp(scene, "status")) return allocate(1000), 33;
    if (!strcmp(scene, "_exit")) allocate(1000), _exit(9);
    if (!strcmp(scene, "abort")) allocate(1000), abort();
    if (!strcmp(scene, "idle")) { /* a process that uses a GPU has threads of the driver */
        pthread_t thread;
        if (pthread_create(&thread, NULL, rests, NULL)) return 1;
        allocate(1 << 20);
        rests(NULL);
    }
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
    if (!strcmp(scene, "starting")) return fork_in_a_storm(4), 0;
    if (!strcmp(scene, "times")) return fork_while_time_is_formatted(), 0;
    if (!strcmp(scene, "small stacks")) return use_small_stacks(), 0;
    if (!strcmp(scene, "handler")) return exit_in_a_handler(), 0;
    fprintf(stderr, "no such scene: %s\n", scene);
    return 2;
}
#endif
