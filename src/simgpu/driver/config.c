/* The simulated host as the environment describes it; the default is in parentheses:
 *
 *   SIMGPU_DEVICES         number of devices (1)
 *   SIMGPU_MEMORY          memory of each device, with a unit; or a list with a size for each device (80GiB)
 *   SIMGPU_VMM             0: no virtual memory management (1)
 *   SIMGPU_GRANULARITY     granularity of virtual memory management (2MiB)
 *   SIMGPU_DRIVER_VERSION  the answer of cuDriverGetVersion; functions of later versions are not found (13000)
 *   SIMGPU_RESERVED        memory besides SIMGPU_MEMORY that the driver keeps for itself: only NVML tells of it (0)
 *   SIMGPU_CONTEXT_BYTES   memory that each context takes (0)
 *   SIMGPU_CONTIGUOUS      1: each request needs one piece of physical memory, as on a device without pages (0);
 *                          must be the same for all processes of a host; see extents.c
 *   SIMGPU_MANAGED_BEYOND  1: managed memory for which the device has no room takes none of it: its pages stay with the host
 *                          until they are used (CUDA Programming Guide, "GPU Memory Oversubscription") (0)
 *   SIMGPU_MIG             1: each device is a MIG instance of a card twice its size, with a UUID of its own (0)
 *   SIMGPU_DMABUF          0: no dma-bufs, as without the open kernel modules (1); see dmabuf.c
 *   SIMGPU_PEERS           0: no device can be a peer of another one (1)
 *   SIMGPU_POOL_CHUNK      step in which stream-ordered pools take memory (32MiB)
 *   SIMGPU_FAULTS          cuMemCreate:5=2,cuMemAlloc:/7=2,cuMemAlloc:3+=2: the 5th call, every 7th call, every call
 *                          from the 3rd on returns this code; names without _v2, * for the calls of all functions. A
 *                          code of a fault (700, 702, 714 to 719) is the answer of every later call of the context too
 *                          Functions of NVML have codes of NVML, and are not meant by *
 *   SIMGPU_LATENCY         cuMemAlloc=29us,...: duration of calls (us, ms); prices: what calls cost on hardware, by size
 *                          and handle; see rules.c
 *   SIMGPU_LATCH           cuMemCreate,...: such a call waits until the file NAME.open is in the folder SIMGPU_LATCH_DIR.
 *                          It makes the file NAME.waiting there when it begins to wait
 *   SIMGPU_DELAYED         1: work on streams is done as late as possible, when a call waits for it (0); see work.c
 *   SIMGPU_COUNTS          1: simgpu_calls counts calls; also if SIMGPU_DELAYED is 1 (0)
 *   SIMGPU_FRESH           byte (0 to 255) that fills memory when it is obtained, up to 64 MiB of a request (none: memory has
 *                          zeros, or what was there before). A driver promises no contents (cuda.h 13.0:8582, "The memory
 *                          is not cleared"), so what depends on them is a fault of the job
 *   SIMGPU_FREE_WAITS_FOR_PEERS  0: cuMemFree waits for the work of its own context alone (1); see memory.c
 *   SIMGPU_WAITS_HOLD      0: a thread that waits inside cuMemFree or a copy holds up no other thread (1); see gate.c
 *   SIMGPU_UNMAP_WAITS     1: cuMemUnmap waits for the work of the device, which pytorch#96995 leaves open (0)
 *   SIMGPU_MAPPING_WAITS   1: cuMemSetAccess waits for the work of the device, which its note_sync leaves open (0)
 *   SIMGPU_ALIASES         0: cuMemMap refuses a handle that is mapped already (1)
 *   SIMGPU_HOLES           0: cuMemUnmap and cuMemSetAccess refuse a range with a hole between mappings, as pytorch#188008
 *                          and cuda.h 13.0:13089 have it; an H100 does not (1)
 *   SIMGPU_MAPPING_AFTER_FAULT  1: mapping, unmapping and access tell of no fault of the current context either, as
 *                          cuMemCreate does not on an H100 (0)
 *   SIMGPU_RESET_UNMAPS    1: a reset of a primary context unmaps the handles on its device, and leaves their memory (0)
 *   SIMGPU_RESET_FREES_VMM  1: a reset of a primary context frees the memory of handles on its device, as
 *                          cuda.h 13.0:6063 can be read; an H100 does not (0)
 *   SIMGPU_STATE           file that the processes of one simulated host share (each process is a host of its own)
 *   SIMGPU_NVML_BYTES      0: NVML lists processes without their bytes, as on WSL or without permission (1)
 *   SIMGPU_HOSTPROC        a mount of the host's /proc: NVML then tells ids of the host, as in a container (none)
 *   SIMGPU_MPS             pid of an MPS server: NVML lists it with the memory of all processes, and these as its clients (none)
 *   SIMGPU_UTILISATION     percent of its time that each process with a context uses the device, as NVML tells (0)
 *   SIMGPU_LOOKUPS         file that gets a line for each cuGetProcAddress: name, version, flags, status, caller
 *   SIMGPU_TRUTH           file to write the table of allocations to at exit; %p is the process id
 *   CUDA_VISIBLE_DEVICES   as usual
 */
