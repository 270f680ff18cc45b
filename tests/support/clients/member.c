/* One of several processes on a device. Reads commands from stdin, one a line, and answers each with a line.
 *
 *   a BYTES          allocates; answers the CUDA result and the number of the block
 *   f BLOCK          frees; answers the CUDA result
 *   c                makes another context, which becomes current
 *   d                destroys that context
 *   p                resets the primary context with all its memory, and makes it current again
 *   r SEED STEPS     allocates and frees at random; answers how many requests were refused
 *   i                answers with cuMemGetInfo, cuDeviceTotalMem, NVML, the simulator's table, the library's ledger
 *   q BYTES WORDS    obtains as much from a pool of the driver that the job makes, frees it and waits; the pool keeps it.
 *                    With the word "default" it is the default pool, and with "pending" nothing waits
 *   t                gives idle memory back (vramshim_trim); answers with the bytes
 *   k                forks a child that asks NVML; answers the child's exit status
 *   l                leaves a forked child that lives until its input ends; answers its process id
 *   x                closes every descriptor but the standard ones
 *   z                the first thread ends, and another one runs the commands that follow
 *   o PATH           opens and closes a file
 *   h                leaves its root and its user; answers whether that failed
 *
 *   member forked: a forked child runs the commands. Its parent has only asked NVML.
 *   member late: runs the commands under a limit of 1GiB, which the program itself sets after it asked NVML. */
#include "client.h"
#include "random.h"
#include "shim.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 4096, INSUFFICIENT_SIZE = 7 };
static struct { CUdeviceptr address; size_t size; } blocks[BLOCKS];
static uint64_t seed = 1;

static CUresult allocate(int block, size_t size)
{
    CUresult result = cu(cuMemAlloc_v2)(&blocks[block].address, size);
    blocks[block].size = result == CUDA_SUCCESS ? size : 0;
    if (result == CUDA_SUCCESS) *count_of(0, LINEAR) += (long long)size;
    return result;
}

static CUresult release(int block)
{
    CUresult result = cu(cuMemFree_v2)(blocks[block].address);
    if (result == CUDA_SUCCESS) {
        *count_of(0, LINEAR) -= (long long)blocks[block].size;
        blocks[block].size = 0;
    }
    return result;
}

static int free_block(void)
{
    int block = 0;
    while (blocks[block].size) block++;
    return block;
}

/* ---- NVML, loaded as its clients load it */

typedef void *Device;
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
struct process_v1 { unsigned pid; unsigned long long used; };

static void *management(const char *name)
{
    static void *library;
    if (!library) library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) fprintf(stderr, "member: no %s\n", name), exit(1);
    return found;
}

static void uuid_text(int device, const char *kind, char text[64])
{
    CUuuid uuid;
    if (!strcmp(kind, "MIG")) CHECK(cu(cuDeviceGetUuid_v2)(&uuid, device));
    else CHECK(cu(cuDeviceGetUuid)(&uuid, device));
    char *at = text + sprintf(text, "%s", kind);
    for (int i = 0; i < 16; i++)
        at += sprintf(at, i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)uuid.bytes[i]);
}

