/* dma-bufs. A network card gets memory by cuMemGetHandleForAddressRange. Here the descriptor is a memfd with the pieces of
 * physical memory that the range has at that time, and simgpu_dmabuf_write stands for the card.
 *
 * Sources: cuda.h 13.0:12556-12597 (address and size aligned to the host's page, cuMemAlloc or a reservation that is
 * mapped throughout, one device, a new handle whenever the physical memory changes); libfabric#12473 and Mooncake#2035
 * (any pages of an allocation); torchcomms#3078 (several mappings at once). */
#include "sim.h"
#include <sys/mman.h>

#define MAGIC 0x53494d444d414255ull
enum { DMA_BUF_FD = 1, MAPPING_TYPE_PCIE = 1, PAGE = 4096 };

struct head { uint64_t magic; int pid; };
struct piece { uint64_t id, place, size; int fd; }; /* id: of the table's entry; place: in the file, or an address */

static bool add(int out, struct piece piece) { return write(out, &piece, sizeof piece) == sizeof piece; }

/* The pieces of mapped memory, all on one device. */
static CUresult mapped_pieces(int out, uint64_t address, uint64_t end)
{
    int device = -1;
    while (address < end) {
        uint64_t start, size;
        Allocation *a = vmm_at(address, &start, &size);
        struct piece piece;
        REQUIRE(a && (device < 0 || a->device == device) && vmm_pin(address, &piece.fd, &piece.place));
        device = a->device;
        uint64_t stop = start + size < end ? start + size : end;
        piece.id = a->id;
        piece.size = stop - address;
        REQUIRE(add(out, piece));
        address = stop;
    }
    return CUDA_SUCCESS;
}

/* An allocation, and the rest of its last page, which belongs to it on a device. */
static CUresult linear_piece(int out, uint64_t address, uint64_t end)
{
    Allocation *a = table_find(address);
    REQUIRE(a && end <= (a->address + a->span + PAGE - 1) / PAGE * PAGE);
    if (a->class == HOST) return CUDA_ERROR_NOT_SUPPORTED; /* CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED is 0 */
    REQUIRE(a->class == LINEAR || a->class == PITCHED);
    REQUIRE(add(out, (struct piece){a->id, address, end - address, -1}));
    return CUDA_SUCCESS;
}

API CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size, int type, unsigned long long flags)
{
    ENTER_WORKING("cuMemGetHandleForAddressRange");
    REQUIRE(handle && type == DMA_BUF_FD && flags <= MAPPING_TYPE_PCIE);
    if (!config()->dmabuf) return CUDA_ERROR_NOT_SUPPORTED;
    REQUIRE(size && address % PAGE == 0 && size % PAGE == 0);
    uint64_t start, bytes;
    int fd = memory_file("simgpu-dmabuf");
    struct head head = {MAGIC, getpid()};
    if (fd < 0 || write(fd, &head, sizeof head) != sizeof head) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = vmm_at(address, &start, &bytes) ? mapped_pieces(fd, address, address + size) : linear_piece(fd, address, address + size);
    if (result) return close(fd), result;
    *(int *)handle = fd;
    return CUDA_SUCCESS;
}

/* ---- the network card */

struct search { uint64_t id; bool found; };
static void find(Allocation *a, void *data)
{
    struct search *search = data;
    search->found |= a->id == search->id;
}

static bool write_piece(const struct piece *piece, size_t offset, const void *bytes, size_t size)
{
    struct search search = {.id = piece->id};
    table_each(find, &search);
    if (!search.found) return false;
    if (piece->fd < 0) return memcpy((char *)piece->place + offset, bytes, size);
    return pwrite(piece->fd, bytes, size, (off_t)(piece->place + offset)) == (ssize_t)size;
}

API size_t simgpu_dmabuf_write(int fd, size_t offset, const void *bytes, size_t size)
{
    struct head head;
    struct piece piece;
    size_t written = 0;
    if (pread(fd, &head, sizeof head, 0) != sizeof head || head.magic != MAGIC || head.pid != getpid()) return 0;
    pthread_mutex_lock(&sim_mutex);
    for (off_t at = sizeof head; written < size && pread(fd, &piece, sizeof piece, at) == sizeof piece; at += sizeof piece) {
        if (offset >= piece.size) {
            offset -= piece.size;
            continue;
        }
        size_t part = piece.size - offset < size - written ? piece.size - offset : size - written;
        if (!write_piece(&piece, offset, (const char *)bytes + written, part)) break;
        written += part;
        offset = 0;
    }
    pthread_mutex_unlock(&sim_mutex);
    return written;
}
