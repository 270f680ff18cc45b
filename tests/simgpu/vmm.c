/* Virtual memory management. Physical memory is a range of one memfd of this process; a reservation is address space
 * without access; mapping puts the one over the other; access is mprotect. A handle's memory is free when its last
 * reference and its last mapping are gone. */
#include "sim.h"
#include <fcntl.h>
#include <search.h>
#include <sys/mman.h>

Allocation *table_find_range(uint64_t address);

/* What stands in an exported file descriptor: where the importer finds the memory. */
struct exported { uint64_t magic; int pid, fd, device; uint64_t offset, size; Allocation *handle; };
#define EXPORTED 0x53494d4758504d31ull

struct mapping { uint64_t address, size; Allocation *physical; struct mapping *next; };
static struct mapping *mappings[4096]; /* by granule, hashed */

static int memory_fd = -1;
static uint64_t memory_end;
struct hole { uint64_t offset, size; struct hole *next; };
static struct hole *holes;

#define SUPPORTED() do { if (!config()->vmm) return CUDA_ERROR_NOT_SUPPORTED; } while (0)

static struct mapping **bucket(uint64_t address) { return &mappings[address / config()->granularity % 4096]; }

static uint64_t take_physical(uint64_t size)
{
    if (memory_fd < 0) memory_fd = memfd_create("simgpu", MFD_CLOEXEC);
    for (struct hole **h = &holes; *h; h = &(*h)->next)
        if ((*h)->size == size) {
            struct hole *found = *h;
            uint64_t offset = found->offset;
            *h = found->next;
            free(found);
            return offset;
        }
    uint64_t offset = memory_end;
    memory_end += size;
    if (ftruncate(memory_fd, (off_t)memory_end)) return ~0ull;
    return offset;
}

static void gone(Allocation *a)
{
    if (a->references || a->mappings) return;
    if (a->class == VMM) {
        fallocate(memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)a->offset, (off_t)a->requested);
        struct hole *hole = malloc(sizeof *hole);
        *hole = (struct hole){a->offset, a->requested, holes};
        holes = hole;
    }
    table_remove(a);
}

