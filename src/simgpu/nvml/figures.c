/* What a device is and does besides memory: its place on the bus, clocks, temperature, power, modes. The figures are those of
 * an idle card of compute capability 9.0. Features that the card does not have answer NVML_ERROR_NOT_SUPPORTED. */
#include "nvml.h"

#define FIGURE(function, type, value) API int function(Device device, type *out) { DEVICE(); if (!out) return INVALID_ARGUMENT; *out = (value); return OK; }
#define ABSENT(function) API int function(Device device) { DEVICE(); return NOT_SUPPORTED; }

/* ---- place on the bus */

enum { FIRST_BUS = 0x10, PCI_DEVICE = 0x233010de, SUBSYSTEM = 0x16c110de };
struct pci_v1 { char legacy[16]; unsigned domain, bus, device, id; };
struct pci_v2 { struct pci_v1 v1; unsigned subsystem, reserved[4]; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; };            /* 185 */
struct pci_ext { unsigned version, domain, bus, device, id, subsystem, class, subclass; char text[32]; }; /* 164 */

static struct pci pci_of(Device device)
{
    struct pci pci = {.bus = FIRST_BUS + (unsigned)index_of(device), .id = PCI_DEVICE, .subsystem = SUBSYSTEM};
    snprintf(pci.legacy, sizeof pci.legacy, "0000:%02X:00.0", pci.bus);
    snprintf(pci.text, sizeof pci.text, "00000000:%02X:00.0", pci.bus);
    return pci;
}
API int nvmlDeviceGetPciInfo_v3(Device device, struct pci *out) { DEVICE(); if (!out) return INVALID_ARGUMENT; *out = pci_of(device); return OK; }
API int nvmlDeviceGetPciInfo_v2(Device device, struct pci_v2 *out)
{
    DEVICE();
    if (!out) return INVALID_ARGUMENT;
    struct pci pci = pci_of(device);
    memset(out, 0, sizeof *out);
    memcpy(out, &pci, offsetof(struct pci, text));
    return OK;
}
API int nvmlDeviceGetPciInfo(Device device, struct pci_v1 *out)
{
    DEVICE();
    if (!out) return INVALID_ARGUMENT;
    struct pci pci = pci_of(device);
    memcpy(out, &pci, sizeof *out);
    return OK;
}
API int nvmlDeviceGetPciInfoExt(Device device, struct pci_ext *out)
{
    DEVICE();
    if (!out) return INVALID_ARGUMENT;
    if (out->version != STRUCT_VERSION(struct pci_ext, 1)) return VERSION_MISMATCH;
    struct pci pci = pci_of(device);
    *out = (struct pci_ext){out->version, pci.domain, pci.bus, pci.device, pci.id, pci.subsystem, 3, 2, ""};
    memcpy(out->text, pci.text, sizeof out->text);
    return OK;
}

/* domain:bus:device.function, all but the bus of any length; bus:device.function too. */
API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, Device *out)
{
    unsigned domain = 0, bus, device;
    if (!text || !out) return INVALID_ARGUMENT;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &device) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &device) != 2) return INVALID_ARGUMENT;
    }
    if (domain || device || bus < FIRST_BUS || bus >= FIRST_BUS + (unsigned)config()->devices) return NOT_FOUND;
    *out = handle((int)(bus - FIRST_BUS), false);
    return OK;
}
API int nvmlDeviceGetHandleByPciBusId(const char *text, Device *out) { return nvmlDeviceGetHandleByPciBusId_v2(text, out); }

