/* Opens the driver and NVML with RTLD_GLOBAL, uses them, and closes the handles, twice. Without the library they are unloaded
 * in between, and something else gets the addresses. A hook that kept an address from before would jump there. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static void *library, *device;

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) exit(fprintf(stderr, "%s\n", dlerror()));
    return found;
}

static void open_library(const char *name)
{
    library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!library) exit(fprintf(stderr, "%s\n", dlerror()));
}

/* Something else gets the page of a function for which the library has no hook. */
static void close_library(const char *unhooked)
{
    uintptr_t address = (uintptr_t)function(unhooked);
    dlclose(library);
    mmap((void *)(address & ~4095ul), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

static void use_driver(void)
{
    size_t bytes = 0;
    open_library("libcuda.so.1");
    int started = ((int (*)(unsigned))function("cuInit"))(0);
    printf("driver %d %d", started, ((int (*)(size_t *, int))function("cuDeviceTotalMem_v2"))(&bytes, 0));
    printf(" %zu\n", bytes);
    close_library("cuDeviceGetCount");
}

static void use_nvml(void)
{
    unsigned long long memory[3] = {0};
    open_library("libnvidia-ml.so.1");
    int started = ((int (*)(void))function("nvmlInit_v2"))();
    int found = ((int (*)(unsigned, void **))function("nvmlDeviceGetHandleByIndex_v2"))(0, &device);
    printf("nvml %d %d %d", started, found, ((int (*)(void *, void *))function("nvmlDeviceGetMemoryInfo"))(device, memory));
    printf(" %llu\n", memory[0]);
    close_library("nvmlDeviceGetHandleByIndex_v2");
}

int main(void)
{
    for (int i = 0; i < 2; i++) use_driver(), use_nvml();
    return 0;
}
