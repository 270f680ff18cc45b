/* Allocates and frees linear memory of mixed sizes, and takes every failure as it comes: only what succeeded counts. */
#include "client.h"

enum { BLOCKS = 24 };

int main(void)
{
    CUcontext context;
    CUdeviceptr blocks[BLOCKS] = {0};
    size_t sizes[BLOCKS];
    CHECK(cu(cuInit)(0));
    CHECK(cu(cuDevicePrimaryCtxRetain)(&context, 0));
    CHECK(cu(cuCtxSetCurrent)(context));
    for (int round = 0; round < 6; round++) {
        for (int n = round % 3; n < BLOCKS; n += 2) {
            if (blocks[n]) {
                if (cu(cuMemFree_v2)(blocks[n]) != CUDA_SUCCESS) continue;
                *count_of(0, LINEAR) -= (long long)sizes[n];
                blocks[n] = 0;
            } else {
                sizes[n] = ((size_t)n * 7919 + (size_t)round * 104729) % (3 << 20) + 1;
                if (cu(cuMemAlloc_v2)(&blocks[n], sizes[n]) != CUDA_SUCCESS) blocks[n] = 0;
                else *count_of(0, LINEAR) += (long long)sizes[n];
            }
        }
        checkpoint();
    }
    return 0;
}