static Allocation *handle_of(CUmemGenericAllocationHandle handle)
{
    Allocation *a = table_at(handle);
    return a && (a->class == VMM || (a->class == IMPORTED && a->data)) ? a : NULL;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    (void)option;
    ENTER("cuMemGetAllocationGranularity");
    SUPPORTED();
    REQUIRE(granularity && properties);
    *granularity = config()->granularity;
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    (void)flags;
    ENTER("cuMemAddressReserve");
    SUPPORTED();
    uint64_t granularity = config()->granularity;
    REQUIRE(out && size && size % granularity == 0);
    if (alignment < granularity) alignment = granularity;
    char *map = mmap((void *)hint, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t start = ((uint64_t)map + alignment - 1) / alignment * alignment;
    if (start > (uint64_t)map) munmap(map, start - (uint64_t)map);
    munmap((char *)start + size, (uint64_t)map + alignment - start);
    Allocation *a = table_new(ADDRESS_RANGE, context_current() ? context_current()->device : -1, size, size, "cuMemAddressReserve");
    a->address = start;
    a->span = size;
    table_add(a);
    *out = start;
    return CUDA_SUCCESS;
}

static struct mapping *mapping_in(uint64_t start, uint64_t end)
{
    for (uint64_t at = start; at < end; at += config()->granularity)
        for (struct mapping *m = *bucket(at); m; m = m->next)
            if (m->address <= at && at < m->address + m->size) return m;
    return NULL;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    ENTER("cuMemAddressFree");
    Allocation *range = table_find_range(address);
    REQUIRE(range && range->address == address && range->span == size && !mapping_in(address, address + size));
    munmap((void *)address, size);
    table_remove(range);
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties, unsigned long long flags)
{
    (void)flags;
    ENTER("cuMemCreate");
    SUPPORTED();
    REQUIRE(out && properties && size && size % config()->granularity == 0);
    int device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties->location.id : -1;
    if (device >= 0 && !device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (device >= 0 && !device_take(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    Allocation *a = table_new(VMM, device, size, size, "cuMemCreate");
    a->taken = device >= 0 ? size : 0;
    a->offset = take_physical(size);
    a->references = 1;
    table_add(a);
    *out = a->address;
    return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER("cuMemRelease");
    Allocation *a = handle_of(handle);
    REQUIRE(a && a->references);
    a->references--;
    gone(a);
    return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)flags;
    ENTER("cuMemMap");
    Allocation *a = handle_of(handle), *range = table_find_range(address);
    uint64_t granularity = config()->granularity;
    REQUIRE(a && range && size && size % granularity == 0 && address % granularity == 0 && offset == 0 && size <= a->requested);
    REQUIRE(address + size <= range->address + range->span && !mapping_in(address, address + size));
    int fd = a->class == IMPORTED ? a->ipc_fd : memory_fd;
    void *map = mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)a->offset);
    if (map == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint64_t at = address; at < address + size; at += granularity) {
        struct mapping *m = malloc(sizeof *m);
        *m = (struct mapping){address, size, a, *bucket(at)};
        *bucket(at) = m;
    }
    a->mappings++;
    return CUDA_SUCCESS;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    ENTER("cuMemUnmap");
    uint64_t end = address + size;
    REQUIRE(size && mapping_in(address, address + 1));
    /* whole mappings only */
    for (uint64_t at = address; at < end;) {
        struct mapping *m = mapping_in(at, at + 1);
        if (!m) { at += config()->granularity; continue; }
        REQUIRE(m->address == at && m->address + m->size <= end);
        at += m->size;
    }
    for (uint64_t at = address; at < end;) {
        struct mapping *m = mapping_in(at, at + 1);
        if (!m) { at += config()->granularity; continue; }
        Allocation *a = m->physical;
        uint64_t last = m->address + m->size;
        for (; at < last; at += config()->granularity)
            for (struct mapping **p = bucket(at); *p; p = &(*p)->next)
                if ((*p)->address <= at && at < (*p)->address + (*p)->size) {
                    struct mapping *dead = *p;
                    *p = dead->next;
                    free(dead);
                    break;
                }
        a->mappings--;
        gone(a);
    }
    mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    ENTER("cuMemSetAccess");
    REQUIRE(access && count && size);
    for (uint64_t at = address; at < address + size; at += config()->granularity) REQUIRE(mapping_in(at, at + 1));
    int protection = access->flags == 3 ? PROT_READ | PROT_WRITE : access->flags == 1 ? PROT_READ : PROT_NONE;
    return mprotect((void *)address, size, protection) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    (void)location;
    ENTER("cuMemGetAccess");
    REQUIRE(flags && mapping_in(address, address + 1));
    *flags = 3;
    return CUDA_SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    ENTER("cuMemRetainAllocationHandle");
    struct mapping *m = mapping_in((uint64_t)address, (uint64_t)address + 1);
    REQUIRE(out && m);
    m->physical->references++;
    *out = m->physical->address;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    ENTER("cuMemGetAllocationPropertiesFromHandle");
    Allocation *a = handle_of(handle);
    REQUIRE(properties && a);
    *properties = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {a->device >= 0 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST, a->device >= 0 ? a->device : 0},
    };
    return CUDA_SUCCESS;
}

API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    (void)flags;
    ENTER("cuMemExportToShareableHandle");
    Allocation *a = handle_of(handle);
    REQUIRE(out && a && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && a->class == VMM);
    struct exported e = {EXPORTED, getpid(), memory_fd, a->device, a->offset, a->requested, a};
    int fd = memfd_create("simgpu-export", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &e, sizeof e) != sizeof e) return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle, int type)
{
    ENTER("cuMemImportFromShareableHandle");
    struct exported e;
    REQUIRE(out && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    REQUIRE(pread((int)(intptr_t)os_handle, &e, sizeof e, 0) == sizeof e && e.magic == EXPORTED);
    if (e.pid == getpid()) {
        e.handle->references++;
        *out = e.handle->address;
        return CUDA_SUCCESS;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", e.pid, e.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0);
    Allocation *a = table_new(IMPORTED, context_current() ? context_current()->device : -1, e.size, 0, "cuMemImportFromShareableHandle");
    a->ipc_fd = fd;
    a->offset = e.offset;
    a->references = 1;
    a->data = a; /* a handle, not memory at an address */
    table_add(a);
    *out = a->address;
    return CUDA_SUCCESS;
}

Allocation *vmm_at(uint64_t address, uint64_t *start, uint64_t *size)
{
    struct mapping *m = mapping_in(address, address + 1);
    if (!m) return NULL;
    *start = m->address;
    *size = m->size;
    return m->physical;
}
