/* Features of later drivers, and what real clients met. Exits with 1 if an answer is wrong. There are two devices.
 *
 *   features heap         memory of malloc is pageable memory of the host, wherever it lies
 *   features values       streams wait for values in memory, and write them; batches; semaphores of other APIs
 *   features multicast    an object needs all of its devices, and holds no memory
 *   features exported     an exported descriptor holds the memory of a handle that was released
 *   features localities   a locality domain of a device is memory of this device
 *   features sparse       arrays whose memory is mapped later
 *   features batches      prefetches and discards of managed memory, decompressions
 *   features checkpoint   a checkpoint takes the memory of the process off the device */
#include "client.h"
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, GRANULE = 2 * MIB };
CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, uint32_t, unsigned), cuStreamWaitValue64_v2(CUstream, CUdeviceptr, uint64_t, unsigned);
CUresult cuStreamWriteValue32_v2(CUstream, CUdeviceptr, uint32_t, unsigned), cuStreamBatchMemOp_v2(CUstream, unsigned, void *, unsigned);
CUresult cuImportExternalSemaphore(void **, const void *), cuDestroyExternalSemaphore(void *);
CUresult cuSignalExternalSemaphoresAsync(void *const *, const void *, unsigned, CUstream), cuWaitExternalSemaphoresAsync(void *const *, const void *, unsigned, CUstream);
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *, const void *), cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t, unsigned long long);
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long);
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, size_t, size_t), cuMulticastGetGranularity(size_t *, const void *, int);
CUresult cuMemMapArrayAsync(void *, unsigned, CUstream), cuArrayGetSparseProperties(void *, CUarray);
CUresult cuMemPrefetchBatchAsync(CUdeviceptr *, size_t *, size_t, CUmemLocation *, size_t *, size_t, unsigned long long, CUstream);
CUresult cuMemDiscardBatchAsync(CUdeviceptr *, size_t *, size_t, unsigned long long, CUstream);
CUresult cuMemBatchDecompressAsync(void *, size_t, unsigned, size_t *, CUstream);
CUresult cuCheckpointProcessLock(int, void *), cuCheckpointProcessCheckpoint(int, void *), cuCheckpointProcessRestore(int, void *);
CUresult cuCheckpointProcessUnlock(int, void *), cuCheckpointProcessGetState(int, int *);

static size_t free_bytes(void)
{
    size_t left, total;
    CHECK(cuMemGetInfo_v2(&left, &total));
    return left;
}

static CUmemAllocationProp on_device(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}
static CUmemGenericAllocationHandle create(const CUmemAllocationProp *properties)
{
    CUmemGenericAllocationHandle handle;
    CHECK(cuMemCreate(&handle, GRANULE, properties, 0));
    return handle;
}

/* Blocks of 1 MiB are mappings of their own. The kernel puts the driver's memory right below those that were there before. */
static void heap(void)
{
    CUdeviceptr block;
    char *before[8];
    for (int i = 0; i < 8; i++) before[i] = malloc(MIB);
    CHECK(cuMemAlloc_v2(&block, MIB));
    for (int i = 0; i < 64; i++) {
        char *memory = i < 8 ? before[i] : malloc(MIB);
        memset(memory, i, MIB);
        CHECK(cuMemcpyHtoD_v2(block, memory, MIB));
        CHECK(cuMemcpyDtoH_v2(memory, block, MIB));
        THAT(memory[MIB - 1] == i);
    }
    CHECK(cuMemFree_v2(block));
}

