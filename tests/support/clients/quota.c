/* A job that may use a part of a device. Exits with 1 if an answer is impossible, or if a block has other bytes than
 * were written to it.
 *
 *   quota book SEED STEPS   allocates and frees every class of device memory at random
 *   quota limit             fills the memory with one class after the other: allocates until out of memory, frees all
 *                           blocks, then allocates half as many
 *   quota forecast          takes linear memory until there is none, thrice; prints what cuMemGetInfo called free, and what was got
 *   quota mixed SEED STEPS  many small and some large requests, never more than 55% of the memory; prints the result
 *   quota scattered         a large block after others were freed that lie apart; prints the result
 *   quota frees             frees stream-ordered memory by each function that may free it, and linear memory by cuMemFreeAsync
 *   quota arrays            arrays until out of memory; then all are freed
 *   quota ipc               exports blocks by cuIpcGetMemHandle, and frees them
 *   quota graphs            graphs with allocation nodes are launched until out of memory, and trimmed
 *   quota tensors           tensors by vramshim_torch_alloc, if the library is there, until there is no memory */
#include "client.h"
#include "random.h"
#include "shim.h"
#include <stdbool.h>

enum { VIRTUAL_MEMORY_MANAGEMENT = 102, MEMORY_POOLS = 115, UNKNOWN = 999 };
#define MIB (1ull << 20)

enum { TENSOR = -1 }; /* linear memory as PyTorch asks for it; without the library, cuMemAlloc */
struct block {
    int class;
    bool is_tensor;
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    CUarray array;
    size_t bytes, held;
    uint64_t word;
};

static uint64_t seed;
static int steps;
static size_t granularity; /* of physical memory; 0 without virtual memory management */
static bool pools;

/* Writes words at both ends, so that blocks that overlap are noticed. */
static void write_words(struct block *block)
{
    static uint64_t words;
    block->word = ++words * 0x9e3779b97f4a7c15;
    CHECK(cu(cuMemcpyHtoD_v2)(block->address, &block->word, 8));
    CHECK(cu(cuMemcpyHtoD_v2)(block->address + block->held - 8, &block->word, 8));
}

static void find_words(const struct block *block)
{
    uint64_t ends[2];
    CHECK(cu(cuMemcpyDtoH_v2)(&ends[0], block->address, 8));
    CHECK(cu(cuMemcpyDtoH_v2)(&ends[1], block->address + block->held - 8, 8));
    THAT(ends[0] == block->word && ends[1] == block->word);
}

/* Results that a layer may give for a class of memory that it does not support. */
static bool unusable(CUresult result) { return result == CUDA_ERROR_NOT_SUPPORTED || result == UNKNOWN; }

static CUresult map(struct block *block)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cu(cuMemAddressReserve)(&block->address, block->held, 0, 0, 0));
    CUresult result = cu(cuMemMap)(block->address, block->held, 0, block->handle, 0);
    if (result != CUDA_SUCCESS) {
        CHECK(cu(cuMemAddressFree)(block->address, block->held));
        CHECK(cu(cuMemRelease)(block->handle));
        return result;
    }
    CHECK(cu(cuMemSetAccess)(block->address, block->held, &access, 1));
    *count_of(0, ADDRESS_RANGE) += (long long)block->held;
    return CUDA_SUCCESS;
}

