/* Measures what scripts/bench prints beside the time of a pair: the first call of a process, and host memory.
 *
 *   grow CONTENDER LIVE PAIRS
 *
 * Allocates LIVE blocks of random size, and then PAIRS times frees a random block and allocates another. Prints a line
 * "FIRST_NS BYTES EVENTS": nanoseconds from the loading of the contender until it has handed out its first block;
 * bytes of anonymous memory that the process took for the blocks; and how many allocations and frees there were. If
 * the allocator fails, prints "refused WHY" instead and exits with 1. */
#include "contender.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { LEAST = 512, MOST = 1 << 20 };

struct block { unsigned long long address; size_t size; };

static uint64_t next(void)
{
    static uint64_t x = 0x9e3779b97f4a7c15ull;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

static void obtain(struct block *block)
{
    block->size = LEAST + next() % (MOST - LEAST + 1);
    int result = allocate(&block->address, block->size);
    if (result) refused("allocating %zu bytes: error %d", block->size, result);
}

static void give_back(struct block *block)
{
    int result = release(block->address, block->size);
    if (result) refused("freeing a block: error %d", result);
}

static long anonymous_bytes(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "RssAnon: %ld", &kib) == 1) break;
    if (kib < 0) refused("/proc/self/status has no line RssAnon");
    fclose(status);
    return kib * 1024;
}

int main(int argc, char **argv)
{
    if (argc != 4) return fprintf(stderr, "usage: grow CONTENDER LIVE PAIRS\n"), 2;
    size_t live = strtoull(argv[2], NULL, 10), pairs = strtoull(argv[3], NULL, 10);
    if (!live) return fprintf(stderr, "grow: a number is out of range\n"), 2;
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    struct block *blocks = malloc(live * sizeof *blocks);
    if (!blocks) return 1;
    memset(blocks, 1, live * sizeof *blocks); /* so that they take no memory later */
    uint64_t begin_ns = now_ns();
    open_contender(argv[1]);
    enter_thread();
    obtain(blocks);
    uint64_t first_ns = now_ns() - begin_ns;
    give_back(blocks);
    long before = anonymous_bytes();
    for (size_t i = 0; i < live; i++) obtain(&blocks[i]);
    for (size_t i = 0; i < pairs; i++) {
        struct block *victim = &blocks[next() % live];
        give_back(victim);
        obtain(victim);
    }
    long bytes = anonymous_bytes() - before;
    printf("%llu %ld %zu\n", (unsigned long long)first_ns, bytes, 2 + live + 2 * pairs);
    return 0;
}
