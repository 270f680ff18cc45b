/* Steps that obtain memory, free it, share it and ask about it. */
#include "state.h"
#include "shim.h"

CUresult cuMemPoolExportPointer(void *out, CUdeviceptr address);
CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, void *data);
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned how);
CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray array, unsigned level);
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array);
CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, int device, CUstream stream);

static struct block *vacant(unsigned a)
{
    for (unsigned i = 0; in_context() && i < BLOCKS; i++) if (!place(a + i)->live) return place(a + i);
    return NULL;
}
static int device_now(void) { return contexts[CURRENT].device; }

KIND(linear, 16, "UA") {
    struct block *p = vacant(a);
    size_t size = size_from(c);
    if (p && DONE(cuMemAlloc_v2(&p->address, size))) got(p, LINEAR, "cuMemAlloc", device_now(), size, b);
}
KIND(linear_v1, 1, "U") {
    struct block *p = vacant(a);
    CUdeviceptr_v1 small = 0;
    if (!p || !DONE(cuMemAlloc(&small, 1 + c % 65536))) return;
    p->address = small;
    got(p, LINEAR, "cuMemAlloc_v1", device_now(), 1 + c % 65536, b);
}
KIND(pitched, 2, "U") {
    struct block *p = vacant(a);
    size_t pitch = 0, width = c % 4000 + 1, height = c / 64 % 64 + 1;
    if (!p || !DONE(cuMemAllocPitch_v2(&p->address, &pitch, width, height, 4))) return;
    say(" pitch %zu", pitch);
    got(p, PITCHED, "cuMemAllocPitch", device_now(), width * height, b);
}
KIND(managed, 2, "U") {
    struct block *p = vacant(a);
    if (p && DONE(cuMemAllocManaged(&p->address, size_from(c), 1)))
        got(p, MANAGED, "cuMemAllocManaged", device_now(), size_from(c), b);
}
KIND(host, 2, "U") {
    struct block *p = vacant(a);
    void *memory = NULL;
    bool plain = c & 1;
    if (!p || !DONE(plain ? cuMemAllocHost_v2(&memory, size_from(c)) : cuMemHostAlloc(&memory, size_from(c), 0))) return;
    p->address = (CUdeviceptr)memory;
    got(p, HOST, plain ? "cuMemAllocHost" : "cuMemHostAlloc", -1, size_from(c), b);
    memset(memory, (int)c, size_from(c));
}
KIND(registered, 2, "U") {
    struct block *p = vacant(a);
    if (!p) return;
    p->more = malloc(size_from(c));
    if (DONE(cuMemHostRegister_v2(p->more, size_from(c), 0))) got(p, HOST_REGISTERED, "cuMemHostRegister", -1, size_from(c), b);
    else free(p->more);
}
KIND(async, 5, "A") {
    struct block *p = vacant(a);
    int s = p ? stream_of(CURRENT, b) : NONE;
    if (s < 0 || !DONE(cuMemAllocAsync(&p->address, size_from(c), streams[s].handle))) return;
    p->pool = NONE;
    got(p, ASYNC, "cuMemAllocAsync", device_now(), size_from(c), (unsigned)s);
}
KIND(from_pool, 3, "A") {
    struct block *p = vacant(a);
    int device = (int)(b % (unsigned)devices), s = p && use(device) ? stream_of(device, b) : NONE;
    if (s < 0 || !pools[device] || !DONE(cuMemAllocFromPoolAsync(&p->address, size_from(c), pools[device], streams[s].handle))) return;
    p->pool = device;
    got(p, ASYNC, "cuMemAllocFromPoolAsync", device, size_from(c), (unsigned)s);
}

