/* See contender.h. */
#include "contender.h"
#include "cuda_api.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int (*allocate)(unsigned long long *, size_t);
int (*release)(unsigned long long, size_t);

void refused(const char *format, ...)
{
    static atomic_flag once = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&once)) pause();
    va_list arguments;
    va_start(arguments, format);
    printf("refused ");
    vprintf(format, arguments);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) refused("no %s", name);
    return found;
}

static CUcontext context;
static CUresult (*set_current)(CUcontext);
static CUresult (*stream_create)(CUstream *, unsigned);
static CUresult (*allocate_async)(CUdeviceptr *, size_t, CUstream);
static CUresult (*free_async)(CUdeviceptr, CUstream);
static CUresult (*allocate_linear)(CUdeviceptr *, size_t);
static CUresult (*free_linear)(CUdeviceptr);
/* As shim.h declares them. */
static void *(*torch_alloc)(ptrdiff_t, int, void *);
static void (*torch_free)(void *, ptrdiff_t, int, void *);
static _Thread_local CUstream stream;

static int linear_allocate(unsigned long long *address, size_t size) { return allocate_linear(address, size); }
static int linear_release(unsigned long long address, size_t size) { (void)size; return free_linear(address); }
static int async_allocate(unsigned long long *address, size_t size) { return allocate_async(address, size, stream); }
static int async_release(unsigned long long address, size_t size) { (void)size; return free_async(address, stream); }

static int tensor_allocate(unsigned long long *address, size_t size)
{
    enum { OUT_OF_MEMORY = 2 };
    *address = (uintptr_t)torch_alloc((ptrdiff_t)size, 0, NULL);
    return *address ? 0 : OUT_OF_MEMORY;
}

static int tensor_release(unsigned long long address, size_t size)
{
    torch_free((void *)(uintptr_t)address, (ptrdiff_t)size, 0, NULL);
    return 0;
}

static void open_tensors(void)
{
    torch_alloc = symbol(RTLD_DEFAULT, "vramshim_torch_alloc");
    torch_free = symbol(RTLD_DEFAULT, "vramshim_torch_free");
    allocate = tensor_allocate;
    release = tensor_release;
}

static void open_driver(bool async)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) refused("%s", dlerror());
    CUresult (*init)(unsigned) = symbol(library, "cuInit");
    CUresult (*retain)(CUcontext *, CUdevice) = symbol(library, "cuDevicePrimaryCtxRetain");
    set_current = symbol(library, "cuCtxSetCurrent");
    CUresult result = init(0);
    if (result == CUDA_SUCCESS) result = retain(&context, 0);
    if (result != CUDA_SUCCESS) refused("no context: CUDA error %d", (int)result);
    if (!async) {
        allocate_linear = symbol(library, "cuMemAlloc_v2");
        free_linear = symbol(library, "cuMemFree_v2");
        allocate = linear_allocate;
        release = linear_release;
        return;
    }
    stream_create = symbol(library, "cuStreamCreate");
    allocate_async = symbol(library, "cuMemAllocAsync");
    free_async = symbol(library, "cuMemFreeAsync");
    allocate = async_allocate;
    release = async_release;
    /* With the largest release threshold the pool keeps its memory. Frameworks set the same value. */
    CUresult (*get_pool)(CUmemoryPool *, CUdevice) = symbol(library, "cuDeviceGetDefaultMemPool");
    CUresult (*set)(CUmemoryPool, int, void *) = symbol(library, "cuMemPoolSetAttribute");
    CUmemoryPool pool;
    uint64_t threshold = UINT64_MAX;
    enum { RELEASE_THRESHOLD = 4 };
    result = get_pool(&pool, 0);
    if (result == CUDA_SUCCESS) result = set(pool, RELEASE_THRESHOLD, &threshold);
    if (result != CUDA_SUCCESS) refused("no stream-ordered memory pool: CUDA error %d", (int)result);
}

void open_contender(const char *name)
{
    if (strcmp(name, "driver") == 0 || strcmp(name, "async") == 0) {
        open_driver(name[0] == 'a');
        return;
    }
    if (strcmp(name, "tensors") == 0) {
        open_driver(false);
        open_tensors();
        return;
    }
    void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!library) refused("%s", dlerror());
    const char *(*start)(void) = symbol(library, "pair_start");
    const char *problem = start();
    if (problem) refused("%s", problem);
    allocate = symbol(library, "pair_allocate");
    release = symbol(library, "pair_release");
}

void enter_thread(void)
{
    if (set_current && set_current(context) != CUDA_SUCCESS) refused("cuCtxSetCurrent failed");
    enum { NON_BLOCKING = 1 };
    if (stream_create && stream_create(&stream, NON_BLOCKING) != CUDA_SUCCESS) refused("cuStreamCreate failed");
}

uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}
