/* How a library that exports dlsym finds the next one: by its version, so that the look-up does not come back. */
#ifndef NEXT_DLSYM_H
#define NEXT_DLSYM_H

#include <dlfcn.h>
#include <stdlib.h>

#if defined(__x86_64__)
#define DLSYM_VERSION "GLIBC_2.2.5"
#else
#define DLSYM_VERSION "GLIBC_2.17"
#endif

typedef void *(*dlsym_t)(void *, const char *);

static dlsym_t next_dlsym(void)
{
    static dlsym_t found;
    if (!found) found = (dlsym_t)dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION);
    if (!found) abort();
    return found;
}

#endif
