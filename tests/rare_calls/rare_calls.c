/* Rare calls on a policy's memory. Exits with 1 if an answer differs from the driver's.
 *
 *   rare_calls handle      asks for the handle of the physical memory behind blocks
 *   rare_calls dying       allocates in a context during its destruction; then allocates 100 MiB in a context with the same
 *                       handle, and prints a checkpoint
 *   rare_calls detached    detaches from contexts that hold memory, and prints checkpoints
 *   rare_calls sparse      makes arrays larger than the device, whose memory is mapped later, and prints checkpoints
 *   rare_calls unseen      maps a handle of a function that the library does not know
 *   rare_calls too-much    asks for more than the device has
 *   rare_calls kept        asks for memory that a pool of the driver keeps and does not use
 *   rare_calls pools       waits for streams on which memory of the driver's pools was freed or not
 *   rare_calls refused     frees a block; each way to wait for the work of the context fails once
 *   rare_calls ordered     frees blocks by cuMemFreeAsync; the device has room for one block at a time
 *   rare_calls cancelled   cancels a thread, which allocates and frees before its own cancellation point */
#include "cancelled.h"
#include "delayed.h"
#include <pthread.h>

static void handle(void)
{
    CUdeviceptr blocks[3], mapped;
    CUmemGenericAllocationHandle physical;
    begin();
    for (int i = 0; i < 3; i++) blocks[i] = linear_memory(4096 << 4 * i);
    for (int i = 0; i < 3; i++) {
        EXPECT(cuMemRetainAllocationHandle(&physical, (void *)blocks[i]), CUDA_ERROR_INVALID_VALUE);
        EXPECT(cuMemRetainAllocationHandle(&physical, (void *)(blocks[i] + 100)), CUDA_ERROR_INVALID_VALUE);
        CUmemAccessDesc none = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 0};
        EXPECT(cuMemSetAccess(blocks[i] & ~(CUdeviceptr)(2 * MIB - 1), 2 * MIB, &none, 1), CUDA_ERROR_INVALID_VALUE);
        EXPECT(cuMemUnmap(blocks[i] & ~(CUdeviceptr)(2 * MIB - 1), 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    }
    /* Memory that the job mapped itself has a handle. */
    CUmemGenericAllocationHandle own_one = physical_memory(2 * MIB);
    CHECK(cuMemAddressReserve(&mapped, 2 * MIB, 0, 0, 0));
    CHECK(cuMemMap(mapped, 2 * MIB, 0, own_one, 0));
    CHECK(cuMemRetainAllocationHandle(&physical, (void *)mapped));
    THAT(physical == own_one);
}

static CUcontext dying;

static void *allocates_late(void *unused)
{
    CUdeviceptr address;
    CHECK(cuCtxSetCurrent(dying));
    while (simgpu_calls("cuCtxDestroy") == 0) continue; /* waits until the destruction, which takes time, begins */
    (void)cuMemAlloc_v2(&address, MIB); /* whether this call succeeds depends on timing */
    return unused;
}

static void in_a_dying_context(void)
{
    CUcontext next = NULL;
    pthread_t thread;
    CHECK(cuInit(0));
    CHECK(cuCtxCreate_v2(&dying, 0, 0));
    linear_memory(4096);
    pthread_create(&thread, NULL, allocates_late, NULL);
    CHECK(cuCtxDestroy_v2(dying));
    CHECK(cuCtxCreate_v2(&next, 0, 0));
    THAT(next == dying);
    pthread_join(thread, NULL);
    for (int i = 0; i < 100; i++) CHECK(cuMemsetD8_v2(linear_memory(MIB), 1, MIB));
    checkpoint();
}

static void detached(void)
{
    enum { TIMES = 20, BYTES = 512 * MIB };
    CUcontext created, same;
    CHECK(cuInit(0));
    for (int i = 0; i < TIMES; i++) {
        CHECK(cuCtxCreate_v2(&created, 0, 0));
        CUdeviceptr address = linear_memory(BYTES);
        CHECK(cuMemsetD8_v2(address, 1, 64));
        *count_of(0, LINEAR) += BYTES;
        if (i == 1) {
            /* As long as a reference is left, the memory is too. */
            CHECK(cuCtxAttach(&same, 0));
            THAT(same == created);
            CHECK(cuCtxDetach(created));
            CHECK(cuMemsetD8_v2(address, 1, 64));
            checkpoint();
        }
        CHECK(cuCtxDetach(created));
        *count_of(0, LINEAR) -= BYTES;
        if (i == 1) checkpoint();
    }
    checkpoint();
}

static void sparse(void)
{
    static const unsigned flags[] = {CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING};
    CUarray array;
    CUmipmappedArray levels;
    begin();
    for (int i = 0; i < 2; i++) {
        CUDA_ARRAY3D_DESCRIPTOR large = {1 << 16, 1 << 16, 0, CU_AD_FORMAT_FLOAT, 1, flags[i]}; /* 16 GiB */
        CHECK(cuArray3DCreate_v2(&array, &large));
        CHECK(cuMipmappedArrayCreate(&levels, &large, 3));
        checkpoint();
        CHECK(cuArrayDestroy(array));
        CHECK(cuMipmappedArrayDestroy(levels));
        large.Flags = 0;
        EXPECT(cuArray3DCreate_v2(&array, &large), CUDA_ERROR_OUT_OF_MEMORY);
    }
}

static void unseen(void)
{
    CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle, same;
    CUdeviceptr at;
    /* Stands for cuMulticastCreate. The library sees the handle first when it is mapped. */
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    begin();
    create = ((void *(*)(const char *, int))optional_function("simgpu_function"))("cuMemCreate", 10020);
    CUdeviceptr block = linear_memory(MIB);
    CHECK(create(&handle, 2 * MIB, &properties, 0));
    CHECK(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
    for (int i = 0; i < 3; i++) {
        CHECK(cuMemMap(at, 2 * MIB, 0, handle, 0));
        CHECK(cuMemUnmap(at, 2 * MIB));
    }
    CHECK(cuMemMap(at, 2 * MIB, 0, handle, 0));
    CHECK(cuMemRetainAllocationHandle(&same, (void *)at));
    CHECK(cuMemUnmap(at, 2 * MIB));
    CHECK(cuMemRelease(same));
    CHECK(cuMemRelease(handle));
    CHECK(cuMemFree_v2(block));
}

static void too_much(void)
{
    CUdeviceptr address;
    begin();
    linear_memory(4096);
    uint64_t before = simgpu_calls("cuMemCreate");
    EXPECT(cuMemAlloc_v2(&address, 6 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    THAT(simgpu_calls("cuMemCreate") == before);
    linear_memory(3 * GIB);
}

static void kept(void)
{
    CUdeviceptr address;
    CUmemoryPool pool;
    uint64_t all = UINT64_MAX;
    begin();
    /* As PyTorch's backend cudaMallocAsync does. */
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    CHECK(cuMemAllocAsync(&address, 800 * MIB, NULL));
    CHECK(cuMemFreeAsync(address, NULL));
    CHECK(cuCtxSynchronize());
    linear_memory(800 * MIB);
}

static uint64_t asked(void) { return simgpu_calls("cuMemPoolGetAttribute"); }

static void books_are_right(CUmemoryPool *pools, int count)
{
    __typeof__(&vramshim_class_stats) stats = library_function(vramshim_class_stats);
    struct vramshim_stats now = {0};
    uint64_t sum = 0, reserved;
    THAT(stats && stats(0, "async", &now) == 0);
    for (int i = 0; i < count; i++) {
        CHECK(cuMemPoolGetAttribute(pools[i], 5 /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */, &reserved));
        sum += reserved;
    }
    THAT(sum == now.reserved);
}

static void driver_pools(void)
{
    enum { POOLS = 4, EACH = 40 * MIB };
    CUmemoryPool pools[POOLS];
    CUstream streams[POOLS];
    CUdeviceptr blocks[POOLS];
    begin();
    CUstream idle = new_stream(NON_BLOCKING);
    for (int i = 0; i < POOLS; i++) {
        pools[i] = pool_on(0);
        streams[i] = i == 1 ? (CUstream)2 : new_stream(NON_BLOCKING);
        CHECK(cuMemAllocFromPoolAsync(&blocks[i], EACH, pools[i], streams[i]));
    }
    uint64_t before = asked();
    for (int i = 0; i < POOLS; i++) CHECK(cuStreamSynchronize(streams[i]));
    CHECK(cuCtxSynchronize());
    THAT(asked() == before); /* nothing was freed */
    for (int i = 0; i < POOLS / 2; i++) {
        before = asked();
        CHECK(cuMemFreeAsync(blocks[i], streams[i]));
        CHECK(cuStreamSynchronize(idle));
        THAT(asked() == before);
        CHECK(cuStreamSynchronize(streams[i]));
        CHECK(cuStreamSynchronize(streams[i]));
        THAT(asked() == before + 1);
        books_are_right(pools, POOLS);
    }
    before = asked();
    CHECK(cuMemFreeAsync(blocks[2], NULL));
    CHECK(cuMemFreeAsync(blocks[3], idle));
    CHECK(cuStreamDestroy_v2(idle));
    CHECK(cuCtxSynchronize());
    THAT(asked() == before + 2);
    for (int i = 0; i < POOLS; i++) CHECK(cuMemPoolDestroy(pools[i]));
    books_are_right(pools, 0);
}

static void refused(void)
{
    int (*met)(void) = (int (*)(void))optional_function("simgpu_faults_met");
    begin();
    CUdeviceptr address = linear_memory(4096);
    CHECK(cuMemFree_v2(address));
    THAT(met && met() == 2);
    EXPECT(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

/* A stream of another device copies from a block, which is free when the copy is done. */
static void freed_by_another_device(void)
{
    CUdeviceptr block = linear_memory(4 * MIB);
    CUcontext other = use_device(1);
    CUstream stream = new_stream(NON_BLOCKING);
    CUdeviceptr copy = linear_memory(4 * MIB);
    CHECK(cuMemcpyPeerAsync(copy, other, block, context, 4 * MIB, stream));
    CHECK(cuMemFreeAsync(block, stream));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuCtxSynchronize()); /* of the block's device, which runs nothing of it */
    CUdeviceptr next = linear_memory(4 * MIB);
    THAT(simgpu_hazard(next, 4 * MIB) == 0);
    CHECK(cuMemFree_v2(next));
    CHECK(cuCtxSetCurrent(other));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree_v2(copy));
    CHECK(cuCtxSetCurrent(context));
}

static void ordered(void)
{
    enum { ROUNDS = 4, BYTES = 40 * MIB };
    begin();
    CUstream streams[] = {new_stream(NON_BLOCKING), NULL, (CUstream)2};
    for (int i = 0; i < ROUNDS; i++) {
        CUstream stream = streams[i % 3];
        CUdeviceptr block = linear_memory(BYTES);
        CHECK(cuMemsetD8Async(block, 1, BYTES, stream));
        uint64_t before = synchronisations();
        CHECK(cuMemFreeAsync(block, stream));
        THAT(synchronisations() == before);
        EXPECT(cuMemFreeAsync(block, stream), CUDA_ERROR_INVALID_VALUE);
        EXPECT(cuMemFree_v2(block), CUDA_ERROR_INVALID_VALUE);
        CHECK(cuStreamSynchronize(stream));
    }
    /* Another stream than a default one has a context of its own. */
    CUdeviceptr block = linear_memory(BYTES);
    CHECK(cuCtxSetCurrent(NULL));
    EXPECT(cuMemFreeAsync(block, NULL), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuMemFreeAsync(block, streams[0]));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamSynchronize(streams[0]));
    CHECK(cuMemFree_v2(linear_memory(BYTES)));
    freed_by_another_device();
    THAT(simgpu_hazards() == 0);
}

static void calls_of_a_cancelled_thread(void)
{
    CUdeviceptr ordered, refused;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAllocAsync(&ordered, MIB, NULL));
    CUdeviceptr block = linear_memory(5 * MIB);
    EXPECT(cuMemAlloc_v2(&refused, 1ull << 40), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemFree_v2(block));
    CHECK(cuMemFreeAsync(ordered, NULL));
}

static void cancelled(void)
{
    begin();
    cancelled_during(calls_of_a_cancelled_thread);
    CHECK(cuMemFree_v2(linear_memory(5 * MIB)));
}

static void frees_inside(void *block)
{
    EXPECT(cuMemFreeAsync(*(CUdeviceptr *)block, NULL), CUDA_ERROR_NOT_PERMITTED);
}

/* In a host function, and without a context, the driver refuses a free whatever the address. */
static void nowhere(void)
{
    begin();
    CUstream stream = new_stream(NON_BLOCKING);
    CUdeviceptr block = linear_memory(5 * MIB);
    CHECK(cuLaunchHostFunc(stream, frees_inside, &block));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemFree_v2(block));
    EXPECT(cuMemFree_v2(block), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxSetCurrent(NULL));
    EXPECT(cuMemFree_v2(block), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuCtxSetCurrent(context));
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"handle", handle}, {"dying", in_a_dying_context}, {"detached", detached}, {"sparse", sparse}, {"unseen", unseen},
        {"too-much", too_much}, {"kept", kept}, {"pools", driver_pools}, {"refused", refused},
        {"ordered", ordered}, {"cancelled", cancelled}, {"nowhere", nowhere},
    };
    return PLAY(scenes, argc, argv);
}
