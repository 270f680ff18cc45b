/* A runtime whose symbols have a version, as those of libcudart have. cudaMalloc returns NUMBER as the address. */
#include <stddef.h>

int cudaMalloc(void **out, size_t size) {
    (void)size;
    *out = (void *)(size_t)NUMBER;
    return 0;
}

int cudaUnhooked(void) { return NUMBER; }
