/* Frees memory and asks for blocks of other sizes. Exits with 1 if a live block has other bytes than were written to
 * it, or if a request fails that must succeed.
 *
 *   growth textbook        allocates 1, 2 and 1 GiB, frees the 2 GiB, asks for 3 GiB; prints the result
 *   growth ends            frees two halves of handles, asks for nearly as much as both; prints the result
 *   growth random SEED     allocates and frees blocks of random sizes, and checks that every one keeps its bytes
 *   growth large SEED      the same with blocks that are 32 times as large
 *   growth trim            keeps one block, frees another, and calls vramshim_trim
 *   growth idle SECONDS    like trim, but waits at most SECONDS until the library gives the memory back by itself
 *   growth others          asks for every other class of memory, on a device that is full of freed memory
 *   growth refused        allocates, frees and allocates blocks from 8 bytes to 100 MiB
 *   growth full           asks for more than is left on a device; prints how often cuMemAlloc was called for it
 *   growth between         allocates small blocks between large ones, frees the large ones, and asks for one block
 *                          of all free memory */
#include "client.h"
#include "random.h"
#include "shim.h"
#include <time.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

struct block { CUdeviceptr address; size_t size; };

/* Visits two words in every 2 MiB of a block, each with a value that follows from its address. */
static void visit_words(struct block block, void visit(CUdeviceptr, uint64_t))
{
    for (size_t at = 0; at < block.size; at += 2 * MIB) {
        size_t end = block.size - at < 2 * MIB ? block.size : at + 2 * MIB;
        CUdeviceptr ends[] = {block.address + at, block.address + end - 8};
        for (int i = 0; i < 2; i++) visit(ends[i], ends[i] * 0x9e3779b97f4a7c15);
    }
}

static void write_word(CUdeviceptr address, uint64_t word) { CHECK(cu(cuMemcpyHtoD_v2)(address, &word, sizeof word)); }

static void read_word(CUdeviceptr address, uint64_t word)
{
    uint64_t found;
    CHECK(cu(cuMemcpyDtoH_v2)(&found, address, sizeof found));
    if (found == word) return;
    fprintf(stderr, "growth: %#llx holds other bytes than were written\n", address);
    exit(1);
}

static void write_words(struct block block) { visit_words(block, write_word); }
static void find_words(struct block block) { visit_words(block, read_word); }

static CUresult ask(struct block *block, size_t size)
{
    CUresult result = cu(cuMemAlloc_v2)(&block->address, block->size = size);
    if (result == CUDA_SUCCESS) {
        *count_of(0, LINEAR) += size;
        write_words(*block);
    }
    return result;
}

static struct block allocate(size_t size)
{
    struct block block;
    CHECK(ask(&block, size));
    return block;
}

static void release(struct block block)
{
    CHECK(cu(cuMemFree_v2)(block.address));
    *count_of(0, LINEAR) -= block.size;
}

static uint64_t driver_gave(void)
{
    static char text[1 << 20];
    size_t (*truth)(char *, size_t) = driver_function("simgpu_truth");
    THAT(truth(text, sizeof text) <= sizeof text);
    const char *name = "\"used_by_process\":", *found = strstr(text, name);
    THAT(found);
    return strtoull(found + strlen(name), NULL, 10);
}

static void textbook(void)
{
    struct block first = allocate(1 * GIB), middle = allocate(2 * GIB), last = allocate(1 * GIB), large;
    release(middle);
    checkpoint();
    CUresult result = ask(&large, 3 * GIB);
    find_words(first);
    find_words(last);
    if (result == CUDA_SUCCESS) find_words(large);
    checkpoint();
    printf("1 + 2 + 1 GiB allocated, 2 freed, 3 GiB asked for: ");
    if (result == CUDA_SUCCESS) printf("served\n");
    else if (result == CUDA_ERROR_OUT_OF_MEMORY) printf("out of memory\n");
    else printf("CUDA error %d\n", result);
}

/* Asks for 2 MiB on a device of 6 MiB, of which two halves of granules are free: the end of one granule and the
 * beginning of another. */
static void ends(void)
{
    struct block head = allocate(MIB), opening = allocate(MIB), one = allocate(MIB), other = allocate(MIB);
    struct block closing = allocate(MIB), tail = allocate(MIB), made;
    release(opening);
    release(closing);
    checkpoint();
    /* A block of 2 MiB would begin at a multiple of 2 MiB, which no half does. */
    CUresult result = ask(&made, 2 * MIB - 4096);
    find_words(head);
    find_words(one);
    find_words(other);
    find_words(tail);
    checkpoint();
    printf("two halves free, nearly both asked for: %s\n", result == CUDA_SUCCESS ? "served" : "out of memory");
    if (result != CUDA_SUCCESS) return;
    find_words(made);
    release(one);
    release(other);
    release(made);
    release(tail);
    release(head);
    checkpoint();
    CHECK(ask(&made, 6 * MIB));
    find_words(made);
    checkpoint();
}

static uint64_t seed;

/* Blocks have up to 4 `unit`, and one in four up to 24. */
static void come_and_go(size_t unit)
{
    enum { BLOCKS = 48, STEPS = 4000 };
    struct block blocks[BLOCKS] = {0};
    for (int step = 0; step < STEPS; step++) {
        struct block *block = &blocks[draw(&seed, BLOCKS)];
        if (block->size) {
            find_words(*block);
            release(*block);
            block->size = 0;
        } else {
            size_t most = draw(&seed, 4) ? 4 * unit : 24 * unit;
            CUresult result = ask(block, 512 * (1 + draw(&seed, most / 512)));
            THAT(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
            if (result != CUDA_SUCCESS) block->size = 0;
        }
        if (step % 500 == 0) checkpoint();
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].size) find_words(blocks[i]);
    checkpoint();
}