/* Memory for a tensor of a stream: from the library's allocator for PyTorch, or from the driver in the order of the stream. */
static __typeof__(&vramshim_torch_alloc) torch_alloc(void)
{
    const char *strategy = getenv("VRAMSHIM_STRATEGY");
    void *found = dlsym(RTLD_DEFAULT, "vramshim_torch_alloc");
    return found && strategy && strcmp(strategy, "passthrough") ? (__typeof__(&vramshim_torch_alloc))found : NULL;
}
KIND(tensor, 8, "A") {
    struct block *p = vacant(a);
    int s = p && CURRENT < devices && !captures(NONE, false) ? stream_of(CURRENT, b) : NONE;
    if (s < 0) return;
    bool ours = torch_alloc();
    size_t size = size_from(c);
    if (ours) p->address = (CUdeviceptr)torch_alloc()((ptrdiff_t)size, CURRENT, streams[s].handle), R(p->address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
    else if (R(cuMemAllocAsync(&p->address, size, streams[s].handle))) p->address = 0;
    if (!p->address) return;
    __typeof__(&simgpu_unordered) unordered = (__typeof__(unordered))optional_function("simgpu_unordered");
    if (unordered && unordered(p->address, size, streams[s].handle)) say(" STILL IN USE");
    p->pool = NONE;
    got(p, ours ? LINEAR : ASYNC, ours ? "vramshim_torch_alloc" : "cuMemAllocAsync", device_now(), size, (unsigned)s);
    p->home = s + 1;
}

/* Freed in the order of its stream, after the work of others. */
static bool give_tensor_back(struct block *p)
{
    __typeof__(&vramshim_torch_free) torch_free = (__typeof__(torch_free))dlsym(RTLD_DEFAULT, "vramshim_torch_free");
    CUstream home = streams[p->home - 1].handle;
    if (captures(NONE, false) || !follow(p, p->home - 1)) return false; /* what is freed beside a capture stays its graph's */
    if (p->class == LINEAR) torch_free((void *)p->address, (ptrdiff_t)p->size, p->device, home), R(0);
    else R(cuMemFreeAsync(p->address, home));
    return true;
}

static CUmemAllocationProp on_device(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
}
static CUmemAccessDesc access_for(int device) { return (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device}, 3}; }
KIND(mapped, 4, "U") {
    struct block *p = vacant(a);
    if (!p) return;
    int device = device_now();
    CUmemAllocationProp properties = on_device(device);
    CUmemAccessDesc access = access_for(device);
    size_t granule = 2 * MIB, size;
    if (!DONE(cuMemGetAllocationGranularity(&granule, &properties, 0))) return;
    p->span = size = (1 + c % 3) * granule;
    if (!DONE(cuMemCreate(&p->handle, size, &properties, 0))) return;
    if (DONE(cuMemAddressReserve(&p->address, size, 0, 0, 0))) {
        if (DONE(cuMemMap(p->address, size, 0, p->handle, 0))) {
            if (DONE(cuMemSetAccess(p->address, size, &access, 1))) {
                *count_of(device, ADDRESS_RANGE) += (long long)size;
                got(p, VMM, "cuMemCreate", device, size, b);
                return;
            }
            R(cuMemUnmap(p->address, size));
        }
        R(cuMemAddressFree(p->address, size));
    }
    R(cuMemRelease(p->handle));
}
KIND(array, 2, "U") {
    struct block *p = vacant(a);
    CUDA_ARRAY_DESCRIPTOR shape = {c % 512 + 1, c / 512 % 64, CU_AD_FORMAT_FLOAT, 4};
    CUarray array = NULL;
    if (!p || !DONE(cuArrayCreate_v2(&array, &shape))) return;
    p->handle = (unsigned long long)array;
    got(p, ARRAY, "cuArrayCreate", device_now(), shape.Width * (shape.Height ? shape.Height : 1) * 16, b);
}
KIND(array_3d, 1, "U") {
    struct block *p = vacant(a);
    CUDA_ARRAY3D_DESCRIPTOR shape = {c % 64 + 1, 8, 6, CU_AD_FORMAT_HALF, 2, c & 64 ? CUDA_ARRAY3D_LAYERED : 0}, again;
    CUarray array = NULL;
    if (!p || !DONE(cuArray3DCreate_v2(&array, &shape))) return;
    p->handle = (unsigned long long)array;
    if (DONE(cuArray3DGetDescriptor_v2(&again, array))) say(" %zu", again.Width);
    got(p, ARRAY, "cuArray3DCreate", device_now(), shape.Width * 8 * 6 * 4, b);
}
KIND(mipmap, 1, "U") {
    struct block *p = vacant(a);
    CUDA_ARRAY3D_DESCRIPTOR shape = {64, 32, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0};
    CUmipmappedArray array = NULL;
    CUarray level;
    if (!p || !DONE(cuMipmappedArrayCreate(&array, &shape, 3))) return;
    R(cuMipmappedArrayGetLevel(&level, array, c % 4));
    p->handle = (unsigned long long)array;
    got(p, MIPMAP, "cuMipmappedArrayCreate", device_now(), (64 * 32 + 32 * 16 + 16 * 8) * 4, b);
}

