/* A client of the CUDA runtime, linked to it, with prototypes of its own from the public documentation. */
#include "client.h"

int cudaMalloc(void **out, size_t size);
int cudaFree(void *address);
int cudaMallocHost(void **out, size_t size);
int cudaFreeHost(void *address);
int cudaMallocManaged(void **out, size_t size, unsigned flags);
int cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height);
int cudaMallocAsync(void **out, size_t size, void *stream);
int cudaFreeAsync(void *address, void *stream);
int cudaSetDevice(int device);
int cudaMemcpy(void *to, const void *from, size_t size, int kind);
int cudaDeviceSynchronize(void);

int main(void)
{
    void *blocks[12], *host[2], *managed, *pitched, *ordered[2];
    size_t pitch;
    for (int n = 0; n < 12; n++) {
        size_t size = (size_t)(n + 1) * 300000;
        CHECK(cudaSetDevice(n % 2));
        CHECK(cudaMalloc(&blocks[n], size));
        *count_of(n % 2, LINEAR) += (long long)size;
    }
    char sent[1000], received[1000] = {0};
    for (int n = 0; n < 1000; n++) sent[n] = (char)(n * 7);
    CHECK(cudaMemcpy((char *)blocks[3] + 5, sent, sizeof sent, 1));
    CHECK(cudaMemcpy(received, (char *)blocks[3] + 5, sizeof received, 2));
    if (memcmp(sent, received, sizeof sent)) return fprintf(stderr, "runtime: bytes changed on the way\n"), 1;
    checkpoint();
    for (int n = 0; n < 2; n++) {
        CHECK(cudaMallocHost(&host[n], 5000));
        *count_of(-1, HOST) += 5000;
    }
    CHECK(cudaMallocManaged(&managed, 70000, 1));
    *count_of(1, MANAGED) += 70000;
    CHECK(cudaMallocPitch(&pitched, &pitch, 1000, 20));
    *count_of(1, PITCHED) += 20000;
    for (int n = 0; n < 2; n++) {
        CHECK(cudaMallocAsync(&ordered[n], 4000000, NULL));
        *count_of(1, ASYNC) += 4000000;
    }
    checkpoint();
    for (int n = 0; n < 12; n += 2) {
        CHECK(cudaFree(blocks[n]));
        *count_of(0, LINEAR) -= (long long)(n + 1) * 300000;
    }
    CHECK(cudaFreeHost(host[0]));
    *count_of(-1, HOST) -= 5000;
    CHECK(cudaFreeAsync(ordered[0], NULL));
    *count_of(1, ASYNC) -= 4000000;
    CHECK(cudaDeviceSynchronize());
    checkpoint();
    return 0;
}
