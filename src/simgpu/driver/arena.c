/* Address ranges that are backed by memory: one huge mapping, which takes no memory until it is written to. Freed
 * ranges are kept by size class and reused. */
#include "sim.h"
#include <sys/mman.h>

/* Valgrind and `ulimit -v` refuse the largest arena. Then it is halved until it is granted, as a range without access, and
 * memory is mapped there in steps. Valgrind's search for leaks reads all memory that is mapped. */
#define LARGEST_ARENA (16ull << 40)
#define LEAST_ARENA (1ull << 30)
#define STEP (16ull << 20)
#define CLASSES_PER_DOUBLING 8
#define BINS (64 * CLASSES_PER_DOUBLING)

struct range { uint64_t address; struct range *next; };
static uint64_t base, arena_size, next_small, next_large;
static uint64_t mapped_small, mapped_large; /* the ends of what is mapped, if address space is scarce */
static bool scarce;
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

enum { ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

static bool begin(void)
{
    if (base) return true;
    void *map = mmap((void *)0x700000000000ull, arena_size = LARGEST_ARENA, PROT_READ | PROT_WRITE, ANONYMOUS, -1, 0);
    while (map == MAP_FAILED) {
        scarce = true;
        if ((arena_size /= 2) < LEAST_ARENA) return false;
        /* Half of the address space is left for others. */
        map = mmap(NULL, arena_size * 2, PROT_NONE, ANONYMOUS, -1, 0);
        if (map != MAP_FAILED) munmap((char *)map + arena_size, arena_size);
    }
    madvise(map, arena_size, MADV_DONTDUMP);
    base = ((uint64_t)map + (2 << 20) - 1) & ~((2ull << 20) - 1);
    /* What is above the mapping is the job's. A sixteenth is for small ranges: it ends at a multiple of 2 MiB. */
    arena_size = (arena_size - (base - (uint64_t)map)) & ~((32ull << 20) - 1);
    next_small = mapped_small = base;
    next_large = mapped_large = base + arena_size / 16;
    return true;
}

bool address_space_is_scarce(void) { return begin(), scarce; }

/* Maps memory up to `end`, at most up to `limit`. */
static bool map_up_to(uint64_t *mapped, uint64_t end, uint64_t limit)
{
    if (!scarce || end <= *mapped) return true;
    uint64_t wanted = (end - *mapped + STEP - 1) / STEP * STEP;
    if (wanted > limit - *mapped) wanted = limit - *mapped;
    void *map = mmap((void *)*mapped, wanted, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0);
    if (map != MAP_FAILED) *mapped += wanted;
    return map != MAP_FAILED;
}

static uint64_t take(uint64_t size)
{
    if (!begin() || size > arena_size) return 0;
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
    if (bytes > end - address || !map_up_to(large ? &mapped_large : &mapped_small, address + bytes, end)) return 0;
    *next = address + bytes;
    return address;
}

uint64_t arena_take(uint64_t size)
{
    uint64_t address = take(size);
    if (address && config()->fresh >= 0) memset((void *)address, config()->fresh, fresh_bytes(size));
    return address;
}

bool arena_holds(uint64_t address) { return base && address - base < arena_size; }

bool arena_packed(uint64_t address, uint64_t *start, uint64_t *size)
{
    *start = base;
    *size = arena_size / 16;
    return base && address - base < *size;
}

/* Memory that was not shared keeps its mapping: the kernel merges no mappings whose pages were touched, and a process may
 * have 65530 (vm.max_map_count). */
void arena_give(uint64_t address, uint64_t size, bool shared)
{
    int number;
    uint64_t bytes = class_of(size, &number);
    uint64_t first = (address + 4095) & ~4095ull, last = (address + bytes) & ~4095ull;
    if (shared && last > first) ipc_unshare(first, last);
    else if (last > first && last - first >= 65536) madvise((void *)first, last - first, MADV_DONTNEED);
    struct range *range = malloc(sizeof *range);
    *range = (struct range){address, bins[number]};
    bins[number] = range;
}
