/* Threads that allocate in one context at the same time, and free blocks that other threads allocated. Every block has
 * marks at both ends, which are checked when the block is freed.
 *
 *   contend THREADS STEPS SEED LARGE
 *
 * Prints a checkpoint while the last blocks are live. Frees all but a few small blocks, asks for LARGE MiB, and prints
 * "large RESULT" and another checkpoint. Then resets the device and prints the last checkpoint. */
#include "client.h"
#include "random.h"
#include <pthread.h>
#include <unistd.h>

enum { SLOTS = 2048, KEPT = 8, CROWDED = 20000 };
struct block { CUdeviceptr address; size_t size; unsigned long long mark; };

static CUcontext context;
static _Atomic(struct block *) slots[SLOTS];
static _Atomic long refused;
static unsigned steps, seed;

static struct block *obtain(uint64_t *state)
{
    size_t size = draw(state, 64) ? 512 + draw(state, 1 << 20) : draw(state, 48 << 20) + 512;
    struct block *block = malloc(sizeof *block);
    *block = (struct block){.size = size, .mark = draw(state, 1u << 31)};
    CUresult result = cuMemAlloc_v2(&block->address, size);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        refused++;
        free(block);
        return NULL;
    }
    CHECK(result);
    *count_of(0, LINEAR) += (long long)size;
    CHECK(cuMemcpyHtoD_v2(block->address, &block->mark, sizeof block->mark));
    CHECK(cuMemcpyHtoD_v2(block->address + size - sizeof block->mark, &block->mark, sizeof block->mark));
    return block;
}

static void give_back(struct block *block)
{
    unsigned long long found[2];
    CHECK(cuMemcpyDtoH_v2(&found[0], block->address, sizeof *found));
    CHECK(cuMemcpyDtoH_v2(&found[1], block->address + block->size - sizeof *found, sizeof *found));
    if (found[0] != block->mark || found[1] != block->mark) {
        fprintf(stderr, "contend: a block of %zu bytes lost its marks\n", block->size);
        exit(1);
    }
    CHECK(cuMemFree_v2(block->address));
    *count_of(0, LINEAR) -= (long long)block->size;
    free(block);
}

static void *work(void *number)
{
    uint64_t state = seed * 7919ull + (unsigned long long)(size_t)number;
    CHECK(cuCtxSetCurrent(context));
    /* Threads that do nothing else contend most. */
    for (int i = 0; i < CROWDED; i++) CHECK(cuMemFree_v2(linear_memory(4096)));
    for (unsigned i = 0; i < steps; i++) {
        _Atomic(struct block *) *slot = &slots[draw(&state, SLOTS)];
        struct block *before = atomic_exchange(slot, NULL);
        struct block *next = before ? NULL : obtain(&state);
        if (before) give_back(before);
        before = atomic_exchange(slot, next);
        if (before) give_back(before);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 5) return fprintf(stderr, "usage: contend THREADS STEPS SEED LARGE\n"), 2;
    size_t threads = (size_t)atoi(argv[1]);
    steps = (unsigned)atoi(argv[2]);
    seed = (unsigned)atoi(argv[3]);
    context = start_cuda();
    pthread_t ids[64];
    for (size_t n = 0; n < threads; n++) pthread_create(&ids[n], NULL, work, (void *)n);
    for (size_t n = 0; n < threads; n++) pthread_join(ids[n], NULL);
    printf("refused %ld\n", refused);
    checkpoint();

    int kept = 0;
    for (int i = 0; i < SLOTS; i++) {
        struct block *block = slots[i];
        if (!block || (block->size <= 1 << 20 && kept++ < KEPT)) continue;
        slots[i] = NULL;
        give_back(block);
    }
    struct block large = {.size = (size_t)atoi(argv[4]) << 20};
    CUresult result = cuMemAlloc_v2(&large.address, large.size);
    printf("large %d\n", (int)result);
    if (result == CUDA_SUCCESS) *count_of(0, LINEAR) += (long long)large.size;
    checkpoint();
    for (int i = 0; i < SLOTS; i++)
        if (slots[i]) give_back(slots[i]);
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    *count_of(0, LINEAR) = 0;
    checkpoint();
    return 0;
}
