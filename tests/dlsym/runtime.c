/* A runtime of one function that knows its own number, with a version node as the real ones have. */
#include <stddef.h>

int cudaMalloc(void **out, size_t size) {
    (void)size;
    *out = (void *)(size_t)NUMBER;
    return 0;
}

int cudaUnhooked(void) { return NUMBER; }