static void give_back(struct block *p, unsigned how)
{
    int pool = p->pool, s = p->last;
    bool freed = false;
    if (p->home) {
        if (give_tensor_back(p)) forget(p);
        return;
    }
    if (p->class == HOST || p->class == ARRAY || p->class == MIPMAP) use(p->context);
    else if (!use((int)(how % CONTEXTS))) in_context();
    if (p->class != LINEAR && p->class != ASYNC) set_all_flags();
    close_in_other(p);
    switch (p->class) {
    case LINEAR: case PITCHED: case MANAGED:
        set_all_flags();
        freed = DONE(cuMemFree_v2(p->address));
        break;
    case HOST: freed = DONE(cuMemFreeHost((void *)p->address)); break;
    case HOST_REGISTERED: freed = DONE(cuMemHostUnregister(p->more)); break;
    case ASYNC:
        if (!ready(s)) return;
        if (how & 3) freed = DONE(cuMemFreeAsync(p->address, streams[s].handle));
        else set_all_flags(), freed = DONE(cuStreamSynchronize(streams[s].handle)) && DONE(cuMemFree_v2(p->address));
        break;
    case VMM: {
        CUmemGenericAllocationHandle again;
        bool first = how & 4;
        if (ready(s)) R(cuStreamSynchronize(streams[s].handle));
        if (how & 8 && DONE(cuMemRetainAllocationHandle(&again, (void *)p->address))) R(cuMemRelease(again));
        if (first) R(cuMemRelease(p->handle));
        freed = DONE(cuMemUnmap(p->address, p->span));
        if (!first) R(cuMemRelease(p->handle));
        R(cuMemAddressFree(p->address, p->span));
        break;
    }
    case ARRAY: freed = DONE(cuArrayDestroy((CUarray)p->handle)); break;
    case MIPMAP: freed = DONE(cuMipmappedArrayDestroy((CUmipmappedArray)p->handle)); break;
    case GRAPH:
        if (ready(s)) R(cuStreamSynchronize(streams[s].handle));
        freed = DONE(cuMemFree_v2(p->address));
        R(cuGraphExecDestroy(p->more));
        R(cuDeviceGraphMemTrim(p->device));
        break;
    }
    if (freed && p->class == HOST_REGISTERED) free(p->more);
    if (freed) forget(p);
    p->pool = pool;
}
KIND(release, 26, "UA") { struct block *p = next_block(a, is_any); if (p) give_back(p, b); }

