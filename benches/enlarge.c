/* Counts what the driver calls of a job cost that only grows.
 *
 *   enlarge CONTENDER SIZE BYTES
 *
 * Allocates blocks of SIZE bytes, together BYTES, and frees none. Needs the simulated GPU, SIMGPU_LATENCY=prices and
 * SIMGPU_COUNTS=1. Prints a line "PAID_NS CALLS WAITS": the sum of the prices of all driver calls that the blocks
 * needed, how many calls changed memory, and how many waited. If the allocator fails, prints "refused WHY" instead and
 * exits with 1. */
#include "contender.h"
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t (*calls)(const char *function);
static uint64_t (*paid_ns)(void);

static uint64_t sum(const char *const *names)
{
    uint64_t all = 0;
    for (; *names; names++) all += calls(*names);
    return all;
}

int main(int argc, char **argv)
{
    static const char *const changes[] = {"cuMemCreate", "cuMemMap",   "cuMemSetAccess", "cuMemUnmap",
                                          "cuMemRelease", "cuMemAlloc", "cuMemFree",      NULL};
    static const char *const waits[] = {"cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", NULL};
    if (argc != 4) return fprintf(stderr, "usage: enlarge CONTENDER SIZE BYTES\n"), 2;
    uint64_t size = strtoull(argv[2], NULL, 10), bytes = strtoull(argv[3], NULL, 10);
    if (!size) return fprintf(stderr, "enlarge: a number is out of range\n"), 2;
    open_contender(argv[1]);
    enter_thread();
    void *simulator = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (simulator) {
        calls = (__typeof__(calls))dlsym(simulator, "simgpu_calls");
        paid_ns = (__typeof__(paid_ns))dlsym(simulator, "simgpu_paid_ns");
    }
    if (!calls || !paid_ns) refused("libcuda.so.1 is not the simulated GPU");
    uint64_t paid = paid_ns(), changed = sum(changes), waited = sum(waits);
    for (uint64_t held = 0; held < bytes; held += size) {
        unsigned long long address;
        int result = allocate(&address, size);
        if (result) refused("allocating %llu bytes: error %d", (unsigned long long)size, result);
    }
    printf("%llu %llu %llu\n", (unsigned long long)(paid_ns() - paid), (unsigned long long)(sum(changes) - changed),
           (unsigned long long)(sum(waits) - waited));
    return 0;
}
