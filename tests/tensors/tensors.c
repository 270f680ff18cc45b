/* Calls the allocator for PyTorch (vramshim_torch_*). Exits with 1 if a block is handed out that may still be in use.
 *
 *   tensors first       allocates before the job has a context; prints checkpoints
 *   tensors elsewhere   uses blocks on other streams, first without recording those streams; prints how many blocks one
 *                       stream reuses then, and the number of waits
 *   tensors crossing    moves blocks that fill the device between two streams; prints the number of waits
 *   tensors namesake    a new stream has the handle of a destroyed one
 *   tensors captured    allocates and frees blocks during captures
 *   tensors mutual      two blocking streams wait for each other while a block is freed that the default stream used
 *   tensors pools       captures with a private pool of PyTorch; the memory comes back when the graphs are gone
 *   tensors refused     asks for more than the device has, with the library that LIBC10 names loaded
 *   tensors cancelled   a thread that was cancelled already allocates, frees, is refused and captures
 *   tensors steps       blocks of all sizes on three streams, some used on two; prints the number of waits */
#include "cancelled.h"
#include "delayed.h"
#include "random.h"
#include <pthread.h>
#include <unistd.h>

static __typeof__(&vramshim_torch_alloc) torch_alloc;
static __typeof__(&vramshim_torch_free) torch_free;
static __typeof__(&vramshim_torch_record_stream) torch_record_stream;

static CUdeviceptr obtain(size_t size, CUstream stream)
{
    void *address = torch_alloc((ptrdiff_t)size, 0, stream);
    THAT(address);
    return (CUdeviceptr)address;
}

static void give_back(CUdeviceptr address, size_t size, CUstream stream)
{
    torch_free((void *)address, (ptrdiff_t)size, 0, stream);
}

static void record(CUdeviceptr address, CUstream stream) { torch_record_stream((void *)address, stream); }

static void first(void)
{
    CUdeviceptr tensor, other;
    CHECK(cuInit(0));
    tensor = obtain(MIB, NULL);
    *count_of(0, LINEAR) += MIB;
    checkpoint();
    begin();
    CHECK(cuMemsetD8_v2(tensor, 1, MIB));
    CHECK(cuMemAlloc_v2(&other, MIB));
    CHECK(cuMemsetD8_v2(other, 1, MIB));
    *count_of(0, LINEAR) += MIB;
    checkpoint();
    /* Releases the job's own retain; the library's retain keeps the context. */
    CHECK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(cuMemsetD8_v2(tensor, 1, MIB));
    checkpoint();
}

/* Allocates a block for stream `own`, uses it on stream `user`, and frees it for `own`. The next block for `own` must
 * not have this work pending. */
static void used_elsewhere(CUstream own, CUstream user, bool tell)
{
    CUdeviceptr tensor = obtain(MIB, own);
    if (tell) record(tensor, user);
    CHECK(cuMemsetD8Async(tensor, 0xee, MIB, user));
    give_back(tensor, MIB, own);
    CUdeviceptr next = obtain(MIB, own);
    THAT(simgpu_hazard(next, MIB) == 0);
    CHECK(cuMemsetD8Async(next, 1, MIB, own));
    give_back(next, MIB, own);
}

static void everywhere(bool tell)
{
    CUstream streams[] = {NULL, new_stream(NON_BLOCKING), new_stream(NON_BLOCKING)};
    for (int round = 0; round < 20; round++)
        for (int own = 0; own < 3; own++)
            for (int user = 0; user < 3; user++)
                if (own != user) used_elsewhere(streams[own], streams[user], tell);
    THAT(simgpu_hazards() == 0);
}

static void elsewhere(void)
{
    begin();
    everywhere(false);
    everywhere(true);
    CUstream stream = new_stream(NON_BLOCKING);
    give_back(obtain(MIB, stream), MIB, stream); /* waits for the recorded streams */
    uint64_t before = synchronisations();
    int same = 0;
    for (int i = 0; i < 100; i++) {
        CUdeviceptr tensor = obtain(MIB, stream);
        CHECK(cuMemsetD8Async(tensor, 1, MIB, stream));
        give_back(tensor, MIB, stream);
        CUdeviceptr next = obtain(MIB, stream);
        same += next == tensor;
        CHECK(cuMemsetD8Async(next, 2, MIB, stream));
        give_back(next, MIB, stream);
    }
    printf("same %d waited %d\n", same, (int)(synchronisations() - before));
    THAT(simgpu_hazards() == 0);
}

