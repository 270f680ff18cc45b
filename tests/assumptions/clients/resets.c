/* Memory of handles when the primary context is reset: the simulated GPU keeps it as it is, unmaps it
 * (SIMGPU_RESET_UNMAPS), or frees it (SIMGPU_RESET_FREES_VMM). The library's books must follow, and it must give back what
 * a policy held, which has a hole. Prints checkpoints. */
#include "client.h"
#include <stdbool.h>

enum { GRANULE = 2 << 20, TWO = 2 };

static CUmemGenericAllocationHandle create(void)
{
    *count_of(0, VMM) += GRANULE;
    return physical_memory(GRANULE);
}

static CUdeviceptr allocate(size_t size)
{
    use_device(0);
    *count_of(0, LINEAR) += (long long)size;
    return linear_memory(size);
}

/* Blocks in handles of their own, around one that is given back. Tells how many bytes that was. */
static void allocate_around_a_hole(void)
{
    int (*trim)(int) = dlsym(RTLD_DEFAULT, "vramshim_trim");
    CUdeviceptr blocks[3];
    for (int i = 0; i < 3; i++) blocks[i] = allocate(16 * GRANULE);
    uint64_t before = simgpu_used(0);
    CHECK(cuMemFree_v2(blocks[1]));
    *count_of(0, LINEAR) -= 16 * GRANULE;
    if (trim) trim(0);
    fprintf(stderr, "hole of %llu\n", (unsigned long long)(before - simgpu_used(0)));
}

static bool is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value && !strcmp(value, "1");
}

/* No context is left, so the device has nothing but the job's handles. */
static void only_handles_are_left(void)
{
    if (simgpu_used(0) == (uint64_t)*count_of(0, VMM)) return;
    fprintf(stderr, "%llu bytes are used, and the job has %lld\n", (unsigned long long)simgpu_used(0), *count_of(0, VMM));
    exit(1);
}

int main(void)
{
    bool frees = is_set("SIMGPU_RESET_FREES_VMM"), unmaps = is_set("SIMGPU_RESET_UNMAPS");
    CUdeviceptr start;
    CHECK(cuInit(0));
    allocate_around_a_hole();
    CHECK(cuMemAddressReserve(&start, TWO * GRANULE, 0, 0, 0));
    *count_of(0, ADDRESS_RANGE) += TWO * GRANULE;
    CUmemGenericAllocationHandle unmapped = create(), mapped = create(), released = create();
    CHECK(cuMemMap(start, GRANULE, 0, mapped, 0));
    CHECK(cuMemMap(start + GRANULE, GRANULE, 0, released, 0));
    CHECK(cuMemRelease(released));
    checkpoint();
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    *count_of(0, LINEAR) = 0;
    if (frees) *count_of(0, VMM) = 0;
    if (unmaps) *count_of(0, VMM) -= GRANULE; /* the released one */
    checkpoint();
    only_handles_are_left();
    CUdeviceptr again = allocate(7 * GRANULE);
    checkpoint();
    CHECK(cuMemFree_v2(again));
    *count_of(0, LINEAR) = 0;
    if (!frees) {
        if (!unmaps) CHECK(cuMemUnmap(start, TWO * GRANULE));
        CHECK(cuMemRelease(unmapped));
        CHECK(cuMemRelease(mapped));
        *count_of(0, VMM) = 0;
    }
    checkpoint();
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    only_handles_are_left();
    return 0;
}
