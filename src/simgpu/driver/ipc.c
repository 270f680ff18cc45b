/* Memory of other processes. To share an allocation, the simulator replaces its pages by pages of a memfd. The handle
 * names the process and the descriptor, through which the peer maps the same pages.
 *
 * Small blocks share pages, and a page can show one file only. So all of them have one file, in which a page has the
 * place that it has in their part of the arena. A page at the edge of a block that was ever shared keeps showing the file. */
#include "sim.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct handle { uint64_t magic; int pid, fd, device; uint64_t offset, size; };
#define MAGIC 0x5349504331ull

/* Copies the touched pages of [first, first + size). Untouched pages stay holes of the file, because device memory may be
 * larger than the machine's memory. */
static bool save(char *to, uint64_t first, uint64_t size)
{
    int map = open("/proc/thread-self/pagemap", O_RDONLY | O_CLOEXEC);
    static uint64_t entries[1 << 16];
    bool well = map >= 0;
    for (uint64_t page = first >> 12, end = (first + size) >> 12; well && page < end;) {
        uint64_t count = end - page < 1 << 16 ? end - page : 1 << 16;
        well = pread(map, entries, count * 8, (off_t)(page * 8)) == (ssize_t)(count * 8);
        for (uint64_t i = 0; well && i < count; i++)
            if (entries[i] >> 62) /* the page is present or swapped out */
                memcpy(to + ((page + i) << 12) - first, (void *)((page + i) << 12), 4096);
        page += count;
    }
    if (map >= 0) close(map);
    return well;
}

/* Makes pages show the file, with the bytes that they have. A limit on the size of files (RLIMIT_FSIZE) does not concern
 * what is written to a mapping. */
static bool show(int fd, uint64_t offset, uint64_t first, uint64_t size)
{
    char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset);
    if (map == MAP_FAILED) return false;
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    if (save(map, first, size) && mremap(map, size, size, flags, (void *)first) != MAP_FAILED) return true;
    munmap(map, size);
    return false;
}

/* The file of the small blocks, and by page whether it shows the file. */
static int packed_fd = -1;
static struct stat packed_file;
static uint64_t packed_size;
static unsigned char *showing;

static bool shows(uint64_t page) { return showing[page / 8] >> page % 8 & 1; }

/* Whether the descriptor is still that of the file. A job may close it and give the number to a file of its own. */
static bool packed_open(void)
{
    struct stat now;
    return packed_fd >= 0 && !fstat(packed_fd, &now) && now.st_ino == packed_file.st_ino && now.st_dev == packed_file.st_dev;
}

/* Returns a descriptor, or -1. */
static int share_packed(uint64_t start, uint64_t part, uint64_t first, uint64_t last)
{
    if (packed_fd < 0) {
        showing = calloc(part / 4096 / 8 + 1, 1);
        packed_fd = showing ? memory_file("simgpu-ipc-small") : -1;
        if (packed_fd < 0 || fstat(packed_fd, &packed_file)) return -1;
    }
    if (!packed_open()) return -1;
    if (last - start > packed_size) {
        if (!resize_file(packed_fd, last - start)) return -1;
        packed_size = last - start;
    }
    for (uint64_t page = (first - start) / 4096, end = (last - start) / 4096, next; page < end; page = next) {
        for (next = page; next < end && !shows(next); next++) {}
        if (next > page && !show(packed_fd, page * 4096, start + page * 4096, (next - page) * 4096)) return -1;
        for (uint64_t i = page; i < next; i++) showing[i / 8] |= (unsigned char)(1 << i % 8);
        if (next == page) next++;
    }
    return fcntl(packed_fd, F_DUPFD_CLOEXEC, 0);
}

static int share_alone(uint64_t first, uint64_t last)
{
    int fd = memory_file("simgpu-ipc");
    if (fd >= 0 && (!resize_file(fd, last - first) || !show(fd, 0, first, last - first))) close(fd), fd = -1;
    return fd;
}

bool ipc_share(Allocation *a, uint64_t *start)
{
    uint64_t first = a->address & ~4095ull, last = (a->address + a->span + 4095) & ~4095ull, part;
    bool packed = arena_packed(a->address, start, &part);
    if (!packed) *start = first;
    if (a->ipc_fd < 0) a->ipc_fd = packed ? share_packed(*start, part, first, last) : share_alone(first, last);
    return a->ipc_fd >= 0;
}

/* A peer that still has the pages of a small block open reads zeros from now on. cuda.h 13.0:9376 calls that undefined. */
void ipc_unshare(uint64_t first, uint64_t last)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    uint64_t start, part;
    if (mmap((void *)first, last - first, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) return;
    if (!arena_packed(first, &start, &part)) return;
    int hole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (packed_open()) fallocate(packed_fd, hole, (off_t)(first - start), (off_t)(last - first));
    for (uint64_t page = (first - start) / 4096; page < (last - start) / 4096; page++)
        showing[page / 8] &= (unsigned char)~(1 << page % 8);
}

