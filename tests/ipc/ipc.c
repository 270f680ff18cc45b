/* Shares memory with another process and uses memory that another process shared. The program reads commands from
 * stdin, one a line, and answers each with a line. If the command is a CUDA call, the answer begins with its result.
 *
 *   alloc NAME BYTES     free NAME          fill NAME SEED     check NAME SEED    range NAME OFFSET    capable NAME
 *   get NAME             open NAME HANDLE   close NAME         device NUMBER      peer NUMBER
 *   use NAME             copy NAME FROM     id NAME           capture            end                hazards
 *   synchronise
 *   hold NAME            work on the memory waits until `go`
 *   closing NAME         another thread closes the handle; `go` ends the hold, and answers with that thread's result
 *   checkpoint           threads            fork               destroy
 *   replace              closes all descriptors and uses their numbers; `mine` answers how many of these were closed since */
#include "client.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NAMES = 2048 };
static struct block { char name[160]; CUdeviceptr address; size_t size; } blocks[NAMES];
static CUcontext contexts[2];

static struct block *named(const char *name)
{
    struct block *b = blocks;
    while (b < blocks + NAMES - 1 && b->name[0] && strcmp(b->name, name)) b++;
    snprintf(b->name, sizeof b->name, "%s", name);
    return b;
}

static unsigned char pattern(unsigned seed, size_t at) { return (unsigned char)(seed * 131 + at * 7 + (at >> 12) + (at >> 21) * 3); }

/* Of a large block, these many bytes at the start of each mebibyte are written and read. */
enum { STEP = 1 << 20, PART = 4096 };
static size_t part(const struct block *b, size_t at)
{
    size_t most = b->size > 64 * STEP ? PART : STEP;
    return b->size - at < most ? b->size - at : most;
}

static void fill(const struct block *b, unsigned seed)
{
    static unsigned char bytes[STEP];
    for (size_t at = 0; at < b->size; at += STEP) {
        for (size_t i = 0; i < part(b, at); i++) bytes[i] = pattern(seed, at + i);
        CHECK(cuMemcpyHtoD_v2(b->address + at, bytes, part(b, at)));
    }
}

static const char *check(const struct block *b, unsigned seed)
{
    static unsigned char bytes[STEP];
    for (size_t at = 0; at < b->size; at += STEP) {
        CHECK(cuMemcpyDtoH_v2(bytes, b->address + at, part(b, at)));
        for (size_t i = 0; i < part(b, at); i++)
            if (bytes[i] != pattern(seed, at + i)) return "wrong";
    }
    return "right";
}

/* Prints the first address and the size of a block. Prints "they differ" if cuMemGetAddressRange and the pointer
 * attributes disagree. */
static void range(const struct block *b, size_t offset)
{
    CUdeviceptr base = 0, start = 0, again = 0;
    size_t bytes = 0, size = 0, more = 0;
    CUresult result = cuMemGetAddressRange_v2(&base, &bytes, b->address + offset);
    if (result) { printf("%d\n", result); return; }
    CHECK(cuPointerGetAttribute(&start, 11, b->address + offset));
    CHECK(cuPointerGetAttribute(&size, 12, b->address + offset));
    int which[] = {11, 12};
    void *out[] = {&again, &more};
    CHECK(cuPointerGetAttributes(2, which, out, b->address + offset));
    if (base != start || base != again || bytes != size || bytes != more) printf("they differ\n");
    else printf("0 %lld %zu\n", (long long)(base - b->address), bytes);
}

static int threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static volatile int going;
static void waits(void *unused)
{
    (void)unused;
    while (!going) usleep(100);
}

static pthread_t closer;
static void *closes(void *block)
{
    CHECK(cuCtxSetCurrent(contexts[0]));
    return (void *)(intptr_t)cuIpcCloseMemHandle(((struct block *)block)->address);
}

static int go(void)
{
    void *result;
    going = 1;
    pthread_join(closer, &result);
    return (int)(intptr_t)result;
}

enum { FIRST = 3, LAST = 400 };
static char is_mine[LAST + 1];

/* Closes all descriptors, the library's too, and uses their numbers for a file. */
static int replace_descriptors(void)
{
    syscall(SYS_close_range, 3u, ~0u, 0u);
    int mine = open("/dev/null", O_RDONLY);
    /* A number that a waiting accept has reserved is busy. */
    for (int number = FIRST; number <= LAST; number++) is_mine[number] = dup2(mine, number) == number;
    return 0;
}

static int missing_descriptors(void)
{
    int missing = 0;
    for (int number = FIRST; number <= LAST; number++) missing += is_mine[number] && fcntl(number, F_GETFD) < 0;
    return missing;
}

