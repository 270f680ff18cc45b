/* A library linked with one runtime. */
#include <stddef.h>

int cudaMalloc(void **out, size_t size);

size_t WHICH(void) {
    void *out = 0;
    return cudaMalloc(&out, 16) ? 0 : (size_t)out;
}
