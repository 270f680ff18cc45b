/* Address space of virtual memory management. A range of addresses maps a range of the file that holds physical memory, and
 * adjacent addresses map adjacent bytes, without access. So the kernel sees one mapping (it allows 65530, vm.max_map_count)
 * however many reservations there are. Ranges that are given back are joined with their neighbours. */
#include "sim.h"
#include <search.h>
#include <sys/mman.h>

#define STEP (1ull << 40)

struct gap { uint64_t address, size, offset; };
static void *by_address, *by_size;

static int compare_addresses(const void *left, const void *right)
{
    const struct gap *a = left, *b = right;
    if (a->address + a->size <= b->address) return -1;
    return b->address + b->size <= a->address;
}

/* The search for a size that no gap has comes by the least gap that is larger. */
static const struct gap *least_larger;
static int compare_sizes(const void *left, const void *right)
{
    const struct gap *a = left, *b = right;
    if (a->size != b->size) {
        if (a->size < b->size) least_larger = b;
        return a->size < b->size ? -1 : 1;
    }
    return a->address < b->address ? (least_larger = b, -1) : a->address > b->address;
}

static struct gap *found(void **at) { return at ? *at : NULL; }
static struct gap *gap_at(uint64_t address) { return found(tfind(&(struct gap){address, 1, 0}, &by_address, compare_addresses)); }

static struct gap *gap_of_size(uint64_t size)
{
    least_larger = NULL;
    struct gap *same = found(tfind(&(struct gap){.size = size}, &by_size, compare_sizes));
    return same ? same : (struct gap *)least_larger;
}

static void insert(struct gap gap)
{
    if (!gap.size) return;
    struct gap *kept = malloc(sizeof *kept);
    *kept = gap;
    tsearch(kept, &by_address, compare_addresses);
    tsearch(kept, &by_size, compare_sizes);
}

static struct gap take_out(struct gap *gap)
{
    struct gap copy = *gap;
    tdelete(gap, &by_address, compare_addresses);
    tdelete(gap, &by_size, compare_sizes);
    free(gap);
    return copy;
}

/* Takes part of a gap; the rest stays. */
static struct gap cut(struct gap *from, uint64_t address, uint64_t size)
{
    struct gap all = take_out(from);
    uint64_t before = address - all.address;
    insert((struct gap){all.address, before, all.offset});
    insert((struct gap){address + size, all.size - before - size, all.offset + before + size});
    return (struct gap){address, size, all.offset + before};
}

static uint64_t aligned(uint64_t address, uint64_t alignment) { return (address + alignment - 1) / alignment * alignment; }

/* Maps addresses that were never used. Returns false if there are none. */
static bool map_more(uint64_t hint, uint64_t size, uint64_t alignment, uint64_t *start)
{
    uint64_t offset = vmm_take_file(size);
    if (offset == ~0ull) return false;
    char *map = mmap((void *)hint, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return false;
    *start = aligned((uint64_t)map, alignment);
    if (*start > (uint64_t)map) munmap(map, *start - (uint64_t)map);
    munmap((char *)*start + size, (uint64_t)map + alignment - *start);
    if (mmap((void *)*start, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, vmm_file(), (off_t)offset) == MAP_FAILED) {
        munmap((void *)*start, size);
        return false;
    }
    insert((struct gap){*start, size, offset});
    return true;
}

bool space_holds(uint64_t address) { return gap_at(address); }

bool space_take(uint64_t hint, uint64_t size, uint64_t alignment, uint64_t *address, uint64_t *offset)
{
    uint64_t start = hint;
    struct gap *gap = hint % alignment ? NULL : gap_at(hint);
    bool fits = gap && gap->address + gap->size - hint >= size;
    if (!fits && !hint) {
        /* A gap of this size is long enough wherever it begins. */
        gap = gap_of_size(size + alignment - config()->granularity);
        fits = gap;
        if (fits) start = aligned(gap->address, alignment);
    }
    if (!fits) {
        bool in_steps = !hint && size < STEP && !address_space_is_scarce();
        if (!(in_steps && map_more(0, STEP, alignment, &start)) && !map_more(hint, size, alignment, &start)) return false;
        gap = gap_at(start);
    }
    struct gap taken = cut(gap, start, size);
    *address = taken.address;
    *offset = taken.offset;
    return true;
}

void space_give(uint64_t address, uint64_t size, uint64_t offset)
{
    if (address_space_is_scarce()) {
        munmap((void *)address, size);
        return;
    }
    struct gap gap = {address, size, offset}, *before = gap_at(address - 1), *after = gap_at(address + size);
    if (before && before->offset + before->size == gap.offset) {
        struct gap joined = take_out(before);
        gap = (struct gap){joined.address, joined.size + gap.size, joined.offset};
    }
    if (after && gap.offset + gap.size == after->offset) gap.size += take_out(after).size;
    insert(gap);
}
