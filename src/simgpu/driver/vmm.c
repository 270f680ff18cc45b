/* Virtual memory management. Physical memory is a range of one sparse memfd of this process. A reservation is address
 * space that maps a region of this file, without access (space.c). Mapping puts a handle's range at an address, and access is
 * mprotect. The memory of a handle is freed with its last reference and its last mapping.
 *
 * The kernel limits the number of mappings of a process (65530), and a job may hold more handles than that. So a handle
 * gets its range of the file only when it is mapped: the range that the address maps already, if it is free. A handle
 * that has its bytes elsewhere moves them, unless it is mapped or exported. A handle that cannot have the range at its
 * address gets a mapping of its own. Apart from that, only different access splits the mapping of a reservation. */
#include "sim.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

struct mapping { uint64_t address, size; Allocation *physical; unsigned char access[MAX_DEVICES]; };

/* The part of the file that one reservation maps. It outlives the reservation while a handle has its bytes there. */
struct Region {
    uint64_t address, offset, granules, mapped, users;
    struct mapping **mappings; /* by granule */
    bool *taken;               /* by granule: it holds the bytes of a handle */
    bool open;                 /* all of it is accessible, because there were too many mappings for the kernel */
};

static int memory_fd = -1;
static uint64_t memory_end, memory_size;
#define FILE_STEP (1ull << 40)

API int simgpu_descriptor(void) { return memory_fd; }

/* After a fault of the current context cuMemCreate succeeds (sticky_error in tests/assumptions, on an H100). Whether these
 * calls do too was not seen: SIMGPU_MAPPING_AFTER_FAULT. */
#define ENTER_MAPPING(function)                                                                                      \
    ENTER(function);                                                                                                  \
    CUresult broken_ = contexts_broken && !config()->mapping_after_fault ? context_broken() : CUDA_SUCCESS; \
    if (broken_) return broken_
#define SUPPORTED() do { if (!config()->vmm) return CUDA_ERROR_NOT_SUPPORTED; } while (0)

int vmm_file(void) { return memory_fd; }

/* A limit on the size of files (RLIMIT_FSIZE) does not concern the memory of a device. Another thread may lower it
 * again meanwhile. Then this function tries once more, and SIGXFSZ, which would end the process, is blocked. */
bool resize_file(int fd, uint64_t size)
{
    sigset_t too_long, mask;
    sigemptyset(&too_long), sigaddset(&too_long, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &too_long, &mask);
    int result, tries = 0;
    do {
        struct rlimit before, none;
        bool limited = !getrlimit(RLIMIT_FSIZE, &before) && before.rlim_cur != before.rlim_max;
        if (limited) none = (struct rlimit){before.rlim_max, before.rlim_max}, setrlimit(RLIMIT_FSIZE, &none);
        result = ftruncate(fd, (off_t)size);
        if (limited) setrlimit(RLIMIT_FSIZE, &before);
    } while (result && errno == EFBIG && ++tries < 100);
    if (tries) sigtimedwait(&too_long, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return result == 0;
}

uint64_t vmm_take_file(uint64_t size)
{
    if (memory_fd < 0) memory_fd = memory_file("simgpu");
    uint64_t offset = memory_end, end = offset + size;
    if (end > memory_size) {
        uint64_t wanted = (end + FILE_STEP - 1) / FILE_STEP * FILE_STEP;
        if (!resize_file(memory_fd, wanted)) {
            /* the process may have a limit on the size of files */
            wanted = end;
            if (!resize_file(memory_fd, wanted)) return ~0ull;
        }
        memory_size = wanted;
    }
    memory_end = end;
    return offset;
}

static void leave(struct Region *region)
{
    if (--region->users) return;
    if (region->open) mprotect((void *)region->address, region->granules * config()->granularity, PROT_NONE);
    space_give(region->address, region->granules * config()->granularity, region->offset);
    free(region->mappings);
    free(region->taken);
    free(region);
}

static bool copy_bytes(uint64_t to, uint64_t from, uint64_t size)
{
    char buffer[65536];
    off_t end = (off_t)(from + size), at = lseek(memory_fd, (off_t)from, SEEK_DATA);
    while (at >= 0 && at < end) {
        size_t bytes = (size_t)(end - at) < sizeof buffer ? (size_t)(end - at) : sizeof buffer;
        if (pread(memory_fd, buffer, bytes, at) != (ssize_t)bytes) return false;
        if (pwrite(memory_fd, buffer, bytes, (off_t)to + (at - (off_t)from)) != (ssize_t)bytes) return false;
        at = lseek(memory_fd, at + (off_t)bytes, SEEK_DATA);
    }
    return true;
}

/* Releases a handle's range of the file, which reads as zeros afterwards. */
static void displace(Allocation *a)
{
    if (lseek(memory_fd, (off_t)a->offset, SEEK_DATA) < (off_t)(a->offset + a->requested))
        fallocate(memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)a->offset, (off_t)a->requested);
    if (a->region) {
        uint64_t first = (a->offset - a->region->offset) / config()->granularity;
        memset(a->region->taken + first, false, a->requested / config()->granularity);
        leave(a->region);
    }
    a->region = NULL;
    a->placed = false;
}

