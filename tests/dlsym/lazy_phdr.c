/* A library that wraps dl_iterate_phdr, and finds the next one at the first call. Sanitizers and profilers do so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

int dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data)
{
    static int (*next)(int (*)(struct dl_phdr_info *, size_t, void *), void *);
    if (!next) next = (__typeof__(next))dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return next(visit, data);
}