#include "sim.h"

static struct config the_config;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void complain(const char *variable, const char *value, const char *accepted)
{
    fprintf(stderr, "simgpu: %s=\"%s\" is not accepted; accepted: %s\n", variable, value, accepted);
}

static bool parse_size(const char *text, uint64_t *bytes)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || number < 0) return false;
    static const struct { const char *unit; double scale; } units[] = {
        {"", 1}, {"B", 1}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
        {"K", 1024.0}, {"M", 1048576.0}, {"G", 1073741824.0}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},
    };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0) return *bytes = (uint64_t)(number * units[i].scale), true;
    return false;
}

static uint64_t size_variable(const char *variable, uint64_t fallback)
{
    const char *value = getenv(variable);
    uint64_t bytes = fallback;
    if (value && *value && !parse_size(value, &bytes)) complain(variable, value, "a size, such as 2MiB"), bytes = fallback;
    return bytes;
}

static int number_variable(const char *variable, int fallback, int least, int most)
{
    const char *value = getenv(variable);
    if (!value || !*value) return fallback;
    char *end;
    long number = strtol(value, &end, 10);
    if (*end || number < least || number > most) return complain(variable, value, "a whole number in range"), fallback;
    return (int)number;
}

static void read_memory(void)
{
    uint64_t last = 80ull << 30;
    const char *value = getenv("SIMGPU_MEMORY");
    char copy[512];
    snprintf(copy, sizeof copy, "%s", value ? value : "");
    char *rest = copy;
    for (int i = 0; i < MAX_DEVICES; i++) {
        char *part = strsep(&rest, ",");
        if (part && *part && !parse_size(part, &last)) complain("SIMGPU_MEMORY", value, "sizes such as 80GiB");
        the_config.memory[i] = last;
    }
}

void sim_uuid(int physical, char uuid[16])
{
    for (int i = 0; i < 16; i++) uuid[i] = (char)(0x51 + 7 * i + 31 * physical);
}

void sim_uuid_text(int physical, char text[41])
{
    char u[16];
    sim_uuid(physical, u);
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)u[i]);
}

/* The UUID of a MIG instance, which SIMGPU_MIG makes a device. */
void sim_part_uuid_text(int physical, char text[41])
{
    sim_uuid_text(physical + MAX_DEVICES, text);
    memcpy(text, "MIG", 3);
}