static void crossing(void)
{
    enum { BLOCKS = 3, SIZE = 40 * MIB, ROUNDS = 10 };
    CUstream streams[2];
    CUdeviceptr tensors[BLOCKS];
    begin();
    streams[0] = new_stream(NON_BLOCKING), streams[1] = new_stream(NON_BLOCKING);
    tensors[0] = obtain(MIB, streams[0]);
    record(tensors[0], streams[1]);
    give_back(tensors[0], MIB, streams[0]);
    CHECK(cuCtxSynchronize());
    uint64_t before = synchronisations();
    for (int round = 0; round < ROUNDS; round++) {
        CUstream stream = streams[round % 2];
        for (int i = 0; i < BLOCKS; i++) {
            tensors[i] = obtain(SIZE, stream);
            THAT(simgpu_hazard(tensors[i], SIZE) == 0);
        }
        for (int i = 0; i < BLOCKS; i++) {
            CHECK(cuMemsetD8Async(tensors[i], 1, SIZE, stream));
            give_back(tensors[i], SIZE, stream);
        }
    }
    printf("waited %d\n", (int)(synchronisations() - before));
    THAT(simgpu_hazards() == 0);
}

static void namesake(void)
{
    int met = 0;
    begin();
    CUdeviceptr any = obtain(MIB, NULL);
    record(any, new_stream(NON_BLOCKING));
    for (int i = 0; i < 200 && met < 3; i++) {
        CUstream gone = new_stream(NON_BLOCKING);
        CUdeviceptr tensor = obtain(MIB, gone);
        CHECK(cuMemsetD8Async(tensor, 0xee, MIB, gone));
        give_back(tensor, MIB, gone);
        CHECK(cuStreamDestroy_v2(gone)); /* its pending work goes on */
        CUstream next = new_stream(NON_BLOCKING);
        met += next == gone;
        CUdeviceptr other = obtain(MIB, next);
        THAT(simgpu_hazard(other, MIB) == 0);
        give_back(other, MIB, next);
    }
    THAT(met);
}

static bool meet(CUdeviceptr one, CUdeviceptr other) { return one < other + MIB && other < one + MIB; }

static void *comes_and_goes(void *stream)
{
    CHECK(cuCtxSetCurrent(context));
    for (int i = 0; i < 400; i++) give_back(obtain(MIB, stream), MIB, stream);
    return NULL;
}

/* Memory that belongs to no graph can be used again when the job has waited after the capture: on a device of 600 MiB each
 * round uses 400 MiB. */
static void beside_a_capture(CUstream stream)
{
    pthread_t thread;
    CUgraph graph;
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    pthread_create(&thread, NULL, comes_and_goes, new_stream(NON_BLOCKING));
    pthread_join(thread, NULL);
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuCtxSynchronize());
}

static void captured(void)
{
    enum { CAPTURES = 3, LATER = 200 };
    static CUdeviceptr in_graphs[3 * CAPTURES];
    CUgraph graph;
    int count = 0;
    begin();
    CUstream stream = new_stream(NON_BLOCKING);
    for (int i = 0; i < CAPTURES; i++) {
        CUdeviceptr before = in_graphs[count++] = obtain(MIB, stream);
        CHECK(cuStreamBeginCapture_v2(stream, i % 2 ? CU_STREAM_CAPTURE_MODE_GLOBAL : 2 /* relaxed */));
        CUdeviceptr within = in_graphs[count++] = obtain(MIB, stream), output = in_graphs[count++] = obtain(MIB, stream);
        CHECK(cuMemsetD8Async(before, 1, MIB, stream));
        CHECK(cuMemsetD8Async(within, 1, MIB, stream));
        CHECK(cuMemsetD8Async(output, 1, MIB, stream));
        give_back(before, MIB, stream);
        give_back(within, MIB, stream);
        CHECK(cuStreamEndCapture(stream, &graph));
        give_back(output, MIB, stream); /* the graph still uses it */
    }
    CHECK(cuCtxSynchronize());
    for (int i = 0; i < 3; i++) beside_a_capture(stream);
    for (int i = 0; i < LATER; i++) {
        CUdeviceptr tensor = obtain(MIB, stream);
        for (int k = 0; k < count; k++) THAT(!meet(tensor, in_graphs[k]));
        if (i % 2) give_back(tensor, MIB, stream);
    }
}

