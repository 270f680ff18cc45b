/* The places of taken bytes on the device, for SIMGPU_CONTIGUOUS: first fit, one extent for each request.
 *
 * The shared state has a word for every page of 2 MiB: the number of the process slot that holds the page. So the pages
 * of a dead process are known, at whatever moment it died. An extent has whole pages, but only its bytes count as used,
 * as in every other mode. */
#include "sim.h"

#define PAGE (2ull << 20)

static uint64_t pages_for(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE; }

/* Each device has as many words as the largest device needs. Unused words take no memory. */
static uint64_t stride(void)
{
    uint64_t most = 0;
    for (int i = 0; i < config()->devices; i++)
        if (most < config()->memory[i]) most = config()->memory[i];
    return pages_for(most);
}

static uint16_t *pages_of(struct shared_state *s, int physical) { return s->pages + (uint64_t)physical * stride(); }

uint64_t extents_room(void)
{
    return config()->contiguous ? (uint64_t)config()->devices * stride() * sizeof(uint16_t) : 0;
}

bool extents_take(struct shared_state *s, int physical, int owner, uint64_t bytes, struct extent **extents)
{
    if (!config()->contiguous || !bytes) return true;
    uint16_t *pages = pages_of(s, physical);
    uint64_t total = config()->memory[physical], count = pages_for(bytes), first = 0, run = 0;
    for (uint64_t page = 0; run < count && page < pages_for(total); page++) {
        run = pages[page] ? 0 : run + 1;
        if (!run) first = page + 1;
    }
    if (run < count || bytes > total - first * PAGE) return false; /* the last page may be incomplete */
    for (uint64_t page = first; page < first + count; page++) pages[page] = (uint16_t)owner;
    struct extent *extent = malloc(sizeof *extent);
    *extent = (struct extent){first, bytes, *extents};
    *extents = extent;
    return true;
}

void extents_give(struct shared_state *s, int physical, uint64_t bytes, struct extent **extents)
{
    while (bytes && *extents) {
        struct extent *latest = *extents;
        uint64_t given = bytes < latest->bytes ? bytes : latest->bytes, end = latest->page + pages_for(latest->bytes);
        bytes -= given;
        latest->bytes -= given;
        uint64_t kept = latest->page + pages_for(latest->bytes);
        memset(pages_of(s, physical) + kept, 0, (end - kept) * sizeof(uint16_t));
        if (latest->bytes) return;
        *extents = latest->next;
        free(latest);
    }
}

void extents_forget(struct shared_state *s, int owner)
{
    if (!config()->contiguous) return;
    for (uint64_t i = 0, count = (uint64_t)config()->devices * stride(); i < count; i++)
        if (s->pages[i] == owner) s->pages[i] = 0;
}
