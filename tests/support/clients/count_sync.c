/* A layer behind the library that counts how often the device is waited for. */
#include <dlfcn.h>
#include <stdatomic.h>

static atomic_int count;

int synchronisations(void) { return count; }

int cuCtxSynchronize(void)
{
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "cuCtxSynchronize");
    count++;
    return next ? next() : 500;
}
