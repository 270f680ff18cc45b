/* Wrong and late frees, faults, and what dies with a context. Sources: cuda.h at each function, and issues of clients. */
#include "probe.h"

PROBE(double_free, TELLS,
      "cuMemFree of freed memory answers 1, and so does one of an address inside an allocation",
      "cuda.h 13.0:8676, 8693")
{
    begin();
    CUdeviceptr address = alloc(4 * MIB), other = alloc(4 * MIB);
    CHECK(cu(cuMemFree_v2)(address));
    CUresult twice = cu(cuMemFree_v2)(address), inside = cu(cuMemFree_v2)(other + 4096);
    claim(twice == CUDA_ERROR_INVALID_VALUE, "twice %d", twice);
    claim(inside == CUDA_ERROR_INVALID_VALUE, "inside %d", inside);
}

PROBE(foreign_context_free, TELLS,
      "memory of one context can be freed while another one is current",
      "unified addressing; PyTorch frees on whatever device is current")
{
    begin();
    CUcontext other;
    CHECK(cu(cuCtxCreate_v2)(&other, 0, 0));
    CUdeviceptr address = alloc(4 * MIB);
    current(0);
    CUresult result = cu(cuMemFree_v2)(address);
    claim(!result, "answered %d", result);
}

PROBE(free_without_context, TELLS, "cuMemFree needs no current context", "measured: H100, driver 580.159.04; against it cuda.h 13.0:8692")
{
    begin();
    CUdeviceptr address = alloc(4 * MIB);
    CHECK(cu(cuCtxSetCurrent)(NULL));
    CUresult result = cu(cuMemFree_v2)(address);
    claim(!result, "answered %d", result);
    figure("of address 0: %d", cu(cuMemFree_v2)(0));
}

PROBE(free_async_of_alloc, TELLS,
      "cuMemFreeAsync takes memory of cuMemAlloc, which is free when its stream was waited for",
      "NVIDIA's blog, Using the NVIDIA CUDA Stream-Ordered Memory Allocator, part 1: an application can use cudaFreeAsync to "
      "free a pointer allocated by cudaMalloc")
{
    begin();
    CUstream stream = new_stream();
    size_t before, pending, after, total;
    CHECK(cu(cuMemGetInfo_v2)(&before, &total));
    CUdeviceptr address = alloc(256 * MIB);
    CHECK(cu(cuMemsetD8Async)(address, 1, 256 * MIB, stream));
    CUresult result = cu(cuMemFreeAsync)(address, stream);
    if (!claim(!result, "answered %d", result)) return;
    CHECK(cu(cuMemGetInfo_v2)(&pending, &total));
    CHECK(cu(cuStreamSynchronize)(stream));
    CHECK(cu(cuMemGetInfo_v2)(&after, &total));
    claim(after + MIB > before, "%zu bytes fewer are free", before - after);
    figure("before the wait %zu bytes less", after - pending);
    result = cu(cuMemFree_v2)(address);
    claim(result == CUDA_ERROR_INVALID_VALUE, "a second free answers %d", result);
}

PROBE(sticky_error, TELLS, "after a kernel's fault the calls of the context answer the fault's error, but for cuMemCreate",
      "cuda.h 13.0, CUDA_ERROR_ILLEGAL_ADDRESS; measured: H100, driver 580.159.04")
{
    enum { ILLEGAL_ADDRESS = 700 };
    begin();
    if (!wild_kernel()) not_asked("the driver does not compile the kernel");
    CUdeviceptr address = alloc(4 * MIB), other;
    size_t size = granule(), bytes, total;
    CUmemAllocationProp properties = pinned_on(0);
    CUmemGenericAllocationHandle handle;
    CUevent event;
    CHECK(cu(cuEventCreate)(&event, 2));
    CHECK(cu(cuEventRecord)(event, NULL));
    CHECK(cu(cuEventSynchronize)(event));
    CHECK(cu(cuLaunchKernel)(wild_kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    const struct { const char *call; CUresult expected, result; } after[] = {
        {"synchronise", ILLEGAL_ADDRESS, cu(cuCtxSynchronize)()},
        {"free", ILLEGAL_ADDRESS, cu(cuMemFree_v2)(address)},
        {"alloc", ILLEGAL_ADDRESS, cu(cuMemAlloc_v2)(&other, 4 * MIB)},
        {"create", CUDA_SUCCESS, cu(cuMemCreate)(&handle, size, &properties, 0)},
        {"info", ILLEGAL_ADDRESS, cu(cuMemGetInfo_v2)(&bytes, &total)},
    };
    figure("an event that ended before the fault answers %d", cu(cuEventQuery)(event));
    for (size_t i = 0; i < sizeof after / sizeof *after; i++)
        claim(after[i].result == after[i].expected, "%s %d", after[i].call, after[i].result);
}

/* Bytes that are still taken after the primary context was reset, of `size` that `obtain` took. */
static size_t left_after_reset(void (*obtain)(size_t), size_t size)
{
    begin();
    size_t before = free_memory();
    obtain(size);
    size_t taken = before - free_memory();
    if (taken < size) failed("only %zu MiB were taken", taken / MIB);
    CHECK(cu(cuDevicePrimaryCtxReset_v2)(0));
    begin();
    size_t after = free_memory();
    return after < before ? before - after : 0;
}

static void by_alloc(size_t size) { alloc(size); }
static void by_mapping(size_t size) { address_of(create(size, 0), size); }

enum { TAKEN = 512 * MIB };

PROBE(primary_context_reset_frees_alloc, TELLS, "cuDevicePrimaryCtxReset frees cuMemAlloc's memory", "cuda.h 13.0:6063")
{
    size_t left = left_after_reset(by_alloc, TAKEN);
    claim(left < TAKEN / 2, "%zu of %d MiB left", left / MIB, TAKEN / MIB);
}

PROBE(primary_context_reset_keeps_vmm, TELLS, "cuDevicePrimaryCtxReset leaves cuMemCreate's memory to the process",
      "measured: H100, driver 580.159.04; CUDA.jl#1579 saw pool memory stay; against it cuda.h 13.0:6063, \"all allocations\"")
{
    size_t left = left_after_reset(by_mapping, TAKEN);
    claim(left >= TAKEN, "%zu of %d MiB left", left / MIB, TAKEN / MIB);
}
