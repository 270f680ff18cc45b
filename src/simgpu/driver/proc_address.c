/* cuGetProcAddress: returns the newest variant of a name that is not newer than the requested version and the driver.
 * The table is made at build time from the exported symbols of the library, so the loader looks nothing up. */
#include "cuda_api.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* This file does not include sim.h, because the table declares the functions without their parameters. */
int sim_driver_version(void);

#define X(function, base, since, per_thread) extern void function##_address(void) __asm__(#function);
#include "functions.inc"
#undef X

static const struct entry { const char *base; void (*address)(void); int since; bool per_thread; } entries[] = {
#define X(function, base, since, per_thread) {base, function##_address, since, per_thread},
#include "functions.inc"
#undef X
};

enum { PER_THREAD_DEFAULT_STREAM = 2 };
enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

static int look_up(const char *name, void **out, int version, unsigned long long flags)
{
    const struct entry *best = NULL;
    bool known = false;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const struct entry *e = &entries[i];
        if (strcmp(e->base, name)) continue;
        if (e->since > sim_driver_version()) continue;
        known = true;
        if (e->since > version || (e->per_thread && !(flags & PER_THREAD_DEFAULT_STREAM))) continue;
        if (!best || e->per_thread > best->per_thread || (e->per_thread == best->per_thread && e->since > best->since)) best = e;
    }
    *out = best ? (void *)best->address : NULL;
    return best ? FOUND : known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
}

/* SIMGPU_LOOKUPS: a file that gets a line for each look-up: name, version, flags, result, and the object that asked. */
static void log_look_up(const char *name, int version, unsigned long long flags, int found, void *caller)
{
    static const char *path;
    static atomic_bool asked;
    if (!asked) path = getenv("SIMGPU_LOOKUPS"), asked = true;
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (!file) return;
    Dl_info from = {0};
    dladdr(caller, &from);
    fprintf(file, "%s %d %llu %d %s\n", name, version, flags, found, from.dli_fname ? from.dli_fname : "?");
    fclose(file);
}

API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status)
{
    if (!name || !out) return CUDA_ERROR_INVALID_VALUE;
    int found = look_up(name, out, version, flags);
    log_look_up(name, version, flags, found, __builtin_return_address(0));
    if (status) *status = found;
    return found == FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

/* A function of this library, by a way that no other library sees. */
API void *simgpu_function(const char *name, int version)
{
    void *found;
    return look_up(name, &found, version, 0) == FOUND ? found : NULL;
}