static volatile bool is_set;
static void waits(void *unused)
{
    (void)unused;
    while (!is_set) usleep(100);
}
static void sets(void *unused)
{
    (void)unused;
    is_set = true;
}

/* Work of one blocking stream waits for later work of another one. Work on the legacy default stream between the two
 * would stop both streams for ever (cuda.h 13.0, CU_STREAM_LEGACY), and the job submits none. */
static void mutual(void)
{
    alarm(60);
    begin();
    CUstream own = new_stream(NON_BLOCKING), first = new_stream(0), second = new_stream(0);
    CUdeviceptr tensor = obtain(MIB, own);
    record(tensor, NULL);
    CHECK(cuMemsetD8Async(tensor, 1, MIB, NULL));
    CHECK(cuLaunchHostFunc(first, waits, NULL));
    give_back(tensor, MIB, own);
    give_back(obtain(MIB, own), MIB, own);
    CHECK(cuLaunchHostFunc(second, sets, NULL));
    CHECK(cuCtxSynchronize());
}

static void (*begin_pool)(int, uint64_t, uint64_t, void *);
static void (*end_pool)(int, uint64_t, uint64_t), (*release_pool)(int, uint64_t, uint64_t);

static void *find(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    THAT(found);
    return found;
}

/* Captures with the private pool (1, 0); returns a block that the graph uses and that the job still has. */
static CUdeviceptr captured_in_a_pool(CUstream stream, CUdeviceptr *freed)
{
    CUgraph graph;
    begin_pool(0, 1, 0, NULL);
    CHECK(cuStreamBeginCapture_v2(stream, 2 /* relaxed */));
    CUdeviceptr within = obtain(40 * MIB, stream), output = obtain(MIB, stream);
    CHECK(cuMemsetD8Async(within, 1, 40 * MIB, stream));
    CHECK(cuMemsetD8Async(output, 1, MIB, stream));
    give_back(within, 40 * MIB, stream);
    CHECK(cuStreamEndCapture(stream, &graph));
    end_pool(0, 1, 0);
    *freed = within;
    return output;
}

static void pools(void)
{
    begin();
    begin_pool = find("vramshim_torch_begin_pool");
    end_pool = find("vramshim_torch_end_pool"), release_pool = find("vramshim_torch_release_pool");
    CUstream stream = new_stream(NON_BLOCKING), launches = new_stream(NON_BLOCKING);
    /* From this report on, a free names the streams that may use the block. */
    CUdeviceptr told = obtain(MIB, stream);
    record(told, launches);
    give_back(told, MIB, stream);
    CHECK(cuCtxSynchronize());
    /* The device has 200 MiB: a graph's 40 MiB fit four times at most. */
    for (int round = 0; round < 10; round++) {
        CUdeviceptr freed[2], outputs[2], other;
        for (int i = 0; i < 2; i++) outputs[i] = captured_in_a_pool(stream, &freed[i]);
        release_pool(0, 1, 0); /* one of the two graphs is left */
        other = obtain(MIB, stream);
        for (int i = 0; i < 2; i++) THAT(!meet(other, freed[i]) && !meet(other, outputs[i]));
        give_back(outputs[0], MIB, stream); /* the other graph still uses it */
        /* A launch that is not done when the graph is gone */
        CHECK(cuMemsetD8Async(freed[0], 1, 40 * MIB, launches));
        CHECK(cuMemsetD8Async(outputs[1], 1, MIB, launches));
        release_pool(0, 1, 0);
        give_back(outputs[1], MIB, stream);
        give_back(other, MIB, stream);
        for (int i = 0; i < 8; i++) {
            CUdeviceptr next = obtain(MIB, stream);
            THAT(simgpu_hazard(next, MIB) == 0);
            give_back(next, MIB, stream);
        }
        CHECK(cuCtxSynchronize());
    }
    THAT(simgpu_hazards() == 0);
}

