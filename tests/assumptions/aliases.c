/* One handle at several addresses, and handles of several sizes side by side: what `auto_growth` builds blocks from.
 * Sources: cuda.h at each function, and the CUDA programming guide 4.16.5.3 (virtual aliasing): a write through one
 * address is seen through another one after the work that wrote it has finished. */
#include "probe.h"

/* A range of address space where these handles are mapped side by side, accessible from device 0. */
static CUdeviceptr side_by_side(const CUmemGenericAllocationHandle *handles, const size_t *sizes, int count)
{
    size_t total = 0;
    for (int i = 0; i < count; i++) total += sizes[i];
    CUdeviceptr start = reserve(total), at = start;
    for (int i = 0; i < count; at += sizes[i++]) map(at, sizes[i], handles[i]);
    grant(start, total, 0);
    return start;
}

PROBE(handles_of_several_sizes, NEEDED,
      "handles of several sizes can be mapped side by side, and one cuMemSetAccess makes one usable range of them",
      "cuda.h 13.0:13089, \"all allocations\" in the range")
{
    enum { COUNT = 4 };
    begin();
    size_t one = granule(), sizes[COUNT] = {one, 16 * one, 3 * one, 64 * one}, total = 0;
    CUmemGenericAllocationHandle handles[COUNT];
    for (int i = 0; i < COUNT; total += sizes[i++]) handles[i] = create(sizes[i], 0);
    CUdeviceptr start = side_by_side(handles, sizes, COUNT);
    fill(start, 8, total);
    figure("%d handles, %zu MiB in one piece:", COUNT, total / MIB);
    claim_bytes("bytes", start, 8, total);
}

PROBE(stitch_of_handles, NEEDED,
      "handles mapped a second time, in another order, carry a block over their ends while other parts are in use",
      "CUDA programming guide 4.16.5.3, Virtual Aliasing Support: disjoint parts")
{
    begin();
    size_t size = 4 * granule(), half = size / 2, sizes[] = {size, size};
    CUmemGenericAllocationHandle home_order[] = {create(size, 0), create(size, 0)};
    CUmemGenericAllocationHandle other_order[] = {home_order[1], home_order[0]};
    CUdeviceptr home = side_by_side(home_order, sizes, 2), stitch = side_by_side(other_order, sizes, 2);
    /* The block is the second half of the second handle and the first half of the first one. */
    CUdeviceptr block = stitch + half;
    CUstream of_home = new_stream(), of_block = new_stream();
    for (int turn = 0; turn < 64; turn++) {
        CHECK(cu(cuMemsetD8Async)(home + half, 1, size, of_home)); /* what the block leaves of both */
        CHECK(cu(cuMemsetD8Async)(block, 2, size, of_block));
    }
    bool rest = holds_only(home + half, 1, size), stitched = holds_only(block, 2, size);
    claim(rest && stitched, "in use at once: rest %s, block %s", rest ? "right" : "lost", stitched ? "right" : "lost");
    bool seen = holds_only(home, 2, half) && holds_only(home + size + half, 2, half);
    claim(seen, "the block's bytes at the first address: %s", seen ? "right" : "lost");
    /* Free again, and given out at home. */
    CHECK(cu(cuMemsetD8Async)(home, 3, 2 * size, of_home));
    CHECK(cu(cuStreamSynchronize)(of_home));
    CUdeviceptr copy = alloc(size);
    CHECK(cu(cuMemcpyDtoDAsync_v2)(copy, block, size, of_block));
    claim_bytes("written at the first address, then read in the block:", copy, 3, size);
}

/* Copies words with loads and stores, as kernels do, which pass caches that memory operations may not pass. */
static const char carrier[] =
    ".version 6.2\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry carry(.param .u64 to, .param .u64 from) {\n"
    "  .reg .b64 %rd<4>; .reg .b32 %r<5>;\n"
    "  ld.param.u64 %rd1, [to];\n"
    "  ld.param.u64 %rd2, [from];\n"
    "  mov.u32 %r1, %ctaid.x;\n"
    "  mov.u32 %r2, %ntid.x;\n"
    "  mov.u32 %r3, %tid.x;\n"
    "  mad.lo.u32 %r1, %r1, %r2, %r3;\n"
    "  mul.wide.u32 %rd3, %r1, 4;\n"
    "  add.u64 %rd1, %rd1, %rd3;\n"
    "  add.u64 %rd2, %rd2, %rd3;\n"
    "  ld.global.u32 %r4, [%rd2];\n"
    "  st.global.u32 [%rd1], %r4;\n"
    "  ret;\n"
    "}\n";

PROBE(alias_between_kernels, NEEDED,
      "a kernel reads through one address what the kernel before wrote through another one",
      "CUDA programming guide 4.16.5.3, Virtual Aliasing Support: after the kernel has finished")
{
    enum { THREADS = 256, TURNS = 16 };
    begin();
    if (!kernels()) not_asked("no kernel computes here");
    CUmodule module;
    CUfunction carry;
    NEED(cu(cuModuleLoadData)(&module, carrier));
    NEED(cu(cuModuleGetFunction)(&carry, module, "carry"));
    size_t size = granule();
    unsigned blocks = (unsigned)(size / 4 / THREADS);
    CUmemGenericAllocationHandle handle = create(size, 0);
    CUdeviceptr one = address_of(handle, size), other = address_of(handle, size);
    CUdeviceptr from = alloc(size), to = alloc(size);
    CUstream stream = new_stream();
    bool well = true;
    for (int turn = 1; turn <= TURNS && well; turn++) {
        CHECK(cu(cuMemsetD8Async)(from, (unsigned char)turn, size, stream));
        void *write[] = {&one, &from}, *read[] = {&to, &other};
        CHECK(cu(cuLaunchKernel)(carry, blocks, 1, 1, THREADS, 1, 1, 0, stream, write, NULL));
        CHECK(cu(cuLaunchKernel)(carry, blocks, 1, 1, THREADS, 1, 1, 0, stream, read, NULL));
        well = holds_only(to, (unsigned char)turn, size);
    }
    claim(well, "%d turns: %s", TURNS, well ? "right" : "lost");
}