FIGURE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
FIGURE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
FIGURE(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
FIGURE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
FIGURE(nvmlDeviceGetPcieReplayCounter, unsigned, 0)
API int nvmlDeviceGetPcieThroughput(Device device, U int counter, unsigned *out) { DEVICE(); if (!out) return INVALID_ARGUMENT; *out = 0; return OK; }

/* ---- what it is */

enum { HOPPER = 9, BRAND_NVIDIA = 14 };
FIGURE(nvmlDeviceGetArchitecture, unsigned, HOPPER)
FIGURE(nvmlDeviceGetBrand, int, BRAND_NVIDIA)
FIGURE(nvmlDeviceGetNumGpuCores, unsigned, 16896)
FIGURE(nvmlDeviceGetMemoryBusWidth, unsigned, 6144)
FIGURE(nvmlDeviceGetBoardId, unsigned, (unsigned)index_of(device))
FIGURE(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
FIGURE(nvmlDeviceGetDisplayMode, int, 0)
FIGURE(nvmlDeviceGetDisplayActive, int, 0)
ABSENT(nvmlDeviceGetSerial)
ABSENT(nvmlDeviceGetInforomVersion)
ABSENT(nvmlDeviceGetInforomImageVersion)
API int nvmlDeviceGetVbiosVersion(Device device, char *out, unsigned length) { DEVICE(); return nvml_copy(out, length, "96.00.00.00.00"); }
API int nvmlDeviceGetBoardPartNumber(Device device, U char *out, U unsigned length) { DEVICE(); return NOT_SUPPORTED; }
struct branch { unsigned version; char text[80]; };
API int nvmlSystemGetDriverBranch(struct branch *out, unsigned length) /* 3837-3863 */
{
    if (!out) return INVALID_ARGUMENT;
    if (out->version != STRUCT_VERSION(struct branch, 1)) return VERSION_MISMATCH;
    return nvml_copy(out->text, length < sizeof out->text ? length : sizeof out->text, "r580_00");
}
API int nvmlUnitGetCount(unsigned *count) { if (!count) return INVALID_ARGUMENT; *count = 0; return OK; }

/* ---- clocks, in MHz */

static const unsigned clocks[] = {1980, 1980, 2619, 1545}; /* graphics, multiprocessors, memory, video */
static int clock_of(Device device, int type, unsigned *out)
{
    DEVICE();
    if (!out || type < 0 || type >= 4) return INVALID_ARGUMENT;
    *out = clocks[type];
    return OK;
}
API int nvmlDeviceGetClockInfo(Device device, int type, unsigned *out) { return clock_of(device, type, out); }
API int nvmlDeviceGetMaxClockInfo(Device device, int type, unsigned *out) { return clock_of(device, type, out); }
API int nvmlDeviceGetMaxCustomerBoostClock(Device device, int type, unsigned *out) { return clock_of(device, type, out); }
API int nvmlDeviceGetApplicationsClock(Device device, int type, unsigned *out) { return clock_of(device, type, out); }
API int nvmlDeviceGetDefaultApplicationsClock(Device device, int type, unsigned *out) { return clock_of(device, type, out); }
API int nvmlDeviceGetClock(Device device, int type, U int id, unsigned *out) { return clock_of(device, type, out); }
FIGURE(nvmlDeviceGetPerformanceState, int, 0)
FIGURE(nvmlDeviceGetPowerState, int, 0)
FIGURE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 1) /* idle */
FIGURE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 1)
FIGURE(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 1)
FIGURE(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 1)

/* ---- temperature, power, in degrees, mW and mJ */

enum { DEGREES = 30, POWER_MW = 70000, LIMIT_MW = 700000, LEAST_LIMIT_MW = 200000, SHUTDOWN_DEGREES = 90 };
static unsigned long long energy_mj(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * (POWER_MW / 1000) * 1000;
}
FIGURE(nvmlDeviceGetPowerUsage, unsigned, POWER_MW)
FIGURE(nvmlDeviceGetPowerManagementMode, int, 1)
FIGURE(nvmlDeviceGetPowerManagementLimit, unsigned, LIMIT_MW)
FIGURE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, LIMIT_MW)
FIGURE(nvmlDeviceGetEnforcedPowerLimit, unsigned, LIMIT_MW)
FIGURE(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj())
API int nvmlDeviceGetPowerManagementLimitConstraints(Device device, unsigned *least, unsigned *most) { DEVICE(); if (!least || !most) return INVALID_ARGUMENT; *least = LEAST_LIMIT_MW, *most = LIMIT_MW; return OK; }
API int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *out) { DEVICE(); if (!out || sensor) return INVALID_ARGUMENT; *out = DEGREES; return OK; }
struct temperature { unsigned version; int sensor, degrees; };
API int nvmlDeviceGetTemperatureV(Device device, struct temperature *out)
{
    DEVICE();
    if (!out || out->sensor) return INVALID_ARGUMENT;
    if (out->version != STRUCT_VERSION(struct temperature, 1)) return VERSION_MISMATCH;
    out->degrees = DEGREES;
    return OK;
}
API int nvmlDeviceGetTemperatureThreshold(Device device, int type, unsigned *out) { DEVICE(); if (!out || type < 0) return INVALID_ARGUMENT; *out = SHUTDOWN_DEGREES; return OK; }
ABSENT(nvmlDeviceGetFanSpeed)
ABSENT(nvmlDeviceGetFanSpeed_v2)
ABSENT(nvmlDeviceGetNumFans)

/* Fields (2677; the ids from 2266 and 2495 on). A field that is not known has its own answer, and the call succeeds. */
struct field { unsigned id, scope; long long time, latency; int type, result; union { unsigned number; unsigned long long large; } value; };
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };
static void field(struct field *f)
{
    f->type = UNSIGNED_INT;
    f->result = OK;
    switch (f->id) {
    case 82: f->value.number = DEGREES; break;  /* NVML_FI_DEV_MEMORY_TEMP */
    case 185: case 186: f->value.number = POWER_MW; break;
    case 187: f->value.number = LEAST_LIMIT_MW; break;
    case 188: case 189: case 190: case 192: f->value.number = LIMIT_MW; break;
    case 83: case 191: f->type = UNSIGNED_LONG_LONG, f->value.large = energy_mj(); break;
    default: f->result = NOT_SUPPORTED;
    }
}
API int nvmlDeviceGetFieldValues(Device device, int count, struct field *fields)
{
    DEVICE();
    if (!fields || count <= 0) return INVALID_ARGUMENT;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        field(&fields[i]);
        fields[i].time = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        fields[i].latency = 0;
    }
    return OK;
}

