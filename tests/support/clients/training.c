/* Allocates GPU memory as a training run does. Weights, gradients and two optimiser moments stay. Activations are
 * allocated and freed in every step, with sizes that depend on the batch. One request is too large, and the job
 * recovers. The job calls the driver API only, which it looks up at run time, so it runs on any machine with a driver.
 *
 *   training [STEPS] [--pause]     20 steps by default; --pause: holds its memory until stdin is closed */
#include "cuda_api.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "training: the driver has no %s\n", name);
        exit(1);
    }
    return found;
}

static void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "training: %s failed with CUDA error %d\n", what, result);
    exit(1);
}

#define MIB (1ull << 20)
enum { LAYERS = 12 };

int main(int argc, char **argv)
{
    int steps = 20, pause = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--pause") == 0) pause = 1;
        else if ((steps = atoi(argv[i])) <= 0) {
            fprintf(stderr, "usage: training [STEPS] [--pause]\n");
            return 2;
        }
    }
    if (!(library = dlopen("libcuda.so.1", RTLD_NOW))) {
        fprintf(stderr, "training: %s\n", dlerror());
        return 1;
    }
    CUresult (*init)(unsigned) = function("cuInit");
    CUresult (*retain)(CUcontext *, CUdevice) = function("cuDevicePrimaryCtxRetain");
    CUresult (*set_current)(CUcontext) = function("cuCtxSetCurrent");
    CUresult (*allocate)(CUdeviceptr *, size_t) = function("cuMemAlloc_v2");
    CUresult (*release)(CUdeviceptr) = function("cuMemFree_v2");
    CUresult (*info)(size_t *, size_t *) = function("cuMemGetInfo_v2");
    CUcontext context;
    check(init(0), "cuInit");
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(set_current(context), "cuCtxSetCurrent");

    CUdeviceptr kept[LAYERS][4];
    for (int layer = 0; layer < LAYERS; layer++)
        for (int part = 0; part < 4; part++) check(allocate(&kept[layer][part], (20 + 4 * layer) * MIB), "cuMemAlloc");

    unsigned seed = 1;
    for (int step = 1; step <= steps; step++) {
        CUdeviceptr activations[LAYERS];
        seed = seed * 1664525u + 1013904223u;
        size_t tokens = 256 + seed % 1793;
        for (int layer = 0; layer < LAYERS; layer++)
            check(allocate(&activations[layer], tokens * 4096 * (size_t)(1 + layer % 3) + 512), "cuMemAlloc");
        for (int layer = LAYERS; layer-- > 0;) check(release(activations[layer]), "cuMemFree");
        if (step == steps / 2) {
            size_t free_bytes, total;
            CUdeviceptr too_much;
            check(info(&free_bytes, &total), "cuMemGetInfo");
            CUresult result = allocate(&too_much, total);
            printf("step %d: asked for all %zu MiB: error %d, as it should be\n", step, (size_t)(total / MIB), result);
            if (result == CUDA_SUCCESS) return 1;
        }
        if (step % 5 == 0) {
            size_t free_bytes, total;
            check(info(&free_bytes, &total), "cuMemGetInfo");
            printf("step %d: %zu tokens, %zu of %zu MiB free\n", step, tokens, (size_t)(free_bytes / MIB), (size_t)(total / MIB));
        }
    }
    fflush(stdout);
    while (pause && getchar() != EOF) continue;
    return 0; /* most training scripts do not free the weights either */
}
