/* A kernel has written to a wrong address: every later call of its context answers the same error, until the context is
 * destroyed. Prints how often physical memory was created in the context after that.
 *
 *   faults freed       a free is the first call that tells
 *   faults allocated   an allocation is
 *   faults first       there was no allocation before the fault
 *   faults beside      other contexts are made, used and destroyed while the one with the fault is current */
#include "scenes.h"

enum { ILLEGAL_ADDRESS = 700, SIZE = 2 * MIB };

static void fault(void)
{
    CUmodule module;
    CUfunction wild;
    DO(cuModuleLoadData(&module, "wild"));
    DO(cuModuleGetFunction(&wild, module, "wild"));
    DO(cuLaunchKernel(wild, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

/* Of a size that no free block has. */
static void fails(void)
{
    CUdeviceptr block;
    EXPECT(cuMemAlloc_v2(&block, 300 * MIB), ILLEGAL_ADDRESS);
}

static void books_are_empty(void)
{
    struct vramshim_stats now = stats_of_library();
    THAT(now.reserved == 0 && now.requested == 0 && now.live == 0);
}

static uint64_t used_at_first;

/* The context and all it held go, and a new one works as the first did. */
static void begin_again(void)
{
    DO(cuDevicePrimaryCtxReset_v2(0));
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    THAT(simgpu_used(0) == used_at_first);
    DO(cuDevicePrimaryCtxRelease_v2(0));
    books_are_empty();
    context = use_device(0);
    uint64_t before = simgpu_calls("cuMemCreate");
    CUdeviceptr block = allocate(SIZE);
    DO(cuMemsetD8_v2(block, 7, SIZE));
    holds(block, 7, SIZE);
    release(block);
    printf("created %llu\n", (unsigned long long)(simgpu_calls("cuMemCreate") - before));
}

static void freed(void)
{
    CUdeviceptr blocks[] = {allocate(SIZE), allocate(SIZE), allocate(SIZE)}, other;
    release(blocks[2]);
    fault();
    EXPECT(cuMemFree_v2(blocks[0]), ILLEGAL_ADDRESS);
    EXPECT(cuMemFree_v2(blocks[1]), ILLEGAL_ADDRESS);
    EXPECT(cuMemFree_v2(blocks[1]), ILLEGAL_ADDRESS); /* it was not freed */
    EXPECT(cuMemFreeAsync(blocks[1], NULL), ILLEGAL_ADDRESS);
    EXPECT(cuMemGetAddressRange_v2(&other, NULL, blocks[1]), ILLEGAL_ADDRESS);
    EXPECT(cuMemAlloc_v2(&other, SIZE), ILLEGAL_ADDRESS);
    fails();
    begin_again();
}

static void allocated(void)
{
    CUdeviceptr block = allocate(SIZE);
    fault();
    fails();
    EXPECT(cuMemFree_v2(block), ILLEGAL_ADDRESS);
    begin_again();
}

static void first(void)
{
    fault();
    fails();
    begin_again();
}

static void beside(void)
{
    fault();
    EXPECT(cuCtxSynchronize(), ILLEGAL_ADDRESS);
    for (int i = 0; i < 4; i++) {
        CUcontext other;
        DO(cuCtxCreate_v2(&other, 0, 0));
        CUdeviceptr block = allocate(1500 * (size_t)MIB), lives = allocate(1500 * (size_t)MIB);
        DO(cuMemsetD8_v2(lives, 1, SIZE));
        release(block);
        DO(cuCtxDestroy_v2(other));
        books_are_empty();
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"freed", freed}, {"allocated", allocated}, {"first", first}, {"beside", beside}};
    start_watchdog();
    open_devices(1);
    used_at_first = simgpu_used(0);
    return PLAY(scenes, argc, argv);
}