static CUresult ask(struct block *block, int class, size_t size)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUresult result = CUDA_SUCCESS;
    size_t pitch;
    *block = (struct block){.class = class, .bytes = size, .held = size};
    switch (class) {
    case LINEAR: result = cu(cuMemAlloc_v2)(&block->address, size); break;
    case TENSOR: {
        void *(*take)(ssize_t, int, CUstream) = dlsym(RTLD_DEFAULT, "vramshim_torch_alloc");
        if (!take) return ask(block, LINEAR, size);
        block->address = (CUdeviceptr)take((ssize_t)size, 0, NULL);
        class = block->class = LINEAR;
        block->is_tensor = true;
        result = block->address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        break;
    }
    case ARRAY: {
        enum { WIDTH = 4096 };
        CUDA_ARRAY_DESCRIPTOR d = {WIDTH, size / WIDTH / 4, CU_AD_FORMAT_FLOAT, 1};
        result = cu(cuArrayCreate_v2)(&block->array, &d);
        break;
    }
    case MANAGED: result = cu(cuMemAllocManaged)(&block->address, size, 1); break;
    case ASYNC: result = cu(cuMemAllocAsync)(&block->address, size, NULL); break;
    case PITCHED:
        block->bytes = (size / 1000 + 1) * 1000;
        result = cu(cuMemAllocPitch_v2)(&block->address, &pitch, 1000, block->bytes / 1000, 4);
        if (result == CUDA_SUCCESS) block->held = pitch * (block->bytes / 1000);
        break;
    case VMM:
        block->bytes = block->held = (size + granularity - 1) / granularity * granularity;
        result = cu(cuMemCreate)(&block->handle, block->held, &properties, 0);
        if (result == CUDA_SUCCESS) result = map(block);
        break;
    }
    if (result != CUDA_SUCCESS) return result;
    *count_of(0, class) += (long long)block->bytes;
    if (class != ARRAY) write_words(block);
    return CUDA_SUCCESS;
}

static void release(struct block *block)
{
    if (block->class != ARRAY) find_words(block);
    switch (block->class) {
    case ARRAY: CHECK(cu(cuArrayDestroy)(block->array)); break;
    case ASYNC: CHECK(cu(cuMemFreeAsync)(block->address, NULL)); break;
    case VMM:
        CHECK(cu(cuMemUnmap)(block->address, block->held));
        CHECK(cu(cuMemRelease)(block->handle));
        CHECK(cu(cuMemAddressFree)(block->address, block->held));
        *count_of(0, ADDRESS_RANGE) -= (long long)block->held;
        break;
    default: {
        void (*give)(void *, ssize_t, int, CUstream) = dlsym(RTLD_DEFAULT, "vramshim_torch_free");
        if (block->is_tensor) give((void *)block->address, (ssize_t)block->held, 0, NULL);
        else CHECK(cu(cuMemFree_v2)(block->address));
    }
    }
    *count_of(0, block->class) -= (long long)block->bytes;
    block->held = 0;
}

static const int classes[] = {LINEAR, PITCHED, MANAGED, ASYNC, VMM};
enum { KINDS = sizeof classes / sizeof *classes };

static bool is_there(int class) { return class == VMM ? granularity > 0 : class == ASYNC ? pools : true; }

static void compare_information(void)
{
    size_t free_bytes, total, whole;
    CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &total));
    CHECK(cu(cuMemGetInfo_v2)(NULL, &whole));
    THAT(whole == total && free_bytes <= total);
    CHECK(cu(cuDeviceTotalMem_v2)(&whole, 0));
    THAT(whole == total);
    printf("{\"information\":{\"free\":%zu,\"total\":%zu}}\n", free_bytes, total);
}

static void book(void)
{
    enum { BLOCKS = 40 };
    static struct block blocks[BLOCKS];
    int served[CLASSES] = {0}, unusable_classes = 0;
    checkpoint();
    for (int step = 1; step <= steps; step++) {
        struct block *block = &blocks[draw(&seed, BLOCKS)];
        int class = classes[draw(&seed, KINDS)];
        if (block->held) release(block);
        else if (is_there(class)) {
            CUresult result = ask(block, class, 16 + draw(&seed, draw(&seed, 4) ? 64 << 10 : 8 << 20));
            if (result == CUDA_SUCCESS) served[class]++;
            else block->held = 0, unusable_classes |= 1 << class;
            if (class != VMM || !unusable(result)) CHECK(result);
        }
        if (step % 25) continue;
        CHECK(cu(cuStreamSynchronize)(NULL));
        checkpoint();
        compare_information();
    }
    for (int i = 0; i < KINDS; i++)
        THAT(served[classes[i]] > 0 || !is_there(classes[i]) || unusable_classes == 1 << VMM);
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].held) release(&blocks[i]);
    CHECK(cu(cuStreamSynchronize)(NULL));
    checkpoint();
    compare_information();
}

