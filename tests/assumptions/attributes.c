/* What the driver says of memory. Sources: cuda.h 13.0:14163-14357 (cuPointerGetAttribute), DALI's test of mapped
 * ranges (DALI#3064), and what UCX, libfabric, NCCL and Mooncake found when they registered memory. */
#include "probe.h"

enum {
    P2P_TOKENS = 5, SYNC_MEMOPS = 6, BUFFER_ID = 7, LEGACY_IPC = 10, RANGE_START = 11, RANGE_SIZE = 12, MAPPED = 13, ACCESS_FLAGS = 16, MEMPOOL = 17,
    MAPPING_SIZE = 18, MAPPING_BASE = 19,
};

/* The answer of an attribute, whatever its width; `failed_with` tells why there is none. */
static uint64_t attribute(int number, CUdeviceptr address, CUresult *failed_with)
{
    uint64_t value = 0;
    *failed_with = cu(cuPointerGetAttribute)(&value, number, address);
    return value;
}

static void claim_attribute(const char *name, int number, CUdeviceptr address, uint64_t wanted)
{
    CUresult result;
    uint64_t value = attribute(number, address, &result);
    if (result) claim(false, "%s answered %d", name, result);
    else if (value == wanted) figure("%s as assumed", name);
    else claim(false, "%s %#llx, not %#llx", name, (unsigned long long)value, (unsigned long long)wanted);
}

PROBE(alignment_of_alloc, TELLS, "cuMemAlloc aligns 512 B to 256 B, from 64 KiB on to 512 B, from 2 MiB on to 2 MiB",
      "CUDA programming guide, Device Memory Accesses (256 B); 2 MiB is the size of a page")
{
    static const struct { size_t size, least; const char *text; } sizes[] = {
        {512, 256, "512 B"}, {64 << 10, 512, "64 KiB"}, {MIB, 512, "1 MiB"}, {2 * MIB, 2 * MIB, "2 MiB"}, {1 << 30, 2 * MIB, "1 GiB"},
    };
    begin();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CUdeviceptr bits = 0;
        for (int turn = 0; turn < 3; turn++) bits |= alloc(sizes[i].size);
        size_t aligned = bits & -bits;
        claim(aligned >= sizes[i].least, "%s at %zu%s", sizes[i].text, aligned >= 1024 ? aligned >> 10 : aligned, aligned >= 1024 ? " KiB" : " B");
        alloc(512); /* what comes next does not begin where the last one happened to end */
    }
}

PROBE(attributes_of_alloc, TELLS, "an allocation is its own range, with an ID of its own, fit for legacy IPC, of no pool",
      "cuda.h 13.0:14252-14307")
{
    enum { SIZE = 4 * MIB };
    begin();
    CUdeviceptr one = alloc(SIZE), other = alloc(SIZE), inside = one + 4096;
    CUresult result;
    claim_attribute("RANGE_START_ADDR", RANGE_START, inside, one);
    claim_attribute("RANGE_SIZE", RANGE_SIZE, inside, SIZE);
    claim_attribute("MAPPED", MAPPED, inside, 1);
    claim_attribute("IS_LEGACY_CUDA_IPC_CAPABLE", LEGACY_IPC, inside, 1);
    claim_attribute("MEMPOOL_HANDLE", MEMPOOL, inside, 0);
    uint64_t id = attribute(BUFFER_ID, one, &result);
    claim(id == attribute(BUFFER_ID, inside, &result) && id != attribute(BUFFER_ID, other, &result), "BUFFER_ID of each allocation");
    CHECK(cu(cuMemFree_v2)(one));
    one = alloc(SIZE);
    claim(id != attribute(BUFFER_ID, one, &result), "BUFFER_ID not used again");
}

PROBE(mapping_attributes_of_alloc, TELLS,
      "MAPPING_BASE_ADDR and MAPPING_SIZE of an allocation of 4 MiB are the allocation",
      "cuda.h 13.0:918-919")
{
    enum { SIZE = 4 * MIB, SMALL = 4096 };
    begin();
    CUdeviceptr large = alloc(SIZE), small = alloc(SMALL);
    CUresult result;
    claim_attribute("MAPPING_BASE_ADDR", MAPPING_BASE, large + 4096, large);
    claim_attribute("MAPPING_SIZE", MAPPING_SIZE, large + 4096, SIZE);
    figure("MAPPING_SIZE of 4 KiB: %llu", (unsigned long long)attribute(MAPPING_SIZE, small, &result));
}

