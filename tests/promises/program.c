/* A random program that ends without the library, whatever the order in which its threads run.
 *
 *   program SEED OPERATIONS THREADS
 *
 * Each thread has blocks, streams on two devices, and host functions that wait for flags of the thread. It allocates, works
 * and frees, also by peer access, captures CUDA graphs and launches them, and launches the halves of collectives around
 * an allocation. Every block must be idle when it is handed out, and must hold what was written to it last.
 *
 * Why it ends without the library: a thread makes a call that waits (a free, a synchronise) only after it has set all its
 * flags. It takes the mutex of the collectives in the same state, and makes no such call while it holds this mutex. So
 * the thread that owes a flag, or the other half of a collective, is never the one that waits. */
#include "promises.h"
#include "random.h"

enum { DEVICES = 2, STREAMS = 4, BLOCKS = 40, FLAGS = 64, PAIRS = 64, SYNCHRONISE_EVERY = 300, PART = 16 * KIB };

/* ---- host functions */

struct pair { atomic_int arrived; };

/* A host function: returns when the other one is here. */
static void meets(void *data)
{
    struct pair *pair = data;
    const char *before = enter(HERE("a host function that waits for its other half"));
    pair->arrived++;
    while (pair->arrived < 2) usleep(20);
    enter(before);
}

/* ---- what a thread has */

struct block {
    CUdeviceptr address;
    size_t size;
    int device;
    CUstream last;      /* the stream of its last work */
    CUstream only;      /* for memory of the allocator for PyTorch: the stream that it belongs to */
    unsigned char value;
};

struct thread {
    pthread_t id;
    uint64_t random;
    long operations;
    CUstream streams[DEVICES][STREAMS], captured[DEVICES];
    CUevent events[DEVICES];
    struct block blocks[BLOCKS];
    CUdeviceptr of_graphs[DEVICES];
    CUgraphExec graphs[DEVICES];
    struct flag flags[FLAGS];
    struct pair pairs[PAIRS];
    int flags_used, pairs_used; /* since the last synchronise: the program does not depend on the time that work takes */
    int capturing, mode; /* the device of the open capture, or -1 */
    unsigned char *pinned;
};

static __thread struct thread *me;
static atomic_long allocations, frees, tensors, collectives_met, peer_works, captures, waiting; /* what the program did */
static atomic_bool access_of[DEVICES][DEVICES]; /* the first may use memory of the second */
static CUstream collective[DEVICES];
static pthread_mutex_t collectives = PTHREAD_MUTEX_INITIALIZER;

static uint64_t below(uint64_t limit) { return draw(&me->random, limit); }

static void set_all_flags(void)
{
    for (int i = 0; i < me->flags_used; i++) set(&me->flags[i]);
}

static bool may_wait(void) { return me->capturing < 0 || me->mode == CU_STREAM_CAPTURE_MODE_RELAXED; }

static int device_of(CUstream stream)
{
    for (int device = 0; device < DEVICES; device++)
        for (int i = 0; i < STREAMS; i++)
            if (me->streams[device][i] == stream && stream != PER_THREAD) return device;
    for (int device = 0; device < DEVICES; device++)
        if (collective[device] == stream) return device;
    fprintf(stderr, "no such stream\n");
    exit(2);
}

/* ---- work */

/* Puts the next work of `stream` behind the last work on the block. */
static void follow(struct block *block, CUstream stream)
{
    if (block->last == stream) return;
    int device = device_of(block->last);
    use(device);
    DO(cuEventRecord(me->events[device], block->last));
    use(device_of(stream));
    DO(cuStreamWaitEvent(stream, me->events[device], 0));
    block->last = stream;
}

static void fill(struct block *block, CUstream stream)
{
    size_t part = block->size < PART ? block->size : PART;
    follow(block, stream);
    use(device_of(stream));
    block->value++;
    DO(cuMemsetD8Async(block->address, block->value, part, stream));
    DO(cuMemsetD8Async(block->address + block->size - part, block->value, part, stream));
}

static void copy(struct block *to, struct block *from, CUstream stream)
{
    size_t part = to->size < from->size ? to->size : from->size;
    if (part > PART) part = PART;
    follow(to, stream);
    follow(from, stream);
    use(device_of(stream));
    DO(cuMemcpyDtoDAsync_v2(to->address, from->address, part, stream));
    if (part < PART && part < to->size) fill(to, stream); /* the copy does not cover what is checked */
    else {
        DO(cuMemsetD8Async(to->address + to->size - part, from->value, part, stream));
        to->value = from->value;
    }
}

static void verify(struct block *block)
{
    size_t part = block->size < PART ? block->size : PART;
    set_all_flags();
    use(device_of(block->last));
    DO(cuMemcpyDtoHAsync_v2(me->pinned, block->address, part, block->last));
    DO(cuMemcpyDtoHAsync_v2(me->pinned + PART, block->address + block->size - part, part, block->last));
    DO(cuStreamSynchronize(block->last));
    all_bytes_are(me->pinned, block->value, part, block->address);
    all_bytes_are(me->pinned + PART, block->value, part, block->address + block->size - part);
}

/* ---- memory */

