/* Plays a trace: makes the requests of a recorded job, in their order, with the job's sizes and streams.
 *
 *   play [--through torch|linear] [--repeat N] [--noise PERCENT] [--seed N] [--lag REQUESTS] < TRACE
 *
 * The trace has the columns of RMM's log (Thread,Time,Action,Pointer,Size,Stream). Requests go to vramshim_torch_alloc
 * and vramshim_torch_free, which get the stream (torch), or to cuMemAlloc and cuMemFree (linear). After each repetition
 * all blocks are freed. --noise changes each size by up to so many percent, differently in each repetition. --lag
 * launches work on each block, which the device does while the host is so many requests further.
 *
 * Needs a simulator that counts calls (SIMGPU_COUNTS=1; SIMGPU_DELAYED=1 for --lag). Prints one line of JSON for each
 * repetition. All counts but "requests" are the simulator's. A request is an allocation. "early" counts blocks that were
 * handed out, and "hazards" those that were freed or unmapped, while work that is not ordered before may use them. */
#include "delayed.h"
#include "trace.h"
#include <time.h>

/* ---- the calls that are told apart */

enum group { CHANGES, ADDRESSES, WAITS, EVENTS, GROUPS };
static const char *const group_names[GROUPS] = {"changes", "addresses", "waits", "events"};
static const struct { const char *name; enum group group; } calls[] = {
    {"cuMemCreate", CHANGES},
    {"cuMemMap", CHANGES},
    {"cuMemSetAccess", CHANGES},
    {"cuMemUnmap", CHANGES},
    {"cuMemRelease", CHANGES},
    {"cuMemAlloc", CHANGES},
    {"cuMemFree", CHANGES},
    {"cuMemAllocAsync", CHANGES},
    {"cuMemAllocFromPoolAsync", CHANGES},
    {"cuMemFreeAsync", CHANGES},
    {"cuMemAddressReserve", ADDRESSES},
    {"cuMemAddressFree", ADDRESSES},
    {"cuCtxSynchronize", WAITS},
    {"cuStreamSynchronize", WAITS},
    {"cuEventSynchronize", WAITS},
    {"cuEventCreate", EVENTS},
    {"cuEventDestroy", EVENTS},
    {"cuEventRecord", EVENTS},
    {"cuCtxRecordEvent", EVENTS},
    {"cuStreamWaitEvent", EVENTS},
    {"cuEventQuery", EVENTS},
    {"cuStreamQuery", EVENTS},
};
enum { CALLS = sizeof calls / sizeof *calls };
struct counts { uint64_t of[CALLS]; };

static struct counts now(void)
{
    struct counts counts;
    for (int i = 0; i < CALLS; i++) counts.of[i] = simgpu_calls(calls[i].name);
    return counts;
}

static void add(struct counts *sum, const struct counts *before, const struct counts *after)
{
    for (int i = 0; i < CALLS; i++) sum->of[i] += after->of[i] - before->of[i];
}

static uint64_t in_group(const struct counts *counts, enum group group)
{
    uint64_t sum = 0;
    for (int i = 0; i < CALLS; i++)
        if (calls[i].group == group) sum += counts->of[i];
    return sum;
}

static CUstream streams[STREAMS];

static struct block { CUdeviceptr address; uint64_t size; uint32_t stream; } *blocks;
static __typeof__(&vramshim_torch_alloc) torch_alloc;
static __typeof__(&vramshim_torch_free) torch_free;
static uint64_t live, peak_live, peak_reserved, reserved_before;
static uint64_t early; /* blocks that were handed out while work may still use them */
static struct counts allocating, freeing;

/* Work that the device has not done yet, as a ring. */
static CUevent *late;
static uint64_t lag, launched;

static void work_on(const struct block *block)
{
    CUevent event = late[launched++ % lag];
    if (launched > lag) CHECK(cuEventSynchronize(event));
    CHECK(cuMemsetD8Async(block->address, 1, block->size < 512 ? block->size : 512, streams[block->stream]));
    CHECK(cuEventRecord(event, streams[block->stream]));
}

static void obtain(struct block *block)
{
    struct counts before = now();
    if (torch_alloc) block->address = (CUdeviceptr)torch_alloc((ptrdiff_t)block->size, 0, streams[block->stream]);
    else CHECK(cuMemAlloc_v2(&block->address, block->size));
    struct counts after = now();
    THAT(block->address);
    add(&allocating, &before, &after);
    if (torch_alloc) early += simgpu_unordered(block->address, block->size, streams[block->stream]) > 0;
    else early += simgpu_hazard(block->address, block->size) > 0;
    live += block->size;
    if (live > peak_live) peak_live = live;
    uint64_t reserved = simgpu_used(0) - reserved_before;
    if (reserved > peak_reserved) peak_reserved = reserved;
    if (lag) work_on(block);
}

