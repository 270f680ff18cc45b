/* An allocation does not wait for work, because that work may wait for what this thread does after the allocation. Every
 * scene ends without the library, but for threads, beside and mutexes: there the wait inside cuMemFree holds up the
 * allocations of other threads. Under a policy these end too, because its free waits for an event.
 *
 *   waits sizes          freed blocks that are smaller, equal and larger; every kind of stream
 *   waits several        the same with sixteen freed blocks and requests
 *   waits threads        the same in four threads, each with a stream of its own
 *   waits beside         other threads wait in calls of the driver for work that waits for this thread
 *   waits teardown       another thread destroys a context whose work waits for this thread
 *   waits trims          another thread gives idle memory back to the driver all the time
 *   waits trim           the same once, while there is work
 *   waits mutex          a host function takes a mutex that the thread holds while it allocates
 *   waits mutexes        four threads hold one mutex for allocations, and not for frees
 *   waits collective-N   N devices in one thread: work of one device waits for work of the others, which is launched
 *                        after an allocation
 *   waits apart-N        the same after a free of memory of another device */
#include "scenes.h"
#include "random.h"

CUresult cuStreamAddCallback(CUstream stream, void (*function)(CUstream, CUresult, void *), void *data, unsigned flags);

static void waits_in_a_callback(CUstream stream, CUresult result, void *flag)
{
    (void)stream, (void)result;
    waits_for(flag);
}

/* Frees a block, launches a host function that waits for a flag, allocates, and sets the flag. */
static void allocates_before_the_flag(CUstream stream, size_t freed, size_t wanted)
{
    struct flag flag = {0};
    size_t used = freed < MIB ? freed : MIB, filled = wanted < MIB ? wanted : MIB;
    CUdeviceptr old = allocate(freed);
    DO(cuMemsetD8Async(old, 0xee, used, stream));
    release(old);
    if (wanted % 3) DO(cuLaunchHostFunc(stream, waits_for, &flag));
    else DO(cuStreamAddCallback(stream, waits_in_a_callback, &flag, 0));
    CUdeviceptr block = allocate(wanted);
    set(&flag);
    DO(cuMemsetD8Async(block, 7, filled, stream));
    DO(cuStreamSynchronize(stream));
    holds(block, 7, filled);
    release(block);
}

static void with_each_size(CUstream stream)
{
    static const size_t freed[] = {64 * KIB, 4 * MIB, 96 * MIB};
    for (int i = 0; i < 3; i++) {
        allocates_before_the_flag(stream, freed[i], freed[i]);
        allocates_before_the_flag(stream, freed[i], freed[i] / 2);
        allocates_before_the_flag(stream, freed[i], 512);
        allocates_before_the_flag(stream, freed[i], freed[i] + 512);
        allocates_before_the_flag(stream, freed[i], 3 * freed[i]);
    }
}

static void sizes(void)
{
    with_each_size(new_stream(NON_BLOCKING));
    with_each_size(PER_THREAD);
    with_each_size(new_stream(0));
    with_each_size(LEGACY);
    with_each_size(NULL);
}

static void several(void)
{
    enum { BLOCKS = 16 };
    CUstream streams[] = {new_stream(NON_BLOCKING), PER_THREAD};
    for (int round = 0; round < 10; round++) {
        struct flag flags[2] = {0};
        CUdeviceptr blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = allocate((size_t)(i + 1) * 256 * KIB);
            DO(cuMemsetD8Async(blocks[i], 0xee, 256 * KIB, streams[i % 2]));
        }
        for (int i = 0; i < BLOCKS; i++) release(blocks[i]);
        for (int i = 0; i < 2; i++) DO(cuLaunchHostFunc(streams[i], waits_for, &flags[i]));
        for (int i = 0; i < BLOCKS; i++) blocks[i] = allocate((size_t)(BLOCKS - i) * 256 * KIB);
        set(&flags[1]);
        set(&flags[0]);
        for (int i = 0; i < BLOCKS; i++) release(blocks[i]);
    }
}

static void *one_of_four(void *seed)
{
    CHECK(cuCtxSetCurrent(context));
    uint64_t random = (uintptr_t)seed;
    CUstream stream = draw(&random, 2) ? new_stream(NON_BLOCKING) : PER_THREAD;
    for (int i = 0; i < 50; i++)
        allocates_before_the_flag(stream, 512 * (1 + draw(&random, 8192)), 512 * (1 + draw(&random, 8192)));
    return NULL;
}

static void in_four_threads(void *(*thread)(void *))
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, thread, (void *)(i + 1));
    for (int i = 0; i < 4; i++) join(threads[i]);
}

static void threads(void) { in_four_threads(one_of_four); }