static void values(void)
{
    enum { GEQ, EQ, AND, NOR, OPERATIONS = 3 };
    CUdeviceptr flags;
    CUstream first, second;
    CHECK(cuMemAlloc_v2(&flags, 4096));
    CHECK(cuMemsetD8_v2(flags, 0, 4096));
    CHECK(cuStreamCreate(&first, 1));
    CHECK(cuStreamCreate(&second, 1));
    CHECK(cuStreamWaitValue32_v2(first, flags, 3, GEQ));
    CHECK(cuStreamWriteValue32_v2(first, flags + 64, 1, 0));
    EXPECT(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
    CHECK(cuStreamWriteValue32_v2(second, flags, 2, 0));
    CHECK(cuStreamSynchronize(second));
    EXPECT(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
    CHECK(cuStreamWriteValue32_v2(second, flags, 4, 0));
    CHECK(cuStreamSynchronize(first));
    uint32_t seen;
    CHECK(cuMemcpyDtoH_v2(&seen, flags + 64, sizeof seen));
    THAT(seen == 1);
    struct { int type; CUdeviceptr address; uint64_t value; unsigned flags; CUdeviceptr alias; uint64_t pad; } batch[OPERATIONS] = {
        {.type = 2, .address = flags + 8, .value = 6}, {.type = 1, .address = flags + 8, .value = 2, .flags = AND}, {.type = 5, .address = flags + 16, .value = 1ull << 40}};
    _Static_assert(sizeof *batch == 48, "CUstreamBatchMemOpParams");
    CHECK(cuStreamBatchMemOp_v2(first, OPERATIONS, batch, 0));
    CHECK(cuStreamWaitValue64_v2(first, flags + 16, 1ull << 40, EQ));
    CHECK(cuStreamSynchronize(first));
    EXPECT(cuStreamBatchMemOp_v2(first, 1, batch, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuStreamWaitValue32_v2(first, flags + 2, 0, EQ), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuStreamWaitValue32_v2(first, flags, 0, 9), CUDA_ERROR_INVALID_VALUE);

    struct { int type; union { int fd; void *handles[2]; } handle; unsigned flags, reserved[16]; } timeline = {.type = 9};
    struct { uint64_t value, others[8]; unsigned flags, reserved[16]; } params = {.value = 5};
    void *semaphore;
    CHECK(cuImportExternalSemaphore(&semaphore, &timeline));
    CHECK(cuWaitExternalSemaphoresAsync(&semaphore, &params, 1, first));
    EXPECT(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
    CHECK(cuSignalExternalSemaphoresAsync(&semaphore, &params, 1, second));
    CHECK(cuStreamSynchronize(first));
    CHECK(cuDestroyExternalSemaphore(semaphore));
    EXPECT(cuDestroyExternalSemaphore(semaphore), CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuMemFree_v2(flags));
}

static void multicast(void)
{
    struct { unsigned devices; size_t size; unsigned long long types, flags; } team = {2, 2 * GRANULE, 0, 0};
    CUmemGenericAllocationHandle object, handles[2];
    size_t granule, before = free_bytes();
    CHECK(cuMulticastGetGranularity(&granule, &team, 0));
    THAT(granule == GRANULE);
    team.size--;
    EXPECT(cuMulticastCreate(&object, &team), CUDA_ERROR_INVALID_VALUE);
    team.size++;
    CHECK(cuMulticastCreate(&object, &team));
    THAT(free_bytes() == before);
    for (int i = 0; i < 2; i++) CHECK(cuMulticastAddDevice(object, i));
    EXPECT(cuMulticastAddDevice(object, 0), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 2; i++) {
        CUmemAllocationProp properties = on_device(i);
        handles[i] = create(&properties);
        CHECK(cuMulticastBindMem(object, (size_t)i * GRANULE, handles[i], 0, GRANULE, 0));
    }
    EXPECT(cuMulticastBindMem(object, GRANULE, handles[0], 0, 2 * GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMulticastBindMem(handles[0], 0, handles[1], 0, GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr range;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cuMemAddressReserve(&range, 2 * GRANULE, 0, 0, 0));
    CHECK(cuMemMap(range, 2 * GRANULE, 0, object, 0));
    CHECK(cuMemSetAccess(range, 2 * GRANULE, &access, 1));
    CHECK(cuMemsetD8_v2(range, 1, GRANULE));
    CHECK(cuMulticastUnbind(object, 1, GRANULE, GRANULE));
    CHECK(cuMemUnmap(range, 2 * GRANULE));
    CHECK(cuMemAddressFree(range, 2 * GRANULE));
    CHECK(cuMemRelease(object));
    for (int i = 0; i < 2; i++) CHECK(cuMemRelease(handles[i]));
    EXPECT(cuMemRelease(object), CUDA_ERROR_INVALID_VALUE);
    THAT(free_bytes() == before);
}

/* cuda.h 13.0:12841. The descriptor that holds the memory is here, then in another process as well, then there alone. */
static void exported(void)
{
    CUmemAllocationProp properties = on_device(0);
    size_t before = free_bytes();
    CUmemGenericAllocationHandle handle = create(&properties), again;
    int fd, turn[2];
    CHECK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(cuMemRelease(handle));
    THAT(free_bytes() == before - GRANULE);
    EXPECT(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(cuMemRelease(again));
    THAT(!socketpair(AF_UNIX, SOCK_STREAM, 0, turn));
    pid_t child = fork();
    if (!child) {
        char byte;
        close(turn[0]);
        THAT(!read(turn[1], &byte, 1));
        _exit(0);
    }
    close(turn[1]);
    close(fd);
    THAT(free_bytes() == before - GRANULE);
    int status;
    close(turn[0]);
    THAT(waitpid(child, &status, 0) == child && !status);
    THAT(free_bytes() == before);
}

static void localities(void)
{
    size_t before = free_bytes();
    CUmemAllocationProp properties = on_device(0);
    properties.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, .id = 0 | 1 << 8};
    CUmemPoolProps pool_properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = properties.location};
    CUmemGenericAllocationHandle handle = create(&properties);
    CUmemoryPool pool;
    CUdeviceptr block;
    THAT(free_bytes() == before - GRANULE);
    CHECK(cuMemPoolCreate(&pool, &pool_properties));
    CHECK(cuMemAllocFromPoolAsync(&block, 32 * MIB, pool, NULL));
    THAT(free_bytes() == before - GRANULE - 32 * MIB);
    CHECK(cuMemFreeAsync(block, NULL));
    CHECK(cuMemPoolDestroy(pool));
    CHECK(cuMemRelease(handle));
    properties.location.id = 9;
    EXPECT(cuMemCreate(&handle, GRANULE, &properties, 0), CUDA_ERROR_INVALID_DEVICE);
}

static void sparse(void)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 512, .Height = 512, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1, .Flags = CUDA_ARRAY3D_SPARSE};
    struct { unsigned width, height, depth, tail; unsigned long long bytes; unsigned flags, reserved[4]; } tile;
    CUmemAllocationProp properties = on_device(0);
    size_t before = free_bytes();
    CUarray array;
    CHECK(cuArray3DCreate_v2(&array, &shape));
    THAT(free_bytes() == before);
    CHECK(cuArrayGetSparseProperties(&tile, array));
    THAT(tile.width == 128 && tile.height == 128 && tile.depth == 1);
    CUmemGenericAllocationHandle handle = create(&properties);
    struct {
        int resource; CUarray array; int subresource; _Alignas(8) unsigned place[8]; int operation, type;
        CUmemGenericAllocationHandle memory; unsigned long long offset; unsigned devices, flags, reserved[2];
    } map = {.array = array, .place = {0, 0, 0, 0, 0, tile.width, tile.height, 1}, .operation = 1, .memory = handle, .devices = 1};
    _Static_assert(sizeof map == 96, "CUarrayMapInfo");
    CHECK(cuMemMapArrayAsync(&map, 1, NULL));
    CHECK(cuMemRelease(handle));
    THAT(free_bytes() == before - GRANULE); /* the mapping holds it */
    map.operation = 2, map.memory = 0;
    CHECK(cuMemMapArrayAsync(&map, 1, NULL));
    THAT(free_bytes() == before);
    CHECK(cuArrayDestroy(array));
}

static void batches(void)
{
    CUdeviceptr managed, block;
    CUstream stream;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemAllocManaged(&managed, 4 * MIB, 1));
    CHECK(cuMemAlloc_v2(&block, 4 * MIB));
    CUdeviceptr both[2] = {managed, managed + MIB}, wrong[2] = {managed, block};
    size_t sizes[2] = {MIB, MIB}, first[2] = {0, 1}, out_of_order[2] = {1, 0};
    CUmemLocation places[2] = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, {CU_MEM_LOCATION_TYPE_HOST, 0}};
    CHECK(cuMemPrefetchBatchAsync(both, sizes, 2, places, first, 2, 0, stream));
    CHECK(cuMemDiscardBatchAsync(both, sizes, 2, 0, stream));
    EXPECT(cuMemPrefetchBatchAsync(wrong, sizes, 2, places, first, 2, 0, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemPrefetchBatchAsync(both, sizes, 2, places, out_of_order, 2, 0, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemDiscardBatchAsync(both, sizes, 2, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemDiscardBatchAsync(both, sizes, 2, 1, stream), CUDA_ERROR_INVALID_VALUE);
    struct { size_t from_bytes, to_bytes; CUdeviceptr written, from, to; int algorithm; unsigned char padding[20]; } work[2] = {
        {100, 200, block + MIB, block, block + 2 * MIB, 1, {0}}, {100, 200, block + MIB, managed, block, 1, {0}}};
    size_t error = 7;
    bool can = false;
    CHECK(cuPointerGetAttribute(&can, 21, block)); /* IS_HW_DECOMPRESS_CAPABLE */
    THAT(can);
    CHECK(cuMemBatchDecompressAsync(work, 1, 0, &error, stream));
    CHECK(cuStreamSynchronize(stream));
    unsigned written;
    CHECK(cuMemcpyDtoH_v2(&written, block + MIB, sizeof written));
    THAT(written == 200);
    EXPECT(cuMemBatchDecompressAsync(work, 2, 0, &error, stream), CUDA_ERROR_INVALID_VALUE);
    THAT(error == 1);
    EXPECT(cuMemBatchDecompressAsync(work, 1, 1, &error, stream), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree_v2(block));
    CHECK(cuMemFree_v2(managed));
}

static void checkpointed(void)
{
    CUdeviceptr block;
    int state, pid = getpid();
    CHECK(cuMemAlloc_v2(&block, 64 * MIB));
    CHECK(cuMemsetD8_v2(block, 9, 64));
    size_t held = free_bytes();
    EXPECT(cuCheckpointProcessCheckpoint(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
    CHECK(cuCheckpointProcessLock(pid, NULL));
    CHECK(cuCheckpointProcessCheckpoint(pid, NULL));
    CHECK(cuCheckpointProcessGetState(pid, &state));
    THAT(state == 2);
    CHECK(cuCheckpointProcessRestore(pid, NULL));
    CHECK(cuCheckpointProcessUnlock(pid, NULL));
    THAT(free_bytes() == held);
    char byte;
    CHECK(cuMemcpyDtoH_v2(&byte, block + 63, 1));
    THAT(byte == 9);
    CHECK(cuMemFree_v2(block));
}

int main(int count, char **arguments)
{
    static const struct { const char *name; void (*play)(void); } scenes[] = {
        {"heap", heap}, {"values", values}, {"multicast", multicast}, {"exported", exported}, {"localities", localities},
        {"sparse", sparse}, {"batches", batches}, {"checkpoint", checkpointed}};
    CUcontext context;
    if (count != 2) return 2;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (!strcmp(scenes[i].name, arguments[1])) return scenes[i].play(), 0;
    return 2;
}
