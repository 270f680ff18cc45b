/* The simulator's own functions for clients that also run on a real GPU. On the simulated GPU they are the simulator's;
 * on a real one there is no table, so nothing is counted. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#define NEXT(type, name, parameters, arguments)                                         \
    type name parameters                                                                \
    {                                                                                   \
        type(*next) parameters = (type(*) parameters)dlsym(RTLD_NEXT, #name);           \
        return next ? next arguments : 0;                                               \
    }

NEXT(uint64_t, simgpu_calls, (const char *function), (function))
NEXT(uint64_t, simgpu_hazard, (uint64_t address, uint64_t size), (address, size))
NEXT(uint64_t, simgpu_hazards, (void), ())
NEXT(uint64_t, simgpu_unordered, (uint64_t address, uint64_t size, void *stream), (address, size, stream))
