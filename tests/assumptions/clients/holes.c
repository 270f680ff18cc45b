/* A job maps two granules beside a hole, releases their handles, and unmaps all in one call. Prints checkpoints. */
#include "client.h"

enum { GRANULE = 2 << 20, THREE = 3 };

int main(void)
{
    CUdeviceptr start;
    start_cuda();
    CHECK(cuMemAddressReserve(&start, THREE * GRANULE, 0, 0, 0));
    *count_of(0, ADDRESS_RANGE) += THREE * GRANULE;
    for (int i = 0; i < THREE; i += 2) {
        CUmemGenericAllocationHandle handle = physical_memory(GRANULE);
        CHECK(cuMemMap(start + (CUdeviceptr)i * GRANULE, GRANULE, 0, handle, 0));
        CHECK(cuMemRelease(handle));
        *count_of(0, VMM) += GRANULE;
    }
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
    CHECK(cuMemSetAccess(start, THREE * GRANULE, &access, 1));
    CHECK(cuMemsetD8_v2(start + 2 * GRANULE, 7, GRANULE));
    checkpoint();
    CHECK(cuMemUnmap(start, THREE * GRANULE));
    *count_of(0, VMM) = 0;
    checkpoint();
    CHECK(cuMemAddressFree(start, THREE * GRANULE));
    *count_of(0, ADDRESS_RANGE) = 0;
    checkpoint();
    return 0;
}
