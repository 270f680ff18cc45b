/* Copies between devices, and attributes of blocks, through the runtime. Holds without the library. Exits with 1 if an
 * answer differs. */
#include "client.h"

typedef int cudaError_t;
typedef struct { int type, device; void *devicePointer, *hostPointer; long reserved[8]; } cudaPointerAttributes;
cudaError_t cudaSetDevice(int), cudaMalloc(void **, size_t), cudaMemset(void *, int, size_t), cudaDeviceSynchronize(void);
cudaError_t cudaMemcpy(void *, const void *, size_t, int), cudaMemcpyAsync(void *, const void *, size_t, int, CUstream);
cudaError_t cudaMemcpyAsync_ptsz(void *, const void *, size_t, int, CUstream), cudaMemcpyPeer(void *, int, const void *, int, size_t);
cudaError_t cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int), cudaFree(void *);
cudaError_t cudaStreamCreateWithFlags(CUstream *, unsigned), cudaPointerGetAttributes(cudaPointerAttributes *, const void *);

enum { SIZE = 3 << 20, TO_HOST = 2, ON_DEVICES = 3, BY_ADDRESS = 4, FORMS = 8, PITCH = 4096 };

static void *block_on(int device)
{
    void *block;
    CHECK(cudaSetDevice(device));
    CHECK(cudaMalloc(&block, SIZE));
    return block;
}

static cudaError_t copy_by(int form, void *to, int to_device, void *from, int from_device, CUstream stream)
{
    switch (form) {
    case 0: return cudaMemcpy(to, from, SIZE, ON_DEVICES);
    case 1: return cudaMemcpy(to, from, SIZE, BY_ADDRESS);
    case 2: return cudaMemcpyAsync(to, from, SIZE, ON_DEVICES, stream);
    case 3: return cudaMemcpyAsync(to, from, SIZE, BY_ADDRESS, stream);
    case 4: return cudaMemcpyAsync_ptsz(to, from, SIZE, ON_DEVICES, NULL);
    case 5: return cudaMemcpyAsync(to, from, SIZE, ON_DEVICES, NULL);
    case 6: return cudaMemcpy2D(to, PITCH, from, PITCH, PITCH, SIZE / PITCH, ON_DEVICES);
    default: return cudaMemcpyPeer(to, to_device, from, from_device, SIZE);
    }
}

int main(void)
{
    static unsigned char bytes[SIZE];
    void *blocks[2][2] = {{block_on(0), block_on(1)}, {block_on(0), block_on(1)}};
    for (int here = 0; here < 2; here++) {
        CUstream stream;
        CHECK(cudaSetDevice(here));
        CHECK(cudaStreamCreateWithFlags(&stream, 1));
        for (int turn = 0; turn < 4 * FORMS; turn++) {
            int to = turn % 2, from = turn / 2 % 2, value = turn + 1;
            CHECK(cudaSetDevice(from));
            CHECK(cudaMemset(blocks[1][from], value, SIZE));
            CHECK(cudaDeviceSynchronize());
            CHECK(cudaSetDevice(here));
            CHECK(copy_by(turn / 4, blocks[0][to], to, blocks[1][from], from, stream));
            CHECK(cudaDeviceSynchronize());
            CHECK(cudaMemcpy(bytes, blocks[0][to], SIZE, TO_HOST));
            for (int i = 0; i < SIZE; i++) THAT(bytes[i] == value);
        }
    }
    for (int device = 0; device < 2; device++) {
        enum { OF_DEVICE = 2 };
        cudaPointerAttributes found;
        CHECK(cudaPointerGetAttributes(&found, (char *)blocks[1][device] + SIZE / 2));
        THAT(found.type == OF_DEVICE && found.device == device && found.devicePointer == (char *)blocks[1][device] + SIZE / 2);
        THAT(found.hostPointer == NULL);
        CHECK(cudaFree(blocks[1][device]));
        CHECK(cudaPointerGetAttributes(&found, (char *)blocks[1][device] + SIZE / 2));
        THAT(found.type == 0);
    }
    return 0;
}