static void limit(void)
{
    enum { BLOCKS = 64 };
    static struct block blocks[BLOCKS], more;
    for (int kind = 0; kind < KINDS; kind++) {
        int class = classes[kind], count = 0;
        size_t size = 48 * MIB - 4096;
        CUresult result = CUDA_SUCCESS;
        if (!is_there(class)) continue;
        while (count < BLOCKS && (result = ask(&blocks[count], class, size)) == CUDA_SUCCESS) count++;
        if (class == VMM && count == 0 && unusable(result)) continue;
        /* A layer without a quota may give managed memory for all blocks, which are more than the device has. */
        if (count < BLOCKS) {
            EXPECT(result, CUDA_ERROR_OUT_OF_MEMORY);
            checkpoint();
            EXPECT(ask(&more, class, 1ull << 40), CUDA_ERROR_OUT_OF_MEMORY);
        }
        checkpoint();
        release(&blocks[count / 2]);
        CHECK(cu(cuStreamSynchronize)(NULL));
        CHECK(ask(&blocks[count / 2], class, size));
        for (int i = 0; i < count; i++) release(&blocks[i]);
        CHECK(cu(cuStreamSynchronize)(NULL));
        checkpoint();
        for (int i = 0; i < count / 2; i++) CHECK(ask(&blocks[i], class, size));
        for (int i = 0; i < count / 2; i++) release(&blocks[i]);
        CHECK(cu(cuStreamSynchronize)(NULL));
        checkpoint();
        printf("%s: %d served\n", class_names[class], count);
    }
}

static size_t told(void)
{
    size_t free_bytes;
    CHECK(cu(cuMemGetInfo_v2)(&free_bytes, NULL));
    return free_bytes;
}

/* Takes linear memory until there is no more. Prints what the device was said to have free, and what of it was got: of an
 * empty device, of one that was full before, and of one of which half is taken. */
static void forecast(void)
{
    enum { BLOCKS = 64 };
    static struct block blocks[BLOCKS];
    int count = 0;
    checkpoint();
    for (int round = 0; round < 3; round++) {
        size_t size = 48 * MIB - 4096, said = told();
        int before = count;
        CUresult result = CUDA_SUCCESS;
        while (count < BLOCKS && (result = ask(&blocks[count], LINEAR, size)) == CUDA_SUCCESS) count++;
        if (count < BLOCKS) EXPECT(result, CUDA_ERROR_OUT_OF_MEMORY);
        printf("{\"forecast\":{\"told\":%zu,\"got\":%zu,\"then_told\":%zu,\"refused\":%d}}\n", said,
               (size_t)(count - before) * size, told(), count < BLOCKS);
        int kept = round == 1 ? count / 2 : 0;
        checkpoint();
        while (count > kept) release(&blocks[--count]);
        CHECK(cu(cuStreamSynchronize)(NULL));
    }
    checkpoint();
}

static size_t mixed_size(void)
{
    switch (draw(&seed, 16)) {
    case 0: return (16 + draw(&seed, 80)) * MIB;
    case 1: case 2: return (1 + draw(&seed, 12)) * MIB + draw(&seed, 4096) * 16;
    default: return 512 + draw(&seed, 256 << 10);
    }
}

/* Prints the used bytes of the device as each source reports them. cuMemGetInfo counts the library's free blocks as
 * free. */