/* Memory of cuMemAlloc is freed in the order of a stream, after its work. */
KIND(free_in_order, 2, "UA") {
    struct block *p = next_block(a, is_linear);
    if (!p || p->opened || !strcmp(p->api, "cuMemAlloc_v1") || !ready(p->last)) return;
    if (DONE(cuMemFreeAsync(p->address, streams[p->last].handle))) forget(p);
}
KIND(free_twice, 2, "OU") {
    struct block *p = next_block(a, is_linear);
    CUdeviceptr address = p ? p->address : 0;
    if (!p) return;
    give_back(p, b);
    R(cuMemFree_v2(address));
}
KIND(free_inside, 2, "U") {
    struct block *p = next_block(a, is_linear);
    if (p && p->size > 600 && in_context()) R(cuMemFree_v2(p->address + 512));
}
KIND(free_stranger, 1, "U") {
    static int variable;
    if (!in_context()) return;
    R(cuMemFree_v2(0)), R(cuMemFree_v2(0x12345)), R(cuMemFree_v2((CUdeviceptr)&variable)), R(cuMemFreeHost(&variable));
    R(cuMemHostUnregister(&variable)), R(cuArrayDestroy(NULL)), R(cuMemRelease(0)), R(cuIpcCloseMemHandle(0x12345));
}
KIND(free_as_host, 1, "OU") {
    struct block *p = next_block(a, is_linear);
    if (p && in_context()) R(cuMemFreeHost((void *)p->address)), R(cuMemHostUnregister((void *)p->address));
}
KIND(wrong_sizes, 1, "U") {
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle;
    if (!in_context()) return;
    CUmemAllocationProp properties = on_device(device_now());
    R(cuMemAlloc_v2(&address, 0)), R(cuMemAlloc_v2(NULL, 512)), R(cuMemAlloc_v2(&address, 1ull << 50)), R(cuMemAlloc_v2(&address, ~0ull));
    R(cuMemCreate(&handle, 4097, &properties, 0)), R(cuMemAddressReserve(&address, 4097, 0, 0, 0)), R(cuMemAllocManaged(&address, 0, 1));
    R(cuMemAllocManaged(&address, 100, 77)), R(cuMemGetInfo_v2(NULL, NULL)), R(cuMemAllocHost_v2(NULL, 100)), R(cuMemPoolCreate(NULL, NULL));
    R(cuMemAllocPitch_v2(&address, NULL, 10, 10, 4)), R(cuMemCreate(&handle, 2 * MIB, NULL, 0)), R(cuArrayCreate_v2(NULL, NULL));
    R(cuMemPoolDestroy(NULL)), R(cuMemGetAddressRange_v2(NULL, NULL, 0x12345)), R(cuPointerGetAttribute(NULL, 11, 0x12345));
    if (ready(STREAMS + CURRENT)) R(cuMemFreeAsync(0x12345, streams[STREAMS + CURRENT].handle)), R(cuMemAllocAsync(&address, 0, streams[STREAMS + CURRENT].handle));
}
KIND(without_context, 1, "U") {
    CUdeviceptr address = 0;
    size_t free_bytes;
    struct block *p = next_block(a, is_linear);
    if (!in_context() || R(cuCtxSetCurrent(NULL))) return;
    CURRENT = NONE;
    R(cuMemAlloc_v2(&address, 4096)), R(cuMemGetInfo_v2(&free_bytes, NULL)), R(finish());
    if (p && b & 1 && !p->opened && DONE(cuMemFree_v2(p->address))) forget(p);
}

KIND(fill_device, 1, "POU") {
    CUdeviceptr all[64];
    int count = 0;
    size_t total = 0;
    CUresult result = CUDA_SUCCESS;
    /* What a thread frees while it captures serves no request before the end. */
    if (captures(NONE, false) || !in_context() || R(cuMemGetInfo_v2(NULL, &total))) return;
    while (count < 64 && !(result = cuMemAlloc_v2(&all[count], total / 16))) count++;
    say(" last %d of sixteenths %d", result, count);
    while (count--) if ((result = cuMemFree_v2(all[count]))) R(result);
}

KIND(new_pool, 2, "") {
    int device = (int)(a % (unsigned)devices);
    CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
        .handleTypes = b & 1 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0};
    if (!pools[device] && !DONE(cuMemPoolCreate(&pools[device], &properties))) pools[device] = NULL;
}
KIND(end_pool, 1, "") {
    int device = (int)(a % (unsigned)devices);
    if (pools[device]) R(cuMemPoolDestroy(pools[device])), pools[device] = NULL;
}

static CUmemoryPool any_pool(unsigned a)
{
    CUmemoryPool pool = pools[a % (unsigned)devices];
    return !pool && DONE(cuDeviceGetDefaultMemPool(&pool, (int)(a % (unsigned)devices))) ? pool : pool;
}
KIND(trim_pool, 2, "O") { R(cuMemPoolTrimTo(any_pool(a), size_from(c))); }
KIND(pool_attributes, 2, "O") {
    CUmemoryPool pool = any_pool(a);
    uint64_t threshold = c * 4096ull, used = 0, again = 0;
    R(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    R(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &again));
    R(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    say(" threshold %llu", (unsigned long long)again);
    if (pools[a % (unsigned)devices]) say(" used %llu", (unsigned long long)used); /* tensors may be in the default pool */
}
KIND(pool_access, 1, "O") {
    CUmemAccessDesc access = access_for((int)((a + 1) % (unsigned)devices));
    R(cuMemPoolSetAccess(any_pool(a), &access, 1));
}
KIND(pool_pointer, 1, "U") {
    struct block *p = next_block(a, is_async);
    char data[64];
    CUmemoryPool imported;
    CUdeviceptr address;
    int file = -1;
    if (!p || p->pool < 0 || !pools[p->pool] || !ready(p->last)) return;
    if (!DONE(cuMemPoolExportToShareableHandle(&file, pools[p->pool], 1, 0))) return;
    if (DONE(cuMemPoolExportPointer(data, p->address)) && DONE(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)file, 1, 0))) {
        if (DONE(cuMemPoolImportPointer(&address, imported, data)))
            R(cuStreamSynchronize(streams[p->last].handle)), R(cuMemFreeAsync(address, streams[p->last].handle));
        R(cuStreamSynchronize(streams[p->last].handle));
        R(cuMemPoolDestroy(imported));
    }
    close(file);
}

