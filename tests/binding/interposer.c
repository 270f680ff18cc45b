/* Functions of the C library that a program or another preloaded library replaces: `malloc`, `open64` and `getenv`. Each counts
 * the calls from libvramshim.so, and goes on as the C library's own does. At the end the counts are printed as `malloc yes`.
 *
 * With -DPROGRAM it is a program that does a little work on the simulated GPU. */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static uintptr_t low, high;
static unsigned long calls[3];

static int visit(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (!strstr(info->dlpi_name, "libvramshim.so")) return 0;
    low = info->dlpi_addr;
    high = low + info->dlpi_phdr[0].p_vaddr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t end = low + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && end > high) high = end;
    }
    return 1;
}

__attribute__((constructor)) static void start(void) { dl_iterate_phdr(visit, NULL); }

#define COUNT(which) \
    do { \
        uintptr_t caller = (uintptr_t)__builtin_return_address(0); \
        if (low <= caller && caller < high) __atomic_fetch_add(&calls[which], 1, __ATOMIC_RELAXED); \
    } while (0)

extern void *__libc_malloc(size_t);

__attribute__((visibility("default"))) void *malloc(size_t size)
{
    COUNT(0);
    return __libc_malloc(size);
}

__attribute__((visibility("default"))) int open64(const char *path, int flags, ...)
{
    COUNT(1);
    va_list rest;
    va_start(rest, flags);
    unsigned mode = va_arg(rest, unsigned);
    va_end(rest);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

extern char **environ;

__attribute__((visibility("default"))) char *getenv(const char *name)
{
    COUNT(2);
    size_t length = strlen(name);
    for (char **one = environ; one && *one; one++)
        if (!strncmp(*one, name, length) && (*one)[length] == '=') return *one + length + 1;
    return NULL;
}

__attribute__((destructor)) static void end(void)
{
    static const char *names[] = {"malloc", "open64", "getenv"};
    for (int i = 0; i < 3; i++) printf("%s %s\n", names[i], calls[i] ? "yes" : "no");
}

#ifdef PROGRAM
#include "client.h"

int main(void)
{
    CUcontext context;
    CUdeviceptr block;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc_v2(&block, 1 << 20));
    CHECK(cuMemFree_v2(block));
    return 0;
}
#endif