int main(void)
{
    alarm(400); /* a call that waits for ever fails its test */
    CHECK(cuInit(0));
    for (int device = 2; device-- > 0;) contexts[device] = use_device(device);
    /* The command `use` gives work to `user`; `capture` captures `captured`. */
    CUstream user = new_stream(NON_BLOCKING), captured = new_stream(NON_BLOCKING);
    char line[512], command[32], name[160], more[160];
    while (fgets(line, sizeof line, stdin)) {
        command[0] = name[0] = more[0] = 0;
        sscanf(line, "%31s %159s %159s", command, name, more);
        unsigned long long number = strtoull(more[0] ? more : name, NULL, 0);
        CUipcMemHandle handle;
        struct block *b = strchr("acfrghoui", command[0]) && name[0] ? named(name) : NULL;
        if (!strcmp(command, "alloc")) {
            b->size = number;
            printf("%d\n", cuMemAlloc_v2(&b->address, b->size));
        } else if (!strcmp(command, "free")) printf("%d\n", cuMemFree_v2(b->address));
        else if (!strcmp(command, "fill")) fill(b, (unsigned)number), printf("0\n");
        else if (!strcmp(command, "check")) printf("%s\n", check(b, (unsigned)number));
        else if (!strcmp(command, "range")) range(b, number);
        else if (!strcmp(command, "capable")) {
            _Bool capable = 0;
            CHECK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, b->address));
            printf("%d\n", capable);
        } else if (!strcmp(command, "get")) {
            int result = cuIpcGetMemHandle(&handle, b->address);
            printf("%d ", result);
            for (size_t i = 0; result == 0 && i < sizeof handle; i++) printf("%02x", (unsigned char)handle.reserved[i]);
            printf("\n");
        } else if (!strcmp(command, "open")) {
            for (size_t i = 0; i < sizeof handle; i++) {
                unsigned byte;
                sscanf(more + 2 * i, "%2x", &byte);
                handle.reserved[i] = (char)byte;
            }
            int result = cuIpcOpenMemHandle_v2(&b->address, handle, 1);
            if (!result) CHECK(cuMemGetAddressRange_v2(NULL, &b->size, b->address));
            printf("%d %llx %zu\n", result, result ? 0 : b->address, result ? 0 : b->size);
        } else if (!strcmp(command, "close")) printf("%d\n", cuIpcCloseMemHandle(b->address));
        else if (!strcmp(command, "copy")) {
            const struct block *from = named(more);
            int result = cuMemcpyDtoDAsync_v2(b->address, from->address, from->size, NULL);
            CUresult end = cuCtxSynchronize();
            printf("%d\n", result ? result : (int)end);
        } else if (!strcmp(command, "id")) {
            CUdeviceptr id = 0;
            int result = cuPointerGetAttribute(&id, 7, b->address + b->size - 1);
            printf("%d %llu\n", result, id);
        } else if (!strcmp(command, "use")) printf("%d\n", cuMemsetD8Async(b->address, 1, b->size, user));
        else if (!strcmp(command, "hold")) {
            CHECK(cuLaunchHostFunc(user, waits, NULL));
            printf("%d\n", cuMemsetD8Async(b->address, 1, b->size, user));
        } else if (!strcmp(command, "closing")) {
            pthread_create(&closer, NULL, closes, b);
            usleep(50000);
            printf("0\n");
        } else if (!strcmp(command, "go")) printf("%d\n", go());
        else if (!strcmp(command, "capture")) printf("%d\n", cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
        else if (!strcmp(command, "end")) printf("%d\n", cuStreamEndCapture(captured, &(CUgraph){NULL}));
        else if (!strcmp(command, "synchronise")) printf("%d\n", cuCtxSynchronize());
        else if (!strcmp(command, "hazards")) printf("%d\n", (int)simgpu_hazards());
        else if (!strcmp(command, "device")) printf("%d\n", cuCtxSetCurrent(contexts[number]));
        else if (!strcmp(command, "peer")) printf("%d\n", cuCtxEnablePeerAccess(contexts[number], 0));
        else if (!strcmp(command, "checkpoint")) checkpoint();
        else if (!strcmp(command, "replace")) printf("%d\n", replace_descriptors());
        else if (!strcmp(command, "mine")) printf("%d\n", missing_descriptors());
        else if (!strcmp(command, "threads")) printf("%d\n", threads());
        else if (!strcmp(command, "destroy")) printf("%d\n", cuDevicePrimaryCtxReset_v2(0));
        else if (!strcmp(command, "fork")) {
            /* The child keeps all inherited descriptors open for some time. */
            fflush(stdout);
            int child = fork();
            if (child == 0) {
                close(0), close(1), close(2);
                _exit(threads() == 1 && sleep(20) == 0);
            }
            printf("%d\n", child);
        } else printf("?\n");
        fflush(stdout);
    }
    return 0;
}