/* ---- beside, teardown, trims */

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

static atomic_bool stop;

static void *trims_once(void *unused)
{
    __typeof__(&vramshim_trim) trim = library_function(vramshim_trim);
    DO(cuCtxSetCurrent(context));
    const char *before = enter(HERE("vramshim_trim"));
    if (trim) trim(0);
    enter(before);
    return unused;
}

static void *trims(void *unused)
{
    while (!stop) {
        trims_once(NULL);
        usleep(100);
    }
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

static void beside_trims(void)
{
    pthread_t thread;
    CUstream stream = new_stream(NON_BLOCKING);
    pthread_create(&thread, NULL, trims, NULL);
    for (int i = 0; i < 200; i++) {
        CUdeviceptr block = allocate((size_t)(1 + i % 100) * MIB);
        allocates_before_the_flag(stream, (size_t)(1 + i % 40) * MIB, (size_t)(1 + i % 31) * MIB);
        release(block);
    }
    stop = true;
    join(thread);
}

/* ---- mutex, mutexes: the lock of an interpreter */

static void mutex(void)
{
    CUstream streams[] = {new_stream(NON_BLOCKING), PER_THREAD};
    static int count;
    for (int i = 0; i < 40; i++) {
        CUstream stream = streams[i % 2];
        size_t size = (size_t)(1 + i) * MIB;
        CUdeviceptr old = allocate(size);
        DO(cuMemsetD8Async(old, 0xee, MIB, stream));
        release(old);
        lock_mutex();
        DO(cuLaunchHostFunc(stream, takes_the_mutex, &count));
        CUdeviceptr same = allocate(size), larger = allocate(2 * size);
        size_t free_bytes, total;
        DO(cuMemGetInfo_v2(&free_bytes, &total));
        pthread_mutex_unlock(&job_mutex);
        DO(cuStreamSynchronize(stream));
        THAT(count == i + 1);
        release(same);
        release(larger);
    }
}

/* The thread that frees waits for host functions that want the mutex, while another thread allocates with it. */
static void *with_the_interpreter(void *seed)
{
    CHECK(cuCtxSetCurrent(context));
    uint64_t random = (uintptr_t)seed;
    CUstream stream = new_stream(NON_BLOCKING);
    static int count;
    for (int i = 0; i < 100; i++) {
        size_t size = 64 * KIB * (1 + draw(&random, 64));
        lock_mutex();
        CUdeviceptr block = allocate(size);
        DO(cuMemsetD8Async(block, 1, size, stream));
        DO(cuLaunchHostFunc(stream, takes_the_mutex, &count));
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

static void mutexes(void) { in_four_threads(with_the_interpreter); }

/* ---- collective, apart */

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

static CUstream streams_of[MOST_DEVICES];

static void open_with_streams(int devices)
{
    open_devices(devices);
    for (int i = 0; i < devices; i++) streams_of[i] = stream_on(i);
}

/* Between the launches the thread allocates, on devices with work and on devices without. */
static void collective(int devices)
{
    open_with_streams(devices);
    for (int round = 0; round < 20; round++) {
        struct collective all = {.members = devices};
        CUdeviceptr blocks[MOST_DEVICES];
        size_t size = (size_t)(1 + round % 20) * MIB;
        for (int i = 0; i < devices; i++) {
            use(i);
            CUdeviceptr old = allocate(size);
            DO(cuMemsetD8Async(old, 0xee, MIB, streams_of[i]));
            release(old);
        }
        for (int i = 0; i < devices; i++) {
            use(i);
            DO(cuLaunchHostFunc(streams_of[i], meets, &all));
            use((i + round) % devices);
            blocks[i] = allocate(round % 3 ? size : 2 * size);
        }
        synchronise_all(streams_of, devices);
        THAT(all.arrived == devices);
        for (int i = 0; i < devices; i++) release(blocks[i]);
    }
}

/* Between the launches the thread frees memory of the device that gets its work next, which has none at this time. */
static void apart(int devices)
{
    open_with_streams(devices);
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

static void collective_of_2(void) { collective(2); }
static void collective_of_4(void) { collective(4); }
static void apart_2(void) { apart(2); }
static void apart_4(void) { apart(4); }

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"sizes", sizes}, {"several", several}, {"threads", threads}, {"beside", beside}, {"teardown", teardown},
        {"trims", beside_trims}, {"trim", beside_a_trim}, {"mutex", mutex}, {"mutexes", mutexes},
        {"collective-2", collective_of_2}, {"collective-4", collective_of_4}, {"apart-2", apart_2}, {"apart-4", apart_4},
    };
    start_watchdog();
    open_devices(1);
    return PLAY(scenes, argc, argv);
}
