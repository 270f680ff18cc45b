/* Address ranges that are backed by memory: one huge mapping, which takes no memory until it is written to. Freed
 * ranges are kept by size class and reused. */
#include "sim.h"
#include <sys/mman.h>

/* Halved until the kernel grants it: valgrind and `ulimit -v` refuse the largest. */
#define LARGEST_ARENA (16ull << 40)
#define LEAST_ARENA (64ull << 30)
#define CLASSES_PER_DOUBLING 8
#define BINS (64 * CLASSES_PER_DOUBLING)

struct range { uint64_t address; struct range *next; };
static uint64_t base, arena_size, next_small, next_large;
static struct range *bins[BINS];

/* The size and the number of the class that `size` belongs to. There are eight classes between each power of two and
 * the next, from 512 on. */
static uint64_t class_of(uint64_t size, int *number)
{
    uint64_t least = size < 512 ? 512 : size;
    int doubling = 63 - __builtin_clzll(least);
    uint64_t step = (1ull << doubling) / CLASSES_PER_DOUBLING;
    if (step < 512) step = 512;
    uint64_t rounded = (least + step - 1) / step * step;
    int high = 63 - __builtin_clzll(rounded);
    *number = high * CLASSES_PER_DOUBLING + (int)((rounded - (1ull << high)) / step % CLASSES_PER_DOUBLING);
    return rounded;
}

uint64_t arena_take(uint64_t size)
{
    if (!base) {
        void *map = MAP_FAILED;
        for (arena_size = LARGEST_ARENA;; arena_size /= 2) {
            if (arena_size < LEAST_ARENA) return 0;
            map = mmap((void *)0x700000000000ull, arena_size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (map != MAP_FAILED) break;
        }
        madvise(map, arena_size, MADV_DONTDUMP);
        base = ((uint64_t)map + (2 << 20) - 1) & ~((2ull << 20) - 1);
        next_small = base;
        next_large = base + arena_size / 16;
    }
    int number;
    uint64_t bytes = class_of(size, &number);
    if (bins[number]) {
        struct range *range = bins[number];
        uint64_t address = range->address;
        bins[number] = range->next;
        free(range);
        return address;
    }
    bool large = bytes >= (2 << 20);
    uint64_t *next = large ? &next_large : &next_small, align = large ? 2 << 20 : 512;
    uint64_t end = base + (large ? arena_size - (4 << 20) : arena_size / 16);
    uint64_t address = (*next + align - 1) / align * align;
    if (bytes > end - address) return 0;
    *next = address + bytes;
    return address;
}

void arena_give(uint64_t address, uint64_t size)
{
    int number;
    uint64_t bytes = class_of(size, &number);
    uint64_t first = (address + 4095) & ~4095ull, last = (address + bytes) & ~4095ull;
    /* A new mapping also replaces the file that sharing with another process put here. */
    if (last > first && last - first >= 65536)
        mmap((void *)first, last - first, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    struct range *range = malloc(sizeof *range);
    *range = (struct range){address, bins[number]};
    bins[number] = range;
}
