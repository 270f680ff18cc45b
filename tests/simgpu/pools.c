/* Pools of stream-ordered memory: who may use their memory. Exits with 1 if an answer is wrong. The device has 1 GiB.
 *
 *   pools access      a device reaches the memory of another one's pool only if the pool grants it
 *   pools host        pools of the host; attributes of reuse; pools with a maximum
 *   pools destroyed   a destroyed pool keeps its memory until the last of its allocations is freed
 *   pools processes   a pool and its memory are shared with another process, in which they are known and not charged */
#include "two_processes.h"

CUresult cuMemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc *, size_t);
CUresult cuMemPoolGetAccess(int *, CUmemoryPool, CUmemLocation *);
CUresult cuMemPoolExportPointer(void *, CUdeviceptr);
CUresult cuMemPoolImportPointer(CUdeviceptr *, CUmemoryPool, void *);
CUresult cuDeviceSetMemPool(CUdevice, CUmemoryPool), cuDeviceGetMemPool(CUmemoryPool *, CUdevice);

enum { RW = 3, BY_DESCRIPTOR = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, PINNED = CU_MEM_ALLOCATION_TYPE_PINNED };
static const CUmemLocation first = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, second = {CU_MEM_LOCATION_TYPE_DEVICE, 1}, host = {CU_MEM_LOCATION_TYPE_HOST, 0};

static CUmemoryPool new_pool(CUmemLocation location, int handles, size_t most)
{
    CUmemoryPool pool;
    CUmemPoolProps properties = {.allocType = PINNED, .handleTypes = handles, .location = location, .maxSize = most};
    CHECK(cuMemPoolCreate(&pool, &properties));
    return pool;
}

static CUdeviceptr from(CUmemoryPool pool, size_t size)
{
    CUdeviceptr address;
    CHECK(cuMemAllocFromPoolAsync(&address, size, pool, NULL));
    CHECK(cuStreamSynchronize(NULL));
    return address;
}

static int access_of(CUmemoryPool pool, CUmemLocation location)
{
    int flags;
    CHECK(cuMemPoolGetAccess(&flags, pool, &location));
    return flags;
}