static void books(void)
{
    struct { unsigned long long total, free, used; } memory;
    struct vramshim_stats stats = {0};
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
    THAT(library);
    THAT(((int (*)(void))dlsym(library, "nvmlInit_v2"))() == 0);
    THAT(((int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(0, &device) == 0);
    THAT(((int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo"))(device, &memory) == 0);
    size_t free_bytes, total;
    CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &total));
    uint64_t (*layer)(int) = optional_function("layer_used");
    __typeof__(&vramshim_stats) ask = library_function(vramshim_stats);
    if (ask) THAT(ask(0, &stats) == 0);
    printf("books: layer %llu, ledger %llu, NVML %llu, cuMemGetInfo %llu with %llu free inside\n",
           layer ? (unsigned long long)layer(0) : 0ull, (unsigned long long)stats.reserved, memory.used,
           (unsigned long long)(total - free_bytes), (unsigned long long)stats.free_inside);
}

static void mixed(void)
{
    enum { BLOCKS = 640 };
    static struct block blocks[BLOCKS];
    size_t held = 0, free_bytes, total;
    CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &total));
    for (int step = 1; step <= steps; step++) {
        struct block *block = &blocks[draw(&seed, BLOCKS)];
        size_t size = mixed_size();
        if (block->held) {
            held -= block->held;
            release(block);
        } else if (held + size <= total / 20 * 11) {
            CUresult result = ask(block, LINEAR, size);
            if (result != CUDA_SUCCESS) {
                block->held = 0;
                EXPECT(result, CUDA_ERROR_OUT_OF_MEMORY);
                CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &total));
                checkpoint();
                printf("out of memory: %zu bytes asked for, %zu held, %zu free\n", size, held, free_bytes);
                books();
                return;
            }
            held += size;
        }
        if (step % 200 == 0) checkpoint();
    }
    checkpoint();
    printf("served\n");
    books();
}

/* Frees the first and the third of four blocks, and asks for more than both have together. It fits into the limit only with
 * the memory of both. */
static void scattered(void)
{
    static struct block blocks[4], large;
    checkpoint();
    for (int i = 0; i < 4; i++) CHECK(ask(&blocks[i], LINEAR, 200 * MIB));
    checkpoint();
    release(&blocks[0]);
    release(&blocks[2]);
    CUresult result = ask(&large, LINEAR, 600 * MIB);
    checkpoint();
    if (result != CUDA_SUCCESS) {
        EXPECT(result, CUDA_ERROR_OUT_OF_MEMORY);
        printf("out of memory: %llu bytes asked for\n", 600 * MIB);
    } else release(&large);
    release(&blocks[1]);
    release(&blocks[3]);
    checkpoint();
}

