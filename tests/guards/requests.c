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
                                  "cuMemCreate", "cuArrayCreate", "cuMipmappedArrayCreate",
                                  "cuMemHostAlloc"};
/* What a search for memory would call. */
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

static CUresult linear(size_t bytes)
{
    CUdeviceptr address;
    CUresult result = cu(cuMemAlloc_v2)(&address, bytes);
    if (result == CUDA_SUCCESS) CHECK(cu(cuMemFree_v2)(address));
    return result;
}

static CUresult pitched(size_t bytes)
{
    CUdeviceptr address;
    size_t pitch;
    CUresult result = cu(cuMemAllocPitch_v2)(&address, &pitch, MIB, bytes / MIB, 4);
    if (result == CUDA_SUCCESS) CHECK(cu(cuMemFree_v2)(address));
    return result;
}

static CUresult managed(size_t bytes)
{
    CUdeviceptr address;
    CUresult result = cu(cuMemAllocManaged)(&address, bytes, 1 /* CU_MEM_ATTACH_GLOBAL */);
    if (result == CUDA_SUCCESS) CHECK(cu(cuMemFree_v2)(address));
    return result;
}

static CUresult ordered(size_t bytes)
{
    CUdeviceptr address;
    CUresult result = cu(cuMemAllocAsync)(&address, bytes, 0);
    if (result == CUDA_SUCCESS) CHECK(cu(cuMemFreeAsync)(address, 0));
    return result;
}

static CUresult physical(size_t bytes)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;
    CUresult result = cu(cuMemCreate)(&handle, bytes, &properties, 0);
    if (result == CUDA_SUCCESS) CHECK(cu(cuMemRelease)(handle));
    return result;
}

static CUresult array(size_t bytes)
{
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 32768, .Height = bytes / 32768 / 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUarray handle;
    CUresult result = cu(cuArrayCreate_v2)(&handle, &shape);
    if (result == CUDA_SUCCESS) CHECK(cu(cuArrayDestroy)(handle));
    return result;
}

/* The first level has this many bytes; all levels have a third more. */
static CUresult mipmap(size_t bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 32768, .Height = bytes / 32768 / 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUmipmappedArray handle;
    CUresult result = cu(cuMipmappedArrayCreate)(&handle, &shape, 2);
    if (result == CUDA_SUCCESS) CHECK(cu(cuMipmappedArrayDestroy)(handle));
    return result;
}

static CUresult pinned(size_t bytes)
{
    void *address;
    CUresult result = cu(cuMemHostAlloc)(&address, bytes, 0);
    if (result == CUDA_SUCCESS) CHECK(cu(cuMemFreeHost)(address));
    return result;
}

/* Address space is no memory. */
static CUresult addresses(size_t bytes)
{
    CUdeviceptr address;
    CUresult result = cu(cuMemAddressReserve)(&address, bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS) CHECK(cu(cuMemAddressFree)(address, bytes));
    return result;
}

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
    /* What no guard may refuse. */
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
