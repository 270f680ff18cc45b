/* NVML of the simulated GPU. Exits with 1 if an answer is wrong. There are two devices.
 *
 *   nvml figures       what a device is and does; in a process without CUDA, into which no driver is loaded
 *   nvml processes     this process is listed as soon as it has a context, with the driver's bytes
 *   nvml utilisation   SIMGPU_UTILISATION is 40
 *   nvml errors        SIMGPU_FAULTS gives the list of processes 4, and the memory 3 from the second call on
 *   nvml served        SIMGPU_MPS is 4711000
 *   nvml host          in a pid namespace; SIMGPU_HOSTPROC is the host's /proc
 *   nvml leader        a process whose first thread has ended keeps its memory as long as another one lives */
#include "client.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct Device *Device;
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; };
struct pci_v1 { char legacy[16]; unsigned domain, bus, device, id; };
struct pci_ext { unsigned version, domain, bus, device, id, subsystem, class, subclass; char text[32]; };
struct branch { unsigned version; char text[80]; };
struct field { unsigned id, scope; long long time, latency; int type, result; union { unsigned number; unsigned long long large; } value; };
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
struct sample { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };
struct sample_info { unsigned long long time; unsigned pid, sm, memory, encoder, decoder, jpeg, ofa; };
struct samples { unsigned version, count; unsigned long long since; struct sample_info *at; };
struct memory { unsigned long long total, free, used; };
struct rates { unsigned gpu, memory; };
#define VERSION(type, number) ((unsigned)(sizeof(type) | (number) << 24))

int nvmlInit_v2(void), nvmlDeviceGetHandleByIndex_v2(unsigned, Device *), nvmlDeviceGetHandleByPciBusId_v2(const char *, Device *);
int nvmlDeviceGetHandleByPciBusId(const char *, Device *), nvmlDeviceGetPciInfo(Device, struct pci_v1 *), nvmlDeviceGetPciInfo_v3(Device, struct pci *);
int nvmlDeviceGetPciInfoExt(Device, struct pci_ext *), nvmlDeviceGetArchitecture(Device, unsigned *), nvmlDeviceGetBrand(Device, int *);
int nvmlSystemGetDriverBranch(struct branch *, unsigned), nvmlDeviceGetClockInfo(Device, int, unsigned *), nvmlDeviceGetMaxClockInfo(Device, int, unsigned *);
int nvmlDeviceGetFieldValues(Device, int, struct field *), nvmlDeviceGetTemperature(Device, int, unsigned *), nvmlDeviceGetPowerUsage(Device, unsigned *);
int nvmlDeviceGetComputeMode(Device, int *), nvmlDeviceSetComputeMode(Device, int), nvmlDeviceGetMemoryInfo(Device, struct memory *);
int nvmlDeviceGetComputeRunningProcesses_v3(Device, unsigned *, struct process *), nvmlDeviceGetGraphicsRunningProcesses_v3(Device, unsigned *, struct process *);
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device, unsigned *, struct process *);
int nvmlDeviceGetGraphicsRunningProcesses(Device, unsigned *, void *), nvmlDeviceGetUtilizationRates(Device, struct rates *);
int nvmlDeviceGetProcessUtilization(Device, struct sample *, unsigned *, unsigned long long), nvmlDeviceGetProcessesUtilizationInfo(Device, struct samples *);

enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25, MIB = 1 << 20 };

static Device device_of(unsigned index)
{
    Device device;
    CHECK(nvmlInit_v2());
    CHECK(nvmlDeviceGetHandleByIndex_v2(index, &device));
    return device;
}