PROBE(attributes_of_vmm, TELLS,
      "mapped memory: RANGE_* tell the reservation, MAPPING_* the mapping, BUFFER_ID the handle; no legacy IPC, no pool",
      "cuda.h 13.0:14280-14297, 917-919; DALI#3064; ucx#11283")
{
    begin();
    size_t size = granule();
    CUdeviceptr start = reserve(8 * size), one = start + 2 * size, other = start + 3 * size, inside = other + 4096;
    map(one, size, create(size, 0)), map(other, size, create(size, 0));
    grant(one, 2 * size, 0);
    CUresult result;
    claim_attribute("RANGE_START_ADDR", RANGE_START, inside, start);
    claim_attribute("RANGE_SIZE", RANGE_SIZE, inside, 8 * size);
    claim_attribute("MAPPING_BASE_ADDR", MAPPING_BASE, inside, other);
    claim_attribute("MAPPING_SIZE", MAPPING_SIZE, inside, size);
    claim_attribute("MAPPED", MAPPED, inside, 1);
    uint64_t range_start = 0, is_mapped = 1;
    result = cu(cuPointerGetAttributes)(2, (int[]){RANGE_START, MAPPED}, (void *[]){&range_start, &is_mapped}, start);
    claim(!result && range_start == start && !(is_mapped & 1), "beside the mappings: %d, %s start, MAPPED %d", result,
          range_start == start ? "the same" : "another", (int)(is_mapped & 1));
    claim_attribute("IS_LEGACY_CUDA_IPC_CAPABLE", LEGACY_IPC, inside, 0);
    claim_attribute("MEMPOOL_HANDLE", MEMPOOL, inside, 0);
    uint64_t id = attribute(BUFFER_ID, inside, &result);
    claim(!result && id != attribute(BUFFER_ID, one, &result), "BUFFER_ID of each handle");
}

PROBE(address_range_of_vmm, TELLS, "cuMemGetAddressRange tells the mapping of one handle, not the reservation",
      "ucx#11461, libfabric#12473, torchcomms#3078; nccl#2332 saw 500")
{
    begin();
    size_t size = granule(), found = 0;
    CUdeviceptr start = mapped(3, 0), base = 0;
    CUresult result = cu(cuMemGetAddressRange_v2)(&base, &found, start + size + 4096);
    claim(!result && base == start + size && found == size, "answered %d, %zu KiB at mapping %+lld", result, found >> 10,
          result ? 0 : ((long long)base - (long long)start) / (long long)size);
}

static CUresult set_sync_memops(CUdeviceptr address)
{
    unsigned on = 1;
    return cu(cuPointerSetAttribute)(&on, SYNC_MEMOPS, address);
}

PROBE(sync_memops_of_alloc, TELLS,
      "SYNC_MEMOPS of an address in an allocation is set for that allocation alone",
      "cuda.h 13.0:14813; ucx#4188")
{
    enum { SIZE = 4 * MIB };
    begin();
    CUdeviceptr one = alloc(SIZE), other = alloc(SIZE);
    CUresult result = set_sync_memops(one + SIZE / 2), ignored;
    claim(!result, "set: %d", result);
    claim(attribute(SYNC_MEMOPS, one, &ignored) == 1, "at its start: %d", (int)attribute(SYNC_MEMOPS, one, &ignored));
    claim(attribute(SYNC_MEMOPS, other, &ignored) == 0, "in another one: %d", (int)attribute(SYNC_MEMOPS, other, &ignored));
}

PROBE(sync_memops_of_vmm, TELLS, "SYNC_MEMOPS of mapped memory is refused with 801", "ucx#9895 (driver 535), lupine#646")
{
    begin();
    size_t size = granule();
    CUdeviceptr start = mapped(3, 0);
    CUresult result = set_sync_memops(start + size), ignored;
    claim(result == CUDA_ERROR_NOT_SUPPORTED, "set: %d", result);
    if (result) return;
    figure("in that mapping %d", (int)attribute(SYNC_MEMOPS, start + size, &ignored));
    figure("in the mapping before %d", (int)attribute(SYNC_MEMOPS, start, &ignored));
}

PROBE(tokens_of_vmm, TELLS, "P2P_TOKENS are given for mapped memory too, and set SYNC_MEMOPS of cuMemAlloc's memory",
      "cuda.h 13.0:14235-14242; measured: H100, driver 580.159.04")
{
    begin();
    uint64_t tokens[2] = {0};
    CUdeviceptr block = alloc(4 * MIB);
    CUresult of_alloc = cu(cuPointerGetAttribute)(tokens, P2P_TOKENS, block), ignored;
    int sync = (int)attribute(SYNC_MEMOPS, block, &ignored);
    claim(of_alloc || sync == 1, "of cuMemAlloc %d, SYNC_MEMOPS then %d", of_alloc, sync);
    CUresult of_mapping = cu(cuPointerGetAttribute)(tokens, P2P_TOKENS, mapped(3, 0));
    claim(!of_mapping, "of mapped memory %d", of_mapping);
}