static void print_management(const char *kind)
{
    Device device;
    char text[64];
    struct memory v1;
    struct memory_v2 v2 = {.version = 0x2000028};
    uuid_text(0, kind, text);
    THAT(((int (*)(void))management("nvmlInit_v2"))() == 0);
    THAT(((int (*)(const char *, Device *))management("nvmlDeviceGetHandleByUUID"))(text, &device) == 0);
    THAT(((int (*)(Device, struct memory *))management("nvmlDeviceGetMemoryInfo"))(device, &v1) == 0);
    THAT(((int (*)(Device, struct memory_v2 *))management("nvmlDeviceGetMemoryInfo_v2"))(device, &v2) == 0);
    printf(",\"%s\":{\"uuid\":\"%s\",\"total\":%llu,\"free\":%llu,\"used\":%llu,\"v2\":{\"total\":%llu,\"reserved\":%llu,\"free\":%llu,"
           "\"used\":%llu},\"processes\":[", strcmp(kind, "MIG") ? "nvml" : "mig", text, v1.total, v1.free, v1.used, v2.total, v2.reserved, v2.free, v2.used);
    static struct process list[2048];
    static struct process_v1 short_list[2048];
    unsigned count = 0, room = 2048, short_room = 2048;
    int (*running)(Device, unsigned *, struct process *) = management("nvmlDeviceGetComputeRunningProcesses_v3");
    int (*running_v1)(Device, unsigned *, struct process_v1 *) = management("nvmlDeviceGetComputeRunningProcesses");
    int result = running(device, &count, NULL);
    THAT(result == (count ? INSUFFICIENT_SIZE : 0));
    THAT(running(device, &room, list) == 0 && running_v1(device, &short_room, short_list) == 0);
    for (unsigned i = 0; i < room; i++) printf("%s{\"pid\":%u,\"used\":%llu}", i ? "," : "", list[i].pid, list[i].used);
    printf("],\"count_v1\":%u}", short_room);
}

static void information(void)
{
    static char buffer[1 << 24];
    size_t free_bytes, total, whole;
    CHECK(cu(cuMemGetInfo_v2)(&free_bytes, &total));
    CHECK(cu(cuDeviceTotalMem_v2)(&whole, 0));
    printf("{\"pid\":%d,\"free\":%zu,\"total\":%zu,\"device_total\":%zu", getpid(), free_bytes, total, whole);
    print_management("GPU");
    if (getenv("SIMGPU_MIG")) print_management("MIG");
    size_t (*truth)(char *, size_t) = optional_function("simgpu_truth");
    size_t (*account)(char *, size_t) = dlsym(RTLD_DEFAULT, "vramshim_account");
    if (truth) truth(buffer, sizeof buffer), printf(",\"truth\":%s", buffer);
    if (account) account(buffer, sizeof buffer), printf(",\"account\":%s", buffer);
    struct { struct vramshim_limit l; uint64_t after; } out = {.after = 42};
    __typeof__(&vramshim_limit) limit = library_function(vramshim_limit);
    if (limit) {
        THAT(limit(0, &out.l) == 0 && limit(-1, &out.l) == -1 && limit(99, &out.l) == -1 && limit(0, NULL) == -1);
        THAT(out.after == 42);
        printf(",\"limit\":{\"limit\":%llu,\"used\":%llu,\"available\":%llu,\"context\":%llu,\"group\":%llu}",
               (unsigned long long)out.l.limit, (unsigned long long)out.l.used, (unsigned long long)out.l.available,
               (unsigned long long)out.l.context, (unsigned long long)out.l.group);
    }
    printf("}\n");
}

static int steps(int count, size_t largest)
{
    int refused = 0;
    for (int step = 0; step < count; step++) {
        int block = (int)draw(&seed, 64);
        if (blocks[block].size) {
            CHECK(release(block));
            continue;
        }
        size_t size = 1 + draw(&seed, draw(&seed, 8) ? largest / 16 : largest);
        CUresult result = allocate(block, size);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) refused++;
        else CHECK(result);
    }
    return refused;
}

/* Asks NVML about the first device, in a process that has made no CUDA call. */
static void ask_management(void)
{
    Device device;
    struct memory v1;
    THAT(((int (*)(void))management("nvmlInit_v2"))() == 0);
    THAT(((int (*)(unsigned, Device *))management("nvmlDeviceGetHandleByIndex_v2"))(0, &device) == 0);
    THAT(((int (*)(Device, struct memory *))management("nvmlDeviceGetMemoryInfo"))(device, &v1) == 0);
    THAT(v1.used + v1.free <= v1.total);
}

static int status_of(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0) THAT(errno == EINTR);
    return status;
}

static int in_child(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) ask_management(), _exit(0);
    return status_of(child);
}

