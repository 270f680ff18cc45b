/* Threads that retain the primary context, use memory and release the context again. The last release destroys it, and
 * the next retain of another thread makes a new one, so the memory of the old one must not be handed out any more.
 *
 *   retains threads    each thread uses memory of cuMemAlloc, between its own retain and release only (cuda.h 13.0:5852)
 *   retains tensors    the same with memory of the library's allocator for PyTorch
 *   retains resets     a thread resets the context again and again while others use it: calls fail, and no memory is lost */
#include "tensors.h"
#include "random.h"

enum { THREADS = 4, TURNS = 400, MOST = 4, LARGEST = 3 * MIB };

static struct { CUdeviceptr address; size_t size; } live[THREADS][MOST];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static bool overlap(CUdeviceptr one, size_t one_size, CUdeviceptr other, size_t other_size)
{
    return one < other + other_size && other < one + one_size;
}

static void note(long thread, int place, CUdeviceptr address, size_t size)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < THREADS; i++)
        for (int j = 0; j < MOST; j++) THAT(!size || !live[i][j].size || !overlap(address, size, live[i][j].address, live[i][j].size));
    live[thread][place].address = address;
    live[thread][place].size = size;
    pthread_mutex_unlock(&mutex);
}

static void uses_memory(long thread, uint64_t *random)
{
    int count = 1 + (int)draw(random, MOST);
    unsigned char value = (unsigned char)(1 + thread), last;
    bool are_tensors = torch_alloc;
    for (int i = 0; i < count; i++) {
        size_t size = 1 + draw(random, LARGEST);
        CUdeviceptr address = are_tensors ? tensor_on(0, size, NULL) : allocate(size);
        note(thread, i, address, size);
        DO(cuMemsetD8_v2(address, value, size));
    }
    if (draw(random, 2)) usleep(200);
    for (int i = 0; i < count; i++) {
        CUdeviceptr address = live[thread][i].address;
        size_t size = live[thread][i].size;
        DO(cuMemcpyDtoH_v2(&last, address + size - 1, 1));
        THAT(last == value);
        note(thread, i, 0, 0);
        if (are_tensors) free_tensor_on(0, address, size, NULL);
        else DO(cuMemFree_v2(address));
    }
}

static void *retains(void *data)
{
    long thread = (long)data;
    uint64_t random = (uint64_t)thread + 1;
    for (int turn = 0; turn < TURNS; turn++) {
        CUcontext context;
        DO(cuDevicePrimaryCtxRetain(&context, 0));
        DO(cuCtxSetCurrent(context));
        uses_memory(thread, &random);
        DO(cuCtxSetCurrent(NULL));
        DO(cuDevicePrimaryCtxRelease_v2(0));
        if (!draw(&random, 3)) usleep((unsigned)draw(&random, 1000));
    }
    return NULL;
}

static void run(void)
{
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, retains, (void *)i);
    for (int i = 0; i < THREADS; i++) join(threads[i]);
}

static void run_with_tensors(void)
{
    if (has_policy()) find_torch_functions();
    run();
}

static atomic_int still_run;

static void *uses_any(void *data)
{
    uint64_t random = (uint64_t)(long)data + 1;
    for (int turn = 0; turn < TURNS;) {
        CUcontext context;
        CUdeviceptr address;
        if (cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) continue;
        if (!cuMemAlloc_v2(&address, 1 + draw(&random, 20 * MIB))) cuMemFree_v2(address);
        turn++;
    }
    still_run--;
    return NULL;
}

static void resets(void)
{
    pthread_t threads[2];
    still_run = 2;
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, uses_any, (void *)i);
    while (still_run) DO(cuDevicePrimaryCtxReset_v2(0));
    for (int i = 0; i < 2; i++) join(threads[i]);
    DO(cuDevicePrimaryCtxReset_v2(0));
    THAT(simgpu_used(0) == 0);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"threads", run}, {"tensors", run_with_tensors}, {"resets", resets}};
    start_watchdog();
    DO(cuInit(0));
    return PLAY(scenes, argc, argv);
}
