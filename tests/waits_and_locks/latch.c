/* One thread is held in a call of the driver by a latch of the simulator. The other threads allocate and free idle blocks
 * 100,000 times and ask questions until they are done, and only then the latch is opened.
 *
 *   latch grow DRIVER_CALL    the held thread allocates more than the policy holds
 *   latch trim DRIVER_CALL    the held thread gives idle memory back to the driver
 *   latch ask DRIVER_CALL     the held thread allocates; the others only ask and free
 *   latch export DRIVER_CALL  the held thread shares a block with other processes; one was shared before
 *   latch free DRIVER_CALL    several threads are held in frees at the same time; others only ask
 *
 * Prints "held" if the thread was held in the call. Without a latch or without the library no thread is held, and the
 * scene ends all the same. */
#include "scenes.h"
#include <fcntl.h>

enum { THREADS = 3, HITS = 100000 / THREADS + 1, WARM = 32 * MIB, LARGE = 600 * MIB };

static const char *driver_call;

/* The path of the file by which the latch is opened ("open") or tells that a call waits ("waiting"). */
static const char *file(const char *kind)
{
    static __thread char path[4096];
    const char *folder = getenv("SIMGPU_LATCH_DIR");
    snprintf(path, sizeof path, "%s/%s.%s", folder ? folder : ".", driver_call, kind);
    return path;
}

static void open_latch(void)
{
    int made = creat(file("open"), 0600);
    THAT(made >= 0);
    close(made);
}

static void close_latch(void)
{
    unlink(file("waiting"));
    THAT(unlink(file("open")) == 0);
}

static atomic_bool held_thread_is_done;
static CUdeviceptr large;

static void *grows(void *unused)
{
    DO(cuCtxSetCurrent(context));
    DO(cuMemAlloc_v2(&large, LARGE));
    held_thread_is_done = true;
    return unused;
}

static void *trims(void *unused)
{
    DO(cuCtxSetCurrent(context));
    trim_library();
    held_thread_is_done = true;
    return unused;
}

static void *frees(void *block)
{
    DO(cuCtxSetCurrent(context));
    release((CUdeviceptr)(uintptr_t)block);
    held_thread_is_done = true;
    return NULL;
}

static CUdeviceptr shared_by_held;

static void share(CUdeviceptr block)
{
    CUipcMemHandle handle;
    const char *before = enter(HERE("cuIpcGetMemHandle"));
    cuIpcGetMemHandle(&handle, block);
    enter(before);
}

static void *shares(void *unused)
{
    DO(cuCtxSetCurrent(context));
    share(shared_by_held);
    held_thread_is_done = true;
    return unused;
}

static void questions(CUdeviceptr address, size_t size)
{
    CUdeviceptr base;
    CUdevice device;
    size_t length, free_bytes, total;
    DO(cuMemGetAddressRange_v2(&base, &length, address + size - 1));
    THAT(base == address && length == size);
    DO(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + size / 2));
    THAT(base == address);
    int attributes[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR};
    void *values[] = {&device, &base};
    DO(cuPointerGetAttributes(2, attributes, values, address));
    THAT(base == address && device == 0);
    DO(cuMemGetInfo_v2(&free_bytes, &total));
    THAT(free_bytes <= total);
    stats_of_library();
    __typeof__(&vramshim_account) account = library_function(vramshim_account);
    if (account) account(NULL, 0);
}

struct worker { pthread_t thread; bool only_asks; CUdeviceptr block, idle; };

static void *hits(void *data)
{
    struct worker *worker = data;
    DO(cuCtxSetCurrent(context));
    for (int i = 0; i < HITS; i++) {
        if (!worker->only_asks) release(allocate(64 * KIB * (size_t)(1 + i % 4)));
        if (i % 100 == 0) questions(worker->block, MIB);
    }
    if (worker->idle) release(worker->idle);
    return NULL;
}

/* Blocks of the sizes that the threads ask for, freed again by the thread itself. */
static void *warms(void *unused)
{
    DO(cuCtxSetCurrent(context));
    for (size_t i = 1; i <= 4; i++) release(allocate(64 * KIB * i));
    return unused;
}

static void hold(void *(*held)(void *), bool only_ask)
{
    struct worker workers[THREADS] = {0};
    pthread_t warm, thread;
    open_latch();
    release(allocate(WARM));
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.only_asks = only_ask, .block = allocate(MIB), .idle = allocate(MIB)};
        pthread_create(&warm, NULL, warms, NULL);
        join(warm);
    }
    /* More than a policy sets aside for each of the threads. */
    CUdeviceptr idle = allocate(256 * MIB);
    release(idle);
    shared_by_held = workers[0].block;
    if (held == shares) share(workers[1].block);
    close_latch();
    pthread_create(&thread, NULL, held, NULL);
    while (access(file("waiting"), F_OK) && !held_thread_is_done) usleep(1000);
    bool was_held = !held_thread_is_done;
    for (int i = 0; i < THREADS; i++) pthread_create(&workers[i].thread, NULL, hits, &workers[i]);
    for (int i = 0; i < THREADS; i++) join(workers[i].thread);
    THAT(!was_held || !held_thread_is_done);
    open_latch();
    join(thread);
    puts(was_held ? "held" : "not held");
    if (large) questions(large, LARGE), release(large);
    for (int i = 0; i < THREADS; i++) release(workers[i].block);
}

/* All frees reach the driver although none of its calls has returned. */
static void hold_frees(void)
{
    pthread_t threads[THREADS], asks;
    uintptr_t blocks[THREADS];
    open_latch();
    struct worker worker = {.only_asks = true, .block = allocate(MIB), .idle = 0};
    for (int i = 0; i < THREADS; i++) blocks[i] = allocate(MIB);
    close_latch();
    uint64_t before = simgpu_calls(driver_call);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, frees, (void *)blocks[i]);
    while (!held_thread_is_done && simgpu_calls(driver_call) < before + THREADS) usleep(1000);
    bool was_held = !held_thread_is_done;
    pthread_create(&asks, NULL, hits, &worker);
    join(asks);
    THAT(!was_held || !held_thread_is_done);
    open_latch();
    for (int i = 0; i < THREADS; i++) join(threads[i]);
    puts(was_held ? "held" : "not held");
    release(worker.block);
}

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "usage: %s SCENE DRIVER_CALL\n", argv[0]), 2;
    driver_call = argv[2];
    start_watchdog();
    open_latch();
    open_devices(1);
    if (!strcmp(argv[1], "free")) hold_frees();
    else if (!strcmp(argv[1], "export")) hold(shares, false);
    else hold(strcmp(argv[1], "trim") ? grows : trims, !strcmp(argv[1], "ask"));
    return 0;
}
