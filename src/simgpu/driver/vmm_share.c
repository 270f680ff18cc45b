/* Handles of virtual memory management as file descriptors, for other processes. */
#include "sim.h"
#include <fcntl.h>

/* The contents of an exported file descriptor, from which the importer finds the memory. */
struct exported { uint64_t magic; int pid, fd, device; uint64_t offset, size; Allocation *handle; };
#define EXPORTED 0x53494d4758504d31ull

API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    (void)flags;
    ENTER_WORKING("cuMemExportToShareableHandle");
    Allocation *a = vmm_handle(handle);
    REQUIRE(out && a && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && a->class == VMM);
    if (!vmm_export(a)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct exported e = {EXPORTED, getpid(), vmm_file(), a->device < 0 ? -1 : physical_of(a->device), a->offset, a->requested, a};
    int fd = memory_file("simgpu-export");
    if (fd < 0 || write(fd, &e, sizeof e) != sizeof e) return CUDA_ERROR_OUT_OF_MEMORY;
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
    a->offset = e.offset;
    a->home = e.device;
    a->references = 1;
    a->data = a; /* marks a handle, which has no memory at an address */
    table_add(a);
    *out = a->address;
    return CUDA_SUCCESS;
}
