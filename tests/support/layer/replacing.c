/* The replacing form. It is installed as libcuda.so.1 and opens the driver by its path (LAYER_DRIVER). Functions that
 * the layer does not hook jump to the driver through a table. The build lists them in forwarded.inc, as X(name). */
#define _GNU_SOURCE
#include "layer.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__x86_64__)
#define JUMP(name) "jmp *below_" #name "(%rip)\n"
#else
#define JUMP(name) "adrp x16, below_" #name "\nldr x16, [x16, :lo12:below_" #name "]\nbr x16\n"
#endif
#define X(name)                                                                            \
    __attribute__((used, visibility("hidden"))) void *below_##name;                        \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" JUMP(name) \
            ".size " #name ", . - " #name "\n");
#include "forwarded.inc"
#undef X

static const struct { const char *name; void **below; } forwarded[] = {
#define X(name) {#name, &below_##name},
#include "forwarded.inc"
#undef X
};

static void *library;

void *driver_symbol(const char *name) { return dlsym(library, name); }

void layer_begin(void) {}

void *management_symbol(const char *name)
{
    static void *management;
    if (!management) management = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    return management ? dlsym(management, name) : NULL;
}

void *management_of_process(const char *name)
{
    void *first = dlsym(RTLD_DEFAULT, name);
    return first ? first : management_symbol(name);
}

/* The table is filled when the library is loaded, because the jumps check nothing. */
__attribute__((constructor)) static void open_driver(void)
{
    const char *path = getenv("LAYER_DRIVER");
    if (path) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "layer: LAYER_DRIVER: %s\n", path ? dlerror() : "is not set");
        abort();
    }
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++) *forwarded[i].below = driver_symbol(forwarded[i].name);
}
