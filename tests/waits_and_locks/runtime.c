/* The same promises through the runtime. Every scene ends without the library.
 *
 *   runtime waits     cudaMalloc beside a host function that waits for a flag set after it
 *   runtime frees     cudaFree returns after the work on the memory
 *   runtime devices   two devices in one thread; each half of a collective is launched around a cudaMalloc
 *   runtime aligned   where cudaMalloc places large blocks */
#include "scenes.h"

typedef int cudaError_t;
cudaError_t cudaSetDevice(int), cudaMalloc(void **, size_t), cudaFree(void *), cudaMallocHost(void **, size_t);
cudaError_t cudaStreamCreateWithFlags(CUstream *, unsigned), cudaStreamSynchronize(CUstream);
cudaError_t cudaLaunchHostFunc(CUstream, void (*)(void *), void *), cudaMemsetAsync(void *, int, size_t, CUstream);
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, int, CUstream);

enum { SIZE = 2 * MIB, TO_HOST = 2 };

static void *device_memory(size_t size)
{
    void *memory;
    DO(cudaMalloc(&memory, size));
    nothing_pending((CUdeviceptr)memory, size);
    return memory;
}

static void allocates_before_the_flag(CUstream stream, size_t freed, size_t wanted)
{
    struct flag flag = {0};
    void *old = device_memory(freed);
    DO(cudaMemsetAsync(old, 0xee, 64 * KIB, stream));
    DO(cudaFree(old));
    DO(cudaLaunchHostFunc(stream, waits_for, &flag));
    void *memory = device_memory(wanted);
    set(&flag);
    DO(cudaMemsetAsync(memory, 1, 64 * KIB, stream));
    DO(cudaStreamSynchronize(stream));
    DO(cudaFree(memory));
}

static void waits(void)
{
    CUstream streams[] = {NULL, PER_THREAD, NULL, LEGACY};
    DO(cudaStreamCreateWithFlags(&streams[0], NON_BLOCKING));
    DO(cudaStreamCreateWithFlags(&streams[2], 0));
    for (int i = 0; i < 4; i++)
        for (size_t size = 64 * KIB; size <= 64 * MIB; size *= 8) {
            allocates_before_the_flag(streams[i], size, size);
            allocates_before_the_flag(streams[i], size, 64 * KIB);
            allocates_before_the_flag(streams[i], size, 4 * size);
        }
}

static void frees(void)
{
    CUstream streams[] = {NULL, PER_THREAD, NULL, LEGACY};
    void *pinned;
    DO(cudaMallocHost(&pinned, SIZE));
    DO(cudaStreamCreateWithFlags(&streams[0], NON_BLOCKING));
    DO(cudaStreamCreateWithFlags(&streams[2], 0));
    for (unsigned char round = 1; round <= 8; round++) {
        struct flag done = {0};
        CUstream stream = streams[round % 4];
        void *memory = device_memory(SIZE);
        DO(cudaLaunchHostFunc(stream, takes_50_ms, NULL));
        DO(cudaMemsetAsync(memory, round, SIZE, stream));
        DO(cudaMemcpyAsync(pinned, memory, SIZE, TO_HOST, stream));
        DO(cudaLaunchHostFunc(stream, sets, &done));
        DO(cudaFree(memory));
        THAT(done.set);
        all_bytes_are(pinned, round, SIZE, (CUdeviceptr)memory);
    }
}

static atomic_int arrived;

static void meets(void *unused)
{
    (void)unused;
    const char *before = enter(HERE("a host function that waits for the other device"));
    int target = (arrived++ / 2 + 1) * 2;
    while (arrived < target) usleep(50);
    enter(before);
}

static void *synchronises(void *stream)
{
    DO(cudaStreamSynchronize(stream));
    return NULL;
}

static void devices(void)
{
    CUstream streams[2];
    for (int i = 0; i < 2; i++) {
        DO(cudaSetDevice(i));
        DO(cudaStreamCreateWithFlags(&streams[i], NON_BLOCKING));
    }
    for (int round = 0; round < 40; round++) {
        size_t size = (size_t)(1 + round % 20) * MIB;
        void *memory[2];
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            DO(cudaSetDevice(i));
            DO(cudaFree(device_memory(size)));
        }
        for (int i = 0; i < 2; i++) {
            DO(cudaSetDevice(i));
            DO(cudaLaunchHostFunc(streams[i], meets, NULL));
            memory[i] = device_memory(size);
        }
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, synchronises, streams[i]);
        for (int i = 0; i < 2; i++) join(threads[i]);
        for (int i = 0; i < 2; i++) DO(cudaFree(memory[i]));
    }
    THAT(arrived == 80);
}

static void aligned(void)
{
    for (int round = 0; round < 30; round++) {
        static const size_t sizes[] = {64 * KIB, 100 * KIB, 700 * KIB, 2 * MIB, 3 * MIB, 20 * MIB + 512};
        device_memory(512 * (size_t)(1 + round % 7));
        size_t size = sizes[round % 6];
        CUdeviceptr address = (CUdeviceptr)device_memory(size);
        if (has_policy() && address % (size < 2 * MIB ? 64 * KIB : 2 * MIB)) {
            fprintf(stderr, "a block of %zu bytes at %#llx\n", size, address);
            exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"waits", waits}, {"frees", frees}, {"devices", devices}, {"aligned", aligned}};
    start_watchdog();
    DO(cudaSetDevice(0));
    DO(cudaFree(NULL));
    return PLAY(scenes, argc, argv);
}
