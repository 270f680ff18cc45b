/* Address space and fresh memory of the simulated GPU. Exits with 1 if an answer is wrong. The device has 1 GiB.
 *
 *   spaces many     100,000 reservations at once, of which some are mapped
 *   spaces joined   reservations that were freed are one range again; a hint is followed
 *   spaces fresh    SIMGPU_FRESH=165 fills memory of each kind when it is obtained
 *   spaces pieces   where SIMGPU_CONTIGUOUS=1, a request of any class needs one piece; where it is 0, pages */
#include "delayed.h"

enum { GRANULE = 2 * MIB, RESERVATIONS = 100000 };

static void unmap(CUdeviceptr address, size_t size, CUmemGenericAllocationHandle handle)
{
    CHECK(cuMemUnmap(address, size));
    CHECK(cuMemRelease(handle));
}

static void many(void)
{
    enum { STEP = 1000, MAPPED = RESERVATIONS / STEP };
    static CUdeviceptr at[RESERVATIONS];
    CUmemGenericAllocationHandle handles[MAPPED];
    for (int turn = 0; turn < 2; turn++) {
        int before = mappings();
        for (int i = 0; i < RESERVATIONS; i++) CHECK(cuMemAddressReserve(&at[i], GRANULE, 0, 0, 0));
        THAT(mappings() < before + 100);
        for (int i = 0; i < MAPPED; i++) {
            handles[i] = physical_memory(GRANULE);
            map_memory(at[i * STEP], GRANULE, handles[i]);
            CHECK(cuMemsetD8_v2(at[i * STEP], (unsigned char)i, GRANULE));
        }
        for (int i = 0; i < MAPPED; i++) {
            THAT(byte_at(at[i * STEP] + GRANULE - 1) == (unsigned char)i);
            unmap(at[i * STEP], GRANULE, handles[i]);
        }
        for (int i = 0; i < RESERVATIONS; i += 3) CHECK(cuMemAddressFree(at[i], GRANULE));
        for (int i = RESERVATIONS - 1; i > 0; i--)
            if (i % 3) CHECK(cuMemAddressFree(at[i], GRANULE));
    }
}

static void joined(void)
{
    enum { PARTS = 64 };
    CUdeviceptr parts[PARTS], least = ~0ull, most = 0, whole, other;
    for (int i = 0; i < PARTS; i++) {
        CHECK(cuMemAddressReserve(&parts[i], GRANULE, 0, 0, 0));
        if (parts[i] < least) least = parts[i];
        if (parts[i] > most) most = parts[i];
    }
    THAT(most - least == (PARTS - 1) * (CUdeviceptr)GRANULE);
    for (int i = 0; i < PARTS; i += 2) CHECK(cuMemAddressFree(parts[i], GRANULE));
    for (int i = 1; i < PARTS; i += 2) CHECK(cuMemAddressFree(parts[i], GRANULE));
    CHECK(cuMemAddressReserve(&whole, PARTS * (size_t)GRANULE, 0, least, 0));
    THAT(whole == least);
    CHECK(cuMemAddressReserve(&other, GRANULE, 0, least, 0)); /* taken: anywhere */
    THAT(other != least);
    CHECK(cuMemAddressFree(other, GRANULE));
    CHECK(cuMemAddressReserve(&other, GRANULE, GIB, 0, 0));
    THAT(other % GIB == 0);
    CHECK(cuMemAddressFree(other, GRANULE));
    /* Memory that was written there before is not seen again. */
    CUmemGenericAllocationHandle handle = physical_memory(GRANULE);
    map_memory(whole, GRANULE, handle);
    CHECK(cuMemsetD8_v2(whole, 9, GRANULE));
    unmap(whole, GRANULE, handle);
    CHECK(cuMemAddressFree(whole, PARTS * (size_t)GRANULE));
    CHECK(cuMemAddressReserve(&whole, GRANULE, 0, least, 0));
    THAT(whole == least);
    handle = physical_memory(GRANULE);
    map_memory(whole, GRANULE, handle);
    THAT(byte_at(whole) == 0);
    unmap(whole, GRANULE, handle);
    CHECK(cuMemAddressFree(whole, GRANULE));
}

