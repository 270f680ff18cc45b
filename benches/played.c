/* Plays a trace on the device that is there, and measures the calls of an allocator.
 *
 *   played CONTENDER REPETITIONS NOISE TRACE
 *
 * The trace is described in tests/support/clients/trace.h, and CONTENDER in contender.h. All requests go to one stream.
 * After each repetition all blocks are freed. NOISE changes each size by up to so many percent, differently in each
 * repetition. The device has no work, so no free waits. Prints a line "REQUESTS ALLOCATE_NS FREE_NS MOST_NS PEAK_LIVE" for
 * each repetition: the nanoseconds in all allocations and in all frees, the longest single call, and the largest sum of
 * the sizes of live blocks. Then waits for the end of its stdin, so that the memory that the allocator keeps can be
 * looked at. If the allocator fails, prints "refused WHY" instead and exits with 1. */
#include "contender.h"
#include "trace.h"
#include <errno.h>
#include <unistd.h>

static struct block { unsigned long long address; size_t size; } *blocks;
static uint64_t allocate_ns, free_ns, most_ns, live, peak_live;

static uint64_t taken_since(uint64_t begin_ns)
{
    uint64_t taken_ns = now_ns() - begin_ns;
    if (taken_ns > most_ns) most_ns = taken_ns;
    return taken_ns;
}

static void obtain(struct block *block)
{
    uint64_t begin_ns = now_ns();
    int result = allocate(&block->address, block->size);
    uint64_t taken_ns = taken_since(begin_ns);
    if (result) refused("allocating %zu bytes: error %d", block->size, result);
    allocate_ns += taken_ns;
    live += block->size;
    if (live > peak_live) peak_live = live;
}

static void give_back(struct block *block)
{
    uint64_t begin_ns = now_ns();
    int result = release(block->address, block->size);
    free_ns += taken_since(begin_ns);
    if (result) refused("freeing a block: error %d", result);
    live -= block->size;
    block->address = 0;
}

static void play(uint64_t *random, uint64_t noise)
{
    for (size_t i = 0; i < event_count; i++) {
        struct block *block = &blocks[events[i].block];
        if (!events[i].allocates) {
            give_back(block);
            continue;
        }
        block->size = noisy_size(&events[i], random, noise);
        obtain(block);
    }
    for (uint32_t i = 0; i < block_count; i++)
        if (blocks[i].address) give_back(&blocks[i]);
}

int main(int argc, char **argv)
{
    if (argc != 5) return fprintf(stderr, "usage: played CONTENDER REPETITIONS NOISE TRACE\n"), 2;
    uint64_t repetitions = strtoull(argv[2], NULL, 10), noise = strtoull(argv[3], NULL, 10), random = 1;
    if (!repetitions || noise >= 100) return fprintf(stderr, "played: a number is out of range\n"), 2;
    FILE *trace = fopen(argv[4], "r");
    if (!trace) return fprintf(stderr, "played: %s: %s\n", argv[4], strerror(errno)), 2;
    read_trace(trace);
    blocks = calloc(block_count + 1, sizeof *blocks);
    open_contender(argv[1]);
    enter_thread();
    struct block first = {.size = 512}; /* The context is made here. */
    if (allocate(&first.address, first.size)) refused("allocating 512 bytes");
    release(first.address, first.size);
    for (uint64_t i = 0; i < repetitions; i++) {
        allocate_ns = free_ns = most_ns = peak_live = 0;
        play(&random, noise);
        printf("%u %llu %llu %llu %llu\n", block_count, (unsigned long long)allocate_ns, (unsigned long long)free_ns,
               (unsigned long long)most_ns, (unsigned long long)peak_live);
    }
    fflush(stdout);
    for (char end; read(STDIN_FILENO, &end, 1) > 0;) {}
    return 0;
}
