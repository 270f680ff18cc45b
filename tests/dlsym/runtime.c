/* A runtime with a version node, as the real ones have. It returns its own number. */
#include <stddef.h>

int cudaMalloc(void **out, size_t size) {
    (void)size;
    *out = (void *)(size_t)NUMBER;
    return 0;
}

int cudaUnhooked(void) { return NUMBER; }