static void is_fresh(CUdeviceptr address, size_t size)
{
    static unsigned char bytes[GRANULE];
    CHECK(cuMemcpyDtoH_v2(bytes, address, size));
    for (size_t i = 0; i < size; i++) THAT(bytes[i] == 165);
    CHECK(cuMemsetD8_v2(address, 1, size));
}

static void fresh(void)
{
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    size_t pitch, sizes[] = {1, 1000, MIB};
    void *host;
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 3; i++) {
            CHECK(cuMemAlloc_v2(&address, sizes[i]));
            is_fresh(address, sizes[i]);
            CHECK(cuMemFree_v2(address));
            CHECK(cuMemAllocManaged(&address, sizes[i], 1));
            is_fresh(address, sizes[i]);
            CHECK(cuMemFree_v2(address));
            CHECK(cuMemAllocAsync(&address, sizes[i], NULL));
            is_fresh(address, sizes[i]);
            CHECK(cuMemFreeAsync(address, NULL));
            CHECK(cuMemAllocHost_v2(&host, sizes[i]));
            is_fresh((CUdeviceptr)host, sizes[i]);
            CHECK(cuMemFreeHost(host));
            CHECK(cuMemAllocPitch_v2(&address, &pitch, sizes[i], 1, 4));
            is_fresh(address, sizes[i]);
            CHECK(cuMemFree_v2(address));
        }
    CHECK(cuMemAddressReserve(&address, GRANULE, 0, 0, 0));
    for (int turn = 0; turn < 2; turn++) {
        handle = physical_memory(GRANULE);
        map_memory(address, GRANULE, handle);
        is_fresh(address, GRANULE);
        /* A handle that is mapped again keeps its bytes. */
        CHECK(cuMemUnmap(address, GRANULE));
        map_memory(address, GRANULE, handle);
        THAT(byte_at(address) == 1);
        unmap(address, GRANULE, handle);
    }
}

static CUresult linear(size_t size)
{
    CUdeviceptr address;
    CUresult result = cuMemAlloc_v2(&address, size);
    if (!result) CHECK(cuMemFree_v2(address));
    return result;
}

static CUresult managed(size_t size)
{
    CUdeviceptr address;
    CUresult result = cuMemAllocManaged(&address, size, 1);
    if (!result) CHECK(cuMemFree_v2(address));
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
    CUDA_ARRAY_DESCRIPTOR shape = {size / 4 / 8192, 8192, CU_AD_FORMAT_FLOAT, 1};
    CUarray made;
    CUresult result = cuArrayCreate_v2(&made, &shape);
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

static void pieces(void)
{
    CUresult (*const all[])(size_t) = {linear, managed, physical, array, stream_ordered};
    CUresult longer_than_a_hole = strcmp(getenv("SIMGPU_CONTIGUOUS"), "1") ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    const size_t mib = 1 << 20;
    for (size_t kind = 0; kind < sizeof all / sizeof *all; kind++) {
        CUdeviceptr blocks[4];
        for (int i = 0; i < 4; i++) blocks[i] = linear_memory(256 * mib);
        CHECK(cuMemFree_v2(blocks[0]));
        CHECK(cuMemFree_v2(blocks[2]));
        EXPECT(all[kind](288 * mib), longer_than_a_hole);
        CHECK(all[kind](256 * mib));
        EXPECT(all[kind](544 * mib), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(cuMemFree_v2(blocks[1]));
        CHECK(all[kind](768 * mib));
        CHECK(cuMemFree_v2(blocks[3]));
        CHECK(linear(1024 * mib));
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"many", many}, {"joined", joined}, {"fresh", fresh}, {"pieces", pieces}};
    begin();
    return PLAY(scenes, argc, argv);
}