static int leave_a_child(void)
{
    char byte;
    pid_t child = fork();
    if (child) return (int)child;
    while (read(0, &byte, 1) > 0) {}
    _exit(0);
}

/* The pool is never told to give memory back, as PyTorch's backend cudaMallocAsync makes it. */
static CUresult fill_pool(size_t size, const char *words)
{
    static CUmemoryPool own, first;
    CUmemoryPool *pool = strstr(words, "default") ? &first : &own;
    unsigned long long keeps_all = ~0ull;
    CUdeviceptr address;
    if (!*pool) {
        if (pool == &own) own = pool_on(0);
        else CHECK(cu(cuDeviceGetDefaultMemPool)(pool, 0));
        CHECK(cu(cuMemPoolSetAttribute)(*pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keeps_all));
    }
    CUresult result = pool == &own ? cu(cuMemAllocFromPoolAsync)(&address, size, own, NULL)
                                   : cu(cuMemAllocAsync)(&address, size, NULL);
    if (result == CUDA_SUCCESS) CHECK(cu(cuMemFreeAsync)(address, NULL));
    if (!strstr(words, "pending")) CHECK(cu(cuStreamSynchronize)(NULL));
    return result;
}

static unsigned long long trim(void)
{
    __typeof__(&vramshim_trim) give_back = library_function(vramshim_trim);
    return give_back ? (unsigned long long)give_back(0) : 0;
}

static void *serve(void *unused);
static void lead_no_more(void)
{
    pthread_t other;
    THAT(pthread_create(&other, NULL, serve, NULL) == 0);
    pthread_exit(NULL);
}

static void *serve(void *unused)
{
    static CUcontext context, primary;
    char line[256];
    unsigned long long a, b;
    (void)unused;
    if (primary) {
        CHECK(cu(cuCtxSetCurrent)(primary));
        printf("0\n");
        fflush(stdout);
    } else primary = start_cuda();
    while (fgets(line, sizeof line, stdin)) {
        int numbers = sscanf(line + 1, "%llu %llu", &a, &b);
        switch (*line) {
        case 'a': {
            int block = free_block();
            CUresult result = allocate(block, numbers > 0 ? a : 0);
            printf("%d %d\n", result, block);
            break;
        }
        case 'f': printf("%d\n", release((int)a)); break;
        case 'x': syscall(SYS_close_range, 3u, ~0u, 0u); printf("0\n"); break;
        case 'l': printf("%d\n", leave_a_child()); break;
        case 'o': line[strcspn(line, "\n")] = 0; printf("%d\n", close(open(line + 2, O_RDONLY))); break;
        case 'h': printf("%d\n", chroot("/sys/kernel") || chdir("/") || setuid(65534)); break;
        case 'c': CHECK(cu(cuCtxCreate_v2)(&context, 0, 0)); printf("0\n"); break;
        case 'd': CHECK(cu(cuCtxDestroy_v2)(context)); CHECK(cu(cuCtxSetCurrent)(primary)); printf("0\n"); break;
        case 'p':
            CHECK(cu(cuDevicePrimaryCtxReset_v2)(0));
            primary = use_device(0);
            memset(blocks, 0, sizeof blocks);
            *count_of(0, LINEAR) = 0;
            printf("0\n");
            break;
        case 'r': seed = a; printf("%d\n", steps((int)b, 64 << 20)); break;
        case 'z': lead_no_more(); break;
        case 'i': information(); break;
        case 'q': printf("%d\n", fill_pool(a, line)); break;
        case 't': printf("%llu\n", trim()); break;
        case 'k': printf("%d\n", in_child()); break;
        default: fprintf(stderr, "member: %s", line), exit(2);
        }
        fflush(stdout);
    }
    exit(0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "forked")) {
        ask_management();
        pid_t child = fork();
        if (child) return status_of(child) != 0;
    }
    if (argc > 1 && !strcmp(argv[1], "late")) ask_management(), setenv("VRAMSHIM_MEMORY_LIMIT", "1GiB", 1);
    serve(NULL);
    return 0;
}
