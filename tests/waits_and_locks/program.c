/* A random program that ends without the library, whatever the order in which its threads run.
 *
 *   program SEED OPERATIONS THREADS [LARGEST]
 *
 * Each thread has blocks, streams on two devices (on one, if there is no other), and host functions that wait for flags
 * of the thread. It allocates, works and frees, also by peer access, captures CUDA graphs and launches them, and launches
 * the halves of collectives around an allocation. It hands blocks to other threads, waits for events of other threads,
 * and replaces streams that have work. Every block must be idle when it is handed out, and must hold what was written to
 * it last.
 *
 * Why it ends without the library: a thread makes a call that waits (a free, a synchronise) only after it has set all its
 * flags. It takes the mutex of the collectives in the same state, and makes no such call while it holds this mutex. So
 * the thread that owes a flag, or the other half of a collective, is never the one that waits. Between the halves no
 * other thread puts work on the stream of the second half.
 *
 * With LARGEST, blocks have up to so many bytes, so that memory runs short, and requests may be refused. Nothing is
 * captured then, because graphs keep memory. At the end the memory of each device must be there in one piece.
 *
 * On a GPU it ends with one thread only: there cuMemAlloc and launches wait while another thread waits in cuMemFree (the
 * assumption alloc_waits_beside_waiting_free). */
#include "program.h"

/* ---- collectives: two streams of one device, or the streams of two devices */

static pthread_mutex_t collectives = PTHREAD_MUTEX_INITIALIZER;
/* Whether the driver runs one host function after the other. "Host functions without a mandated order (such as in
 * independent streams) execute in undefined order and may be serialized" (cuda.h 13.0:18075). H200, driver 580.159.04:
 * they are. */
static bool one_at_a_time;

/* A host function: waits two seconds at most for the other one. */
static void looks_for_the_other(void *arrived)
{
    ++*(atomic_int *)arrived;
    for (int turn = 0; turn < 2000 && *(atomic_int *)arrived < 2; turn++) usleep(1000);
    if (*(atomic_int *)arrived < 2) one_at_a_time = true;
}

static void ask_whether_halves_can_meet(void)
{
    static atomic_int arrived;
    use(0);
    DO(cuLaunchHostFunc(collective[0], looks_for_the_other, &arrived));
    DO(cuLaunchHostFunc(home[0], looks_for_the_other, &arrived));
    DO(cuStreamSynchronize(collective[0]));
    DO(cuStreamSynchronize(home[0]));
}

/* A host function: returns when the other one is here. */
static void meets(void *data)
{
    struct pair *pair = data;
    const char *before = enter(HERE("a host function that waits for its other half"));
    pair->arrived++;
    while (pair->arrived < 2) usleep(20);
    enter(before);
}

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
    me->between = true;
    if (place && may_wait()) obtain(place); /* its first work may come after the half that was launched */
    me->between = false;
    use(device_of(other));
    if (one_at_a_time) pair->arrived = 2; /* the second half would not begin while the first one waits */
    else DO(cuLaunchHostFunc(other, meets, pair));
    collectives_met++;
}

static void across_devices(void)
{
    struct block *block = live_block();
    set_all_flags();
    const char *before = enter(HERE("pthread_mutex_lock, for the mutex of the collectives"));
    pthread_mutex_lock(&collectives);
    enter(before);
    int first = any_device();
    if (block && !block->only) fill(block, collective[block->device]);
    both_halves(collective[first], collective[other_than(first)]);
    pthread_mutex_unlock(&collectives);
}

/* ---- captures */

/* A tensor of a graph, freed during the capture. Each launch writes to it, so no other block may get its memory. */
static void capture_tensor(int device)
{
    size_t size = 512 * (1 + below(256));
    CUstream stream = me->captured[device];
    if (!torch_alloc || captured_tensors >= CAPTURED) return;
    void *tensor = torch_alloc((ptrdiff_t)size, device, stream);
    THAT(tensor);
    DO(cuMemsetD8Async((CUdeviceptr)tensor, 0xee, size, stream));
    torch_free(tensor, (ptrdiff_t)size, device, stream);
    captured_tensors++;
}

