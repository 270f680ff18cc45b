/* Handles of virtual memory management as file descriptors, for other processes. */
#include "sim.h"
#include <errno.h>
#include <fcntl.h>

/* The contents of an exported file descriptor, from which the importer finds the memory. */
struct exported { uint64_t magic; int pid, fd, device; uint64_t offset, size; Allocation *handle; };
#define EXPORTED 0x53494d4758504d31ull

/* Opens the file of a descriptor once more, also in a process whose first thread has ended. */
static int open_again(int fd, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/thread-self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC);
}

/* A read lease is refused while somebody has the file open for writing (fcntl(2), F_SETLEASE), as each exported descriptor
 * has. The watch itself only reads. If the job closed it, it is not known, and the memory is taken for not shared. */
bool vmm_is_shared(const Allocation *a)
{
    if (a->watch < 0) return false;
    bool shared = fcntl(a->watch, F_SETLEASE, F_RDLCK) < 0 && errno == EAGAIN;
    if (!shared) fcntl(a->watch, F_SETLEASE, F_UNLCK);
    return shared;
}

API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    (void)flags;
    ENTER_WORKING("cuMemExportToShareableHandle");
    Allocation *a = vmm_handle(handle);
    REQUIRE(out && a && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && a->class == VMM);
    if (!vmm_export(a)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct exported e = {EXPORTED, getpid(), vmm_file(), a->device < 0 ? -1 : physical_of(a->device), a->offset, a->requested, a};
    /* The kernel counts no writer for the descriptor that made the file, so the watch and the exported ones are opened again. */
    int made = a->watch < 0 ? memory_file("simgpu-export") : -1;
    if (made >= 0) a->watch = open_again(made, O_RDONLY), close(made);
    int fd = open_again(a->watch, O_RDWR);
    if (fd < 0 || pwrite(fd, &e, sizeof e, 0) != sizeof e) return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle, int type)
{
    ENTER_WORKING("cuMemImportFromShareableHandle");
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
    a->hold = open_again((int)(intptr_t)os_handle, O_RDWR);
    a->offset = e.offset;
    a->home = e.device;
    a->references = 1;
    a->data = a; /* marks a handle, which has no memory at an address */
    table_add(a);
    *out = a->address;
    return CUDA_SUCCESS;
}
