/* An allocation does not wait for work, because that work may wait for what this thread does after the allocation. Every
 * scene ends without the library, but for beside and mutexes: there the wait inside cuMemFree holds up the allocations of
 * other threads. Under a policy these end too, because its free waits for an event.
 *
 *   waits beside      other threads wait in calls of the driver for work that waits for this thread
 *   waits teardown    another thread destroys a context whose work waits for this thread
 *   waits trim        another thread gives idle memory back to the driver while there is work
 *   waits trims       the same all the time
 *   waits mutexes     four threads hold one mutex for allocations, and not for frees; host functions want it
 *   waits apart       devices in one thread: work of one device waits for work of the others, which is launched after a
 *                     free and an allocation */
#include "scenes.h"
#include "random.h"

enum waiting { CONTEXT, STREAM, EVENT, FREE, WAITING };
static CUstream waited_for;
static CUdeviceptr freed_by_a_thread;
static CUevent event;

static void *waits_in_the_driver(void *kind)
{
    DO(cuCtxSetCurrent(context));
    switch ((enum waiting)(intptr_t)kind) {
    case CONTEXT: DO(cuCtxSynchronize()); break;
    case STREAM: DO(cuStreamSynchronize(waited_for)); break;
    case EVENT: DO(cuEventSynchronize(event)); break;
    case FREE: release(freed_by_a_thread); break;
    case WAITING: break;
    }
    return NULL;
}

/* Calls that wait for no work: allocations, questions and streams, each more often than a cache could serve. */
static void calls_that_wait_for_nothing(CUdeviceptr *blocks, int count)
{
    for (int i = 0; i < count; i++) {
        CUdeviceptr base, stream_ordered;
        size_t size = (size_t)(1 + i % 9) * 300 * KIB, length, free_bytes, total;
        blocks[i] = allocate(size);
        DO(cuMemGetAddressRange_v2(&base, &length, blocks[i] + size / 2));
        THAT(base == blocks[i] && length == size);
        DO(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, blocks[i] + 1));
        THAT(base == blocks[i]);
        DO(cuMemGetInfo_v2(&free_bytes, &total));
        CUstream stream = new_stream(NON_BLOCKING);
        DO(cuMemAllocAsync(&stream_ordered, size, stream));
        DO(cuMemsetD8Async(stream_ordered, 1, KIB, stream));
        DO(cuMemFreeAsync(stream_ordered, stream));
        DO(cuStreamDestroy_v2(stream));
    }
}

static void beside(void)
{
    enum { BLOCKS = 40 };
    CUdeviceptr blocks[BLOCKS];
    waited_for = new_stream(NON_BLOCKING);
    DO(cuEventCreate(&event, 0));
    for (int round = 0; round < 10; round++) {
        struct flag flag = {0};
        pthread_t threads[WAITING];
        freed_by_a_thread = allocate(3 * MIB);
        for (int i = 0; i < BLOCKS; i++) blocks[i] = allocate((size_t)(1 + i % 9) * 200 * KIB);
        for (int i = 0; i < BLOCKS; i++) release(blocks[i]);
        DO(cuLaunchHostFunc(waited_for, waits_for, &flag));
        DO(cuEventRecord(event, waited_for));
        for (intptr_t i = 0; i < WAITING; i++) pthread_create(&threads[i], NULL, waits_in_the_driver, (void *)i);
        usleep(20000); /* the threads are in their calls now, or soon */
        calls_that_wait_for_nothing(blocks, BLOCKS);
        set(&flag);
        for (int i = 0; i < WAITING; i++) join(threads[i]);
        for (int i = 0; i < BLOCKS; i++) release(blocks[i]);
    }
}

static void *destroys(void *other)
{
    DO(cuCtxSetCurrent(context));
    DO(cuCtxDestroy_v2(other));
    return NULL;
}

static void teardown(void)
{
    enum { BLOCKS = 40 };
    CUdeviceptr blocks[BLOCKS];
    for (int round = 0; round < 10; round++) {
        struct flag flag = {0};
        CUcontext other;
        pthread_t thread;
        DO(cuCtxCreate_v2(&other, 0, 0));
        for (int i = 0; i < 10; i++) blocks[i] = allocate((size_t)(1 + i) * MIB);
        for (int i = 0; i < 5; i++) release(blocks[i]);
        DO(cuLaunchHostFunc(new_stream(NON_BLOCKING), waits_for, &flag));
        DO(cuCtxSetCurrent(context));
        pthread_create(&thread, NULL, destroys, other);
        usleep(20000);
        for (int i = 0; i < 5; i++) {
            calls_that_wait_for_nothing(blocks, BLOCKS);
            for (int k = 0; k < BLOCKS; k++) release(blocks[k]); /* in a context whose work is done */
        }
        set(&flag);
        join(thread);
    }
}

static void *trims_once(void *unused)
{
    DO(cuCtxSetCurrent(context));
    trim_library();
    return unused;
}

