/* NVML as the layer answers it with LAYER_NVML=book: the limit is the total, the book is what is used, and this process
 * holds what the book has, without its context. Otherwise NVML's own answers stand. Only the preloaded form has this. */
#include "layer.h"
#include <string.h>
#include <unistd.h>

typedef void *Device;
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

static uint64_t used_of(Device device)
{
    unsigned number = 0;
    int (*index)(Device, unsigned *) = management_symbol("nvmlDeviceGetIndex");
    return index && index(device, &number) == 0 ? book_used((int)number) : 0;
}

API int nvmlDeviceGetMemoryInfo(Device device, struct memory *out)
{
    int (*below)(Device, struct memory *) = management_symbol("nvmlDeviceGetMemoryInfo");
    int result = below(device, out);
    if (result || !habits.answers_management) return result;
    out->total = habits.limit;
    out->used = used_of(device);
    out->free = out->total - out->used;
    return 0;
}

API int nvmlDeviceGetMemoryInfo_v2(Device device, struct memory_v2 *out)
{
    int (*below)(Device, struct memory_v2 *) = management_symbol("nvmlDeviceGetMemoryInfo_v2");
    int result = below(device, out);
    if (result || !habits.answers_management) return result;
    out->total = habits.limit;
    out->used = used_of(device);
    out->free = out->total - out->used;
    out->reserved = 0;
    return 0;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, struct process *out)
{
    int (*below)(Device, unsigned *, struct process *) = management_symbol("nvmlDeviceGetComputeRunningProcesses_v3");
    int result = below(device, count, out);
    if (result || !habits.answers_management) return result;
    for (unsigned i = 0; i < *count; i++)
        if (out[i].pid == (unsigned)getpid()) out[i].used = used_of(device);
    return 0;
}

void *management_hook(const char *name)
{
    if (!habits.answers_management || strncmp(name, "nvml", 4)) return NULL;
#define NAMED(function) if (!strcmp(name, #function)) return (void *)function;
    NAMED(nvmlDeviceGetMemoryInfo)
    NAMED(nvmlDeviceGetMemoryInfo_v2)
    NAMED(nvmlDeviceGetComputeRunningProcesses_v3)
#undef NAMED
    return NULL;
}
