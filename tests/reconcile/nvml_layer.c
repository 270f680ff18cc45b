/* A layer in place of libnvidia-ml.so.1. It opens NVML itself by its path (-DREAL) and hands every question on. */
#include <dlfcn.h>
#include <stdlib.h>

static void *real(const char *name)
{
    static void *library;
    if (!library && !(library = dlopen(REAL, RTLD_NOW | RTLD_LOCAL))) abort();
    return dlsym(library, name);
}

#define FORWARD(name)                                                                                                 \
    long name(long a, long b, long c, long d)                                                                         \
    {                                                                                                                 \
        long (*function)(long, long, long, long) = (long (*)(long, long, long, long))real(#name);                     \
        return function ? function(a, b, c, d) : 13; /* NVML_ERROR_FUNCTION_NOT_FOUND */                              \
    }
FORWARD(nvmlInit_v2)
FORWARD(nvmlInitWithFlags)
FORWARD(nvmlShutdown)
FORWARD(nvmlErrorString)
FORWARD(nvmlDeviceGetCount_v2)
FORWARD(nvmlDeviceGetHandleByIndex_v2)
FORWARD(nvmlDeviceGetHandleByUUID)
FORWARD(nvmlDeviceGetIndex)
FORWARD(nvmlDeviceGetName)
FORWARD(nvmlDeviceGetUUID)
FORWARD(nvmlDeviceGetMigMode)
FORWARD(nvmlDeviceGetMemoryInfo)
FORWARD(nvmlDeviceGetMemoryInfo_v2)
FORWARD(nvmlDeviceGetComputeRunningProcesses_v2)
FORWARD(nvmlDeviceGetComputeRunningProcesses_v3)
FORWARD(nvmlDeviceGetGraphicsRunningProcesses_v3)