static __typeof__(&vramshim_torch_alloc) torch_alloc;
static __typeof__(&vramshim_torch_free) torch_free;
static __typeof__(&vramshim_torch_record_stream) torch_record_stream;

/* A job that has recorded a stream records every stream that uses another stream's block. */
static void record_a_stream(void)
{
    void *tensor = torch_alloc(512, 0, collective[0]);
    torch_record_stream(tensor, collective[1]);
    torch_free(tensor, 512, 0, collective[0]);
}

static void obtain(struct block *block)
{
    size_t size = 512 * (1 + below(below(4) ? 256 : 8192));
    int device = (int)below(DEVICES);
    CUstream stream = me->streams[device][below(STREAMS)];
    unsigned char value = block->value;
    *block = (struct block){.size = size, .device = device, .last = stream, .value = value};
    use(device);
    if (below(4) || me->capturing >= 0) {
        block->address = allocate(size);
        allocations++;
    } else {
        const char *before = enter(HERE("vramshim_torch_alloc"));
        if (torch_alloc) block->address = (CUdeviceptr)torch_alloc((ptrdiff_t)size, device, stream);
        else CHECK(cuMemAllocAsync(&block->address, size, stream));
        enter(before);
        THAT(block->address);
        block->only = stream;
        tensors++;
    }
    fill(block, stream);
}

static void give_back(struct block *block)
{
    if (block->only) {
        const char *before = enter(HERE("vramshim_torch_free"));
        use(block->device);
        if (torch_free) torch_free((void *)block->address, (ptrdiff_t)block->size, block->device, block->only);
        else CHECK(cuMemFreeAsync(block->address, block->only));
        enter(before);
    } else {
        set_all_flags();
        use((int)below(DEVICES));
        release(block->address);
        frees++;
    }
    block->address = 0;
}

static void ask(const struct block *block)
{
    CUdeviceptr base;
    size_t size, total;
    int device;
    use(block->device);
    if (!block->only) {
        DO(cuMemGetAddressRange_v2(&base, &size, block->address + below(block->size)));
        THAT(base == block->address && size == block->size);
    }
    DO(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block->address));
    THAT(device == block->device);
    DO(cuMemGetInfo_v2(&size, &total));
}

/* ---- collectives: two streams of one device, or the streams of two devices */

static struct block *free_place(void)
{
    for (int i = 0; i < BLOCKS; i++)
        if (!me->blocks[i].address) return &me->blocks[i];
    return NULL;
}

static struct block *live_block(void)
{
    struct block *block = &me->blocks[below(BLOCKS)];
    return block->address ? block : NULL;
}

static void both_halves(CUstream one, CUstream other)
{
    struct block *place = free_place();
    if (one == other || me->pairs_used == PAIRS) return;
    struct pair *pair = &me->pairs[me->pairs_used++];
    pair->arrived = 0;
    use(device_of(one));
    DO(cuLaunchHostFunc(one, meets, pair));
    if (place && may_wait()) obtain(place); /* its first work may come after the half that was launched */
    use(device_of(other));
    DO(cuLaunchHostFunc(other, meets, pair));
    collectives_met++;
}

static void across_devices(void)
{
    struct block *block = live_block();
    set_all_flags();
    const char *before = enter(HERE("pthread_mutex_lock, for the mutex of the collectives"));
    pthread_mutex_lock(&collectives);
    enter(before);
    int first = (int)below(DEVICES);
    if (block && !block->only) fill(block, collective[block->device]);
    both_halves(collective[first], collective[!first]);
    pthread_mutex_unlock(&collectives);
}

/* ---- captures */

static void begin_capture(void)
{
    me->capturing = (int)below(DEVICES);
    me->mode = below(2) ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    use(me->capturing);
    DO(cuStreamBeginCapture_v2(me->captured[me->capturing], me->mode));
    DO(cuMemsetD8Async(me->of_graphs[me->capturing], 1, PART, me->captured[me->capturing]));
}

static void end_capture(void)
{
    CUgraph graph;
    int status, device = me->capturing;
    use(device);
    DO(cuStreamIsCapturing(me->captured[device], &status));
    THAT(status == CAPTURING);
    DO(cuStreamEndCapture(me->captured[device], &graph));
    me->capturing = -1;
    if (me->graphs[device]) {
        set_all_flags();
        DO(cuStreamSynchronize(me->streams[device][0]));
        DO(cuGraphExecDestroy(me->graphs[device]));
    }
    DO(cuGraphInstantiateWithFlags(&me->graphs[device], graph, 0));
    DO(cuGraphDestroy(graph));
    captures++;
}

static void launch_graph(int device)
{
    if (!me->graphs[device]) return;
    use(device);
    DO(cuGraphLaunch(me->graphs[device], me->streams[device][0]));
}

/* ---- the program */

static void synchronise(void)
{
    set_all_flags();
    for (int device = 0; device < DEVICES; device++) {
        use(device);
        for (int i = 0; i < STREAMS; i++) DO(cuStreamSynchronize(me->streams[device][i]));
        DO(cuStreamSynchronize(collective[device]));
    }
    me->flags_used = me->pairs_used = 0;
}