static void begin_capture(void)
{
    me->capturing = any_device();
    me->mode = below(2) ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    use(me->capturing);
    DO(cuStreamBeginCapture_v2(me->captured[me->capturing], me->mode));
    DO(cuMemsetD8Async(me->of_graphs[me->capturing], 1, PART, me->captured[me->capturing]));
    capture_tensor(me->capturing);
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

/* ---- events and streams */

static CUevent events[EVENTS]; /* of all threads; on the devices in turn */

static void on_event(void)
{
    int number = (int)below(EVENTS), device = number % devices;
    CUevent event = events[number];
    use(device);
    switch (below(4)) {
    case 0:
    case 1: DO(cuEventRecord(event, me->streams[device][below(STREAMS)])); break;
    case 2:
        device = any_device();
        use(device);
        DO(cuStreamWaitEvent(me->streams[device][below(STREAMS)], event, 0));
        waited_events++;
        break;
    default:
        if (!may_wait()) return;
        set_all_flags();
        if (below(2)) DO(cuEventSynchronize(event));
        else {
            CUresult result = ANSWER(cuEventQuery(event));
            THAT(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
        }
    }
}

/* Destroys a stream, whose work may be pending, and makes another. Tensors of the stream are freed first. */
static void replace_stream(void)
{
    int device = any_device(), index = (int)below(STREAMS);
    CUstream old = me->streams[device][index], fresh = stream_on(device);
    for (int i = 0; i < BLOCKS; i++) {
        struct block *block = &me->blocks[i];
        if (!block->address) continue;
        if (block->only == old) give_back(block);
        else if (block->last == old) follow(block, home[device]);
    }
    use(device);
    DO(cuStreamDestroy_v2(old));
    me->streams[device][index] = fresh;
    new_streams++;
}

/* ---- the program */

static void synchronise(void)
{
    set_all_flags();
    for (int device = 0; device < devices; device++) {
        use(device);
        for (int i = 0; i < STREAMS; i++) DO(cuStreamSynchronize(me->streams[device][i]));
        DO(cuStreamSynchronize(collective[device]));
        DO(cuStreamSynchronize(home[device]));
    }
    me->flags_used = me->pairs_used = 0;
}

static void launch_waiting(void)
{
    int device = any_device();
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
    int from = any_device(), to = other_than(from);
    if (from == to) return;
    pthread_mutex_lock(&granting);
    if (!access_of[from][to]) enable_access(from, to), access_of[from][to] = true;
    pthread_mutex_unlock(&granting);
}

static void work_on(struct block *block)
{
    int device = block->device;
    if (block->only && below(2)) return use_elsewhere(block);
    if (block->only) return fill(block, block->only);
    if (access_of[other_than(device)][device] && below(3) == 0) device = other_than(device), peer_works++;
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
    } else if (choice < 58) {
        if (block->address) work_on(block);
    } else if (choice < 70) {
        launch_waiting();
    } else if (choice < 78) {
        if (me->flags_used) set(&me->flags[below((uint64_t)me->flags_used)]);
    } else if (choice < 82) {
        if (block->address && may_wait()) verify(block);
    } else if (choice < 85) {
        int device = any_device();
        both_halves(me->streams[device][below(STREAMS)], me->streams[below(2) ? device : other_than(device)][below(STREAMS)]);
    } else if (choice < 88) {
        across_devices();
    } else if (choice < 90) {
        if (largest) return;
        if (me->capturing < 0) begin_capture();
        else end_capture();
    } else if (choice < 92) {
        launch_graph(any_device());
    } else if (choice < 93) {
        if (me->capturing < 0 && below(2)) replace_stream();
    } else if (choice < 95) {
        if (me->capturing < 0 && (!block->only || block->only == home[block->device])) hand_over(block);
    } else if (choice < 97) {
        if (block->address) ask(block);
    } else if (choice < 99) {
        on_event();
    } else {
        int device = any_device();
        if (!may_wait()) return; /* refused (stream_query_in_capture) */
        CUresult result = ANSWER(cuStreamQuery(me->streams[device][below(STREAMS)]));
        THAT(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    }
}

static void free_all(struct block *blocks, int count)
{
    for (int i = 0; i < count; i++)
        if (blocks[i].address) verify(&blocks[i]), give_back(&blocks[i]);
}

static void *runs(void *data)
{
    me = data;
    me->capturing = -1;
    for (int device = 0; device < devices; device++) {
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
    free_all(me->blocks, BLOCKS);
    synchronise();
    for (int device = 0; largest && device < devices; device++) release(me->of_graphs[device]);
    return NULL;
}

static void look_for_room(void)
{
    size_t total;
    for (int device = 0; device < devices; device++) {
        use(device);
        DO(cuMemGetInfo_v2(&room[device], &total));
    }
}

/* Every block is free. */
static void everything_is_there(void)
{
    CUdeviceptr address;
    for (int device = 0; device < devices; device++) {
        use(device);
        DO(cuMemAlloc_v2(&address, room[device] / 10 * 9));
        DO(cuMemFree_v2(address));
    }
}

int main(int argc, char **argv)
{
    enum { MOST = 8 };
    static struct thread threads[MOST];
    if (argc != 4 && argc != 5) return fprintf(stderr, "usage: %s SEED OPERATIONS THREADS [LARGEST]\n", argv[0]), 2;
    int count = atoi(argv[3]);
    THAT(count > 0 && count <= MOST);
    if (argc == 5) largest = strtoull(argv[4], NULL, 10);
    if (has_policy()) { /* in passthrough a free for PyTorch waits, as cuMemFree does */
        find_torch_functions();
    }
    start_watchdog();
    DO(cuInit(0));
    DO(cuDeviceGetCount(&devices));
    if (devices > DEVICES) devices = DEVICES;
    open_devices(devices);
    for (int device = 0; device < devices; device++) {
        collective[device] = stream_on(device);
        home[device] = stream_on(device);
    }
    ask_whether_halves_can_meet();
    for (int i = 0; i < EVENTS; i++) {
        use(i % devices);
        CHECK(cuEventCreate(&events[i], 0));
    }
    if (torch_alloc) use(0), record_a_stream();
    look_for_room();
    alone_and_mapped = count == 1 && has_policy() && !strcmp(getenv("VRAMSHIM_STRATEGY"), "auto_growth") && !getenv("SIMGPU_VMM");
    for (int i = 0; i < count; i++) {
        threads[i].random = strtoull(argv[1], NULL, 10) * MOST + (uint64_t)i;
        threads[i].operations = atol(argv[2]) / count;
        pthread_create(&threads[i].id, NULL, runs, &threads[i]);
    }
    for (int i = 0; i < count; i++) join(threads[i].id);
    me = &threads[0];
    free_all(offered, OFFERED);
    synchronise();
    THAT(simgpu_hazards() == 0);
    if (largest) everything_is_there();
    printf("allocations %ld frees %ld tensors %ld (%ld on other streams, %ld captured) collectives %ld peers %ld "
           "captures %ld waiting %ld handed over %ld streams %ld events %ld refusals %ld\n",
           allocations, frees, tensors, told_tensors, captured_tensors, collectives_met, peer_works, captures, waiting,
           handed_over, new_streams, waited_events, refusals);
    return 0;
}