/* Maps the memory a second time, writes there, and reads it at its first place. */
KIND(mapped_twice, 2, "U") {
    struct block *p = next_block(a, is_mapped);
    CUdeviceptr second;
    CUmemAccessDesc access;
    if (!p || !ready(p->last) || R(cuStreamSynchronize(streams[p->last].handle))) return;
    access = access_for(p->device);
    if (!DONE(cuMemAddressReserve(&second, p->span, 0, 0, 0))) return;
    if (DONE(cuMemMap(second, p->span, 0, p->handle, 0))) {
        if (DONE(cuMemSetAccess(second, p->span, &access, 1))) R(cuMemsetD8_v2(second, (unsigned char)c, 512)), R(finish());
        R(cuMemUnmap(second, p->span));
    }
    R(cuMemAddressFree(second, p->span));
    verify(p);
}
KIND(mapped_again, 1, "U") {
    struct block *p = next_block(a, is_mapped);
    if (!p || !ready(p->last) || R(cuStreamSynchronize(streams[p->last].handle))) return;
    CUmemAccessDesc access = access_for(p->device);
    R(cuMemUnmap(p->address, p->span)), R(cuMemMap(p->address, p->span, 0, p->handle, 0)), R(cuMemSetAccess(p->address, p->span, &access, 1));
    verify(p);
}
KIND(mapped_wrong, 1, "U") {
    struct block *p = next_block(a, is_mapped);
    unsigned long long access = 0;
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    if (!p || !in_context()) return;
    R(cuMemMap(p->address, p->span, 0, p->handle, 0)), R(cuMemAddressFree(p->address, p->span)), R(cuMemUnmap(p->address + 4096, p->span));
    R(cuMemGetAccess(&access, &location, p->address)), say(" access %llu", access);
    R(cuMemFree_v2(p->address));
}
KIND(mapped_shared, 1, "U") {
    struct block *p = next_block(a, is_mapped);
    CUmemGenericAllocationHandle again;
    int file = -1;
    if (!p || !DONE(cuMemExportToShareableHandle(&file, p->handle, 1, 0))) return;
    if (DONE(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)file, 1))) R(cuMemRelease(again));
    close(file);
}

KIND(share, 4, "OU") {
    struct block *p = next_block(a, is_linear);
    struct order order = {.what = 'o'};
    if (!p || p->device || p->context || p->opened || p->last < 0 || !strcmp(p->api, "cuMemAlloc_v1") || captures(NONE, false)) return;
    for (unsigned i = 0; i < BLOCKS; i++) if (blocks[i].opened && i % OTHERS == (unsigned)(p - blocks) % OTHERS) return;
    verify(p);
    if (!use(0) || !DONE(cuIpcGetMemHandle(&order.handle, p->address))) return;
    order.number = (int)(p - blocks) % OTHERS, order.size = p->size;
    struct answer answer = ask_other(order);
    say(" opened %d", answer.result);
    p->opened = !answer.result;
    order.what = 'r';
    if (!p->opened) return;
    answer = ask_other(order);
    say(" read %d bytes %08x", answer.result, answer.hash);
}