static void figures(void)
{
    Device device = device_of(1), found;
    struct pci pci;
    struct pci_v1 old;
    struct pci_ext ext = {.version = VERSION(struct pci_ext, 1)};
    CHECK(nvmlDeviceGetPciInfo_v3(device, &pci));
    CHECK(nvmlDeviceGetPciInfo(device, &old));
    CHECK(nvmlDeviceGetPciInfoExt(device, &ext));
    THAT(!strcmp(pci.legacy, old.legacy) && pci.bus == old.bus && pci.id == old.id && ext.bus == pci.bus && !strcmp(ext.text, pci.text));
    ext.version = 1;
    EXPECT(nvmlDeviceGetPciInfoExt(device, &ext), VERSION_MISMATCH);
    CHECK(nvmlDeviceGetHandleByPciBusId_v2(pci.text, &found));
    THAT(found == device);
    CHECK(nvmlDeviceGetHandleByPciBusId(pci.legacy, &found));
    THAT(found == device);
    EXPECT(nvmlDeviceGetHandleByPciBusId_v2("0000:ff:00.0", &found), NOT_FOUND);
    EXPECT(nvmlDeviceGetHandleByPciBusId_v2("nowhere", &found), INVALID_ARGUMENT);
    unsigned number, most;
    int mode, brand;
    enum { HOPPER = 9, NVIDIA = 14, MEMORY_CLOCK = 2 };
    CHECK(nvmlDeviceGetArchitecture(device, &number));
    CHECK(nvmlDeviceGetBrand(device, &brand));
    THAT(number == HOPPER && brand == NVIDIA);
    struct branch branch = {.version = VERSION(struct branch, 1)};
    CHECK(nvmlSystemGetDriverBranch(&branch, sizeof branch.text));
    THAT(!strncmp(branch.text, "r580", 4));
    EXPECT(nvmlSystemGetDriverBranch(&branch, 3), INSUFFICIENT_SIZE);
    CHECK(nvmlDeviceGetClockInfo(device, MEMORY_CLOCK, &number));
    CHECK(nvmlDeviceGetMaxClockInfo(device, MEMORY_CLOCK, &most));
    THAT(number && number <= most);
    EXPECT(nvmlDeviceGetClockInfo(device, 9, &number), INVALID_ARGUMENT);
    struct field fields[] = {{.id = 83}, {.id = 186}, {.id = 9999}};
    CHECK(nvmlDeviceGetFieldValues(device, 3, fields));
    CHECK(nvmlDeviceGetPowerUsage(device, &number));
    THAT(!fields[0].result && fields[0].type == 3 && !fields[1].result && fields[1].value.number == number && fields[2].result == NOT_SUPPORTED);
    CHECK(nvmlDeviceGetTemperature(device, 0, &number));
    CHECK(nvmlDeviceGetComputeMode(device, &mode));
    THAT(mode == 0);
    int set = nvmlDeviceSetComputeMode(device, 3);
    CHECK(nvmlDeviceGetComputeMode(device, &mode));
    THAT(geteuid() ? set == NO_PERMISSION && mode == 0 : !set && mode == 3);
    THAT(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
}

/* The driver is loaded late and so that no one else sees its symbols, as clients of NVML do it. */
static CUresult (*function(const char *name))()
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    THAT(driver && dlsym(driver, name));
    return dlsym(driver, name);
}

static void begin(void)
{
    CUcontext context;
    CHECK(((CUresult(*)(unsigned))function("cuInit"))(0));
    CHECK(((CUresult(*)(CUcontext *, CUdevice))function("cuDevicePrimaryCtxRetain"))(&context, 0));
    CHECK(((CUresult(*)(CUcontext))function("cuCtxSetCurrent"))(context));
}

static void hold(size_t bytes)
{
    CUdeviceptr address;
    begin();
    CHECK(((CUresult(*)(CUdeviceptr *, size_t))function("cuMemAlloc_v2"))(&address, bytes));
}

static struct process listed(Device device, unsigned wanted)
{
    struct process list[4] = {0};
    unsigned count = 4;
    CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list));
    THAT(count == wanted);
    return list[0];
}

static void processes(void)
{
    Device device = device_of(0);
    struct memory memory;
    unsigned count = 4;
    listed(device, 0);
    begin();
    THAT(listed(device, 1).pid == (unsigned)getpid() && listed(device, 1).used == 0);
    listed(device_of(1), 0);
    CUdeviceptr address;
    CHECK(((CUresult(*)(CUdeviceptr *, size_t))function("cuMemAlloc_v2"))(&address, 64 * MIB));
    CHECK(nvmlDeviceGetMemoryInfo(device, &memory));
    THAT(listed(device, 1).used >= 64 * MIB && memory.used >= 64 * MIB && memory.used + memory.free == memory.total);
    CHECK(nvmlDeviceGetGraphicsRunningProcesses_v3(device, &count, NULL));
    THAT(count == 0);
    CHECK(nvmlDeviceGetGraphicsRunningProcesses(device, &count, NULL));
    CHECK(((CUresult(*)(CUdevice))function("cuDevicePrimaryCtxRelease_v2"))(0));
    listed(device, 0);
}