static void give_back(struct block *block, uint32_t stream)
{
    struct counts before = now();
    if (torch_free) torch_free((void *)block->address, (ptrdiff_t)block->size, 0, streams[stream]);
    else CHECK(cuMemFree_v2(block->address));
    struct counts after = now();
    add(&freeing, &before, &after);
    live -= block->size;
    block->address = 0;
}

static void play_once(uint64_t *random, uint64_t noise)
{
    for (size_t i = 0; i < event_count; i++) {
        const struct event *event = &events[i];
        struct block *block = &blocks[event->block];
        if (event->allocates) {
            *block = (struct block){.size = noisy_size(event, random, noise), .stream = event->stream};
            obtain(block);
        } else give_back(block, event->stream);
    }
    for (uint32_t i = 0; i < block_count; i++)
        if (blocks[i].address) give_back(&blocks[i], blocks[i].stream);
}

static void print_groups(const char *name, const struct counts *counts)
{
    printf(",\"%s\":{", name);
    for (int group = 0; group < GROUPS; group++)
        printf("%s\"%s\":%llu", group ? "," : "", group_names[group], (unsigned long long)in_group(counts, group));
    printf("}");
}

static void print(uint64_t repetition, double seconds)
{
    struct counts both = {0}, none = {0};
    add(&both, &none, &allocating);
    add(&both, &none, &freeing);
    printf("{\"repetition\":%llu,\"requests\":%u,\"changes\":%llu", (unsigned long long)repetition, block_count,
           (unsigned long long)in_group(&both, CHANGES));
    print_groups("allocations", &allocating);
    print_groups("frees", &freeing);
    printf(",\"calls\":{");
    const char *comma = "";
    for (int i = 0; i < CALLS; i++)
        if (both.of[i]) printf("%s\"%s\":%llu", comma, calls[i].name, (unsigned long long)both.of[i]), comma = ",";
    printf("},\"peak_live\":%llu,\"peak_reserved\":%llu", (unsigned long long)peak_live, (unsigned long long)peak_reserved);
    printf(",\"early\":%llu,\"hazards\":%llu,\"seconds\":%.6f}\n", (unsigned long long)early,
           (unsigned long long)simgpu_hazards(), seconds);
    fflush(stdout);
}

static double clock_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* A job with several streams tells the allocator which of them use a block. A trace does not say it, but its frees come
 * when such work is done. So one report is enough. */
static void report_a_stream(void)
{
    __typeof__(&vramshim_torch_record_stream) record =
        (__typeof__(record))dlsym(RTLD_DEFAULT, "vramshim_torch_record_stream");
    THAT(record);
    void *tensor = torch_alloc(512, 0, streams[0]);
    record(tensor, streams[1]);
    torch_free(tensor, 512, 0, streams[0]);
}

int main(int argc, char **argv)
{
    uint64_t repeat = 1, noise = 0, random = 1;
    bool linear = false;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool is_way = !strcmp(value, "torch") || !strcmp(value, "linear");
        if (!strcmp(argv[i], "--through") && is_way) linear = *value == 'l';
        else if (!strcmp(argv[i], "--repeat") && atol(value) > 0) repeat = strtoull(value, NULL, 10);
        else if (!strcmp(argv[i], "--noise") && atol(value) < 100) noise = strtoull(value, NULL, 10);
        else if (!strcmp(argv[i], "--seed")) random = strtoull(value, NULL, 10);
        else if (!strcmp(argv[i], "--lag")) lag = strtoull(value, NULL, 10);
        else return fprintf(stderr, "play: %s %s is not accepted; see the head of play.c\n", argv[i], value), 2;
    }
    begin();
    if (!simgpu_calls("cuCtxSetCurrent") || (lag && !getenv("SIMGPU_DELAYED")))
        return fprintf(stderr, "play: needs SIMGPU_COUNTS=1, and SIMGPU_DELAYED=1 for --lag\n"), 2;
    if (!linear) {
        torch_alloc = library_function(vramshim_torch_alloc);
        torch_free = library_function(vramshim_torch_free);
        if (!torch_alloc || !torch_free) return fprintf(stderr, "play: no vramshim_torch_alloc here\n"), 2;
    }
    read_trace(stdin);
    for (uint32_t i = 0; i < stream_count; i++)
        if (stream_ids[i]) streams[i] = new_stream(NON_BLOCKING);
    blocks = calloc(block_count + 1, sizeof *blocks);
    late = calloc(lag + 1, sizeof *late);
    for (uint64_t i = 0; i < lag; i++) CHECK(cuEventCreate(&late[i], 0));
    reserved_before = simgpu_used(0);
    if (torch_alloc && stream_count > 1) report_a_stream();
    for (uint64_t repetition = 1; repetition <= repeat; repetition++) {
        allocating = freeing = (struct counts){0};
        peak_live = peak_reserved = 0;
        double start = clock_seconds();
        play_once(&random, noise);
        print(repetition, clock_seconds() - start);
    }
    return 0;
}