static void read_visible(void)
{
    const char *value = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    if (!value) {
        for (; count < the_config.devices; count++) the_config.visible[count] = count;
    } else {
        char copy[1024];
        snprintf(copy, sizeof copy, "%s", value);
        for (char *rest = copy, *part; (part = strsep(&rest, ",")) && count < MAX_DEVICES;) {
            int found = -1;
            char *end;
            long ordinal = strtol(part, &end, 10);
            if (*part && !*end && ordinal >= 0 && ordinal < the_config.devices) found = (int)ordinal;
            for (int i = 0; i < the_config.devices && strncmp(part, "GPU-", 4) == 0; i++) {
                char text[41];
                sim_uuid_text(i, text);
                if (strncmp(text, part, strlen(part)) == 0) found = i;
            }
            if (found < 0) break; /* CUDA documents that devices after an invalid entry are invisible */
            the_config.visible[count++] = found;
        }
    }
    the_config.visible_count = count;
}

static void read_all(void)
{
    the_config.devices = number_variable("SIMGPU_DEVICES", 1, 0, MAX_DEVICES);
    read_memory();
    read_visible();
    the_config.vmm = number_variable("SIMGPU_VMM", 1, 0, 1);
    the_config.contiguous = number_variable("SIMGPU_CONTIGUOUS", 0, 0, 1);
    the_config.managed_beyond = number_variable("SIMGPU_MANAGED_BEYOND", 0, 0, 1);
    the_config.mig = number_variable("SIMGPU_MIG", 0, 0, 1);
    the_config.nvml_bytes = number_variable("SIMGPU_NVML_BYTES", 1, 0, 1);
    the_config.free_waits_for_peers = number_variable("SIMGPU_FREE_WAITS_FOR_PEERS", 1, 0, 1);
    the_config.dmabuf = number_variable("SIMGPU_DMABUF", 1, 0, 1);
    the_config.peers = number_variable("SIMGPU_PEERS", 1, 0, 1);
    the_config.unmap_waits = number_variable("SIMGPU_UNMAP_WAITS", 0, 0, 1);
    the_config.waits_hold = number_variable("SIMGPU_WAITS_HOLD", 1, 0, 1);
    the_config.mapping_waits = number_variable("SIMGPU_MAPPING_WAITS", 0, 0, 1);
    the_config.aliases = number_variable("SIMGPU_ALIASES", 1, 0, 1);
    the_config.holes = number_variable("SIMGPU_HOLES", 1, 0, 1);
    the_config.mapping_after_fault = number_variable("SIMGPU_MAPPING_AFTER_FAULT", 0, 0, 1);
    the_config.reset_unmaps = number_variable("SIMGPU_RESET_UNMAPS", 0, 0, 1);
    the_config.reset_frees_vmm = number_variable("SIMGPU_RESET_FREES_VMM", 0, 0, 1);
    the_config.delayed = number_variable("SIMGPU_DELAYED", 0, 0, 1);
    the_config.counted = the_config.delayed || number_variable("SIMGPU_COUNTS", 0, 0, 1);
    the_config.granularity = size_variable("SIMGPU_GRANULARITY", 2 << 20);
    if (the_config.granularity < 4096 || the_config.granularity & (the_config.granularity - 1)) {
        complain("SIMGPU_GRANULARITY", getenv("SIMGPU_GRANULARITY"), "a power of two from 4KiB on");
        the_config.granularity = 2 << 20;
    }
    the_config.reserved = size_variable("SIMGPU_RESERVED", 0);
    the_config.context_bytes = size_variable("SIMGPU_CONTEXT_BYTES", 0);
    the_config.pool_chunk = size_variable("SIMGPU_POOL_CHUNK", 32 << 20);
    the_config.driver_version = number_variable("SIMGPU_DRIVER_VERSION", 13000, 1000, 99999);
    the_config.utilisation = number_variable("SIMGPU_UTILISATION", 0, 0, 100);
    the_config.fresh = number_variable("SIMGPU_FRESH", -1, 0, 255);
    the_config.mps = number_variable("SIMGPU_MPS", 0, 0, INT32_MAX);
    the_config.host_proc = getenv("SIMGPU_HOSTPROC");
    the_config.truth = getenv("SIMGPU_TRUTH");
    the_config.state = getenv("SIMGPU_STATE");
}

const struct config *config(void)
{
    pthread_once(&once, read_all);
    return &the_config;
}

int sim_driver_version(void) { return config()->driver_version; }
