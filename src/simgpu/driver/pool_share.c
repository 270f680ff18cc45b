/* Who may use the memory of a pool: other devices of this process, and other processes. Sources: cuda.h 13.0:13470-13499
 * and 13690-13796; CUDA programming guide, Stream Ordered Memory Allocator, "Device Accessibility for Multi-GPU Support"
 * (the access follows the pool alone, not the peers of contexts) and "IPC Memory Pools". */
#include "sim.h"
#include <fcntl.h>
#include <sys/mman.h>

/* ---- devices */

enum { NO_ACCESS = 0, READ_ONLY = 1, READ_WRITE = 3 };

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    ENTER("cuMemPoolSetAccess");
    REQUIRE(pool && pool_valid(pool) && (access || !count));
    for (size_t i = 0; i < count; i++) {
        int device = access[i].location.id;
        REQUIRE(access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE);
        REQUIRE(access[i].flags == NO_ACCESS || access[i].flags == READ_WRITE);
        if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
        if (access[i].flags && pool->device >= 0 && device != pool->device && !config()->peers) return CUDA_ERROR_INVALID_DEVICE;
    }
    for (size_t i = 0; i < count; i++) pool->granted[access[i].location.id] = access[i].flags;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location)
{
    ENTER("cuMemPoolGetAccess");
    REQUIRE(flags && pool && pool_valid(pool) && location);
    bool device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (device && !device_valid(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    bool granted = device ? pool->granted[location->id] : pool->device < 0;
    *flags = granted ? READ_WRITE : NO_ACCESS;
    return CUDA_SUCCESS;
}

bool accessible(int device, uint64_t address, uint64_t size, bool write)
{
    Allocation *a = device != ANY_DEVICE && size ? table_find(address) : NULL;
    /* Every device reaches the host's memory, and what another process has given. */
    if (a && a->class == ASYNC && a->pool->device >= 0) return a->pool->granted[device];
    return vmm_accessible(device, address, size, write);
}

/* ---- processes. A descriptor names a pool, and the data of a pointer names a file with its bytes, as in ipc.c. */

#define POOL_MAGIC 0x53494d504f4f4c31ull
#define POINTER_MAGIC 0x53494d504f494e31ull
struct shared_pool { uint64_t magic; int pid, device; uint64_t id, reserved; };
struct shared_pointer { uint64_t magic, pool; int pid, fd; uint64_t offset, size; };

API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags)
{
    static uint64_t ids;
    ENTER("cuMemPoolExportToShareableHandle");
    REQUIRE(out && pool && pool_valid(pool) && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags);
    REQUIRE(pool->shareable); /* cuda.h 13.0:13699 */
    if (!pool->id) pool->id = ++ids;
    struct shared_pool shared = {POOL_MAGIC, getpid(), pool->device < 0 ? -1 : physical_of(pool->device), pool->id, pool->reserved};
    int fd = memory_file("pool");
    if (fd < 0 || write(fd, &shared, sizeof shared) != sizeof shared) return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

/* An imported pool shows what its owner had reserved then, and allocates nothing. */
API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags)
{
    ENTER("cuMemPoolImportFromShareableHandle");
    struct shared_pool shared;
    REQUIRE(out && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags);
    REQUIRE(pread((int)(intptr_t)handle, &shared, sizeof shared, 0) == sizeof shared && shared.magic == POOL_MAGIC);
    struct Pool *pool = pool_new(-1);
    pool->imported = true;
    pool->reserved = shared.reserved;
    pool->id = shared.id;
    pool->owner = shared.pid;
    for (int i = 0; i < config()->visible_count; i++) pool->granted[i] = physical_of(i) == shared.device;
    *out = pool;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolExportPointer(void *out, CUdeviceptr address)
{
    ENTER("cuMemPoolExportPointer");
    Allocation *a = table_at(address);
    REQUIRE(out && a && a->class == ASYNC && a->pool->id);
    uint64_t first;
    if (!ipc_share(a, &first)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct shared_pointer shared = {POINTER_MAGIC, a->pool->id, getpid(), a->ipc_fd, a->address - first, a->span};
    memset(out, 0, 64);
    memcpy(out, &shared, sizeof shared);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, void *data)
{
    ENTER_CONTEXT("cuMemPoolImportPointer", context);
    struct shared_pointer shared;
    REQUIRE(out && data && pool && pool_valid(pool) && pool->imported);
    memcpy(&shared, data, sizeof shared);
    REQUIRE(shared.magic == POINTER_MAGIC && shared.pool == pool->id && shared.pid == pool->owner);
    uint64_t address;
    if (!ipc_map(shared.pid, shared.fd, shared.offset, shared.size, &address)) return CUDA_ERROR_INVALID_VALUE;
    Allocation *a = table_new(IMPORTED, context->device, shared.size, 0, "cuMemPoolImportPointer");
    a->address = address;
    a->span = shared.size;
    a->pool = pool;
    table_add(a);
    *out = a->address;
    return CUDA_SUCCESS;
}

void pool_close(Allocation *a)
{
    ipc_unmap(a);
    table_remove(a);
}
