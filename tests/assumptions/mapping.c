/* What virtual memory management lets us build. Sources: cuda.h at each function, the CUDA programming guide 4.16.5.3
 * (virtual aliasing), and clients that do the same: PyTorch's expandable segments, DALI, vLLM, kvcached. */
#include "probe.h"

enum { MANY = 16 };

PROBE(granularity, NEEDED, "the minimum granularity is a power of two from 64 KiB to 2 MiB, and cuMemCreate refuses other sizes",
      "cuda.h 13.0:12781, 13201; PyTorch takes 2 MiB for granted")
{
    enum { RECOMMENDED = 1 };
    begin();
    size_t minimum = granule(), recommended;
    CUmemAllocationProp properties = pinned_on(0);
    CUmemGenericAllocationHandle handle;
    CHECK(cu(cuMemGetAllocationGranularity)(&recommended, &properties, RECOMMENDED));
    claim(!(minimum & (minimum - 1)) && minimum >= 64 << 10 && minimum <= 2 * MIB, "minimum %zu KiB", minimum >> 10);
    figure("recommended %zu KiB", recommended >> 10);
    CUresult result = cu(cuMemCreate)(&handle, minimum + 4096, &properties, 0);
    claim(result == CUDA_ERROR_INVALID_VALUE, "another size: %d", result);
    /* Over a layer, another answer to one of these two is that of the layer. */
    size_t available, total;
    CHECK(cu(cuMemGetInfo_v2)(&available, &total));
    result = cu(cuMemCreate)(&handle, total / 2 | 1, &properties, 0);
    claim(result == CUDA_ERROR_INVALID_VALUE, "another size, of half the device: %d", result);
    result = cu(cuMemCreate)(&handle, total / minimum * minimum + 2 * minimum, &properties, 0);
    claim(result == CUDA_ERROR_OUT_OF_MEMORY, "more than the device: %d", result);
}

PROBE(one_handle_at_two_addresses, NEEDED,
      "a handle can be mapped twice: disjoint parts in use at once, one address after the other on the same part",
      "CUDA programming guide 4.16.5.3, Virtual Aliasing Support")
{
    begin();
    size_t size = granule(), half = size / 2;
    CUmemGenericAllocationHandle handle = create(size, 0);
    CUdeviceptr a = address_of(handle, size), b = address_of(handle, size);
    CUstream one = new_stream(), other = new_stream();
    for (int turn = 0; turn < 64; turn++) {
        CHECK(cu(cuMemsetD8Async)(a, 1, half, one));
        CHECK(cu(cuMemsetD8Async)(b + half, 2, half, other));
    }
    bool well = holds_only(b, 1, half) && holds_only(a + half, 2, half);
    claim(well, "disjoint parts at once: %s", well ? "coherent" : "lost");
    CUevent event;
    CHECK(cu(cuEventCreate)(&event, 0));
    CHECK(cu(cuMemsetD8Async)(a, 3, size, one));
    CHECK(cu(cuEventRecord)(event, one));
    CHECK(cu(cuStreamWaitEvent)(other, event, 0));
    CUdeviceptr copy = alloc(size);
    CHECK(cu(cuMemcpyDtoDAsync_v2)(copy, b, size, other));
    claim_bytes("one after the other:", copy, 3, size);
}

PROBE(one_set_access_over_many_mappings, NEEDED,
      "one cuMemSetAccess covers a range of many mappings",
      "cuda.h 13.0:13089; PyTorch's mapAndSetAccess")
{
    begin();
    CUdeviceptr start = mapped(MANY, 0);
    fill(start, 5, MANY * granule());
    claim(holds_only(start, 5, MANY * granule()), "%d mappings", MANY);
}

PROBE(unmap_over_many_mappings, NEEDED, "one cuMemUnmap covers a range of many whole mappings, and refuses a part of one",
      "cuda.h 13.0:13058; PyTorch's unmapHandles (pytorch#188008)")
{
    begin();
    size_t size = granule();
    CUdeviceptr start = mapped(MANY, 0), large = reserve(2 * size);
    CUresult result = cu(cuMemUnmap)(start, MANY * size);
    claim(!result, "%d mappings: %d", MANY, result);
    map(large, 2 * size, create(2 * size, 0));
    result = cu(cuMemUnmap)(large, size);
    claim(result == CUDA_ERROR_INVALID_VALUE, "half of one: %d", result);
}

