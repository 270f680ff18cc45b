/* Features of later drivers, and what real clients met. What a device or driver lacks is not asked. */
#include "probe.h"
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { GRANULE = 2 * MIB };
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

#define ANSWERS(call, wanted)                                                                    \
    do {                                                                                         \
        CUresult answer_ = (call);                                                               \
        claim(answer_ == (wanted), "%s %d, expected %d", name_of_call(#call), answer_, wanted);  \
    } while (0)
#define THAT(condition) claim(condition, "%s", #condition)

static CUmemAllocationProp on_device(int device)
{
    CUmemAllocationProp properties = pinned_on(device);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
}
static CUmemGenericAllocationHandle granule_of(const CUmemAllocationProp *properties)
{
    CUmemGenericAllocationHandle handle;
    CHECK(cu(cuMemCreate)(&handle, GRANULE, properties, 0));
    return handle;
}

/* Blocks of 1 MiB are mappings of their own. The kernel puts the driver's memory right below those that were there before. */
PROBE(memory_of_malloc, TELLS, "memory of malloc is memory of the host, wherever it lies", "cuda.h 13.0:8902; a program of 16 lines")
{
    begin();
    char *before[8];
    int changed = 0;
    for (int i = 0; i < 8; i++) before[i] = malloc(MIB);
    CUdeviceptr block = alloc(MIB);
    for (int i = 0; i < 64; i++) {
        char *memory = i < 8 ? before[i] : malloc(MIB);
        memset(memory, i, MIB);
        CHECK(cu(cuMemcpyHtoD_v2)(block, memory, MIB));
        CHECK(cu(cuMemcpyDtoH_v2)(memory, block, MIB));
        changed += memory[MIB - 1] != i;
    }
    claim(!changed, "%d of 64 blocks changed", changed);
}

PROBE(wait_values, TELLS, "streams wait for values in memory and for semaphores; wrong flags and addresses answer 1", "cuda.h 13.0:16845-17047")
{
    begin();
    enum { GEQ, EQ, AND, NOR, OPERATIONS = 3 };
    CUdeviceptr flags = alloc(4096);
    CUstream first = new_stream(), second = new_stream();
    fill_on(0, flags, 0, 4096);
    NEED(cu(cuStreamWaitValue32_v2)(first, flags, 3, GEQ));
    CHECK(cu(cuStreamWriteValue32_v2)(first, flags + 64, 1, 0));
    ANSWERS(cu(cuStreamQuery)(first), CUDA_ERROR_NOT_READY);
    CHECK(cu(cuStreamWriteValue32_v2)(second, flags, 2, 0));
    CHECK(cu(cuStreamSynchronize)(second));
    ANSWERS(cu(cuStreamQuery)(first), CUDA_ERROR_NOT_READY);
    CHECK(cu(cuStreamWriteValue32_v2)(second, flags, 4, 0));
    CHECK(cu(cuStreamSynchronize)(first));
    uint32_t seen;
    CHECK(cu(cuMemcpyDtoH_v2)(&seen, flags + 64, sizeof seen));
    THAT(seen == 1);
    struct { int type; CUdeviceptr address; uint64_t value; unsigned flags; CUdeviceptr alias; uint64_t pad; } batch[OPERATIONS] = {
        {.type = 2, .address = flags + 8, .value = 6}, {.type = 1, .address = flags + 8, .value = 2, .flags = AND}, {.type = 5, .address = flags + 16, .value = 1ull << 40}};
    _Static_assert(sizeof *batch == 48, "CUstreamBatchMemOpParams");
    CHECK(cu(cuStreamBatchMemOp_v2)(first, OPERATIONS, batch, 0));
    CHECK(cu(cuStreamWaitValue64_v2)(first, flags + 16, 1ull << 40, EQ));
    CHECK(cu(cuStreamSynchronize)(first));
    ANSWERS(cu(cuStreamBatchMemOp_v2)(first, 1, batch, 1), CUDA_ERROR_INVALID_VALUE);
    ANSWERS(cu(cuStreamWaitValue32_v2)(first, flags + 2, 0, EQ), CUDA_ERROR_INVALID_VALUE);
    ANSWERS(cu(cuStreamWaitValue32_v2)(first, flags, 0, 9), CUDA_ERROR_INVALID_VALUE);

    struct { int type; union { int fd; void *handles[2]; } handle; unsigned flags, reserved[16]; } timeline = {.type = 9};
    struct { uint64_t value, others[8]; unsigned flags, reserved[16]; } params = {.value = 5};
    void *semaphore;
    if (cu(cuImportExternalSemaphore)(&semaphore, &timeline)) return figure("no semaphores of other APIs");
    CHECK(cu(cuWaitExternalSemaphoresAsync)(&semaphore, &params, 1, first));
    ANSWERS(cu(cuStreamQuery)(first), CUDA_ERROR_NOT_READY);
    CHECK(cu(cuSignalExternalSemaphoresAsync)(&semaphore, &params, 1, second));
    CHECK(cu(cuStreamSynchronize)(first));
    CHECK(cu(cuDestroyExternalSemaphore)(semaphore));
    ANSWERS(cu(cuDestroyExternalSemaphore)(semaphore), CUDA_ERROR_INVALID_HANDLE);
    CHECK(cu(cuMemFree_v2)(flags));
}

PROBE(multicast_objects, TELLS, "a multicast object has devices, and holds no memory", "cuda.h 13.0:13805-14066")
{
    begin_on(2);
    struct { unsigned devices; size_t size; unsigned long long types, flags; } team = {2, 2 * GRANULE, 0, 0};
    CUmemGenericAllocationHandle object, handles[2];
    size_t granule, before = free_memory();
    NEED(cu(cuMulticastGetGranularity)(&granule, &team, 0));
    THAT(granule == GRANULE);
    team.size--;
    ANSWERS(cu(cuMulticastCreate)(&object, &team), CUDA_ERROR_INVALID_VALUE);
    team.size++;
    NEED(cu(cuMulticastCreate)(&object, &team));
    THAT(free_memory() == before);
    for (int i = 0; i < 2; i++) CHECK(cu(cuMulticastAddDevice)(object, i));
    ANSWERS(cu(cuMulticastAddDevice)(object, 0), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 2; i++) {
        CUmemAllocationProp properties = on_device(i);
        handles[i] = granule_of(&properties);
        CHECK(cu(cuMulticastBindMem)(object, (size_t)i * GRANULE, handles[i], 0, GRANULE, 0));
    }
    ANSWERS(cu(cuMulticastBindMem)(object, GRANULE, handles[0], 0, 2 * GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
    ANSWERS(cu(cuMulticastBindMem)(handles[0], 0, handles[1], 0, GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr range = address_of(object, 2 * GRANULE);
    fill(range, 1, GRANULE);
    CHECK(cu(cuMulticastUnbind)(object, 1, GRANULE, GRANULE));
    CHECK(cu(cuMemUnmap)(range, 2 * GRANULE));
    CHECK(cu(cuMemAddressFree)(range, 2 * GRANULE));
    CHECK(cu(cuMemRelease)(object));
    for (int i = 0; i < 2; i++) CHECK(cu(cuMemRelease)(handles[i]));
    ANSWERS(cu(cuMemRelease)(object), CUDA_ERROR_INVALID_VALUE);
    THAT(free_memory() == before);
}

/* cuda.h 13.0:12841. The descriptor that holds the memory is here, then in another process as well, then there alone. */
PROBE(exported_memory_is_held, TELLS, "an exported descriptor holds the memory of a handle that was released, and a lock", "cuda.h 13.0:12841")
{
    begin();
    CUmemAllocationProp properties = on_device(0);
    size_t before = free_memory();
    CUmemGenericAllocationHandle handle = granule_of(&properties), again;
    int fd, turn[2];
    CHECK(cu(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(cu(cuMemRelease)(handle));
    THAT(free_memory() == before - GRANULE);
    struct flock mark = {.l_type = F_RDLCK, .l_start = 1ll << 56, .l_len = 1}, found = mark;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int watch = open(path, O_RDONLY);
    THAT(!fcntl(fd, F_OFD_SETLK, &mark));
    ANSWERS(cu(cuMemRelease)(handle), CUDA_ERROR_INVALID_VALUE);
    CHECK(cu(cuMemImportFromShareableHandle)(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(cu(cuMemRelease)(again));
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
    THAT(free_memory() == before - GRANULE);
    found.l_type = F_WRLCK;
    THAT(!fcntl(watch, F_OFD_GETLK, &found) && found.l_type == F_RDLCK);
    int status;
    close(turn[0]);
    THAT(waitpid(child, &status, 0) == child && !status);
    THAT(free_memory() == before);
    mark.l_type = F_WRLCK;
    THAT(!fcntl(watch, F_OFD_GETLK, &mark) && mark.l_type == F_UNLCK);
}

PROBE(locality_domains, TELLS, "a locality domain is memory of its device", "CUDA 13.5, CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN")
{
    begin();
    size_t before = free_memory();
    CUmemAllocationProp properties = on_device(0);
    properties.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, .id = 0 | 1 << 8};
    CUmemPoolProps pool_properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = properties.location};
    CUmemGenericAllocationHandle handle = granule_of(&properties);
    CUmemoryPool pool;
    CUdeviceptr block;
    THAT(free_memory() == before - GRANULE);
    CHECK(cu(cuMemPoolCreate)(&pool, &pool_properties));
    CHECK(cu(cuMemAllocFromPoolAsync)(&block, 32 * MIB, pool, NULL));
    THAT(free_memory() == before - GRANULE - 32 * MIB);
    CHECK(cu(cuMemFreeAsync)(block, NULL));
    CHECK(cu(cuMemPoolDestroy)(pool));
    CHECK(cu(cuMemRelease)(handle));
    properties.location.id = 9;
    ANSWERS(cu(cuMemCreate)(&handle, GRANULE, &properties, 0), CUDA_ERROR_INVALID_DEVICE);
}

PROBE(sparse_arrays, TELLS, "a sparse array takes no memory until some is mapped to it", "cuda.h 13.0:12985-13100")
{
    begin();
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 512, .Height = 512, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1, .Flags = CUDA_ARRAY3D_SPARSE};
    struct { unsigned width, height, depth, tail; unsigned long long bytes; unsigned flags, reserved[4]; } tile;
    CUmemAllocationProp properties = on_device(0);
    size_t before = free_memory();
    CUarray array;
    NEED(cu(cuArray3DCreate_v2)(&array, &shape));
    THAT(free_memory() == before);
    CHECK(cu(cuArrayGetSparseProperties)(&tile, array));
    THAT(tile.width == 128 && tile.height == 128 && tile.depth == 1);
    CUmemGenericAllocationHandle handle = granule_of(&properties);
    struct {
        int resource; CUarray array; int subresource; _Alignas(8) unsigned place[8]; int operation, type;
        CUmemGenericAllocationHandle memory; unsigned long long offset; unsigned devices, flags, reserved[2];
    } map = {.array = array, .place = {0, 0, 0, 0, 0, tile.width, tile.height, 1}, .operation = 1, .memory = handle, .devices = 1};
    _Static_assert(sizeof map == 96, "CUarrayMapInfo");
    CHECK(cu(cuMemMapArrayAsync)(&map, 1, NULL));
    CHECK(cu(cuMemRelease)(handle));
    THAT(free_memory() == before - GRANULE); /* the mapping holds it */
    map.operation = 2, map.memory = 0;
    CHECK(cu(cuMemMapArrayAsync)(&map, 1, NULL));
    THAT(free_memory() == before);
    CHECK(cu(cuArrayDestroy)(array));
}

PROBE(batches, TELLS, "batches of prefetches, discards and decompressions are checked before they begin", "cuda.h 13.0:12598-12704, 14560-14680")
{
    begin();
    CUdeviceptr managed, block = alloc(4 * MIB);
    CUstream stream = new_stream();
    CHECK(cu(cuMemAllocManaged)(&managed, 4 * MIB, 1));
    CUdeviceptr both[2] = {managed, managed + MIB}, wrong[2] = {managed, block};
    size_t sizes[2] = {MIB, MIB}, first[2] = {0, 1}, out_of_order[2] = {1, 0};
    CUmemLocation places[2] = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, {CU_MEM_LOCATION_TYPE_HOST, 0}};
    NEED(cu(cuMemPrefetchBatchAsync)(both, sizes, 2, places, first, 2, 0, stream));
    CHECK(cu(cuMemDiscardBatchAsync)(both, sizes, 2, 0, stream));
    ANSWERS(cu(cuMemPrefetchBatchAsync)(wrong, sizes, 2, places, first, 2, 0, stream), CUDA_ERROR_INVALID_VALUE);
    ANSWERS(cu(cuMemPrefetchBatchAsync)(both, sizes, 2, places, out_of_order, 2, 0, stream), CUDA_ERROR_INVALID_VALUE);
    ANSWERS(cu(cuMemDiscardBatchAsync)(both, sizes, 2, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    ANSWERS(cu(cuMemDiscardBatchAsync)(both, sizes, 2, 1, stream), CUDA_ERROR_INVALID_VALUE);
    struct { size_t from_bytes, to_bytes; CUdeviceptr written, from, to; int algorithm; unsigned char padding[20]; } work[2] = {
        {100, 200, block + MIB, block, block + 2 * MIB, 1, {0}}, {100, 200, block + MIB, managed, block, 1, {0}}};
    size_t error = 7;
    bool can = false;
    CHECK(cu(cuPointerGetAttribute)(&can, 21, block)); /* IS_HW_DECOMPRESS_CAPABLE */
    THAT(can);
    CHECK(cu(cuMemBatchDecompressAsync)(work, 1, 0, &error, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    unsigned written;
    CHECK(cu(cuMemcpyDtoH_v2)(&written, block + MIB, sizeof written));
    THAT(written == 200);
    ANSWERS(cu(cuMemBatchDecompressAsync)(work, 2, 0, &error, stream), CUDA_ERROR_INVALID_VALUE);
    THAT(error == 1);
    ANSWERS(cu(cuMemBatchDecompressAsync)(work, 1, 1, &error, stream), CUDA_ERROR_INVALID_VALUE);
    CHECK(cu(cuMemFree_v2)(block));
    CHECK(cu(cuMemFree_v2)(managed));
}

PROBE(checkpoints, TELLS, "a checkpoint keeps the bytes of a process, and needs its lock", "cuda.h 13.0, CUDA Checkpointing")
{
    begin();
    CUdeviceptr block = alloc(64 * MIB);
    int state, pid = getpid();
    fill(block, 9, 64);
    size_t held = free_memory();
    ANSWERS(cu(cuCheckpointProcessCheckpoint)(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
    NEED(cu(cuCheckpointProcessLock)(pid, NULL));
    CHECK(cu(cuCheckpointProcessCheckpoint)(pid, NULL));
    CHECK(cu(cuCheckpointProcessGetState)(pid, &state));
    THAT(state == 2);
    CHECK(cu(cuCheckpointProcessRestore)(pid, NULL));
    CHECK(cu(cuCheckpointProcessUnlock)(pid, NULL));
    THAT(free_memory() == held);
    THAT(holds_only(block, 9, 64));
    CHECK(cu(cuMemFree_v2)(block));
}

PROBE(copy_of_freed_memory, TELLS, "copies from and to freed memory answer 1", "cuda.h 13.0, CUDA_ERROR_INVALID_VALUE; a segment of 2 MiB goes as a whole")
{
    begin();
    char byte = 0;
    CUdeviceptr block = alloc(64 * MIB);
    CHECK(cu(cuMemFree_v2)(block));
    ANSWERS(cu(cuMemcpyDtoH_v2)(&byte, block, 1), CUDA_ERROR_INVALID_VALUE);
    ANSWERS(cu(cuMemcpyHtoD_v2)(block, &byte, 1), CUDA_ERROR_INVALID_VALUE);
    ANSWERS(cu(cuMemsetD8_v2)(block, 0, 1), CUDA_ERROR_INVALID_VALUE);
}
