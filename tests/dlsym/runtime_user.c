/* A library that is linked with one runtime and calls its cudaMalloc. */
#include <stddef.h>

int cudaMalloc(void **out, size_t size);

size_t which98(void) {
    void *out = 0;
    return cudaMalloc(&out, 16) ? 0 : (size_t)out;
}