PROBE(access_flags_of_alloc, TELLS, "ACCESS_FLAGS are 3 on the own device, and 0 on another one without peer access",
      "cuda.h 13.0:916, 3691")
{
    begin_on(2);
    CUdeviceptr block = alloc(4 * MIB);
    claim_attribute("ACCESS_FLAGS here", ACCESS_FLAGS, block, 3);
    current(1);
    claim_attribute("ACCESS_FLAGS there", ACCESS_FLAGS, block, 0);
}

PROBE(ipc_of_vmm_refused, TELLS,
      "cuIpcGetMemHandle refuses mapped memory",
      "pytorch#130890; cuda.h 13.0:9314, \"created with cuMemAlloc\"")
{
    begin();
    CUipcMemHandle handle;
    CUresult result = cu(cuIpcGetMemHandle)(&handle, mapped(1, 0));
    claim(result != CUDA_SUCCESS, "answered %d", result);
}

static CUresult export_range(CUdeviceptr address, size_t size)
{
    enum { DMA_BUF_FD = 1 };
    int fd = -1;
    CUresult result = cu(cuMemGetHandleForAddressRange)(&fd, address, size, DMA_BUF_FD, 0);
    if (!result) close(fd);
    return result;
}

static void need_dmabuf(void)
{
    enum { DMA_BUF_SUPPORTED = 124 };
    begin();
    driver_function("cuMemGetHandleForAddressRange");
    if (!attribute_of_device(DMA_BUF_SUPPORTED, 0)) not_asked("DMA_BUF_SUPPORTED is 0");
}

PROBE(dmabuf_of_alloc, TELLS, "any pages of an allocation can be exported as a dma-buf; other addresses and sizes are refused",
      "cuda.h 13.0:12570; libfabric#12473; Mooncake#2035")
{
    need_dmabuf();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CUdeviceptr start = alloc(4 * MIB);
    CUresult whole = export_range(start, 4 * MIB), part = export_range(start + page, page);
    CUresult address = export_range(start + 512, page), size = export_range(start, page + 512);
    claim(!whole, "whole %d", whole);
    claim(!part, "a page %d", part);
    claim(address != CUDA_SUCCESS, "other address %d", address);
    claim(size != CUDA_SUCCESS, "other size %d", size);
}

PROBE(dmabuf_of_vmm, TELLS, "a range of several mappings can be exported as one dma-buf, and one with a hole cannot",
      "cuda.h 13.0:12560, 12573; torchcomms#3078")
{
    need_dmabuf();
    size_t size = granule();
    CUdeviceptr start = mapped(3, 0);
    CUresult whole = export_range(start, 3 * size);
    claim(!whole, "three mappings %d", whole);
    CHECK(cu(cuMemUnmap)(start + size, size));
    CUresult holed = export_range(start, 3 * size);
    claim(holed != CUDA_SUCCESS, "with a hole %d", holed);
}

/* ---- behind the end of an allocation */

static void tell_behind(CUdeviceptr start, size_t offset, const char *name)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    unsigned long long id = 0;
    int asked = cu(cuMemGetAddressRange_v2)(&base, &size, start + offset);
    int has = cu(cuPointerGetAttribute)(&id, BUFFER_ID, start + offset);
    int written = cu(cuMemsetD8Async)(start + offset, 1, 8, NULL);
    int ended = cu(cuCtxSynchronize)();
    figure("%s: range %d%s, attribute %d, memset %d, its end %d", name, asked, !asked && base == start ? " of the block" : "",
           has, written, ended);
}

PROBE(behind_the_end_of_alloc, TELLS, "what calls answer for addresses behind the end of an allocation, in its rounding",
      "cuda.h 13.0:8713, \"the allocation that contains the input pointer\"")
{
    begin();
    CUdeviceptr small = alloc(3000), large = alloc(2 * MIB + 1);
    tell_behind(small, 3000, "3,000 B at 3,000");
    tell_behind(small, 3064, "3,000 B at 3,064");
    tell_behind(large, 2 * MIB + 1, "2 MiB + 1 B at its end");
    tell_behind(large, 2 * MIB + 512, "2 MiB + 1 B 511 B later");
    tell_behind(large, 3 * MIB, "2 MiB + 1 B 1 MiB later");
}

PROBE(access_of_alloc, TELLS, "what cuMemGetAccess answers for cuMemAlloc's memory", "cuda.h 13.0:13143 names no kind of memory")
{
    begin();
    CUmemAccessDesc own = access_of(0);
    unsigned long long flags = 0;
    int answer = cu(cuMemGetAccess)(&flags, &own.location, alloc(2 * MIB));
    figure("answered %d, flags %llu", answer, flags);
}