/* SIMGPU_FRESH */
static void fill_file(uint64_t offset, uint64_t size)
{
    char buffer[65536];
    memset(buffer, config()->fresh, sizeof buffer);
    for (uint64_t done = 0; done < fresh_bytes(size); done += sizeof buffer)
        if (pwrite(memory_fd, buffer, fresh_bytes(size) - done < sizeof buffer ? fresh_bytes(size) - done : sizeof buffer, (off_t)(offset + done)) < 0) return;
}

/* Gives a handle its range of the file: from granule `first` of the region on, if that is free. */
static bool place(Allocation *a, struct Region *region, uint64_t first)
{
    bool fixed = a->placed && (a->mappings || a->exported);
    uint64_t count = a->requested / config()->granularity;
    bool fresh = !a->placed;
    bool fits = region && !fixed && first + count <= region->granules;
    for (uint64_t i = first; fits && i < first + count; i++) fits = !region->taken[i];
    if (a->placed) {
        if (!fits || !copy_bytes(region->offset + first * config()->granularity, a->offset, a->requested)) return true;
        displace(a);
    }
    if (fits) {
        memset(region->taken + first, true, count);
        region->users++;
        a->region = region;
        a->offset = region->offset + first * config()->granularity;
    } else if ((a->offset = vmm_take_file(a->requested)) == ~0ull)
        return false;
    if (fresh && config()->fresh >= 0) fill_file(a->offset, a->requested);
    return a->placed = true;
}

/* cuda.h 13.0:12841, cuMemRelease: memory is freed "when all the references including its shareable counterparts" are
 * gone, so a descriptor that was exported holds it, in whatever process. The driver is in the kernel and sees the last
 * one close. Here the memory goes at the next call that asks for memory, or how much there is. */
static bool had_orphans;
static bool is_orphan(const Allocation *a) { return a->class == VMM && !a->references && !a->mappings; }

static bool is_over(const Allocation *a, const void *unused) { (void)unused; return is_orphan(a) && !vmm_is_shared(a); }
static void end_over(Allocation *a, void *unused) { if (is_over(a, unused) && a->placed) displace(a); }
void vmm_sweep(void)
{
    if (!had_orphans) return;
    table_each(end_over, NULL);
    table_remove_where(is_over, NULL);
}

void vmm_unused(Allocation *a)
{
    if (a->references || a->mappings) return;
    if (a->class == VMM && vmm_is_shared(a)) return (void)(had_orphans = true);
    if (a->class == VMM && a->placed) displace(a);
    table_remove(a);
}