bool ipc_map(int pid, int descriptor, uint64_t offset, uint64_t size, uint64_t *address)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, descriptor);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    uint64_t first = offset & ~4095ull, within = offset & 4095;
    char *map = mmap(NULL, within + size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)first);
    close(fd);
    *address = (uint64_t)map + within;
    return map != MAP_FAILED;
}

void ipc_unmap(const Allocation *a) { munmap((void *)(a->address & ~4095ull), a->span + (a->address & 4095)); }

API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
    ENTER("cuIpcGetMemHandle");
    Allocation *a = table_find(address);
    REQUIRE(out && a && a->class == LINEAR);
    uint64_t first;
    if (!ipc_share(a, &first)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct handle h = {MAGIC, getpid(), a->ipc_fd, physical_of(a->device), a->address - first, a->span};
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return CUDA_SUCCESS;
}

/* A handle that is open already is opened again at the same address. */
struct already { uint64_t name; Allocation *found; };
static uint64_t name_of(const struct handle *h) { return (uint64_t)h->pid << 32 | (unsigned)h->fd; }
static void find_opened(Allocation *a, void *data)
{
    struct already *seek = data;
    if (a->opened_as == seek->name) seek->found = a;
}

static CUresult open_handle(CUdeviceptr *out, const CUipcMemHandle *handle)
{
    ENTER_CONTEXT("cuIpcOpenMemHandle", context);
    struct handle h;
    memcpy(&h, handle, sizeof h);
    REQUIRE(out && h.magic == MAGIC);
    if (h.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    /* cuda.h 13.0:9359-9363: for another device, the call enables peer access as cuCtxEnablePeerAccess does. Where there is
     * none, TensorRT-LLM#1498 and Nanoflow#22 got its error, "peer access is not supported between these two devices". */
    if (h.device != physical_of(context->device) && !config()->peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    struct already seek = {.name = name_of(&h)};
    table_each(find_opened, &seek);
    if (seek.found) return seek.found->references++, *out = seek.found->address, CUDA_SUCCESS;
    uint64_t address;
    REQUIRE(ipc_map(h.pid, h.fd, h.offset, h.size, &address));
    Allocation *a = table_new(IMPORTED, context->device, h.size, 0, "cuIpcOpenMemHandle");
    a->address = address;
    a->span = h.size;
    a->context = context_owner(context);
    a->references = 1;
    a->opened_as = name_of(&h);
    table_add(a);
    *out = a->address;
    return CUDA_SUCCESS;
}
API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags) { (void)flags; return open_handle(out, &handle); }
API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags) { (void)flags; return open_handle(out, &handle); }

API CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    ENTER("cuIpcCloseMemHandle");
    Allocation *a = table_at(address);
    REQUIRE(a && a->class == IMPORTED);
    if (--a->references > 0) return CUDA_SUCCESS;
    ipc_unmap(a);
    table_remove(a);
    return CUDA_SUCCESS;
}

/* External memory: accepts any file descriptor that can be mapped. */
API CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d)
{
    ENTER_CONTEXT("cuImportExternalMemory", context);
    REQUIRE(out && d && d->type == 1 && d->size);
    Allocation *a = table_new(IMPORTED, context->device, d->size, 0, "cuImportExternalMemory");
    a->ipc_fd = d->handle.fd; /* the import owns the descriptor from here on */
    table_add(a);
    *out = a;
    return CUDA_SUCCESS;
}
API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *d)
{
    ENTER_CONTEXT("cuExternalMemoryGetMappedBuffer", context);
    Allocation *whole = table_at((uint64_t)memory);
    REQUIRE(out && d && whole && whole->class == IMPORTED && d->offset + d->size <= whole->requested);
    char *map = mmap(NULL, whole->requested, PROT_READ | PROT_WRITE, MAP_SHARED, whole->ipc_fd, 0);
    if (map == MAP_FAILED) return CUDA_ERROR_NOT_SUPPORTED;
    Allocation *a = table_new(IMPORTED, context->device, d->size, 0, "cuExternalMemoryGetMappedBuffer");
    a->address = (uint64_t)map + d->offset;
    a->span = d->size;
    table_add(a);
    *out = a->address;
    return CUDA_SUCCESS;
}
API CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    ENTER("cuDestroyExternalMemory");
    Allocation *a = table_at((uint64_t)memory);
    REQUIRE(a && a->class == IMPORTED);
    table_remove(a);
    return CUDA_SUCCESS;
}
