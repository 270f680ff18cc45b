/* Allocates with a cudaMalloc that it looks up, as a program does that is linked with no runtime. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    void *memory;
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_DEFAULT, "cudaMalloc");
    if (!allocate || allocate(&memory, 1 << 20)) return fprintf(stderr, "looked_up: cudaMalloc failed\n"), 1;
    return 0;
}
