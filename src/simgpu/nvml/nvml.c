/* The simulated libnvidia-ml.so.1. It lists the physical devices, regardless of CUDA_VISIBLE_DEVICES, and takes its
 * figures from the state that the processes of the simulated host share. Result codes are NVML's own. */
#include "sim.h"

void simgpu_lock(struct shared_state *state);

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
typedef struct Device *Device;
void sim_uuid_text(int physical, char text[41]);
void sim_part_uuid_text(int physical, char text[41]);

/* Handles are numbers: devices from 1 on, MIG instances (SIMGPU_MIG) from 1 + MAX_DEVICES on. */
static bool is_part(Device device) { return (intptr_t)device > MAX_DEVICES; }
static int index_of(Device device) { return (int)(((intptr_t)device - 1) % MAX_DEVICES); }
static Device handle(int index, bool part) { return (Device)(intptr_t)(1 + index + (part ? MAX_DEVICES : 0)); }
static bool valid(Device device) { return device && index_of(device) < config()->devices && (!is_part(device) || config()->mig); }
/* A card has twice the memory of its MIG instance. */
static uint64_t total_of(Device device) { return config()->memory[index_of(device)] * (config()->mig && !is_part(device) ? 2 : 1); }
#define DEVICE() do { if (!valid(device)) return INVALID_ARGUMENT; } while (0)
#define U __attribute__((unused))

API int nvmlInit_v2(void) { return OK; }
API int nvmlInit(void) { return OK; }
API int nvmlInitWithFlags(U unsigned flags) { return OK; }
API int nvmlShutdown(void) { return OK; }
API const char *nvmlErrorString(int result) { return result == OK ? "Success" : result == NOT_SUPPORTED ? "Not Supported" : "Error"; }

static int copy(char *out, unsigned length, const char *text)
{
    if (!out || length <= strlen(text)) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}
// Clients parse the version as numbers between dots; the word "simulated" stands in the device name instead.
API int nvmlSystemGetDriverVersion(char *out, unsigned length) { return copy(out, length, "580.00.00"); }
API int nvmlSystemGetNVMLVersion(char *out, unsigned length) { return copy(out, length, "13.580.00"); }
API int nvmlSystemGetCudaDriverVersion(int *version) { *version = config()->driver_version; return OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }
API int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned length) { char path[64], name[64] = ""; snprintf(path, sizeof path, "/proc/%u/comm", pid); FILE *f = fopen(path, "r"); if (!f) return NOT_FOUND; if (!fgets(name, sizeof name, f)) name[0] = 0; fclose(f); name[strcspn(name, "\n")] = 0; return copy(out, length, name); }

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
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device *out)
{
    const char *colon = strchr(bus, ':');
    unsigned number;
    if (!colon || sscanf(colon + 1, "%x", &number) != 1 || number < 0x10 || (int)number >= 0x10 + config()->devices) return NOT_FOUND;
    *out = handle((int)number - 0x10, false);
    return OK;
}
API int nvmlDeviceGetName(Device device, char *out, unsigned length) { DEVICE(); return copy(out, length, "Simulated GPU"); }
API int nvmlDeviceGetUUID(Device device, char *out, unsigned length) { DEVICE(); char text[41]; (is_part(device) ? sim_part_uuid_text : sim_uuid_text)(index_of(device), text); return copy(out, length, text); }
API int nvmlDeviceGetIndex(Device device, unsigned *out) { DEVICE(); *out = (unsigned)index_of(device); return OK; }
API int nvmlDeviceGetMinorNumber(Device device, unsigned *out) { DEVICE(); *out = (unsigned)index_of(device); return OK; }
API int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) { DEVICE(); *major = 9, *minor = 0; return OK; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } Pci;
API int nvmlDeviceGetPciInfo_v3(Device device, Pci *pci) { DEVICE(); memset(pci, 0, sizeof *pci); pci->bus = 0x10 + (unsigned)index_of(device); snprintf(pci->text, sizeof pci->text, "00000000:%02X:00.0", pci->bus); snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus); return OK; }

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
API int nvmlDeviceGetMemoryInfo(Device device, struct memory *m)
{
    DEVICE();
    uint64_t total = total_of(device), used = simgpu_used(index_of(device));
    *m = (struct memory){total, total - used, used};
    return OK;
}
API int nvmlDeviceGetMemoryInfo_v2(Device device, struct memory_v2 *m)
{
    DEVICE();
    uint64_t total = total_of(device), used = simgpu_used(index_of(device));
    *m = (struct memory_v2){m->version, total, 0, total - used, used};
    return OK;
}
struct utilisation { unsigned gpu, memory; };
API int nvmlDeviceGetUtilizationRates(Device device, struct utilisation *u) { DEVICE(); *u = (struct utilisation){0, 0}; return OK; }
API int nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) { DEVICE(); *milliwatts = 70000; return OK; }
API int nvmlDeviceGetTemperature(Device device, U int sensor, unsigned *degrees) { DEVICE(); *degrees = 30; return OK; }

struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
struct process_v1 { unsigned pid; unsigned long long used; };
static int processes(Device device, unsigned *count, void *out, bool small)
{
    DEVICE();
    struct shared_state *s = simgpu_state();
    unsigned n = 0, room = *count;
    simgpu_used(index_of(device)); /* frees the slots of dead processes */
    simgpu_lock(s);
    for (int i = 0; i < MAX_PROCESSES; i++) {
        uint64_t used = s->slots[i].pid ? s->slots[i].used[index_of(device)] : 0;
        if (!used) continue;
        if (!config()->nvml_bytes) used = ~0ull; /* NVML_VALUE_NOT_AVAILABLE */
        if (out && n < room && small) ((struct process_v1 *)out)[n] = (struct process_v1){(unsigned)s->slots[i].pid, used};
        else if (out && n < room) ((struct process *)out)[n] = (struct process){(unsigned)s->slots[i].pid, used, ~0u, ~0u};
        n++;
    }
    pthread_mutex_unlock(&s->lock);
    *count = n;
    return n > room ? INSUFFICIENT_SIZE : OK;
}
API int nvmlDeviceGetComputeRunningProcesses(Device device, unsigned *count, struct process_v1 *out) { return processes(device, count, out, true); }
API int nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *count, struct process *out) { return processes(device, count, out, false); }
API int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, struct process *out) { return processes(device, count, out, false); }
API int nvmlDeviceGetGraphicsRunningProcesses_v3(U Device device, unsigned *count, U struct process *out) { *count = 0; return OK; }
API int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) { DEVICE(); *current = *pending = config()->mig; return config()->mig && !is_part(device) ? OK : NOT_SUPPORTED; }
API int nvmlDeviceGetP2PStatus(U Device a, U Device b, U int index, int *status) { *status = 0; return OK; }
API int nvmlDeviceGetNvLinkState(U Device d, U unsigned link, U int *active) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(U Device d, U unsigned link, U int *type) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(U Device d, U unsigned link, U Pci *pci) { return NOT_SUPPORTED; }
API int nvmlDeviceGetGpuFabricInfoV(U Device d, U void *info) { return NOT_SUPPORTED; }
API int nvmlDeviceGetGpuFabricInfo(U Device d, U void *info) { return NOT_SUPPORTED; }