static bool is_opened(const struct block *b) { return b->opened; }
KIND(written_elsewhere, 2, "OU") {
    struct block *p = next_block(a, is_opened);
    if (!p || !ready(p->last) || R(cuStreamSynchronize(streams[p->last].handle))) return;
    struct answer answer = ask_other((struct order){.what = 'w', .number = (int)(p - blocks) % OTHERS, .size = p->size});
    say(" wrote %d %d", answer.result, answer.second);
    verify(p);
}
KIND(close_elsewhere, 2, "O") { struct block *p = next_block(a, is_opened); if (p) close_in_other(p); }
KIND(share_wrong, 1, "U") {
    CUipcMemHandle handle;
    CUdeviceptr address;
    struct block *p = next_block(a, b & 1 ? is_linear : is_known);
    if (!p || !p->address || !in_context() || (p->class == LINEAR && p->opened)) return;
    memset(&handle, 0x5a, sizeof handle);
    R(cuIpcOpenMemHandle_v2(&address, handle, 1)), R(cuIpcCloseMemHandle(p->address));
    if (p->class != LINEAR) R(cuIpcGetMemHandle(&handle, p->address));
}

KIND(ask_range, 8, "A") {
    struct block *p = next_block(a, is_known);
    CUdeviceptr base = 0;
    size_t size = 0;
    if (!p || !p->address || !in_context()) return;
    if (DONE(cuMemGetAddressRange_v2(&base, &size, p->address + c % p->size))) say(" %lld %zu", (long long)(base - p->address), size);
    if (p->class == LINEAR && b & 1) R(cuMemGetAddressRange_v2(&base, &size, p->address + p->size - 1));
}
KIND(ask_attributes, 8, "A") {
    static const int which[] = {2, 8, 9, 10, 12, 13, 6, 14, 15, 18};
    struct block *p = next_block(a, is_known);
    CUdeviceptr start = 0;
    CUcontext context = NULL;
    CUmemoryPool pool = NULL;
    if (!p || !p->address || !in_context()) return;
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        unsigned long long value = 0;
        if (DONE(cuPointerGetAttribute(&value, which[i], p->address + c % p->size))) say(":%llu", value);
    }
    for (int start_of = 11; start_of <= 19; start_of += 8) /* of the range and of the mapping */
        if (DONE(cuPointerGetAttribute(&start, start_of, p->address))) say(":%lld", (long long)(start - p->address));
    if (DONE(cuPointerGetAttribute(&pool, 17, p->address))) say(" pool %d", pool != NULL);
    if (DONE(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, p->address)))
        for (int i = 0; i < CONTEXTS; i++) if (contexts[i].alive && contexts[i].handle == context) say(" of %d", i);
}
KIND(ask_many, 3, "A") {
    struct block *p = next_block(a, is_known);
    int which[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 12, 2};
    unsigned long long values[3] = {7, 7, 7};
    void *places[] = {&values[0], &values[1], &values[2]};
    if (!p || !p->address || !in_context()) return;
    R(cuPointerGetAttributes(3, which, places, p->address)), say(" %u %llu %u", (unsigned)values[0], values[1], (unsigned)values[2]);
    R(cuPointerGetAttributes(3, which, places, 0x12345)), say(" %u %llu %u", (unsigned)values[0], values[1], (unsigned)values[2]);
}

KIND(ask_freed, 3, "OU") {
    struct block *p = next_block(a, is_linear);
    CUdeviceptr address = p ? p->address : 0, base;
    int value;
    size_t size;
    if (!p) return;
    give_back(p, b);
    if (!in_context()) return;
    R(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)), R(cuMemGetAddressRange_v2(&base, &size, address));
}
KIND(sync_memops, 2, "U") {
    struct block *p = next_block(a, is_linear);
    unsigned on = 1;
    unsigned char now = 7;
    if (!p || !in_context()) return;
    R(cuPointerSetAttribute(&on, 6, p->address)), R(cuPointerGetAttribute(&now, 6, p->address)), say(" %u", now);
}
KIND(memory_info, 3, "POA") {
    size_t free_bytes = 0, total = 0;
    if (!in_context() || !DONE(cuMemGetInfo_v2(&free_bytes, &total))) return;
    say(" total %zu free %zu", total, free_bytes);
}
KIND(dmabuf, 1, "PA") {
    struct block *p = next_block(a, is_linear);
    int file = -1;
    if (!p || p->size < 2 * MIB || !in_context()) return;
    if (!R(cuMemGetHandleForAddressRange(&file, p->address, 65536, 1, 0))) close(file);
}
KIND(ask_host, 1, "A") {
    struct block *p = next_block(a, is_host);
    CUdeviceptr address;
    if (p && in_context() && DONE(cuMemHostGetDevicePointer_v2(&address, (void *)p->address, 0))) say(" %d", address == p->address);
}
