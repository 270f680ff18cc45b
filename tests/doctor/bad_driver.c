/* A libcuda.so.1 that fails in one way: -DHANGS, -DCRASHES, -DLEAVES (ends the process) or -DANSWERS=CODE. With
 * -DDLSYM_VERSION this library is a layer before the driver. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuDriverGetVersion(int *version)
{
    *version = 12080;
    return 0;
}

int cuInit(unsigned flags)
{
    (void)flags;
#ifdef HANGS
    for (;;) pause();
#endif
#ifdef CRASHES
    abort();
#endif
#ifdef LEAVES
    _exit(7);
#endif
#ifdef ANSWERS
    return ANSWERS;
#endif
    return 0;
}

#ifdef DLSYM_VERSION
void *dlsym(void *handle, const char *name)
{
    if (strcmp(name, "cuInit") == 0) return (void *)cuInit;
    return ((void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION))(handle, name);
}
#endif
