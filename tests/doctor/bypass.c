/* Uses device memory, in most scenes past a preloaded library. Then waits until it is killed.
 *
 *   tables   allocates through an address from the driver's ELF tables
 *   mixed    allocates a second block as `tables` does, and frees it with the cuMemFree that dlsym finds
 *   child    starts another program without LD_PRELOAD, which allocates with cuMemAlloc
 *   plain    allocates with cuMemAlloc */
#include "unhooked.h"
#include <unistd.h>

enum { MIB = 1 << 20 };
typedef CUresult (*alloc_t)(CUdeviceptr *, size_t);

int main(int argc, char **argv)
{
    if (argc != 2) return fprintf(stderr, "usage: bypass tables|mixed|child|plain\n"), 2;
    CUdeviceptr block, hidden;
    if (strcmp(argv[1], "child") == 0) {
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", argv[0], "plain", NULL);
        return 1;
    }
    start_cuda();
    if (strcmp(argv[1], "tables") == 0) {
        CHECK(((alloc_t)of_the_driver("cuMemAlloc_v2"))(&block, 64 * MIB));
    } else if (strcmp(argv[1], "mixed") == 0) {
        CHECK(cu(cuMemAlloc_v2)(&block, 64 * MIB));
        CHECK(((alloc_t)of_the_driver("cuMemAlloc_v2"))(&hidden, 2048ull * MIB));
        CHECK(cu(cuMemFree_v2)(hidden));
    } else {
        CHECK(cu(cuMemAlloc_v2)(&block, 64 * MIB));
    }
    for (;;) pause();
}