/* Whether driver or library still count more. The library's thread counts what it gave back right after the driver did. */
static int holds_more(size_t left)
{
    struct vramshim_stats now;
    THAT(library_function(vramshim_stats)(0, &now) == 0);
    return driver_gave() > left || now.reserved > left;
}

/* Checkpoints show that free memory goes back to the driver: by vramshim_trim if `seconds` is 0, else without a
 * call. */
static void give_back(double seconds)
{
    uint64_t (*trim)(int) = dlsym(RTLD_DEFAULT, "vramshim_trim");
    THAT(trim);
    struct block kept = allocate(64 * MIB);
    release(allocate(256 * MIB));
    for (size_t left = kept.size;; left = 0) {
        if (seconds == 0) trim(0);
        for (double waited = 0; waited < seconds && holds_more(left); waited += 0.01)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        checkpoint();
        if (left == 0) break;
        find_words(kept);
        release(kept);
    }
}

static void physical(size_t size)
{
    CHECK(cu(cuMemRelease)(physical_memory(size)));
}

static void managed(size_t size)
{
    CUdeviceptr address;
    CHECK(cu(cuMemAllocManaged)(&address, size, 1));
    CHECK(cu(cuMemFree_v2)(address));
}

static void pitched(size_t size)
{
    CUdeviceptr address;
    size_t pitch;
    CHECK(cu(cuMemAllocPitch_v2)(&address, &pitch, size / 1024, 1024, 4));
    CHECK(cu(cuMemFree_v2)(address));
}

static void stream_ordered(size_t size)
{
    CUdeviceptr address;
    CHECK(cu(cuMemAllocAsync)(&address, size, NULL));
    CHECK(cu(cuMemFreeAsync)(address, NULL));
    CHECK(cu(cuCtxSynchronize)());
}

static void array(size_t size)
{
    CUDA_ARRAY_DESCRIPTOR descriptor = {size / 4 / 8192, 8192, CU_AD_FORMAT_FLOAT, 1};
    CUarray made;
    CHECK(cu(cuArrayCreate_v2)(&made, &descriptor));
    CHECK(cu(cuArrayDestroy)(made));
}

static void other_context(size_t size)
{
    CUcontext other;
    CHECK(cu(cuCtxCreate_v2)(&other, 0, 0));
    CHECK(cu(cuMemFree_v2)(linear_memory(size)));
    CHECK(cu(cuCtxDestroy_v2)(other));
}

static void others(void)
{
    void (*const kinds[])(size_t) = {physical, managed, pitched, stream_ordered, array, other_context};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        release(allocate(768 * MIB));
        THAT(driver_gave() >= 768 * MIB); /* otherwise the test shows nothing */
        kinds[kind](512 * MIB);
        checkpoint();
    }
}

static void between(void)
{
    enum { PAIRS = 16 };
    /* While little memory is reserved, small and large blocks share granules. */
    struct block first = allocate(576 * MIB), large[PAIRS], small[PAIRS], all;
    for (int i = 0; i < PAIRS; i++) {
        large[i] = allocate(64 * MIB);
        small[i] = allocate(512);
    }
    release(first);
    for (int i = 0; i < PAIRS; i++) release(large[i]);
    CHECK(ask(&all, 2046 * MIB));
    for (int i = 0; i < PAIRS; i++) find_words(small[i]);
    checkpoint();
}

static void refused(void)
{
    const size_t sizes[] = {8, 700, 64 << 10, MIB, 3 * MIB, 20 * MIB + 8, 100 * MIB};
    enum { SIZES = sizeof sizes / sizeof *sizes, TIMES = 3 };
    struct block blocks[TIMES][SIZES];
    for (int time = 0; time < TIMES; time++)
        for (int i = 0; i < SIZES; i++) blocks[time][i] = allocate(sizes[i]);
    checkpoint();
    for (int time = 0; time < TIMES; time++)
        for (int i = 0; i < SIZES; i++) {
            find_words(blocks[time][i]);
            release(blocks[time][i]);
            if (time == 0) blocks[time][i] = allocate(sizes[i]);
        }
    for (int i = 0; i < SIZES; i++) find_words(blocks[0][i]), release(blocks[0][i]);
    checkpoint();
}

static void full(void)
{
    uint64_t (*calls)(const char *) = driver_function("simgpu_calls");
    struct block kept = allocate(48 * MIB), more;
    uint64_t before = calls("cuMemAlloc");
    THAT(ask(&more, 32 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    printf("%llu\n", (unsigned long long)(calls("cuMemAlloc") - before));
    find_words(kept);
    release(kept);
}

static double idle_seconds;

static void random_sizes(void) { come_and_go(MIB); }
static void large_sizes(void) { come_and_go(32 * MIB); }
static void idle(void) { give_back(idle_seconds); }

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"textbook", textbook}, {"ends", ends}, {"random", random_sizes}, {"large", large_sizes}, {"trim", idle}, {"idle", idle}, {"others", others}, {"between", between}, {"refused", refused}, {"full", full}};
    if (argc > 2) seed = strtoull(argv[2], NULL, 10), idle_seconds = atof(argv[2]);
    start_cuda();
    return PLAY(scenes, argc, argv);
}
