/* A driver that prints a line for each allocation and each free. Built as libcuda.so.1 and under other names. */
#include <stddef.h>
#include <unistd.h>

static void say(const char *text, size_t length) {
    if (write(1, text, length) < 0)
        _exit(3);
}
#define SAY(text) say(text "\n", sizeof(text))

int cuMemAllocX(void) { return 4; } /* begins like a hooked name */
int cuInit(unsigned flags) { return flags != 0; }
int cuCtxGetCurrent(void **out) { return *out = (void *)0x1000, 0; }
int cuCtxGetDevice(int *out) { return *out = 0, 0; }

int cuMemAlloc_v2(unsigned long long *out, size_t size) {
    SAY(DRIVER " allocates");
    *out = 0x7000000000ull;
    return size == 0;
}

int cuMemFree_v2(unsigned long long address) {
    SAY(DRIVER " frees");
    return address != 0x7000000000ull;
}
