/* Blocks as other devices and libraries see them: attributes, SYNC_MEMOPS, exports. Every scene holds without the library.
 * Exits with 1 if an answer differs.
 *
 *   registered ends        behind the end of a block there is no allocation; no flags are told of a block
 *   registered identities  BUFFER_ID is unique, also over frees, and the same in all of a block
 *   registered access      ACCESS_FLAGS follow the peer access that the job enabled
 *   registered already     the driver says that access is enabled already: no library saw how
 *   registered afresh      peer access ends with the context
 *   registered sync        SYNC_MEMOPS holds for one block until it is freed; P2P_TOKENS set it for the block alone
 *   registered exports     a dma-buf of a block, beside frees and allocations of all sizes */
#include "delayed.h"
#include "unhooked.h"

enum { KIB = 1 << 10, SIZE = 4 * MIB };
enum { P2P_TOKENS = 5, SYNC_MEMOPS = 6, BUFFER_ID = 7, RANGE_START = 11, ACCESS_FLAGS = 16, BLOCK_ID = 20 };

CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count);
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t size);
CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height);

static uint64_t attribute(int which, CUdeviceptr address)
{
    uint64_t one[2] = {0}, other[2] = {0};
    CHECK(cuPointerGetAttribute(one, which, address));
    CHECK(cuPointerGetAttributes(1, &which, (void *[]){other}, address));
    THAT(one[0] == other[0]);
    return one[0];
}

/* behind_the_end_of_alloc and access_of_alloc in tests/assumptions, on an H200. */
static void ends(void)
{
    static const size_t requested[] = {1, 600, 3000, 64 * KIB + 1, 3 * MIB + 1};
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    begin();
    for (int i = 0; i < 5; i++) {
        CUdeviceptr block = linear_memory(requested[i]), end = block + requested[i], base;
        unsigned long long flags = 9;
        uint64_t value;
        size_t bytes;
        int which = RANGE_START;
        EXPECT(cuMemGetAddressRange_v2(&base, &bytes, end), CUDA_ERROR_NOT_FOUND);
        EXPECT(cuPointerGetAttribute(&value, RANGE_START, end), CUDA_ERROR_INVALID_VALUE);
        CHECK(cuPointerGetAttributes(1, &which, (void *[]){&value}, end));
        THAT(value == 0);
        EXPECT(cuPointerSetAttribute(&(unsigned){1}, SYNC_MEMOPS, end), CUDA_ERROR_INVALID_VALUE);
        EXPECT(cuMemGetAccess(&flags, &here, end), CUDA_ERROR_INVALID_VALUE);
        CHECK(cuMemGetAccess(&flags, &here, end - 1));
        THAT(flags == 0);
    }
}

static void identities(void)
{
    static const size_t sizes[] = {600, 64 * KIB, 3 * MIB + 512, SIZE, 70 * MIB};
    enum { ROUNDS = 50, SIZES = sizeof sizes / sizeof *sizes };
    static uint64_t seen[ROUNDS * SIZES + 2];
    int count = 0;
    size_t pitch;
    CUdeviceptr pitched, blocks[SIZES];
    begin();
    CHECK(cuMemAllocPitch_v2(&pitched, &pitch, 1000, 10, 4));
    seen[count++] = attribute(BUFFER_ID, pitched);
    CUdeviceptr kept = linear_memory(MIB);
    uint64_t id = seen[count++] = attribute(BUFFER_ID, kept);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < SIZES; i++) seen[count++] = attribute(BUFFER_ID, blocks[i] = linear_memory(sizes[i]));
        for (int i = 0; i < SIZES; i++) CHECK(cuMemFree_v2(blocks[i]));
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++) THAT(seen[i] != seen[j]);
    THAT(attribute(BUFFER_ID, kept) == id && attribute(BUFFER_ID, kept + MIB - 1) == id);
    THAT(attribute(BLOCK_ID, kept) == attribute(BLOCK_ID, kept + MIB - 1));
}

