/* Batches of prefetches and discards of managed memory (cuda.h 13.0:14560-14680), and of decompressions (12598-12704), which
 * write their lengths alone. */
#include "sim.h"

static CUresult check_ranges(const CUdeviceptr *addresses, const size_t *sizes, size_t count, CUstream stream, unsigned long long flags)
{
    REQUIRE(addresses && sizes && count && !flags && stream); /* 14592: "Must not be legacy NULL stream" */
    CHECK_STREAM(stream);
    for (size_t i = 0; i < count; i++) REQUIRE(memory_migrates(addresses[i], sizes[i]));
    return CUDA_SUCCESS;
}

static CUresult check_places(const CUmemLocation *places, const size_t *first, size_t number, size_t count)
{
    REQUIRE(places && first && number && number <= count && !first[0]);
    for (size_t i = 0; i < number; i++) {
        REQUIRE(first[i] < count && (!i || first[i] > first[i - 1]));
        CUresult wrong = memory_location(places[i]);
        if (wrong) return wrong;
    }
    return CUDA_SUCCESS;
}

#define PLACES CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *places, size_t *first, size_t number, unsigned long long flags, CUstream stream
#define PREFETCH(name)                                                                                               \
    API CUresult name(PLACES)                                                                                        \
    {                                                                                                                \
        ENTER_WORKING(#name);                                                                                        \
        CUresult wrong = check_ranges(addresses, sizes, count, stream, flags);                                       \
        return wrong ? wrong : check_places(places, first, number, count);                                           \
    }                                                                                                                \
    API CUresult name##_ptsz(PLACES) { return name(addresses, sizes, count, places, first, number, flags, of_thread(stream)); }
PREFETCH(cuMemPrefetchBatchAsync)
PREFETCH(cuMemDiscardAndPrefetchBatchAsync)

API CUresult cuMemDiscardBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t count, unsigned long long flags, CUstream stream)
{
    ENTER_WORKING("cuMemDiscardBatchAsync");
    return check_ranges(addresses, sizes, count, stream, flags);
}
API CUresult cuMemDiscardBatchAsync_ptsz(CUdeviceptr *addresses, size_t *sizes, size_t count, unsigned long long flags, CUstream stream) { return cuMemDiscardBatchAsync(addresses, sizes, count, flags, of_thread(stream)); }

/* cuda.h 13.0:12652-12663: memory of cuMemAlloc, and memory of cuMemCreate or of a pool with the usage flag. */
bool can_decompress(const Allocation *a)
{
    if (a->class == ASYNC) return a->pool->usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
    return a->class == LINEAR || (a->class == VMM && a->usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS);
}

static bool decompressible(const void *address)
{
    uint64_t start, size;
    Allocation *a = table_find((uint64_t)address);
    if (!a) a = vmm_at((uint64_t)address, &start, &size);
    return a && can_decompress(a);
}

struct decompression { size_t from_bytes, to_bytes; uint32_t *written; const void *from; void *to; int algorithm; unsigned char padding[20]; };
enum { DEFLATE = 1, SNAPPY = 2, LZ4 = 4 };
API CUresult cuMemBatchDecompressAsync(struct decompression *operations, size_t count, unsigned flags, size_t *error, CUstream stream)
{
    STREAM_CALL("cuMemBatchDecompressAsync");
    if (error) *error = SIZE_MAX;
    REQUIRE(operations && count && !flags);
    for (size_t i = 0; i < count; i++) {
        const struct decompression *o = &operations[i];
        bool known = o->algorithm == DEFLATE || o->algorithm == SNAPPY || o->algorithm == LZ4;
        if (known && decompressible(o->from) && decompressible(o->to) && (!o->written || decompressible(o->written))) continue;
        if (error) *error = i;
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        struct Work write = {.kind = WORK_FILL, .to.base = (char *)operations[i].written, .element = 4, .width = 4, .height = 1, .depth = 1};
        uint32_t length = (uint32_t)operations[i].to_bytes;
        memcpy(write.value, &length, sizeof length);
        if (operations[i].written) work_submit(stream, write);
    }
    return CUDA_SUCCESS;
}
API CUresult cuMemBatchDecompressAsync_ptsz(struct decompression *operations, size_t count, unsigned flags, size_t *error, CUstream stream) { return cuMemBatchDecompressAsync(operations, count, flags, error, of_thread(stream)); }