static void beside_a_trim(void)
{
    CUstream stream = new_stream(NON_BLOCKING);
    for (int round = 0; round < 5; round++) {
        struct flag flag = {0};
        pthread_t thread;
        release(allocate((size_t)(20 + 20 * round) * MIB));
        DO(cuLaunchHostFunc(stream, waits_for, &flag));
        pthread_create(&thread, NULL, trims_once, NULL);
        usleep(20000); /* the thread is in its call now, or soon */
        CUdeviceptr block = allocate((size_t)(200 + 20 * round) * MIB);
        set(&flag);
        join(thread);
        release(block);
    }
}

static atomic_bool stop;

static void *trims(void *unused)
{
    while (!stop) trims_once(NULL), usleep(100);
    return unused;
}

static void beside_trims(void)
{
    pthread_t thread;
    CUstream stream = new_stream(NON_BLOCKING);
    pthread_create(&thread, NULL, trims, NULL);
    for (int i = 0; i < 200; i++) {
        struct flag flag = {0};
        CUdeviceptr kept = allocate((size_t)(1 + i % 100) * MIB), old = allocate((size_t)(1 + i % 40) * MIB);
        DO(cuMemsetD8Async(old, 0xee, MIB, stream));
        release(old);
        DO(cuLaunchHostFunc(stream, waits_for, &flag));
        CUdeviceptr block = allocate((size_t)(1 + i % 31) * MIB);
        set(&flag);
        DO(cuMemsetD8Async(block, 7, MIB, stream));
        DO(cuStreamSynchronize(stream));
        holds(block, 7, MIB);
        release(block);
        release(kept);
    }
    stop = true;
    join(thread);
}

/* ---- mutexes: the lock of an interpreter */

/* The thread that frees waits for host functions that want the mutex, while another thread allocates with it. */
static void *with_the_interpreter(void *seed)
{
    CHECK(cuCtxSetCurrent(context));
    uint64_t random = (uintptr_t)seed;
    CUstream stream = new_stream(NON_BLOCKING);
    for (int i = 0; i < 100; i++) {
        size_t size = 64 * KIB * (1 + draw(&random, 64));
        lock_mutex();
        CUdeviceptr block = allocate(size);
        DO(cuMemsetD8Async(block, 1, size, stream));
        DO(cuLaunchHostFunc(stream, takes_the_mutex, NULL));
        CUdeviceptr base, other = allocate(size);
        size_t length;
        DO(cuMemGetAddressRange_v2(&base, &length, other + size / 2));
        THAT(base == other && length == size);
        pthread_mutex_unlock(&job_mutex);
        release(block);
        release(other);
    }
    return NULL;
}

static void mutexes(void)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, with_the_interpreter, (void *)(i + 1));
    for (int i = 0; i < 4; i++) join(threads[i]);
}

struct collective { int members; atomic_int arrived; };

/* A host function: returns when all members are here. */
static void meets(void *data)
{
    struct collective *collective = data;
    const char *before = enter(HERE("a host function that waits for the other devices"));
    collective->arrived++;
    while (collective->arrived < collective->members) usleep(50);
    enter(before);
}

/* Waits for streams of all devices at the same time. */
static void *waits_for_stream(void *stream)
{
    DO(cuStreamSynchronize(stream));
    return NULL;
}

static void synchronise_all(CUstream *streams, int count)
{
    pthread_t threads[MOST_DEVICES];
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, waits_for_stream, streams[i]);
    for (int i = 0; i < count; i++) join(threads[i]);
}

/* Between the launches the thread frees memory of the device that gets its work next, which has none at this time. */
static void apart(void)
{
    int devices = 0;
    CUstream streams_of[MOST_DEVICES];
    DO(cuDeviceGetCount(&devices));
    devices = devices < 2 ? 2 : devices < MOST_DEVICES ? devices : MOST_DEVICES;
    open_devices(devices);
    for (int i = 0; i < devices; i++) streams_of[i] = stream_on(i);
    for (int round = 0; round < 20; round++) {
        struct collective all = {.members = devices};
        CUdeviceptr blocks[MOST_DEVICES];
        size_t size = (size_t)(1 + round % 20) * MIB;
        for (int i = 0; i < devices; i++) {
            use(i);
            blocks[i] = allocate(size);
            DO(cuMemsetD8Async(blocks[i], 0xee, MIB, streams_of[i]));
        }
        for (int i = 0; i < devices; i++) {
            use(i);
            if (i) release(blocks[i]), blocks[i] = allocate(size);
            DO(cuLaunchHostFunc(streams_of[i], meets, &all));
        }
        synchronise_all(streams_of, devices);
        THAT(all.arrived == devices);
        for (int i = 0; i < devices; i++) release(blocks[i]);
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"beside", beside}, {"teardown", teardown}, {"trim", beside_a_trim}, {"trims", beside_trims}, {"mutexes", mutexes},
        {"apart", apart},
    };
    start_watchdog();
    open_devices(1);
    return PLAY(scenes, argc, argv);
}
