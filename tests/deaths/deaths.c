/* Ways in which a job dies of memory, or seems to, each as a program that can be run by hand:
 *
 *   vramshim run --sim 24GiB -- target/deaths SCENE; vramshim why vramshim-deaths
 *
 *   full        holds 22 GiB and asks for 3 more
 *   fragmented  holds every second GiB and asks for 2 in one piece, on a device that needs one piece for each request
 *   cached      the same; the free GiB lie in the memory of a strategy (--strategy naive_best_fit)
 *   limit       asks for more than --limit allows, 8GiB for example
 *   refused     asks 60 times in vain for more than --limit 8GiB allows, and then for one MiB more
 *   other       another process, which it starts, holds 20 GiB
 *   rank        the same, but the process is rank 1 of this job
 *   leak        keeps 8 MiB of what each step allocates
 *   larger      asks for 40 GiB at once
 *   killed      is killed by SIGKILL while it holds 4 GiB
 *   driver      the driver fails
 *   host        the host gives no memory to pin
 *   again       asks twice for what it cannot get, with the library that LOADS names loaded
 *   beside      holds 14 GiB of the driver's pool and 4 GiB of its own, and asks for 8 GiB of its own
 *   pooled      the same, and asks for 8 GiB of the pool
 *   stream      holds MiB of the driver's pool and of its own, and asks for MiB of the pool: stream 12 1000 16
 *   meanwhile   asks for 22 GiB while it holds 4; another thread allocates 1 MiB before the process aborts
 *   async       asks on a stream of its own for more than there is, by cuMemAllocAsync; prints the stream's handle
 *   tensor      the same by vramshim_torch_alloc
 *   renamed     renames the folder of its journal, then asks for 40 GiB at once
 *   well        ends well
 *
 * For the simulated GPU a scene sets what it needs: contexts of 300 MiB, faults, memory in pieces. A scene that runs out
 * of memory prints what the simulated GPU says of the device, and exits with 1. */
#include "client.h"
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static CUdeviceptr must(size_t bytes)
{
    *count_of(0, LINEAR) += (long long)bytes;
    return linear_memory(bytes);
}

static void give(CUdeviceptr address, size_t bytes)
{
    CHECK(cu(cuMemFree_v2)(address));
    *count_of(0, LINEAR) -= (long long)bytes;
}

static void last(size_t bytes)
{
    CUdeviceptr address;
    CUresult result = cu(cuMemAlloc_v2)(&address, bytes);
    if (result == CUDA_SUCCESS) {
        *count_of(0, LINEAR) += (long long)bytes;
        return;
    }
    checkpoint();
    fprintf(stderr, "deaths: cuMemAlloc of %zu bytes failed with CUDA error %d\n", bytes, result);
    exit(1);
}

static void *sleep_on(void *unused)
{
    for (;;) pause();
    return unused;
}

static void hold(size_t bytes)
{
    /* As with a real driver there is another thread, so that the library notes again and again that the job is alive. */
    pthread_t thread;
    THAT(pthread_create(&thread, NULL, sleep_on, NULL) == 0);
    start_cuda();
    must(bytes);
    printf("holds\n");
    fflush(stdout);
    while (getchar() != EOF) continue;
}

/* Starts this program once more, which holds `bytes` until this process ends. */
static void start_another(char *self, size_t bytes, int is_rank)
{
    int answer[2], input[2];
    char text[32], first;
    snprintf(text, sizeof text, "%zu", bytes);
    if (pipe(answer) || pipe(input)) exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(input[0], 0);
        dup2(answer[1], 1);
        close(input[1]);
        if (is_rank) setenv("RANK", "1", 1);
        else unsetenv("LD_PRELOAD"); /* it is no process of this job */
        execl("/proc/self/exe", self, "hold", text, NULL);
        _exit(127);
    }
    close(input[0]);
    close(answer[1]);
    if (pid < 0 || read(answer[0], &first, 1) != 1) exit(1);
    printf("other %d\n", (int)pid);
}

static void full(void)
{
    for (int i = 0; i < 11; i++) must(2 * GIB);
    last(3 * GIB);
}

static void fragmented(void)
{
    CUdeviceptr blocks[64];
    int count = 0;
    while (count < 64) {
        if (cu(cuMemAlloc_v2)(&blocks[count], GIB) != CUDA_SUCCESS) break;
        *count_of(0, LINEAR) += (long long)GIB;
        count++;
    }
    for (int i = 0; i < count; i += 2) give(blocks[i], GIB);
    last(2 * GIB);
}

static void leak(void)
{
    for (;;) {
        CUdeviceptr temporary[16];
        for (int i = 0; i < 16; i++) temporary[i] = must(64 * MIB);
        for (int i = 0; i < 16; i++) give(temporary[i], 64 * MIB);
        last(8 * MIB);
    }
}

/* Asks twice, as frameworks do that give their cache back in between. */
static void again(void)
{
    CUdeviceptr address, cached;
    const char *library = getenv("LOADS");
    if (library) THAT(dlopen(library, RTLD_NOW));
    for (int i = 0; i < 7; i++) must(3 * GIB);
    cached = must(GIB);
    THAT(cu(cuMemAlloc_v2)(&address, 4 * GIB) != CUDA_SUCCESS);
    give(cached, GIB);
    last(4 * GIB);
}

