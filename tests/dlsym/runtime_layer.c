/* A layer that wraps cudaMalloc. It is preloaded before or after the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cudaMalloc(void **out, size_t size) {
    static int depth;
    if (++depth > 1)
        abort(); /* the next cudaMalloc called this function again */
#ifdef BY_HANDLE
    void *handle = dlopen("libcudart.so.98", RTLD_NOW);
#else
    void *handle = RTLD_NEXT;
#endif
    int (*real)(void **, size_t) = (int (*)(void **, size_t))dlsym(handle, "cudaMalloc");
    Dl_info info;
    if (!real || !dladdr((void *)real, &info))
        abort();
    printf("layer to %s\n", strrchr(info.dli_fname, '/') + 1);
    int result = real(out, size);
    depth--;
    return result;
}