/* Three granules, the middle one not mapped. */
static CUdeviceptr with_hole(void)
{
    CUdeviceptr start = mapped(3, 0);
    CHECK(cu(cuMemUnmap)(start + granule(), granule()));
    return start;
}

PROBE(unmap_passes_over_a_hole, TELLS,
      "cuMemUnmap of a range with a hole between mappings succeeds",
      "measured: H100, driver 580.159.04; against it pytorch#188008, cuda.h 13.0:13058")
{
    begin();
    CUdeviceptr start = with_hole();
    CUresult result = cu(cuMemUnmap)(start, 3 * granule());
    claim(!result, "answered %d", result);
    if (result) return;
    CUmemGenericAllocationHandle handle;
    result = cu(cuMemRetainAllocationHandle)(&handle, (void *)(start + 2 * granule()));
    claim(result == CUDA_ERROR_INVALID_VALUE, "the mapping after the hole: %d", result);
}

PROBE(set_access_passes_over_a_hole, TELLS, "cuMemSetAccess to a range with a hole between mappings succeeds",
      "measured: H100, driver 580.159.04; against it cuda.h 13.0:13089")
{
    begin();
    CUmemAccessDesc access = access_of(0);
    CUresult result = cu(cuMemSetAccess)(with_hole(), 3 * granule(), &access, 1);
    claim(!result, "answered %d", result);
}

PROBE(release_while_mapped, NEEDED, "a released handle's memory lives as long as it is mapped, and is free after the unmap",
      "cuda.h 13.0:12841, 13060; cuda-python#2882")
{
    begin();
    size_t size = 32 * granule(), before = free_memory();
    CUmemGenericAllocationHandle handle = create(size, 0);
    CUdeviceptr start = address_of(handle, size);
    CHECK(cu(cuMemRelease)(handle));
    fill(start, 9, size);
    size_t held = before - free_memory();
    claim(holds_only(start, 9, size) && held >= size, "released: %zu of %zu MiB held", held / MIB, size / MIB);
    CHECK(cu(cuMemUnmap)(start, size));
    size_t after = free_memory();
    claim(after + size / 2 > before, "unmapped: %zu MiB held", after < before ? (before - after) / MIB : 0);
}

PROBE(retain_handle, TELLS,
      "cuMemRetainAllocationHandle gives the same handle at any address of a mapping, and counts",
      "cuda.h 13.0:13243")
{
    begin();
    size_t size = 2 * granule();
    CUmemGenericAllocationHandle handle = create(size, 0), found = 0;
    CUdeviceptr start = reserve(size);
    map(start, size, handle);
    CUresult result = cu(cuMemRetainAllocationHandle)(&found, (void *)(start + size - 512));
    claim(!result && found == handle, "inside: %d, %s handle", result, found == handle ? "the same" : "another");
    CHECK(cu(cuMemRelease)(handle));
    CHECK(cu(cuMemUnmap)(start, size));
    result = cu(cuMemMap)(start, size, 0, found, 0);
    claim(!result, "after one release and the unmap: mapped again %d", result);
    result = cu(cuMemRetainAllocationHandle)(&found, (void *)reserve(size));
    claim(result == CUDA_ERROR_INVALID_VALUE, "not mapped: %d", result);
}

/* ---- between devices whose peer access is off */

enum { SIZE = 2 * MIB };

static CUdeviceptr of_vmm(int device)
{
    current(device);
    return mapped((SIZE + granule() - 1) / granule(), device);
}

static CUdeviceptr of_alloc(int device)
{
    current(device);
    return alloc(SIZE);
}

