/* Shared by the clients that check whether memory is still in use, on a simulator that does its work as late as
 * possible (SIMGPU_DELAYED=1). */
#ifndef DELAYED_H
#define DELAYED_H

#include "client.h"
#include "shim.h"
#include <stdbool.h>

enum { NON_BLOCKING = 1, CAPTURING = 1, MIB = 1 << 20 };
static const size_t GIB = 1 << 30;

struct scene { const char *name; void (*play)(void); };

static CUcontext context;

static inline void begin(void)
{
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
}

static inline CUstream new_stream(unsigned flags)
{
    CUstream stream;
    CHECK(cuStreamCreate(&stream, flags));
    return stream;
}

/* How often a call waited for work of the context. */
static inline uint64_t synchronisations(void) { return simgpu_calls("cuCtxSynchronize") + simgpu_calls("cuEventSynchronize"); }

static inline int play(const struct scene *scenes, size_t count, int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < count; i++)
        if (!strcmp(scenes[i].name, argv[1])) return scenes[i].play(), 0;
    return fprintf(stderr, "usage: %s SCENE\n", argv[0]), 2;
}
#define PLAY(scenes, argc, argv) play(scenes, sizeof(scenes) / sizeof *(scenes), argc, argv)

#endif
