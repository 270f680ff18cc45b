/* The simulator alone, on a device of 1 GiB: requests of each class fit into gaps between blocks, and free their gap again.
 *
 *   extents pieces    each request needs one piece (SIMGPU_CONTIGUOUS=1)
 *   extents pages     the device places memory in pages */
#include "client.h"

#define MIB (1ull << 20)

static void expect_free(size_t mib)
{
    size_t free_bytes, total;
    CHECK(cuMemGetInfo_v2(&free_bytes, &total));
    THAT(free_bytes == mib * MIB);
}

static CUdeviceptr take(size_t mib)
{
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, mib * MIB));
    return address;
}

static void give(CUdeviceptr address) { CHECK(cuMemFree_v2(address)); }

/* Each function below allocates and frees memory of one class, and returns the result of the request. */

static CUresult linear(size_t size)
{
    CUdeviceptr address;
    CUresult result = cuMemAlloc_v2(&address, size);
    if (!result) give(address);
    return result;
}

static CUresult physical(size_t size)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CUresult result = cuMemCreate(&handle, size, &properties, 0);
    if (!result) CHECK(cuMemRelease(handle));
    return result;
}

static CUresult array(size_t size)
{
    CUDA_ARRAY_DESCRIPTOR descriptor = {size / 4 / 8192, 8192, CU_AD_FORMAT_FLOAT, 1};
    CUarray made;
    CUresult result = cuArrayCreate_v2(&made, &descriptor);
    if (!result) CHECK(cuArrayDestroy(made));
    return result;
}

static CUresult stream_ordered(size_t size)
{
    CUdeviceptr address;
    CUresult result = cuMemAllocAsync(&address, size, NULL);
    if (!result) CHECK(cuMemFreeAsync(address, NULL));
    CHECK(cuCtxSynchronize());
    return result;
}

static void kinds(CUresult longer_than_a_hole)
{
    CUresult (*const all[])(size_t) = {linear, physical, array, stream_ordered};
    for (size_t kind = 0; kind < sizeof all / sizeof *all; kind++) {
        CUdeviceptr blocks[4];
        for (int i = 0; i < 4; i++) blocks[i] = take(256);
        give(blocks[0]);
        give(blocks[2]);
        expect_free(512);
        EXPECT(all[kind](288 * MIB), longer_than_a_hole);
        EXPECT(all[kind](256 * MIB), CUDA_SUCCESS);
        EXPECT(all[kind](544 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        expect_free(512);
        give(blocks[1]);
        EXPECT(all[kind](768 * MIB), CUDA_SUCCESS);
        give(blocks[3]);
        give(take(1024));
    }
}

static void pieces(void) { kinds(CUDA_ERROR_OUT_OF_MEMORY); }
static void pages(void) { kinds(CUDA_SUCCESS); }

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"pieces", pieces}, {"pages", pages}};
    start_cuda();
    return PLAY(scenes, argc, argv);
}