/* Claims that the bytes of a copy arrived in memory of this device, or that they did not. */
static void claim_arrival(CUresult copied, int device, CUdeviceptr to, bool arrives)
{
    CUresult end = cu(cuCtxSynchronize)();
    current(device);
    bool right = !copied && !end && holds_only(to, 6, SIZE);
    claim(right == arrives, "copy %d, synchronise %d, bytes %s", copied, end, right ? "arrived" : "did not arrive");
}

static void claim_copy(CUdeviceptr (*obtain)(int), bool by_peer_call, bool arrives)
{
    begin_on(2);
    CUdeviceptr from = obtain(0), to = obtain(1);
    fill_on(1, to, 1, SIZE);
    fill_on(0, from, 6, SIZE);
    CUstream stream = new_stream();
    claim_arrival(by_peer_call ? cu(cuMemcpyPeerAsync)(to, contexts[1], from, contexts[0], SIZE, stream)
                               : cu(cuMemcpyAsync)(to, from, SIZE, stream), 1, to, arrives);
}

PROBE(copy_of_alloc_between_devices, TELLS, "cuMemcpyAsync copies cuMemAlloc's memory between devices without peer access",
      "UVA; PyTorch's CUDACachingAllocator::memcpyAsync")
{
    claim_copy(of_alloc, false, true);
}

PROBE(copy_of_vmm_between_devices, TELLS, "cuMemcpyAsync does not copy mapped memory between devices without access",
      "llama.cpp#4606, #4620; PyTorch's memcpyAsync; nvidia bug 3446335 for pools")
{
    claim_copy(of_vmm, false, false);
}

PROBE(peer_copy_of_vmm_between_devices, NEEDED, "cuMemcpyPeerAsync copies mapped memory between devices without access",
      "llama.cpp#4620; PyTorch's memcpyAsync")
{
    claim_copy(of_vmm, true, true);
}

PROBE(peer_copy_of_rows_of_vmm, NEEDED, "cuMemcpy3DPeerAsync copies rows of mapped memory between devices without access",
      "cuda.h 13.0:10430, 3367; PyTorch and llama.cpp rely on it for rows side by side alone")
{
    enum { PITCH = 4096, DEVICE = 2 };
    begin_on(2);
    CUdeviceptr from = of_vmm(0), to = of_vmm(1);
    fill_on(1, to, 1, SIZE);
    fill_on(0, from, 6, SIZE);
    CUDA_MEMCPY3D copy = {.srcMemoryType = DEVICE, .srcDevice = from, .reserved0 = contexts[0], .srcPitch = PITCH, .srcHeight = SIZE / PITCH,
                          .dstMemoryType = DEVICE, .dstDevice = to, .reserved1 = contexts[1], .dstPitch = PITCH, .dstHeight = SIZE / PITCH,
                          .WidthInBytes = PITCH, .Height = SIZE / PITCH, .Depth = 1};
    claim_arrival(cu(cuMemcpy3DPeerAsync)(&copy, new_stream()), 1, to, true);
}

PROBE(peer_copy_on_another_device, NEEDED, "a stream of one device makes a peer copy within another device",
      "cuda.h 13.0:10511: \"between two contexts\", which may be the same")
{
    begin_on(2);
    CUdeviceptr from = of_vmm(0), to = of_vmm(0);
    fill_on(0, from, 6, SIZE);
    fill_on(0, to, 1, SIZE);
    current(1);
    claim_arrival(cu(cuMemcpyPeerAsync)(to, contexts[0], from, contexts[0], SIZE, new_stream()), 0, to, true);
}

PROBE(access_for_one_more_device, NEEDED, "cuMemSetAccess for one device over many mappings leaves the access of others as it was",
      "cuda.h 13.0:13093: it sets \"the access flags for the target locations\"")
{
    begin_on(2);
    need_peers();
    current(0);
    CUdeviceptr start = mapped(MANY, 0);
    CUmemLocation places[] = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    grant(start, MANY * granule(), 1);
    for (int i = 0; i < 2; i++) {
        unsigned long long flags = 0;
        CUresult result = cu(cuMemGetAccess)(&flags, &places[i], start + (MANY - 1) * granule());
        claim(!result && flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "device %d: %d, flags %llu", i, result, flags);
    }
}