static void refused(void)
{
    begin();
    const char *libc10 = getenv("LIBC10");
    if (libc10) THAT(dlopen(libc10, RTLD_NOW | RTLD_LOCAL));
    printf("returned %p\n", torch_alloc((ptrdiff_t)1 << 50, 0, NULL));
}

static void steps(void)
{
    enum { LIVE = 40, REQUESTS = 4000, STREAMS = 3 };
    struct { CUdeviceptr address; size_t size; CUstream stream; } tensors[LIVE] = {0}, *tensor;
    CUstream streams[STREAMS] = {NULL};
    uint64_t random = 1;
    begin();
    for (int i = 1; i < STREAMS; i++) CHECK(cuStreamCreate(&streams[i], 1 /* non-blocking */));
    uint64_t before = synchronisations();
    for (int i = 0; i < REQUESTS; i++) {
        tensor = &tensors[draw(&random, LIVE)];
        if (tensor->address) give_back(tensor->address, tensor->size, tensor->stream);
        tensor->size = 512 * (1 + draw(&random, 8192));
        tensor->stream = streams[draw(&random, 8) ? 0 : draw(&random, STREAMS)];
        tensor->address = obtain(tensor->size, tensor->stream);
        CHECK(cuMemsetD8Async(tensor->address, 1, tensor->size, tensor->stream));
        CUstream other = streams[draw(&random, STREAMS)];
        if (other == tensor->stream || draw(&random, 8)) continue;
        record(tensor->address, other);
        CHECK(cuMemsetD8Async(tensor->address, 2, tensor->size, other));
    }
    printf("waited %d\n", (int)(synchronisations() - before));
    THAT(simgpu_hazards() == 0);
}

/* ---- cancelled */

static void calls_of_a_cancelled_thread(void)
{
    CUstream streams[3] = {NULL, NULL, (CUstream)2 /* the default stream of the thread */};
    CUdeviceptr blocks[64] = {0};
    size_t sizes[64];
    CUgraph graph;
    uint64_t seed = 7;
    sizes[0] = MIB, blocks[0] = obtain(MIB, NULL); /* the library begins here */
    begin();
    CHECK(cuStreamCreate(&streams[1], 1 /* non-blocking */));
    for (int i = 1; i < 60000; i++) {
        int place = (int)draw(&seed, 64);
        CUstream stream = streams[i % 100 ? 0 : i / 100 % 3];
        if (blocks[place]) give_back(blocks[place], sizes[place], stream);
        sizes[place] = 1 + draw(&seed, i % 1000 ? MIB : 20 * MIB);
        blocks[place] = obtain(sizes[place], stream);
        if (blocks[place] && i % 500 == 0) record(blocks[place], streams[1]);
    }
    THAT(!torch_alloc((ptrdiff_t)1 << 40, 0, NULL));
    torch_free(&graph, 512, 0, NULL);
    CHECK(cuStreamBeginCapture_v2(streams[1], 2 /* relaxed */));
    give_back(obtain(MIB, streams[1]), MIB, streams[1]);
    CHECK(cuStreamEndCapture(streams[1], &graph));
}

static void cancelled(void)
{
    CHECK(cuInit(0));
    cancelled_during(calls_of_a_cancelled_thread);
    give_back(obtain(MIB, NULL), MIB, NULL);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"first", first},       {"elsewhere", elsewhere},
                                          {"crossing", crossing}, {"namesake", namesake}, {"captured", captured},
                                          {"mutual", mutual},     {"pools", pools},       {"refused", refused},
                                          {"steps", steps},       {"cancelled", cancelled}};
    torch_alloc = library_function(vramshim_torch_alloc);
    torch_free = library_function(vramshim_torch_free);
    torch_record_stream = library_function(vramshim_torch_record_stream);
    THAT(torch_alloc && torch_free && torch_record_stream);
    return PLAY(scenes, argc, argv);
}
