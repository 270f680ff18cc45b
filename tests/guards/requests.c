/* Requests that are too large to be meant. The argument says which guard acts:
 *
 *   none      no guard: the driver answers each request
 *   device    the memory of the device, 4 GiB
 *   setting   VRAMSHIM_MAX_REQUEST is 1 GiB, and the device has 4 GiB
 *   damaged   one request of 962 GB, the length in a damaged message, while the job holds a cache of free memory
 *   dies      one request of 3 GiB, and the job ends with status 1
 *   malloc    malloc is refused, and the job calls abort, as C++ does if nobody catches bad_alloc
 *
 * Each scene prints what the library counted, and how many calls for memory reached the simulated GPU. */
#include "client.h"

#define GIB (1ull << 30)
#define MIB (1ull << 20)

static const char *const ask[] = {"cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocAsync",
                                  "cuMemCreate", "cuArrayCreate", "cuMipmappedArrayCreate", "cuMemHostAlloc"};
static const char *const search[] = {"cuMemFree", "cuMemUnmap", "cuMemRelease", "cuMemPoolTrimTo", "cuMemGetInfo",
                                     "cuCtxSynchronize"};

static unsigned long calls(const char *const *names, size_t count)
{
    unsigned long (*counted)(const char *) = optional_function("simgpu_calls");
    THAT(counted);
    unsigned long sum = 0;
    for (size_t i = 0; i < count; i++) sum += counted(names[i]);
    return sum;
}

#define KIND(name, handle, make, give_back)               \
    static CUresult name(size_t bytes)                    \
    {                                                     \
        handle;                                           \
        CUresult result = make;                           \
        if (result == CUDA_SUCCESS) CHECK(give_back);     \
        return result;                                    \
    }

static const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
#define SHAPE .Width = 32768, .Height = bytes / 32768 / 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4

KIND(linear, CUdeviceptr at, cu(cuMemAlloc_v2)(&at, bytes), cu(cuMemFree_v2)(at))
KIND(pitched, CUdeviceptr at; size_t pitch, cu(cuMemAllocPitch_v2)(&at, &pitch, MIB, bytes / MIB, 4), cu(cuMemFree_v2)(at))
KIND(managed, CUdeviceptr at, cu(cuMemAllocManaged)(&at, bytes, 1 /* CU_MEM_ATTACH_GLOBAL */), cu(cuMemFree_v2)(at))
KIND(ordered, CUdeviceptr at, cu(cuMemAllocAsync)(&at, bytes, 0), cu(cuMemFreeAsync)(at, 0))
KIND(physical, CUmemGenericAllocationHandle h, cu(cuMemCreate)(&h, bytes, &properties, 0), cu(cuMemRelease)(h))
KIND(array, CUarray h; CUDA_ARRAY_DESCRIPTOR shape = {SHAPE}, cu(cuArrayCreate_v2)(&h, &shape), cu(cuArrayDestroy)(h))
/* The first level has this many bytes; all levels have a third more. */
KIND(mipmap, CUmipmappedArray h; CUDA_ARRAY3D_DESCRIPTOR shape = {SHAPE}, cu(cuMipmappedArrayCreate)(&h, &shape, 2),
     cu(cuMipmappedArrayDestroy)(h))
KIND(pinned, void *at, cu(cuMemHostAlloc)(&at, bytes, 0), cu(cuMemFreeHost)(at))
/* Address space is no memory. */
KIND(addresses, CUdeviceptr at, cu(cuMemAddressReserve)(&at, bytes, 0, 0, 0), cu(cuMemAddressFree)(at, bytes))

int main(int argc, char **argv)
{
    const char *scene = argc > 1 ? argv[1] : "";
    start_cuda();
    CUdeviceptr first, cache;
    CHECK(cu(cuMemAlloc_v2)(&first, MIB));
    CHECK(cu(cuMemAlloc_v2)(&cache, 64 * MIB));
    CHECK(cu(cuMemFree_v2)(cache));
    EXPECT(linear(0), CUDA_ERROR_INVALID_VALUE);
    unsigned long asked = calls(ask, sizeof ask / sizeof *ask), searched = calls(search, sizeof search / sizeof *search);
    CUresult (*const of_device[])(size_t) = {linear, pitched, ordered, physical, array, mipmap};
    if (strcmp(scene, "malloc") == 0) {
        volatile size_t large = 0xe0060b0000;
        if (!malloc(large)) abort();
    }
    if (strcmp(scene, "dies") == 0) {
        EXPECT(linear(3 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    } else if (strcmp(scene, "damaged") == 0) {
        EXPECT(linear(0xe0060b0000), CUDA_ERROR_OUT_OF_MEMORY);
    } else {
        for (size_t i = 0; i < sizeof of_device / sizeof *of_device; i++)
            EXPECT(of_device[i](8 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
        if (strcmp(scene, "setting") == 0) {
            for (size_t i = 0; i < sizeof of_device / sizeof *of_device; i++)
                EXPECT(of_device[i](2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
            EXPECT(managed(2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
            EXPECT(pinned(2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
        }
    }
    printf("{\"asked\":%lu,\"searched\":%lu,\"refused\":%llu,\"refused_host\":%llu,\"failures\":%llu}\n",
           calls(ask, sizeof ask / sizeof *ask) - asked, calls(search, sizeof search / sizeof *search) - searched,
           figure_of("device.0.guard_refusals"), figure_of("host.guard_refusals"), figure_of("device.0.failures"));
    fflush(stdout);
    if (strcmp(scene, "dies") == 0) return 1;
    CHECK(addresses(1024 * GIB));
    CHECK(linear(512 * MIB));
    if (strcmp(scene, "device") == 0) {
        /* Managed memory may exceed the device, so the driver is asked. The simulated one has no room for it. */
        unsigned long before = calls(ask, sizeof ask / sizeof *ask);
        unsigned long long refused = figure_of("device.0.guard_refusals");
        EXPECT(managed(6 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
        /* No granule divides this size, so that is what the driver says, and not that memory is lacking. */
        EXPECT(physical(8 * GIB + 1), CUDA_ERROR_INVALID_VALUE);
        THAT(calls(ask, sizeof ask / sizeof *ask) > before && figure_of("device.0.guard_refusals") == refused);
    }
    CHECK(cu(cuMemFree_v2)(first));
    return 0;
}
