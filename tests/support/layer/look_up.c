/* Finds the layer's hooks: by name for dlsym, and by the driver's address for cuGetProcAddress, where the driver
 * chooses the version. */
#include "layer.h"
#include <string.h>

void *hook_named(const char *name)
{
    if (name[0] != 'c' || name[1] != 'u') return NULL;
    if (habits.exports_more && !strcmp(name, "cuDevicePrimaryCtxRetain")) return NULL;
#define NAMED(function) if (!strcmp(name, #function)) return (void *)function;
    HOOKED(NAMED)
#undef NAMED
    return NULL;
}

static void *hook_for(void *below)
{
#define FOR(function) if (below == (void *)driver()->function) return (void *)function;
    HOOKED(FOR)
#undef FOR
    return below;
}

API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status)
{
    CUresult result = driver()->cuGetProcAddress_v2(name, out, version, flags, status);
    if (result == CUDA_SUCCESS) *out = hook_for(*out);
    return result;
}

API CUresult cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags)
{
    CUresult result = driver()->cuGetProcAddress(name, out, version, flags);
    if (result == CUDA_SUCCESS) *out = hook_for(*out);
    return result;
}