static void access_scene(void)
{
    CUmemoryPool pool = new_pool(first, 0, 0), of_second = new_pool(second, 0, 0);
    CUdeviceptr there, here = from(pool, MIB);
    CUmemAccessDesc grant = {second, RW};
    THAT(access_of(pool, first) == RW && access_of(pool, second) == 0 && access_of(pool, host) == 0);
    CHECK(cuMemPoolSetAccess(pool, &grant, 1));
    THAT(access_of(pool, second) == RW);
    CHECK(cuMemsetD8_v2(here, 7, MIB));
    CUcontext other = use_device(1);
    there = from(of_second, MIB);
    CHECK(cuMemcpyDtoD_v2(there, here, MIB));
    THAT(byte_at(there) == 7);
    grant.location.id = 2;
    EXPECT(cuMemPoolSetAccess(pool, &grant, 1), CUDA_ERROR_INVALID_DEVICE);
    grant = (CUmemAccessDesc){second, 0};
    CHECK(cuMemPoolSetAccess(pool, &grant, 1));
    CHECK(cuMemcpyPeerAsync(there, other, here, context, MIB, NULL)); /* by both devices */
    CHECK(cuStreamSynchronize(NULL));
    EXPECT(cuMemcpyDtoD_v2(there, here, MIB), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void host_scene(void)
{
    CUmemoryPool pool = new_pool(host, 0, 0), limited = new_pool(first, 0, 4 * MIB);
    CUdeviceptr address = from(pool, 2 * GIB); /* no memory of the device */
    CUmemPoolProps properties = {.allocType = PINNED, .handleTypes = BY_DESCRIPTOR, .location = host};
    CUmemoryPool refused;
    int on;
    strcpy((char *)address, "host");
    THAT(access_of(pool, host) == RW);
    EXPECT(cuMemPoolCreate(&refused, &properties), CUDA_ERROR_INVALID_VALUE);
    for (int attribute = 1; attribute <= 3; attribute++) {
        CHECK(cuMemPoolGetAttribute(pool, attribute, &on));
        THAT(on == 1);
        on = 0;
        CHECK(cuMemPoolSetAttribute(pool, attribute, &on));
        on = 1;
        CHECK(cuMemPoolGetAttribute(pool, attribute, &on));
        THAT(on == 0);
    }
    uint64_t high = 1;
    EXPECT(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFreeAsync(address, NULL));
    from(limited, 3 * MIB);
    EXPECT(cuMemAllocFromPoolAsync(&address, 2 * MIB, limited, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    from(limited, MIB);
    EXPECT(cuDeviceSetMemPool(0, pool), CUDA_ERROR_INVALID_VALUE); /* of another location */
}

struct message { size_t size; unsigned char data[64]; };

static void send_descriptor(int socket, int fd)
{
    char byte = 0, space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    THAT(sendmsg(socket, &message, 0) == 1);
}

static int receive_descriptor(int socket)
{
    int fd;
    char byte, space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    THAT(recvmsg(socket, &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void owns(int socket)
{
    begin();
    int fd;
    struct message message = {.size = 384 * (size_t)MIB};
    CUmemoryPool private = new_pool(first, 0, 0), pool = new_pool(first, BY_DESCRIPTOR, 0);
    EXPECT(cuMemPoolExportToShareableHandle(&fd, private, BY_DESCRIPTOR, 0), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr address = from(pool, message.size);
    CHECK(cuMemsetD8_v2(address, 1, message.size));
    EXPECT(cuMemPoolExportPointer(message.data, address), CUDA_ERROR_INVALID_VALUE); /* the pool is not shared yet */
    CHECK(cuMemPoolExportToShareableHandle(&fd, pool, BY_DESCRIPTOR, 0));
    CHECK(cuMemPoolExportPointer(message.data, address));
    send_descriptor(socket, fd);
    THAT(write(socket, &message, sizeof message) == sizeof message);
    wait_for(socket);
    THAT(byte_at(address + message.size - 1) == 9); /* what the other process wrote */
    CHECK(cuMemFreeAsync(address, NULL));
    CHECK(cuCtxSynchronize());
}

/* The owner has no limit, and the importer one of 256 MiB. */
static void imports(int socket)
{
    setenv("VRAMSHIM_MEMORY_LIMIT", "256MiB", 1);
    int fd = receive_descriptor(socket);
    struct message message;
    THAT(read(socket, &message, sizeof message) == sizeof message);
    begin();
    size_t before = free_memory();
    CUmemoryPool pool;
    CUdeviceptr address, own;
    CHECK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, BY_DESCRIPTOR, 0));
    THAT(access_of(pool, first) == RW && access_of(pool, second) == 0);
    EXPECT(cuMemAllocFromPoolAsync(&own, MIB, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuDeviceSetMemPool(0, pool), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemPoolImportPointer(&address, pool, message.data));
    *count_of(0, IMPORTED) += (long long)message.size;
    THAT(byte_at(address) == 1);
    CHECK(cuMemsetD8_v2(address + message.size - 1, 9, 1));
    THAT(free_memory() == before);
    checkpoint();
    CHECK(cuMemFree_v2(linear_memory(200 * (size_t)MIB))); /* within a limit of 256 MiB */
    CHECK(cuMemFree_v2(address));
    EXPECT(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemPoolImportPointer(&address, pool, message.data));
    CHECK(cuMemFreeAsync(address, NULL));
    CHECK(cuCtxSynchronize());
    *count_of(0, IMPORTED) -= (long long)message.size;
    CHECK(cuMemPoolDestroy(pool));
    checkpoint();
    tell(socket);
}

static void shared(void) { processes(owns, imports); }

/* cuda.h 13.0:13558 */
static void destroyed(void)
{
    size_t all = free_memory();
    CUmemoryPool pool = new_pool(first, 0, 0), current, own;
    CHECK(cuDeviceGetMemPool(&own, 0));
    CHECK(cuDeviceSetMemPool(0, pool));
    CUdeviceptr addresses[2];
    for (int i = 0; i < 2; i++) addresses[i] = from(pool, 100 * MIB);
    *count_of(0, ASYNC) += 200 * MIB;
    CHECK(cuMemsetD8_v2(addresses[1], 5, 100 * MIB));
    CHECK(cuMemPoolDestroy(pool));
    CHECK(cuDeviceGetMemPool(&current, 0));
    THAT(current == own);
    EXPECT(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
    checkpoint();
    THAT(free_memory() <= all - 200 * (size_t)MIB);
    CHECK(cuMemFreeAsync(addresses[0], NULL));
    CHECK(cuCtxSynchronize());
    *count_of(0, ASYNC) -= 100 * MIB;
    checkpoint();
    THAT(byte_at(addresses[1] + 100 * MIB - 1) == 5);
    /* Another pool may get the handle; what is freed is not its memory. */
    CUmemoryPool next = new_pool(first, 0, 0);
    CUdeviceptr of_next = from(next, 10 * MIB);
    *count_of(0, ASYNC) += 10 * MIB;
    CHECK(cuMemFree_v2(addresses[1]));
    *count_of(0, ASYNC) -= 100 * MIB;
    checkpoint();
    CHECK(cuMemFree_v2(of_next));
    CHECK(cuMemPoolDestroy(next));
    *count_of(0, ASYNC) -= 10 * MIB;
    checkpoint();
    THAT(free_memory() == all);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"access", access_scene}, {"host", host_scene}, {"processes", shared}, {"destroyed", destroyed},
    };
    if (argc == 2 && strcmp(argv[1], "processes")) begin();
    return PLAY(scenes, argc, argv);
}
