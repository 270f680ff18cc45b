/* The simulated libnvidia-ml.so.1. It lists the physical devices, regardless of CUDA_VISIBLE_DEVICES, and takes its
 * figures from the state that the processes of the simulated host share. Result codes are NVML's own. */
#include "nvml.h"

void sim_uuid_text(int physical, char text[41]);
void sim_part_uuid_text(int physical, char text[41]);

/* A card has twice the memory of its MIG instance. */
static uint64_t total_of(Device device) { return config()->memory[index_of(device)] * (config()->mig && !is_part(device) ? 2 : 1); }

int nvml_fault(const char *function)
{
    char name[64];
    snprintf(name, sizeof name, "%s", function);
    char *version = strstr(name, "_v");
    if (version) *version = 0;
    return (int)fault(name);
}

API int nvmlInit_v2(void) { return nvml_fault(__func__); }
API int nvmlInit(void) { return nvmlInit_v2(); }
API int nvmlInitWithFlags(U unsigned flags) { return nvmlInit_v2(); }
API int nvmlShutdown(void) { return OK; }
API const char *nvmlErrorString(int result) { return result == OK ? "Success" : result == NOT_SUPPORTED ? "Not Supported" : "Error"; }

int nvml_copy(char *out, unsigned length, const char *text)
{
    if (!out || length <= strlen(text)) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}
// Clients parse the version as numbers between dots; the word "simulated" stands in the device name instead.
API int nvmlSystemGetDriverVersion(char *out, unsigned length) { return nvml_copy(out, length, "580.00.00"); }
API int nvmlSystemGetNVMLVersion(char *out, unsigned length) { return nvml_copy(out, length, "13.580.00"); }
API int nvmlSystemGetCudaDriverVersion(int *version) { *version = config()->driver_version; return OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }
API int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned length) { char path[64], name[64] = ""; snprintf(path, sizeof path, "/proc/%u/comm", pid); FILE *f = fopen(path, "r"); if (!f) return NOT_FOUND; if (!fgets(name, sizeof name, f)) name[0] = 0; fclose(f); name[strcspn(name, "\n")] = 0; return nvml_copy(out, length, name); }

API int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)config()->devices; return OK; }
API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) { if ((int)index >= config()->devices) return INVALID_ARGUMENT; *out = handle((int)index, false); return OK; }
API int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *out) { DEVICE(); if (!config()->mig || is_part(device)) return NOT_SUPPORTED; if (index) return NOT_FOUND; *out = handle(index_of(device), true); return OK; }
API int nvmlDeviceGetHandleByIndex(unsigned index, Device *out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }
API int nvmlDeviceGetHandleByUUID(const char *uuid, Device *out)
{
    for (int i = 0; i < config()->devices; i++) {
        char text[41];
        sim_uuid_text(i, text);
        if (strcmp(text, uuid) == 0) return *out = handle(i, false), OK;
        sim_part_uuid_text(i, text);
        if (config()->mig && strcmp(text, uuid) == 0) return *out = handle(i, true), OK;
    }
    return NOT_FOUND;
}
API int nvmlDeviceGetName(Device device, char *out, unsigned length) { DEVICE(); return nvml_copy(out, length, "Simulated GPU"); }
API int nvmlDeviceGetUUID(Device device, char *out, unsigned length) { DEVICE(); char text[41]; (is_part(device) ? sim_part_uuid_text : sim_uuid_text)(index_of(device), text); return nvml_copy(out, length, text); }
API int nvmlDeviceGetIndex(Device device, unsigned *out) { DEVICE(); *out = (unsigned)index_of(device); return OK; }
API int nvmlDeviceGetMinorNumber(Device device, unsigned *out) { DEVICE(); *out = (unsigned)index_of(device); return OK; }
API int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) { DEVICE(); *major = 9, *minor = 0; return OK; }

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
API int nvmlDeviceGetMemoryInfo(Device device, struct memory *m)
{
    DEVICE();
    uint64_t total = total_of(device), used = simgpu_used(index_of(device)), reserved = config()->reserved;
    *m = (struct memory){total + reserved, total - used, used + reserved};
    return OK;
}
API int nvmlDeviceGetMemoryInfo_v2(Device device, struct memory_v2 *m)
{
    DEVICE();
    if (!m) return INVALID_ARGUMENT;
    if (m->version != STRUCT_VERSION(struct memory_v2, 2)) return VERSION_MISMATCH;
    uint64_t total = total_of(device), used = simgpu_used(index_of(device));
    *m = (struct memory_v2){m->version, total + config()->reserved, config()->reserved, total - used, used};
    return OK;
}