Allocation *vmm_handle(CUmemGenericAllocationHandle handle)
{
    Allocation *a = table_at(handle);
    return a && !is_orphan(a) && (a->class == VMM || (a->class == IMPORTED && a->data)) ? a : NULL;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    (void)option;
    ENTER_WORKING("cuMemGetAllocationGranularity");
    SUPPORTED();
    REQUIRE(granularity && properties);
    *granularity = config()->granularity;
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    PRICED;
    (void)flags;
    ENTER_MAPPING("cuMemAddressReserve");
    SUPPORTED();
    uint64_t granularity = config()->granularity;
    REQUIRE(out && size && size % granularity == 0);
    if (alignment < granularity) alignment = granularity;
    if (size > LARGEST_RANGE || alignment > LARGEST_RANGE) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t start, offset;
    if (!space_take(hint, size, alignment, &start, &offset)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct Region *region = calloc(1, sizeof *region);
    *region = (struct Region){.address = start, .offset = offset, .granules = size / granularity, .users = 1};
    region->mappings = calloc(region->granules, sizeof *region->mappings);
    region->taken = calloc(region->granules, sizeof *region->taken);
    if (!region->mappings || !region->taken) return leave(region), CUDA_ERROR_OUT_OF_MEMORY;
    Allocation *a = table_new(ADDRESS_RANGE, context_current() ? context_current()->device : -1, size, size, "cuMemAddressReserve");
    a->address = start;
    a->span = size;
    a->region = region;
    table_add(a);
    *out = start;
    price += price_of(RESERVE, size);
    return CUDA_SUCCESS;
}

static struct mapping *mapping_at(const Allocation *range, uint64_t address)
{
    if (!range || address - range->address >= range->span) return NULL;
    return range->region->mappings[(address - range->address) / config()->granularity];
}

static bool has_access(const struct mapping *m, int device, unsigned char wanted)
{
    if (device != ANY_DEVICE) return m->access[device] & wanted;
    for (size_t i = 0; i < sizeof m->access / sizeof *m->access; i++)
        if (m->access[i] & wanted) return true;
    return false;
}

bool vmm_accessible(int device, uint64_t address, uint64_t size, bool write)
{
    Allocation *range = size ? table_find_range(address) : NULL;
    for (uint64_t at = address; range && at < address + size && at < range->address + range->span;) {
        struct mapping *m = mapping_at(range, at);
        if (!m || !has_access(m, device, write ? 2 : 1)) return false;
        at = m->address + m->size;
    }
    return true;
}

static struct mapping *find_mapping(uint64_t address) { return mapping_at(table_find_range(address), address); }

/* Maps the region's own range at [address, address + size) again, without access. */
static bool cover(const Allocation *range, uint64_t address, uint64_t size)
{
    off_t offset = (off_t)(range->region->offset + (address - range->address));
    int protection = range->region->open ? PROT_READ | PROT_WRITE : PROT_NONE;
    return mmap((void *)address, size, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, memory_fd, offset) != MAP_FAILED;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    PRICED;
    ENTER_MAPPING("cuMemAddressFree");
    Allocation *range = table_find_range(address);
    REQUIRE(range && range->address == address && range->span == size && !range->region->mapped);
    leave(range->region);
    table_remove(range);
    price += price_of(UNRESERVE, size);
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties, unsigned long long flags)
{
    PRICED;
    ENTER("cuMemCreate");
    SUPPORTED();
    REQUIRE(out && properties && size && size % config()->granularity == 0);
    REQUIRE(!flags); /* cuda.h 13.0:12819, "flags for future use, must be zero now" */
    int device = location_device(&properties->location);
    if (device >= 0 && !device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct extent *extents = NULL;
    if (size > LARGEST_RANGE) return CUDA_ERROR_OUT_OF_MEMORY;
    if (device >= 0 && !device_take(device, size, &extents)) return CUDA_ERROR_OUT_OF_MEMORY;
    Allocation *a = table_new(VMM, device, size, size, "cuMemCreate");
    a->taken = device >= 0 ? size : 0;
    a->extents = extents;
    a->references = 1;
    a->reachable = properties->allocFlags.gpuDirectRDMACapable;
    a->usage = properties->allocFlags.usage;
    table_add(a);
    *out = a->address;
    price += price_of(CREATE, size);
    return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    PRICED;
    ENTER_MAPPING("cuMemRelease");
    Allocation *a = vmm_handle(handle);
    REQUIRE(a && a->references);
    a->references--;
    price += price_of(RELEASE, a->requested);
    vmm_unused(a);
    return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    PRICED;
    (void)flags;
    ENTER_MAPPING("cuMemMap");
    Allocation *a = vmm_handle(handle), *range = table_find_range(address);
    uint64_t granularity = config()->granularity;
    REQUIRE(a && range && size && size % granularity == 0 && address % granularity == 0 && offset == 0 && size <= a->requested);
    REQUIRE(address + size <= range->address + range->span && (config()->aliases || !a->mappings));
    struct Region *region = range->region;
    uint64_t first = (address - range->address) / granularity, count = size / granularity;
    for (uint64_t i = first; i < first + count; i++) REQUIRE(!region->mappings[i]);
    multicast_wait(a);
    bool foreign = a->class == IMPORTED;
    if (!foreign && !place(a, region, first)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (foreign || a->region != region || a->offset != region->offset + first * granularity) {
        int fd = foreign ? a->ipc_fd : memory_fd;
        int protection = region->open ? PROT_READ | PROT_WRITE : PROT_NONE;
        void *map = mmap((void *)address, size, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)a->offset);
        if (map == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct mapping *m = malloc(sizeof *m);
    *m = (struct mapping){.address = address, .size = size, .physical = a};
    for (uint64_t i = first; i < first + count; i++) region->mappings[i] = m;
    region->mapped += count;
    a->mappings++;
    price += price_of(MAP, size);
    return CUDA_SUCCESS;
}

/* Holes between mappings are passed over, as on an H100, unless SIMGPU_HOLES=0. It was not asked about holes at the ends. */
static bool covers_mappings(const Allocation *range, uint64_t address, uint64_t size)
{
    uint64_t granularity = config()->granularity, end = address + size;
    if (!mapping_at(range, address) || end > range->address + range->span) return false;
    for (uint64_t at = address; at < end && !config()->holes; at += granularity)
        if (!mapping_at(range, at)) return false;
    return mapping_at(range, range->address + (end - 1 - range->address) / granularity * granularity);
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    PRICED;
    ENTER_MAPPING("cuMemUnmap");
    uint64_t granularity = config()->granularity, end = address + size;
    struct mapping *start = config()->unmap_waits ? find_mapping(address) : NULL;
    if (start && start->physical->device >= 0) work_wait_users(primary_of(start->physical->device));
    Allocation *range = table_find_range(address);
    REQUIRE(size && covers_mappings(range, address, size));
    /* Only whole mappings can be unmapped. */
    for (uint64_t at = address; at < end;) {
        struct mapping *m = mapping_at(range, at);
        REQUIRE(!m || (m->address == at && m->address + m->size <= end));
        at += m ? m->size : granularity;
    }
    struct Region *region = range->region;
    work_unmapped(address, size);
    for (uint64_t at = address; at < end;) {
        struct mapping *m = mapping_at(range, at);
        if (!m) {
            at += granularity;
            continue;
        }
        memset(&region->mappings[(at - range->address) / granularity], 0, m->size / granularity * sizeof m);
        region->mapped -= m->size / granularity;
        at += m->size;
        m->physical->mappings--;
        price += price_of(UNMAP, m->size);
        vmm_unused(m->physical);
        free(m);
    }
    cover(range, address, size);
    return CUDA_SUCCESS;
}

static bool is_of(const Allocation *a, const void *device) { return a->class == VMM && a->device == *(const int *)device; }

static void clear(Allocation *range, void *device)
{
    if (range->class != ADDRESS_RANGE) return;
    struct Region *region = range->region;
    uint64_t granularity = config()->granularity;
    for (uint64_t i = 0; i < region->granules; i++) {
        struct mapping *m = region->mappings[i];
        if (!m || !is_of(m->physical, device)) continue;
        uint64_t address = m->address, size = m->size;
        memset(&region->mappings[i], 0, size / granularity * sizeof m);
        region->mapped -= size / granularity;
        m->physical->mappings--;
        free(m);
        cover(range, address, size);
    }
}

/* Whether a handle of the device, which is unmapped, goes. */
static bool goes(const Allocation *a, const void *device) { return is_of(a, device) && (config()->reset_frees_vmm || !a->references); }

static void take_bytes(Allocation *a, void *device)
{
    if (goes(a, device) && a->placed) displace(a);
}

void vmm_reset(int device)
{
    table_each(clear, &device);
    table_each(take_bytes, &device);
    table_remove_where(goes, &device);
}

/* Valgrind takes memory that became accessible by mprotect for inaccessible. */
static bool map_again(const struct mapping *m, int protection)
{
    int fd = m->physical->class == IMPORTED ? m->physical->ipc_fd : memory_fd;
    return mmap((void *)m->address, m->size, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)m->physical->offset) != MAP_FAILED;
}

/* Sets the protection of what is mapped in [at, end). A hole stays inaccessible. */
static bool protect(const Allocation *range, uint64_t at, uint64_t end, int protection)
{
    while (at < end) {
        uint64_t start = at;
        struct mapping *m;
        for (; at < end && (m = mapping_at(range, at)); at = m->address + m->size)
            if (address_space_is_scarce() && !map_again(m, protection)) return false;
        if (at > end) at = end;
        if (at > start && !address_space_is_scarce() && mprotect((void *)start, at - start, protection)) return false;
        if (at < end) at += config()->granularity;
    }
    return true;
}

/* Whether this is memory of another device than this one, in this process or in another. */
static bool is_elsewhere(const Allocation *a, int device)
{
    int home = a->class == IMPORTED ? a->home : a->device < 0 ? -1 : physical_of(a->device);
    return home >= 0 && (!device_valid(device) || physical_of(device) != home);
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    PRICED;
    ENTER_MAPPING("cuMemSetAccess");
    struct mapping *start = config()->mapping_waits ? find_mapping(address) : NULL;
    if (start && start->physical->device >= 0) work_wait_users(primary_of(start->physical->device));
    Allocation *range = table_find_range(address);
    REQUIRE(access && count && size && covers_mappings(range, address, size));
    int protection = access->flags == 3 ? PROT_READ | PROT_WRITE : access->flags == 1 ? PROT_READ : PROT_NONE;
    struct Region *region = range->region;
    for (uint64_t at = address; at < address + size;) {
        struct mapping *m = mapping_at(range, at);
        if (!m) {
            at += config()->granularity;
            continue;
        }
        price += price_of(SET_ACCESS, m->size);
        for (size_t i = 0; i < count && !config()->peers; i++)
            if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && is_elsewhere(m->physical, access[i].location.id))
                return CUDA_ERROR_INVALID_DEVICE;
        for (size_t i = 0; i < count; i++)
            if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && device_valid(access[i].location.id))
                m->access[access[i].location.id] = (unsigned char)access[i].flags;
        at = m->address + m->size;
    }
    if (region->open) return CUDA_SUCCESS;
    if (protect(range, address, address + size, protection)) return CUDA_SUCCESS;
    if (address_space_is_scarce()) return CUDA_ERROR_OUT_OF_MEMORY;
    if (errno != ENOMEM) return CUDA_ERROR_INVALID_VALUE;
    /* The kernel has too many mappings to set access for each. The whole region becomes accessible, so a stray access
     * does not fault. */
    region->open = mprotect((void *)range->address, range->span, PROT_READ | PROT_WRITE) == 0;
    return region->open ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    ENTER_WORKING("cuMemRetainAllocationHandle");
    struct mapping *m = find_mapping((uint64_t)address);
    REQUIRE(out && m);
    m->physical->references++;
    *out = m->physical->address;
    return CUDA_SUCCESS;
}

Allocation *vmm_at(uint64_t address, uint64_t *start, uint64_t *size)
{
    struct mapping *m = find_mapping(address);
    if (!m) return NULL;
    *start = m->address;
    *size = m->size;
    return m->physical;
}

bool vmm_export(Allocation *a) { return place(a, NULL, 0) && (a->exported = true); }

bool vmm_pin(uint64_t address, int *fd, uint64_t *offset)
{
    struct mapping *m = find_mapping(address);
    if (!m) return false;
    bool foreign = m->physical->class == IMPORTED;
    if (!foreign) m->physical->exported = true;
    *fd = foreign ? m->physical->ipc_fd : memory_fd;
    *offset = m->physical->offset + (address - m->address);
    return true;
}
