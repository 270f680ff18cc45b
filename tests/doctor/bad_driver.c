/* A libcuda.so.1 that fails in one way: -DHANGS, -DCRASHES, -DLEAVES (ends the process) or -DANSWERS=CODE. With
 * -DDLSYM_VERSION this library is a layer before the driver; with -DTALKS it is one that only writes much. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TALKS
__attribute__((constructor)) static void talk(void)
{
    for (int line = 0; line < 4000; line++) fprintf(stderr, "layer: line %d of what it does\n", line);
}
#else
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
#endif
