/* Memory of handles when the primary context is reset: the simulated GPU keeps it, or frees it (SIMGPU_RESET_FREES_VMM).
 * The library's books must follow either way. Prints checkpoints. */
#include "client.h"
#include <stdbool.h>

enum { GRANULE = 2 << 20, TWO = 2 };

static CUmemGenericAllocationHandle create(void)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CHECK(cuMemCreate(&handle, GRANULE, &properties, 0));
    *count_of(0, VMM) += GRANULE;
    return handle;
}

static CUdeviceptr allocate(size_t size)
{
    CUcontext context;
    CUdeviceptr address;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc_v2(&address, size));
    *count_of(0, LINEAR) += (long long)size;
    return address;
}

int main(void)
{
    const char *frees = getenv("SIMGPU_RESET_FREES_VMM");
    CUdeviceptr start;
    CHECK(cuInit(0));
    allocate(5 * GRANULE);
    CHECK(cuMemAddressReserve(&start, TWO * GRANULE, 0, 0, 0));
    *count_of(0, ADDRESS_RANGE) += TWO * GRANULE;
    CUmemGenericAllocationHandle unmapped = create(), mapped = create(), released = create();
    CHECK(cuMemMap(start, GRANULE, 0, mapped, 0));
    CHECK(cuMemMap(start + GRANULE, GRANULE, 0, released, 0));
    CHECK(cuMemRelease(released));
    checkpoint();
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    *count_of(0, LINEAR) = 0;
    bool kept = !frees || strcmp(frees, "1");
    if (!kept) *count_of(0, VMM) = 0;
    checkpoint();
    CUdeviceptr again = allocate(7 * GRANULE);
    checkpoint();
    CHECK(cuMemFree_v2(again));
    *count_of(0, LINEAR) = 0;
    if (kept) {
        CHECK(cuMemUnmap(start, TWO * GRANULE));
        CHECK(cuMemRelease(unmapped));
        CHECK(cuMemRelease(mapped));
        *count_of(0, VMM) = 0;
    }
    checkpoint();
    return 0;
}