static void access(void)
{
    begin();
    CUdeviceptr block = linear_memory(SIZE);
    THAT(attribute(ACCESS_FLAGS, block) == 3);
    use_device(1);
    THAT(attribute(ACCESS_FLAGS, block) == 0);
    CHECK(cuCtxEnablePeerAccess(context, 0));
    THAT(attribute(ACCESS_FLAGS, block) == 3);
    use_device(2);
    THAT(attribute(ACCESS_FLAGS, block) == 0);
    use_device(1);
    CHECK(cuCtxDisablePeerAccess(context));
    THAT(attribute(ACCESS_FLAGS, block) == 0);
}

static void already(void)
{
    __typeof__(&cuCtxEnablePeerAccess) unseen = of_the_driver("cuCtxEnablePeerAccess");
    begin();
    CUdeviceptr block = linear_memory(SIZE);
    use_device(1);
    CHECK(unseen(context, 0));
    EXPECT(cuCtxEnablePeerAccess(context, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    THAT(attribute(ACCESS_FLAGS, block) == 3);
    CHECK(cuMemsetD8_v2(block, 1, SIZE));
}

static void afresh(void)
{
    begin();
    CUdeviceptr block = linear_memory(SIZE);
    for (int round = 0; round < 3; round++) {
        use_device(1);
        CHECK(cuCtxEnablePeerAccess(context, 0));
        THAT(attribute(ACCESS_FLAGS, block) == 3);
        CHECK(cuDevicePrimaryCtxReset_v2(1));
        use_device(1);
        THAT(attribute(ACCESS_FLAGS, block) == 0);
    }
}

static CUresult set_sync(CUdeviceptr address, unsigned value) { return cuPointerSetAttribute(&value, SYNC_MEMOPS, address); }

static bool pending(CUdeviceptr block) { return simgpu_hazard(block, SIZE) != 0; }

/* Synchronous operations on a block. Each returns early, if the block has no SYNC_MEMOPS. */
static void fill(CUdeviceptr block) { CHECK(cuMemsetD8_v2(block + 64, 1, MIB)); }
static void fill_by_thread(CUdeviceptr block) { CHECK(cuMemsetD8_v2_ptds(block, 1, MIB)); }
static void fill_rows(CUdeviceptr block) { CHECK(cuMemsetD2D32_v2(block, 1024, 1, 100, 100)); }
static void upload(CUdeviceptr block)
{
    static char host[MIB];
    CHECK(cuMemcpyHtoD_v2(block + MIB, host, sizeof host));
}
static void upload_by_thread(CUdeviceptr block)
{
    static char host[MIB];
    CHECK(cuMemcpyHtoD_v2_ptds(block, host, sizeof host));
}
static void copy(CUdeviceptr block) { CHECK(cuMemcpyDtoD_v2(block + 2 * MIB, block, MIB)); }
static void copy_rows(CUdeviceptr block)
{
    CUDA_MEMCPY2D rows = {.srcMemoryType = 2, .srcDevice = block, .srcPitch = 1024, .dstMemoryType = 2, .dstDevice = block + 2 * MIB,
                          .dstPitch = 1024, .WidthInBytes = 512, .Height = 100};
    CHECK(cuMemcpy2D_v2(&rows));
}
static void (*const operations[])(CUdeviceptr) = {fill, fill_by_thread, fill_rows, upload, upload_by_thread, copy, copy_rows};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static void synchronises(CUdeviceptr block, bool wanted)
{
    THAT(attribute(SYNC_MEMOPS, block) == wanted);
    for (int i = 0; i < OPERATIONS; i++) {
        operations[i](block);
        if (pending(block) == wanted) fprintf(stderr, "operation %d: SYNC_MEMOPS is %d\n", i, wanted), exit(1);
        CHECK(cuCtxSynchronize());
    }
}

static void sync(void)
{
    begin();
    CUdeviceptr blocks[3];
    for (int i = 0; i < 3; i++) blocks[i] = linear_memory(SIZE);
    for (int i = 0; i < 3; i++) synchronises(blocks[i], false);
    fill(blocks[1]);
    THAT(pending(blocks[1]));
    CHECK(set_sync(blocks[1] + SIZE / 2, 1));
    THAT(!pending(blocks[1])); /* operations that began before are waited for */
    for (int i = 0; i < 3; i++) synchronises(blocks[i], i == 1);
    CUcontext other;
    CHECK(cuCtxCreate_v2(&other, 0, 0));
    synchronises(blocks[1], true);
    CHECK(cuCtxSetCurrent(context));
    CHECK(set_sync(blocks[1], 0));
    synchronises(blocks[1], false);
    CHECK(set_sync(blocks[0], 1));
    CHECK(set_sync(blocks[2], 1));
    CHECK(cuMemFree_v2(blocks[0]));
    CHECK(cuMemFree_v2(blocks[2]));
    EXPECT(set_sync(blocks[2], 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuPointerSetAttribute(NULL, SYNC_MEMOPS, blocks[1]), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuPointerSetAttribute(&(unsigned){1}, BUFFER_ID, blocks[1]), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 3; i++) synchronises(blocks[i] = linear_memory(SIZE), false);
    uint64_t two[2];
    CHECK(cuPointerGetAttribute(two, P2P_TOKENS, blocks[0] + 4096));
    synchronises(blocks[0], true);
    synchronises(blocks[2], false);
    CHECK(cuMemFree_v2(blocks[0]));
    synchronises(linear_memory(SIZE), false);
}

static CUresult export(int *fd, CUdeviceptr address, size_t size) { return cuMemGetHandleForAddressRange(fd, address, size, 1, 0); }

static void receives(int fd, CUdeviceptr block, size_t size, unsigned char value)
{
    static unsigned char sent[MIB], found[MIB];
    for (size_t at = 0; at < size; at += MIB) {
        memset(sent, value + (int)(at / MIB), MIB);
        THAT(simgpu_dmabuf_write(fd, at, sent, MIB) == MIB);
    }
    for (size_t at = 0; at < size; at += MIB) {
        CHECK(cuMemcpyDtoH_v2(found, block + at, MIB));
        for (int i = 0; i < MIB; i++) THAT(found[i] == (unsigned char)(value + (int)(at / MIB)));
    }
}

static void exports(void)
{
    enum { OTHERS = 40, ROUNDS = 30, LARGE = 6 * MIB };
    int fds[2], none;
    CUdeviceptr others[OTHERS] = {0};
    begin();
    CUdeviceptr blocks[] = {linear_memory(LARGE), linear_memory(SIZE)}; /* the first blocks begin at the boundary of a page */
    CHECK(export(&fds[0], blocks[0], LARGE));
    CHECK(export(&fds[1], blocks[1] + MIB, SIZE - MIB));
    EXPECT(export(&none, blocks[0] + 512, 4096), CUDA_ERROR_INVALID_VALUE);
    EXPECT(export(&none, blocks[0], 4096 + 512), CUDA_ERROR_INVALID_VALUE);
    EXPECT(export(&none, blocks[0], LARGE + 4096), CUDA_ERROR_INVALID_VALUE); /* more than one allocation */
    srand(7);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < OTHERS; i++) {
            if (others[i]) CHECK(cuMemFree_v2(others[i]));
            others[i] = 0;
            if (rand() % 3) CHECK(cuMemAlloc_v2(&others[i], (size_t)(1 + rand() % 20) * MIB / 2));
        }
        void (*trim)(void) = dlsym(RTLD_DEFAULT, "vramshim_trim");
        if (trim && round % 5 == 0) trim();
        receives(fds[0], blocks[0], LARGE, (unsigned char)round);
        receives(fds[1], blocks[1] + MIB, SIZE - MIB, (unsigned char)(round + 100));
    }
    CHECK(cuMemFree_v2(blocks[0]));
    EXPECT(export(&none, blocks[0], LARGE), CUDA_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"ends", ends}, {"identities", identities}, {"access", access}, {"already", already},
        {"afresh", afresh}, {"sync", sync}, {"exports", exports}};
    return PLAY(scenes, argc, argv);
}