static void utilisation(void)
{
    Device device = device_of(0);
    struct sample sample;
    struct sample_info info;
    struct samples samples = {.version = VERSION(struct samples, 1)};
    struct rates rates;
    unsigned count = 1;
    EXPECT(nvmlDeviceGetProcessUtilization(device, &sample, &count, 0), NOT_FOUND); /* nobody has a context */
    begin();
    EXPECT(nvmlDeviceGetProcessUtilization(device, NULL, &count, 0), INSUFFICIENT_SIZE);
    THAT(count == 1);
    CHECK(nvmlDeviceGetProcessUtilization(device, &sample, &count, 0));
    THAT(count == 1 && sample.pid == (unsigned)getpid() && sample.sm == 40 && sample.time);
    EXPECT(nvmlDeviceGetProcessesUtilizationInfo(device, &samples), INSUFFICIENT_SIZE);
    THAT(samples.count == 1);
    samples.at = &info;
    CHECK(nvmlDeviceGetProcessesUtilizationInfo(device, &samples));
    THAT(info.pid == (unsigned)getpid() && info.sm == 40);
    CHECK(nvmlDeviceGetUtilizationRates(device, &rates));
    THAT(rates.gpu == 40);
    samples.version = 0;
    EXPECT(nvmlDeviceGetProcessesUtilizationInfo(device, &samples), VERSION_MISMATCH);
}

static void errors(void)
{
    struct memory memory;
    unsigned count = 0;
    CHECK(nvmlDeviceGetMemoryInfo(device_of(0), &memory));
    EXPECT(nvmlDeviceGetMemoryInfo(device_of(0), &memory), NOT_SUPPORTED);
    EXPECT(nvmlDeviceGetComputeRunningProcesses_v3(device_of(0), &count, NULL), NO_PERMISSION);
}

static void served(void)
{
    struct process client = {0};
    unsigned count = 1;
    hold(64 * MIB);
    THAT(listed(device_of(0), 1).pid == 4711000 && listed(device_of(0), 1).used >= 64 * MIB);
    CHECK(nvmlDeviceGetMPSComputeRunningProcesses_v3(device_of(0), &count, &client));
    THAT(count == 1 && client.pid == (unsigned)getpid() && client.used >= 64 * MIB);
}

static void host(void)
{
    char path[4096], text[32] = "";
    snprintf(path, sizeof path, "%s/self", getenv("SIMGPU_HOSTPROC"));
    THAT(readlink(path, text, sizeof text - 1) > 0);
    hold(64 * MIB);
    THAT(atoi(text) != getpid() && listed(device_of(0), 1).pid == (unsigned)atoi(text));
    THAT(listed(device_of(0), 1).used >= 64 * MIB);
}

/* A process that has no part in the device looks at it, after the first thread of its parent has ended. */
static void *look(void *leader)
{
    pthread_join(*(pthread_t *)leader, NULL);
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    while (!strstr(line, ") Z ")) {
        FILE *file = fopen(path, "r");
        if (!file || !fgets(line, sizeof line, file)) exit(1);
        fclose(file);
    }
    char program[] = "/proc/self/exe", pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    int status = 1;
    pid_t child = fork();
    if (!child) execl(program, "nvml", "sees", pid, NULL), _exit(1);
    waitpid(child, &status, 0);
    _exit(status != 0);
}
static void leader(void)
{
    static pthread_t self, other;
    self = pthread_self();
    hold(64 * MIB);
    pthread_create(&other, NULL, look, &self);
    pthread_exit(NULL);
}
static void sees(const char *pid)
{
    struct process process = listed(device_of(0), 1);
    THAT(process.pid == (unsigned)atoi(pid) && process.used >= 64 * MIB);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "sees")) return sees(argv[2]), 0;
    static const struct scene scenes[] = {
        {"figures", figures}, {"processes", processes}, {"utilisation", utilisation}, {"errors", errors},
        {"served", served}, {"host", host}, {"leader", leader},
    };
    return PLAY(scenes, argc, argv);
}
