/* Blocks that come and go where a call of the driver may fail or is worth much. Exits with 1 if pending work may still write
 * to a block that was just allocated, or did write.
 *
 *   reuse peer       frees a block that another device writes to, while a call of the driver may fail (SIMGPU_FAULTS)
 *   reuse irregular  tensors of random sizes after a large one; no call may be made again and again
 *   reuse tensors    200 tensors of random sizes below 24 MiB, which stay
 *   reuse aligned    blocks of cuMemAlloc, which lie at multiples of 2 MiB, come and go */
#include "delayed.h"

enum { BLOCK = 256 << 10 };

static void peer(void)
{
    CUcontext other;
    CUdeviceptr block, next;
    unsigned char byte;
    CHECK(cuMemAlloc_v2(&block, BLOCK));
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK(cuCtxSetCurrent(other));
    CHECK(cuCtxEnablePeerAccess(context, 0));
    CUstream stream = new_stream(NON_BLOCKING);
    CHECK(cuMemsetD8Async(block, 0xee, BLOCK, stream));
    CHECK(cuCtxSetCurrent(context));
    CUresult freed = cuMemFree_v2(block);
    /* A free that could not wait says so, and the block is not handed out. */
    THAT(freed == CUDA_SUCCESS || simgpu_hazard(block, BLOCK));
    CHECK(cuMemAlloc_v2(&next, BLOCK));
    THAT(simgpu_hazard(next, BLOCK) == 0);
    CHECK(cuMemsetD8_v2(next, 0x11, BLOCK));
    CHECK(cuCtxSetCurrent(other));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemcpyDtoH_v2(&byte, next, 1));
    THAT(byte == 0x11);
    THAT(simgpu_hazards() == 0);
    printf("%llu %llu %llu\n", (unsigned long long)simgpu_calls("cuEventCreate"),
           (unsigned long long)simgpu_calls("cuCtxRecordEvent"), (unsigned long long)simgpu_calls("cuEventSynchronize"));
}

static size_t drawn(void)
{
    static unsigned state = 7;
    state = state * 1664525 + 1013904223;
    return state >> 4;
}

static void irregular(void)
{
    void *(*tensor)(ptrdiff_t, int, void *) = dlsym(RTLD_DEFAULT, "vramshim_torch_alloc");
    void (*leave)(void *, ptrdiff_t, int, void *) = dlsym(RTLD_DEFAULT, "vramshim_torch_free");
    void *blocks[400];
    size_t sizes[400];
    void *large = tensor(2 * GIB, 0, NULL);
    THAT(large);
    leave(large, 2 * GIB, 0, NULL);
    CHECK(cuCtxSynchronize());
    for (int i = 0; i < 400; i++) {
        sizes[i] = drawn() % (200 * MIB) + 2 * MIB;
        THAT((blocks[i] = tensor(sizes[i], 0, NULL)));
        if (i % 3 != 2 || i <= 60) continue;
        for (int back = 1; back <= 2; back++) leave(blocks[i - back], sizes[i - back], 0, NULL);
        CHECK(cuCtxSynchronize());
    }
    printf("%llu\n", (unsigned long long)simgpu_calls("cuMemUnmap"));
}

static void tensors(void)
{
    void *(*tensor)(ptrdiff_t, int, void *) = dlsym(RTLD_DEFAULT, "vramshim_torch_alloc");
    for (int i = 0; i < 200; i++) THAT(tensor(drawn() % (20 * MIB) + 2 * MIB, 0, NULL));
}

static void aligned(void)
{
    CUdeviceptr blocks[64];
    int count = 0;
    for (int i = 0; i < 600; i++) {
        for (int freed = 0; count > 60 && freed < 2; freed++) {
            int which = (int)(drawn() % (size_t)count);
            CHECK(cuMemFree_v2(blocks[which]));
            blocks[which] = blocks[--count];
        }
        CHECK(cuMemAlloc_v2(&blocks[count], drawn() % (12 * MIB) + 3 * MIB));
        THAT(blocks[count++] % (2 * MIB) == 0);
    }
    printf("%llu\n", (unsigned long long)simgpu_calls("cuMemMap"));
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"peer", peer}, {"irregular", irregular}, {"tensors", tensors}, {"aligned", aligned}};
    begin();
    return PLAY(scenes, argc, argv);
}
