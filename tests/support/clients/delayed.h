/* Shared by the clients that check whether memory is still in use, on a simulator that does its work as late as
 * possible (SIMGPU_DELAYED=1). */
#ifndef DELAYED_H
#define DELAYED_H

#include "client.h"
#include "shim.h"
#include <stdbool.h>

#ifdef RUNTIME
CUresult cudaMalloc(void **, size_t), cudaFree(void *);
#define cuMemAlloc_v2(address, size) cudaMalloc((void **)(address), size)
#define cuMemFree_v2(address) cudaFree((void *)(address))
#endif

enum { CAPTURING = 1, MIB = 1 << 20 };
static const size_t GIB = 1 << 30;

static CUcontext context;

static inline void begin(void) { context = start_cuda(); }

static inline size_t free_memory(void)
{
    size_t bytes, total;
    CHECK(cuMemGetInfo_v2(&bytes, &total));
    return bytes;
}

static inline int byte_at(CUdeviceptr address)
{
    unsigned char byte;
    CHECK(cuMemcpyDtoH_v2(&byte, address, 1));
    return byte;
}

/* The library's figures of device 0. Without the library they are 0. */
static inline struct vramshim_stats stats_of_library(void)
{
    __typeof__(&vramshim_stats) stats = library_function(vramshim_stats);
    struct vramshim_stats now = {0};
    THAT(!stats || stats(0, &now) == 0);
    return now;
}

/* How many mappings the process has. */
static inline int mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0, byte;
    THAT(maps);
    while ((byte = getc(maps)) != EOF) lines += byte == '\n';
    fclose(maps);
    return lines;
}

/* How often a call waited for work of the context. */
static inline uint64_t synchronisations(void) { return simgpu_calls("cuCtxSynchronize") + simgpu_calls("cuEventSynchronize"); }

#endif