static void on_stream(int as_tensor)
{
    CUdeviceptr address;
    CUstream stream = new_stream(0);
    printf("stream %p\n", (void *)stream);
    if (as_tensor) {
        void *(*alloc)(ptrdiff_t, int, void *) = dlsym(RTLD_DEFAULT, "vramshim_torch_alloc");
        THAT(alloc);
        alloc(40 * GIB, 0, stream);
    }
    else THAT(cu(cuMemAllocAsync)(&address, 40 * GIB, stream) != CUDA_SUCCESS);
}

static void hold_on_stream(size_t bytes)
{
    CUdeviceptr address;
    CHECK(cu(cuMemAllocAsync)(&address, bytes, NULL));
    CHECK(cu(cuStreamSynchronize)(NULL));
}

static void *allocate_a_little(void *unused)
{
    start_cuda();
    must(MIB);
    return unused;
}

int main(int argc, char **argv)
{
    const char *scene = argc > 1 ? argv[1] : "";
    setenv("SIMGPU_CONTEXT_BYTES", "300MiB", 0);
    if (strcmp(scene, "fragmented") == 0) setenv("SIMGPU_CONTIGUOUS", "1", 1);
    if (strcmp(scene, "driver") == 0) setenv("SIMGPU_FAULTS", "cuMemAlloc:3=719", 1);
    if (strcmp(scene, "host") == 0) setenv("SIMGPU_FAULTS", "cuMemHostAlloc:1=2", 1);
    if (strcmp(scene, "hold") == 0 && argc > 2) return hold(strtoull(argv[2], NULL, 10)), 0;
    int is_rank = strcmp(scene, "rank") == 0;
    if (is_rank || strcmp(scene, "other") == 0) start_another(argv[0], 20 * GIB, is_rank);
    start_cuda();
    if (strcmp(scene, "full") == 0) full();
    else if (strcmp(scene, "fragmented") == 0 || strcmp(scene, "cached") == 0) fragmented();
    else if (strcmp(scene, "limit") == 0) for (;;) last(GIB);
    else if (strcmp(scene, "refused") == 0) {
        must(GIB);
        for (int i = 0; i < 60; i++) {
            CUdeviceptr address;
            EXPECT(cu(cuMemAlloc_v2)(&address, 8 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
        }
        last(8 * GIB + MIB);
    }
    else if (is_rank || strcmp(scene, "other") == 0) must(2 * GIB), last(3 * GIB);
    else if (strcmp(scene, "leak") == 0) leak();
    else if (strcmp(scene, "again") == 0) again();
    else if (strcmp(scene, "beside") == 0) hold_on_stream(14 * GIB), must(4 * GIB), last(8 * GIB);
    else if (strcmp(scene, "pooled") == 0) {
        CUdeviceptr address;
        hold_on_stream(14 * GIB), must(4 * GIB);
        EXPECT(cu(cuMemAllocAsync)(&address, 8 * GIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
        return 1;
    } else if (strcmp(scene, "stream") == 0 && argc > 4) {
        CUdeviceptr address;
        hold_on_stream(atoll(argv[2]) * MIB), must(atoll(argv[3]) * MIB);
        EXPECT(cu(cuMemAllocAsync)(&address, atoll(argv[4]) * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
        return 1;
    } else if (strcmp(scene, "meanwhile") == 0) {
        CUdeviceptr address;
        pthread_t thread;
        must(4 * GIB);
        EXPECT(cu(cuMemAlloc_v2)(&address, 22 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
        THAT(pthread_create(&thread, NULL, allocate_a_little, NULL) == 0 && pthread_join(thread, NULL) == 0);
        abort();
    }
    else if (strcmp(scene, "async") == 0) on_stream(0);
    else if (strcmp(scene, "tensor") == 0) on_stream(1);
    else if (strcmp(scene, "larger") == 0) must(GIB), last(40 * GIB);
    else if (strcmp(scene, "renamed") == 0) {
        char name[PATH_MAX];
        snprintf(name, sizeof name, "%s.old", getenv("VRAMSHIM_DIR"));
        must(MIB);
        if (rename(getenv("VRAMSHIM_DIR"), name)) return perror("rename"), 1;
        last(40 * GIB);
    }
    else if (strcmp(scene, "killed") == 0) must(4 * GIB), raise(SIGKILL);
    else if (strcmp(scene, "driver") == 0) for (;;) last(GIB);
    else if (strcmp(scene, "host") == 0) {
        void *address;
        must(GIB);
        CUresult result = cu(cuMemHostAlloc)(&address, GIB, 0);
        fprintf(stderr, "deaths: cuMemHostAlloc failed with CUDA error %d\n", result);
        return 1;
    } else if (strcmp(scene, "well") == 0) must(GIB);
    else {
        fprintf(stderr, "usage: deaths SCENE, see the head of deaths.c\n");
        return 2;
    }
    return 0;
}