/* The library's ledger and the simulator's table have no device memory after each free; the checkpoint shows it. */
static void frees(void)
{
    CUmemoryPool pool = pool_on(0);
    CUdeviceptr address;
    CUstream stream = new_stream(NON_BLOCKING);
    for (int round = 0; round < 3; round++) {
        CHECK(cu(cuMemAllocFromPoolAsync)(&address, 40 * MIB, pool, stream));
        CHECK(cu(cuMemFreeAsync)(address, stream));
        CHECK(cu(cuMemAllocFromPoolAsync)(&address, 40 * MIB, pool, stream));
        CHECK(cu(cuStreamSynchronize)(stream));
        CHECK(cu(cuMemFree_v2)(address));
        CHECK(cu(cuMemAllocAsync)(&address, 40 * MIB, stream));
        CHECK(cu(cuStreamSynchronize)(stream));
        CHECK(cu(cuMemFree_v2)(address));
        CHECK(cu(cuMemAllocAsync)(&address, 40 * MIB, stream));
        CHECK(cu(cuMemFreeAsync)(address, stream));
        CHECK(cu(cuStreamSynchronize)(stream));
        CHECK(cu(cuMemPoolTrimTo)(pool, 0));
        checkpoint();
    }
    CHECK(cu(cuMemPoolDestroy)(pool));
    /* NVIDIA's blog on the stream-ordered allocator allows it (free_async_of_alloc in tests/assumptions). */
    CHECK(cu(cuMemAlloc_v2)(&address, 40 * MIB));
    CHECK(cu(cuMemFreeAsync)(address, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    checkpoint();
    /* A free of nothing that is live is an error still. */
    THAT(cu(cuMemFree_v2)(0x7777) != CUDA_SUCCESS);
    checkpoint();
}

static void fill(const char *name, int class)
{
    enum { BLOCKS = 64 };
    static struct block blocks[BLOCKS];
    int count = 0;
    checkpoint();
    while (count < BLOCKS && ask(&blocks[count], class, 48 * MIB) == CUDA_SUCCESS) count++;
    THAT(class != ARRAY || count < BLOCKS);
    checkpoint();
    for (int i = 0; i < count; i++) release(&blocks[i]);
    checkpoint();
    printf("%s: %d served\n", name, count);
}

static void arrays(void) { fill("array", ARRAY); }
static void tensors(void) { fill("tensors", TENSOR); }

/* Shares blocks with other processes, though none opens them. Blocks of a policy are shared by a thread of the library. */
static void ipc(void)
{
    enum { BLOCKS = 8 };
    static struct block blocks[BLOCKS];
    checkpoint();
    for (int i = 0; i < BLOCKS; i++) CHECK(ask(&blocks[i], LINEAR, (1 + (size_t)i) * MIB));
    for (int i = 0; i < BLOCKS; i++) {
        CUipcMemHandle handle, again;
        CHECK(cu(cuIpcGetMemHandle)(&handle, blocks[i].address));
        CHECK(cu(cuIpcGetMemHandle)(&again, blocks[i].address));
    }
    checkpoint();
    for (int i = 0; i < BLOCKS; i++) release(&blocks[i]);
    checkpoint();
    printf("ipc: %d served\n", BLOCKS);
}

/* Each graph has one node that takes memory, which it holds after its launch. No layer is known to charge it. */
static void graphs(void)
{
    enum { GRAPHS = 4 };
    CUgraphExec made[GRAPHS];
    CUstream stream = new_stream(NON_BLOCKING);
    checkpoint();
    for (int i = 0; i < GRAPHS; i++) {
        CUgraph graph;
        CUdeviceptr address;
        CHECK(cu(cuStreamBeginCapture_v2)(stream, 0));
        CHECK(cu(cuMemAllocAsync)(&address, 40 * MIB, stream));
        CHECK(cu(cuMemsetD8Async)(address, 7, 40 * MIB, stream));
        CHECK(cu(cuMemFreeAsync)(address, stream));
        CHECK(cu(cuStreamEndCapture)(stream, &graph));
        CHECK(cu(cuGraphInstantiateWithFlags)(&made[i], graph, 0));
        CHECK(cu(cuGraphDestroy)(graph));
        CHECK(cu(cuGraphLaunch)(made[i], stream));
        CHECK(cu(cuStreamSynchronize)(stream));
    }
    checkpoint();
    for (int i = 0; i < GRAPHS; i++) CHECK(cu(cuGraphExecDestroy)(made[i]));
    CHECK(cu(cuDeviceGraphMemTrim)(0));
    CHECK(cu(cuStreamDestroy_v2)(stream));
    checkpoint();
    printf("graph: %d served\n", GRAPHS);
}

int main(int argc, char **argv)
{
    int has;
    if (argc > 3) steps = atoi(argv[3]);
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    start_cuda();
    CHECK(cu(cuDeviceGetAttribute)(&has, VIRTUAL_MEMORY_MANAGEMENT, 0));
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    if (has) CHECK(cu(cuMemGetAllocationGranularity)(&granularity, &properties, 0));
    CHECK(cu(cuDeviceGetAttribute)(&has, MEMORY_POOLS, 0));
    pools = has;
    static const struct scene scenes[] = {{"book", book}, {"limit", limit}, {"forecast", forecast}, {"mixed", mixed}, {"scattered", scattered}, {"frees", frees}, {"arrays", arrays}, {"ipc", ipc}, {"graphs", graphs}, {"tensors", tensors}};
    return PLAY(scenes, argc, argv);
}
