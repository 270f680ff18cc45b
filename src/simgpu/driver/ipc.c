/* Memory of other processes. To share an allocation, the simulator replaces its pages by pages of a memfd. The handle
 * names the process and the descriptor, through which the peer maps the same pages. */
#include "sim.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct handle { uint64_t magic; int pid, fd, device; uint64_t offset, size; };
#define MAGIC 0x5349504331ull

/* Copies the touched pages of [first, first + size) into the file. Untouched pages stay holes, because device memory
 * may be larger than the machine's memory. */
static bool save(int fd, uint64_t first, uint64_t size)
{
    int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    static uint64_t entries[1 << 16];
    bool well = map >= 0;
    for (uint64_t page = first >> 12, end = (first + size) >> 12; well && page < end;) {
        uint64_t count = end - page < 1 << 16 ? end - page : 1 << 16;
        well = pread(map, entries, count * 8, (off_t)(page * 8)) == (ssize_t)(count * 8);
        for (uint64_t i = 0; well && i < count; i++)
            if (entries[i] >> 62) /* the page is present or swapped out */
                well = pwrite(fd, (void *)((page + i) << 12), 4096, (off_t)(((page + i) << 12) - first)) == 4096;
        page += count;
    }
    if (map >= 0) close(map);
    return well;
}

bool ipc_share(Allocation *a, uint64_t *start)
{
    uint64_t first = *start = a->address & ~4095ull, size = ((a->address + a->span + 4095) & ~4095ull) - first;
    if (a->ipc_fd >= 0) return true;
    int fd = memory_file("simgpu-ipc");
    if (fd < 0 || ftruncate(fd, (off_t)size) || !save(fd, first, size)) return false;
    if (mmap((void *)first, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) return false;
    a->ipc_fd = fd;
    return true;
}

bool ipc_map(int pid, int descriptor, uint64_t offset, uint64_t size, uint64_t *address)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, descriptor);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    char *map = mmap(NULL, (offset + size + 4095) & ~4095ull, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    *address = (uint64_t)map + offset;
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