static void launch_waiting(void)
{
    int device = (int)below(DEVICES);
    CUstream stream = me->streams[device][below(STREAMS)];
    if (me->flags_used == FLAGS) return;
    struct flag *flag = &me->flags[me->flags_used++];
    flag->set = 0;
    use(device);
    DO(cuLaunchHostFunc(stream, waits_for, flag));
    waiting++;
}

static void grant_access(void)
{
    static pthread_mutex_t granting = PTHREAD_MUTEX_INITIALIZER;
    int from = (int)below(DEVICES), to = !from;
    pthread_mutex_lock(&granting);
    if (!access_of[from][to]) enable_access(from, to), access_of[from][to] = true;
    pthread_mutex_unlock(&granting);
}

static void work_on(struct block *block)
{
    int device = block->device;
    if (block->only) return fill(block, block->only);
    if (access_of[!device][device] && below(3) == 0) device = !device, peer_works++;
    CUstream stream = me->streams[device][below(STREAMS)];
    struct block *from = live_block();
    bool reachable = from && from != block && !from->only && (from->device == device || access_of[device][from->device]);
    if (reachable && below(3) == 0) copy(block, from, stream);
    else fill(block, stream);
}

static void operate(long number)
{
    struct block *block = &me->blocks[below(BLOCKS)];
    uint64_t choice = below(100);
    if (number % SYNCHRONISE_EVERY == SYNCHRONISE_EVERY - 1 && may_wait()) synchronise();
    if (number == 50 || number == 500) grant_access();
    if (choice < 35) {
        if (!may_wait()) return;
        if (!block->address) obtain(block);
        else if (!block->only || me->capturing < 0) give_back(block);
    } else if (choice < 60) {
        if (block->address) work_on(block);
    } else if (choice < 72) {
        launch_waiting();
    } else if (choice < 80) {
        if (me->flags_used) set(&me->flags[below((uint64_t)me->flags_used)]);
    } else if (choice < 84) {
        if (block->address && may_wait()) verify(block);
    } else if (choice < 87) {
        int device = (int)below(DEVICES);
        both_halves(me->streams[device][below(STREAMS)], me->streams[below(2) ? device : !device][below(STREAMS)]);
    } else if (choice < 90) {
        across_devices();
    } else if (choice < 93) {
        if (me->capturing < 0) begin_capture();
        else end_capture();
    } else if (choice < 95) {
        launch_graph((int)below(DEVICES));
    } else if (choice < 98) {
        if (block->address) ask(block);
    } else {
        int device = (int)below(DEVICES);
        CUresult result = ANSWER(cuStreamQuery(me->streams[device][below(STREAMS)]));
        THAT(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    }
}

static void *runs(void *data)
{
    me = data;
    me->capturing = -1;
    for (int device = 0; device < DEVICES; device++) {
        for (int i = 0; i < STREAMS; i++) me->streams[device][i] = stream_on(device);
        me->captured[device] = stream_on(device);
        DO(cuEventCreate(&me->events[device], 0));
        me->of_graphs[device] = allocate(PART);
    }
    void *pinned;
    DO(cuMemAllocHost_v2(&pinned, 2 * PART));
    me->pinned = pinned;
    for (long i = 0; i < me->operations; i++) operate(i);
    if (me->capturing >= 0) end_capture();
    synchronise();
    for (int i = 0; i < BLOCKS; i++)
        if (me->blocks[i].address) verify(&me->blocks[i]), give_back(&me->blocks[i]);
    synchronise();
    return NULL;
}

int main(int argc, char **argv)
{
    enum { MOST = 8 };
    static struct thread threads[MOST];
    if (argc != 4) return fprintf(stderr, "usage: %s SEED OPERATIONS THREADS\n", argv[0]), 2;
    int count = atoi(argv[3]);
    THAT(count > 0 && count <= MOST);
    if (has_policy()) { /* in passthrough a free for PyTorch waits, as cuMemFree does */
        torch_alloc = (__typeof__(torch_alloc))dlsym(RTLD_DEFAULT, "vramshim_torch_alloc");
        torch_free = (__typeof__(torch_free))dlsym(RTLD_DEFAULT, "vramshim_torch_free");
        torch_record_stream = (__typeof__(torch_record_stream))dlsym(RTLD_DEFAULT, "vramshim_torch_record_stream");
    }
    start_watchdog();
    open_devices(DEVICES);
    for (int device = 0; device < DEVICES; device++) collective[device] = stream_on(device);
    if (torch_alloc) use(0), record_a_stream();
    for (int i = 0; i < count; i++) {
        threads[i].random = strtoull(argv[1], NULL, 10) * MOST + (uint64_t)i;
        threads[i].operations = atol(argv[2]) / count;
        pthread_create(&threads[i].id, NULL, runs, &threads[i]);
    }
    for (int i = 0; i < count; i++) join(threads[i].id);
    THAT(simgpu_hazards() == 0);
    printf("allocations %ld frees %ld tensors %ld collectives %ld peers %ld captures %ld waiting %ld\n", allocations, frees, tensors,
           collectives_met, peer_works, captures, waiting);
    return 0;
}
