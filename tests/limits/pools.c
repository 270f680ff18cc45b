/* Memory of pools that the job did not create: those that CUDA 13 hands out for a location, and an imported one. The
 * limit is 512 MiB. Prints checkpoints, in which only memory of the device counts for the device. */
#include "client.h"
#include <stdint.h>

enum { MIB = 1 << 20 };

static CUdeviceptr from(CUmemoryPool pool, size_t size, int device, CUresult wanted)
{
    CUdeviceptr address = 0;
    EXPECT(cu(cuMemAllocFromPoolAsync)(&address, size, pool, NULL), wanted);
    if (wanted == CUDA_SUCCESS) *count_of(device, ASYNC) += size;
    return address;
}

int main(void)
{
    start_cuda();

    CUmemoryPool pool;
    CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0}, numa = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    CUmemLocation none = {CU_MEM_LOCATION_TYPE_NONE, 0}, device = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemLocation domain = {CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, 1 << 8};
    CHECK(cu(cuMemGetDefaultMemPool)(&pool, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    from(pool, 768 * MIB, -1, CUDA_SUCCESS);
    CHECK(cu(cuMemGetMemPool)(&pool, &numa, CU_MEM_ALLOCATION_TYPE_PINNED));
    from(pool, 768 * MIB, -1, CUDA_SUCCESS);
    CHECK(cu(cuMemGetDefaultMemPool)(&pool, &none, CU_MEM_ALLOCATION_TYPE_MANAGED));
    from(pool, 768 * MIB, -1, CUDA_SUCCESS);
    checkpoint();

    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = host};
    CHECK(cu(cuMemPoolCreate)(&pool, &properties));
    CHECK(cu(cuMemSetMemPool)(&host, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
    from(pool, 256 * MIB, -1, CUDA_SUCCESS);
    checkpoint();

    /* Memory of the device counts, whichever function hands out the pool. */
    CHECK(cu(cuMemGetMemPool)(&pool, &device, CU_MEM_ALLOCATION_TYPE_MANAGED));
    from(pool, 256 * MIB, 0, CUDA_SUCCESS);
    from(pool, 512 * MIB, 0, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cu(cuMemGetMemPool)(&pool, &domain, CU_MEM_ALLOCATION_TYPE_PINNED));
    from(pool, 512 * MIB, 0, CUDA_ERROR_OUT_OF_MEMORY);
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = domain};
    EXPECT(cu(cuMemCreate)(&handle, 512 * MIB, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
    checkpoint();

    /* The owner of an imported pool counts its memory. Here the owner is this process itself. */
    int fd;
    CUmemoryPool imported;
    properties = (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = device,
                                  .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    CHECK(cu(cuMemPoolCreate)(&pool, &properties));
    from(pool, 64 * MIB, 0, CUDA_SUCCESS);
    CHECK(cu(cuMemPoolExportToShareableHandle)(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(cu(cuMemPoolImportFromShareableHandle)(&imported, (void *)(intptr_t)fd,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(cu(cuCtxSynchronize)());
    checkpoint();
    CHECK(cu(cuMemPoolDestroy)(imported));
    checkpoint();
    return 0;
}