PROBE(alias_survives_unmap_of_other, NEEDED,
      "cuMemUnmap of one of a handle's mappings leaves the other one usable, also if the handle was released before",
      "cuda.h 13.0:13061: memory is freed if there are no existing mappings")
{
    begin();
    size_t size = 32 * granule(), before = free_memory();
    CUmemGenericAllocationHandle handle = create(size, 0);
    CUdeviceptr one = address_of(handle, size), other = address_of(handle, size);
    CHECK(cu(cuMemRelease)(handle));
    fill(one, 4, size);
    CHECK(cu(cuCtxSynchronize)());
    CHECK(cu(cuMemUnmap)(one, size));
    claim_bytes("bytes", other, 4, size);
    fill(other, 5, size);
    claim_bytes("written again:", other, 5, size);
    size_t held = before - free_memory();
    claim(held >= size, "%zu of %zu MiB held", held / MIB, size / MIB);
    CHECK(cu(cuMemUnmap)(other, size));
    size_t after = free_memory();
    claim(after + size / 2 > before, "after both: %zu MiB held", after < before ? (before - after) / MIB : 0);
}

PROBE(handle_is_mapped_whole, TELLS,
      "cuMemMap refuses an offset other than 0; what it says of a part of a handle is told",
      "cuda.h 13.0:12901, offset: \"currently must be zero\"; the header does not speak of smaller sizes")
{
    begin();
    size_t size = granule();
    CUmemGenericAllocationHandle handle = create(2 * size, 0);
    CUdeviceptr start = reserve(2 * size);
    CUresult offset = cu(cuMemMap)(start, size, size, handle, 0);
    claim(offset != CUDA_SUCCESS, "second half: %d", offset);
    CUresult part = cu(cuMemMap)(start, size, 0, handle, 0);
    figure("first half: %d", part);
}

/* Blocked work, and a write to the mapping at `start` that waits for it. The first write loads the driver's code. */
static struct blocked *block_writing(enum kind kind, CUdeviceptr start, size_t size)
{
    CUstream stream = new_stream();
    CHECK(cu(cuMemsetD8Async)(start, 1, size, stream));
    CHECK(cu(cuStreamSynchronize)(stream));
    struct blocked *work = told_block(kind, stream);
    CHECK(cu(cuMemsetD8Async)(start, 2, size, stream));
    return work;
}

PROBE(alias_beside_blocked_work, NEEDED,
      "a handle can be mapped a second time, and access be set, while work writes through its first address",
      "no wait is named at cuMemMap (cuda.h 13.0:12866); note_sync at 13112 and pytorch#96995 leave it open")
{
    begin();
    size_t size = granule();
    CUmemAccessDesc access = access_of(0);
    WITH_EACH(kind)
    {
        CUmemGenericAllocationHandle handle = create(size, 0);
        CUdeviceptr home = address_of(handle, size), again = reserve(size);
        struct blocked *work = block_writing(kind, home, size);
        RETURNS_AT_ONCE(work, "map", cu(cuMemMap)(again, size, 0, handle, 0));
        RETURNS_AT_ONCE(work, "access", cu(cuMemSetAccess)(again, size, &access, 1));
        release(work);
    }
}

PROBE(unmap_alias_beside_blocked_work, TELLS,
      "cuMemUnmap of an idle mapping returns while work writes through another one",
      "note_sync of cuda.h 13.0:13078 and pytorch#96995 leave it open")
{
    begin();
    size_t size = granule();
    WITH_EACH(kind)
    {
        CUmemGenericAllocationHandle handle = create(size, 0);
        CUdeviceptr home = address_of(handle, size), again = address_of(handle, size);
        struct blocked *work = block_writing(kind, home, size);
        RETURNS_AT_ONCE(work, "unmap", cu(cuMemUnmap)(again, size));
        release(work);
    }
}

PROBE(peer_access_to_alias, NEEDED,
      "a peer that was granted access to one of a handle's mappings reads and writes through it",
      "cuda.h 13.0:13085: access is a property of the address range")
{
    begin_on(2);
    need_peers();
    size_t size = granule();
    current(0);
    CUmemGenericAllocationHandle handle = create(size, 0);
    CUdeviceptr home = address_of(handle, size), alias = address_of(handle, size);
    grant(alias, size, 1);
    current(1);
    CUdeviceptr theirs = alloc(size);
    fill(theirs, 6, size);
    CHECK(cu(cuMemcpyDtoD_v2)(alias, theirs, size));
    CHECK(cu(cuCtxSynchronize)());
    current(0);
    claim_bytes("the peer's bytes at the other address:", home, 6, size);
    fill_on(0, home, 7, size);
    current(1);
    CHECK(cu(cuMemcpyDtoD_v2)(theirs, alias, size));
    claim_bytes("read by the peer:", theirs, 7, size);
}
