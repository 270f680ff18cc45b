/* The program whose instructions scripts/weigh counts. It allocates LIVE blocks, then runs PAIRS pairs. A pair frees a
 * random block and allocates a block of random size in its place. The random numbers are the same in every run.
 *
 *   weigh LIVE PAIRS
 *
 * The driver is the library that is loaded as libcuda.so.1. Exits with 1 if a call fails. */
#include "cuda_api.h"
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 88172645463325252u;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* 512 bytes to 1 MiB. */
static size_t next_size(void) { return 512 + next_random() % ((1u << 20) - 512); }

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) exit(1);
    return found;
}

static void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
    exit(1);
}

int main(int count, char **arguments)
{
    if (count != 3) return 2;
    size_t live = strtoul(arguments[1], NULL, 10), pairs = strtoul(arguments[2], NULL, 10);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return 1;
    CUresult (*init)(unsigned) = symbol(library, "cuInit");
    CUresult (*retain)(CUcontext *, CUdevice) = symbol(library, "cuDevicePrimaryCtxRetain");
    CUresult (*set_current)(CUcontext) = symbol(library, "cuCtxSetCurrent");
    CUresult (*allocate)(CUdeviceptr *, size_t) = symbol(library, "cuMemAlloc_v2");
    CUresult (*release)(CUdeviceptr) = symbol(library, "cuMemFree_v2");
    CUcontext context;
    check(init(0), "cuInit");
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(set_current(context), "cuCtxSetCurrent");
    CUdeviceptr *blocks = calloc(live, sizeof *blocks);
    if (!blocks) return 1;
    for (size_t i = 0; i < live; i++) check(allocate(&blocks[i], next_size()), "cuMemAlloc_v2");
    for (size_t i = 0; i < pairs; i++) {
        size_t victim = next_random() % live;
        check(release(blocks[victim]), "cuMemFree_v2");
        check(allocate(&blocks[victim], next_size()), "cuMemAlloc_v2");
    }
    return 0;
}