/* ---- modes. Only root may set one; what is set lasts as long as the process. */

static int compute_modes[MAX_DEVICES];
enum { DEFAULT_MODE = 0, EXCLUSIVE_PROCESS = 3 };
FIGURE(nvmlDeviceGetComputeMode, int, compute_modes[index_of(device)])
API int nvmlDeviceSetComputeMode(Device device, int mode)
{
    DEVICE();
    if (mode < DEFAULT_MODE || mode > EXCLUSIVE_PROCESS) return INVALID_ARGUMENT;
    if (geteuid()) return NO_PERMISSION;
    compute_modes[index_of(device)] = mode;
    return OK;
}
FIGURE(nvmlDeviceGetPersistenceMode, int, 1)
API int nvmlDeviceSetPersistenceMode(Device device, U int mode) { DEVICE(); return geteuid() ? NO_PERMISSION : OK; }
FIGURE(nvmlDeviceGetAccountingMode, int, 0)
ABSENT(nvmlDeviceGetEccMode)
ABSENT(nvmlDeviceGetTotalEccErrors)
ABSENT(nvmlDeviceGetMemoryErrorCounter)
ABSENT(nvmlDeviceGetRetiredPages)
ABSENT(nvmlDeviceGetRemappedRows)
ABSENT(nvmlDeviceGetVirtualizationMode)
ABSENT(nvmlDeviceGetGspFirmwareVersion)
API int nvmlDeviceGetEncoderUtilization(Device device, unsigned *out, unsigned *period_us) { DEVICE(); if (!out || !period_us) return INVALID_ARGUMENT; *out = 0, *period_us = 167000; return OK; }
API int nvmlDeviceGetDecoderUtilization(Device device, unsigned *out, unsigned *period_us) { return nvmlDeviceGetEncoderUtilization(device, out, period_us); }
API int nvmlDeviceGetSamples(Device device) { DEVICE(); return NOT_FOUND; }
struct bar1 { unsigned long long total, free, used; };
FIGURE(nvmlDeviceGetBAR1MemoryInfo, struct bar1, ((struct bar1){128ull << 30, 128ull << 30, 0}))

/* ---- MIG, other devices, the host */

API int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) { DEVICE(); *current = *pending = config()->mig; return config()->mig && !is_part(device) ? OK : NOT_SUPPORTED; }
FIGURE(nvmlDeviceIsMigDeviceHandle, unsigned, is_part(device))
FIGURE(nvmlDeviceGetMaxMigDeviceCount, unsigned, config()->mig ? 1 : 0)
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device device, Device *out) { DEVICE(); if (!out || !is_part(device)) return INVALID_ARGUMENT; *out = handle(index_of(device), false); return OK; }
API int nvmlDeviceGetGpuInstanceId(Device device, unsigned *out) { DEVICE(); if (!out) return INVALID_ARGUMENT; if (!is_part(device)) return NOT_SUPPORTED; *out = 1; return OK; }
API int nvmlDeviceGetComputeInstanceId(Device device, unsigned *out) { DEVICE(); if (!out) return INVALID_ARGUMENT; if (!is_part(device)) return NOT_SUPPORTED; *out = 0; return OK; }
enum { SAME_NODE = 40 }; /* NVML_TOPOLOGY_NODE */
API int nvmlDeviceGetTopologyCommonAncestor(Device device, Device other, int *out) { DEVICE(); if (!valid(other) || !out) return INVALID_ARGUMENT; *out = SAME_NODE; return OK; }
API int nvmlDeviceGetP2PStatus(U Device a, U Device b, U int index, int *status) { *status = 0; return OK; }
API int nvmlDeviceOnSameBoard(Device device, Device other, int *out) { DEVICE(); if (!valid(other) || !out) return INVALID_ARGUMENT; *out = device == other; return OK; }
static int all_ones(Device device, unsigned words, unsigned long *set) { DEVICE(); if (!words || !set) return INVALID_ARGUMENT; memset(set, 0xff, words * sizeof *set); return OK; }
API int nvmlDeviceGetCpuAffinity(Device device, unsigned words, unsigned long *set) { return all_ones(device, words, set); }
API int nvmlDeviceGetCpuAffinityWithinScope(Device device, unsigned words, unsigned long *set, U int scope) { return all_ones(device, words, set); }
API int nvmlDeviceGetMemoryAffinity(Device device, unsigned words, unsigned long *set, U int scope) { return all_ones(device, words, set); }
API int nvmlDeviceGetNvLinkState(Device device, U unsigned link, U int *active) { DEVICE(); return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, U unsigned link, U int *type) { DEVICE(); return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, U unsigned link, U struct pci *pci) { DEVICE(); return NOT_SUPPORTED; }
ABSENT(nvmlDeviceGetNvLinkVersion)
ABSENT(nvmlDeviceGetNvLinkCapability)
ABSENT(nvmlDeviceGetGpuFabricInfoV)
ABSENT(nvmlDeviceGetGpuFabricInfo)
API int nvmlEventSetCreate(U void **set) { return NOT_SUPPORTED; }
API int nvmlEventSetFree(U void *set) { return OK; }
