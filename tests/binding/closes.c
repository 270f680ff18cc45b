/* Opens the driver and NVML with RTLD_GLOBAL, uses them, and closes the handles, twice. Without the library they are unloaded
 * in between. A hook that kept an address from before would jump to where nothing is. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

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

static void use_driver(void)
{
    size_t bytes = 0;
    open_library("libcuda.so.1");
    int started = ((int (*)(unsigned))function("cuInit"))(0);
    printf("driver %d %d", started, ((int (*)(size_t *, int))function("cuDeviceTotalMem_v2"))(&bytes, 0));
    printf(" %zu\n", bytes);
    dlclose(library);
}

static void use_nvml(void)
{
    unsigned long long memory[3] = {0};
    open_library("libnvidia-ml.so.1");
    int started = ((int (*)(void))function("nvmlInit_v2"))();
    int found = ((int (*)(unsigned, void **))function("nvmlDeviceGetHandleByIndex_v2"))(0, &device);
    printf("nvml %d %d %d", started, found, ((int (*)(void *, void *))function("nvmlDeviceGetMemoryInfo"))(device, memory));
    printf(" %llu\n", memory[0]);
    dlclose(library);
}

int main(void)
{
    for (int i = 0; i < 2; i++) use_driver(), use_nvml();
    return 0;
}
