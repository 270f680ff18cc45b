/* What the driver refuses, and with which answer. Exits with 1 if an answer is wrong. The device has 1 GiB.
 *
 *   refusals sizes        sizes that do not fit into 64 bits
 *   refusals runtime      the same requests of the runtime, whose library is the second argument
 *   refusals pitched      one request for pitched memory of such a size
 *   refusals managed      advice, prefetches, attachments and registrations of memory that is not theirs
 *   refusals reserved     flags that must be zero
 *   refusals gone         fills and copies of memory that was freed, or whose context was destroyed
 *   refusals neighbours   two blocks of one page are shared with another process
 *   refusals strangers    memory of a device is opened on one that is no peer */
#include "two_processes.h"

CUresult cuMemAdvise(CUdeviceptr, size_t, int, int), cuMemAdvise_v2(CUdeviceptr, size_t, int, CUmemLocation);
CUresult cuMemPrefetchAsync(CUdeviceptr, size_t, int, CUstream);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream);
CUresult cuMemRangeGetAttribute(void *, size_t, int, CUdeviceptr, size_t);
CUresult cuMemRangeGetAttributes(void **, size_t *, int *, size_t, CUdeviceptr, size_t);
CUresult cuStreamAttachMemAsync(CUstream, CUdeviceptr, size_t, unsigned);

enum { FLOAT = CU_AD_FORMAT_FLOAT, PINNED = CU_MEM_ALLOCATION_TYPE_PINNED };
static const size_t HUGE = (size_t)1 << 40, WHOLE = SIZE_MAX;
static const CUmemLocation first = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, third = {CU_MEM_LOCATION_TYPE_DEVICE, 2};
static const CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
static const CUmemAllocationProp on_first = {.type = PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

#define TOO_LARGE(call) EXPECT(call, CUDA_ERROR_OUT_OF_MEMORY)

static void pitched(void)
{
    CUdeviceptr address;
    size_t pitch;
    TOO_LARGE(cuMemAllocPitch_v2(&address, &pitch, HUGE, HUGE, 4));
}

static void sizes(void)
{
    size_t before = free_memory(), pitch, page = 2 * MIB;
    CUdeviceptr address;
    void *memory;
    CUarray array;
    TOO_LARGE(cuMemAlloc_v2(&address, WHOLE));
    TOO_LARGE(cuMemAllocManaged(&address, WHOLE, 1));
    TOO_LARGE(cuMemAllocHost_v2(&memory, WHOLE));
    TOO_LARGE(cuMemHostAlloc(&memory, WHOLE - 511, 0));
    TOO_LARGE(cuMemAllocAsync(&address, WHOLE, NULL));
    pitched();
    /* the last one fits as it is, and does not with the pitch */
    static const size_t rows[][2] = {{1ull << 32, 1ull << 32}, {1, SIZE_MAX}, {SIZE_MAX, 1}, {SIZE_MAX, SIZE_MAX}, {3, 1ull << 55}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        TOO_LARGE(cuMemAllocPitch_v2(&address, &pitch, rows[i][0], rows[i][1], 4));
    TOO_LARGE(cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){HUGE, HUGE, FLOAT, 1}));
    TOO_LARGE(cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){1ull << 62, 0, FLOAT, 1}));
    TOO_LARGE(cuArray3DCreate_v2(&array, &(CUDA_ARRAY3D_DESCRIPTOR){1 << 22, 1 << 22, 1 << 22, FLOAT, 1, 0}));
    TOO_LARGE(cuArray3DCreate_v2(&array, &(CUDA_ARRAY3D_DESCRIPTOR){1, 1ull << 32, 1ull << 32, FLOAT, 1, CUDA_ARRAY3D_LAYERED}));
    TOO_LARGE(cuMipmappedArrayCreate(&array, &(CUDA_ARRAY3D_DESCRIPTOR){HUGE, HUGE, 0, FLOAT, 1, 0}, 4));
    /* each level fits into 64 bits, and their sum does not */
    TOO_LARGE(cuMipmappedArrayCreate(&array, &(CUDA_ARRAY3D_DESCRIPTOR){(1ull << 62) - 1, 0, 0, FLOAT, 1, 0}, 2));
    CUmemoryPool pool;
    CUmemPoolProps of_host = {.allocType = PINNED, .location = host};
    CHECK(cuMemPoolCreate(&pool, &of_host));
    TOO_LARGE(cuMemAllocFromPoolAsync(&address, WHOLE, pool, NULL));
    CHECK(cuMemPoolDestroy(pool));
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp on_host = {.type = PINNED, .location = host};
    TOO_LARGE(cuMemCreate(&handle, -page, &on_first, 0));
    TOO_LARGE(cuMemCreate(&handle, -page, &on_host, 0));
    TOO_LARGE(cuMemAddressReserve(&address, -page, 0, 0, 0));
    EXPECT(cuMemHostRegister_v2(&pool, WHOLE, 0), CUDA_ERROR_INVALID_VALUE); /* the range has no end */
    CHECK(cuCtxSynchronize());
    THAT(free_memory() == before);
    CHECK(cuMemAllocPitch_v2(&address, &pitch, 1000, 10, 4));
    CHECK(cuMemFree_v2(address));
}

static const char *runtime_name;
typedef struct { void *memory; size_t pitch, width, height; } Pitched;
typedef struct { size_t width, height, depth; } Extent;
typedef struct { int x, y, z, w, kind; } Channels;

static void runtime(void)
{
    enum { MEMORY_ALLOCATION = 2, CHANNEL_FLOAT = 2 };
    void *library = dlopen(runtime_name, RTLD_NOW), *memory, *array;
    THAT(library);
    int (*pitch)(void **, size_t *, size_t, size_t) = dlsym(library, "cudaMallocPitch");
    int (*volume)(Pitched *, Extent) = dlsym(library, "cudaMalloc3D");
    int (*managed)(void **, size_t, unsigned) = dlsym(library, "cudaMallocManaged");
    int (*plane)(void **, const Channels *, size_t, size_t, unsigned) = dlsym(library, "cudaMallocArray");
    int (*levels)(void **, const Channels *, Extent, unsigned, unsigned) = dlsym(library, "cudaMallocMipmappedArray");
    size_t bytes;
    Pitched pitched;
    Channels channels = {32, 0, 0, 0, CHANNEL_FLOAT};
    EXPECT(pitch(&memory, &bytes, HUGE, HUGE), MEMORY_ALLOCATION);
    THAT(!memory);
    EXPECT(volume(&pitched, (Extent){HUGE, HUGE, 1}), MEMORY_ALLOCATION);
    EXPECT(volume(&pitched, (Extent){1, HUGE, HUGE}), MEMORY_ALLOCATION);
    EXPECT(volume(&pitched, (Extent){1 << 22, 1 << 22, 1 << 22}), MEMORY_ALLOCATION);
    THAT(!pitched.memory);
    EXPECT(managed(&memory, WHOLE, 1), MEMORY_ALLOCATION);
    EXPECT(plane(&array, &channels, HUGE, HUGE, 0), MEMORY_ALLOCATION);
    EXPECT(levels(&array, &channels, (Extent){HUGE, HUGE, 0}, 4, 0), MEMORY_ALLOCATION);
}

static void each(CUdeviceptr address, size_t size, int wanted)
{
    int value, attributes[] = {1, 2}, values[2];
    void *data[] = {&values[0], &values[1]};
    size_t sizes[] = {4, 4};
    EXPECT(cuMemAdvise(address, size, 1, 0), wanted);
    EXPECT(cuMemAdvise_v2(address, size, 3, host), wanted);
    EXPECT(cuMemPrefetchAsync(address, size, 0, NULL), wanted);
    EXPECT(cuMemPrefetchAsync(address, size, -1, NULL), wanted); /* to the host */
    EXPECT(cuMemPrefetchAsync_v2(address, size, first, 0, NULL), wanted);
    EXPECT(cuStreamAttachMemAsync(NULL, address, size, 1), wanted);
    EXPECT(cuMemRangeGetAttribute(&value, 4, 1, address, size), wanted);
    EXPECT(cuMemRangeGetAttributes(data, sizes, attributes, 2, address, size), wanted);
}

static void managed(void)
{
    CUdeviceptr block, rows, async, on_host, range, whole;
    CUmemGenericAllocationHandle handle;
    size_t pitch;
    CUstream stream = new_stream(NON_BLOCKING);
    CHECK(cuMemAlloc_v2(&block, MIB));
    CHECK(cuMemAllocPitch_v2(&rows, &pitch, 1000, 10, 4));
    CHECK(cuMemAllocAsync(&async, MIB, NULL));
    CHECK(cuMemAllocHost_v2((void **)&on_host, MIB));
    CHECK(cuMemCreate(&handle, 2 * MIB, &on_first, 0));
    CHECK(cuMemAddressReserve(&range, 4 * MIB, 0, 0, 0));
    CHECK(cuMemMap(range, 2 * MIB, 0, handle, 0));
    CHECK(cuMemAllocManaged(&whole, MIB, 1));
    void *plain = malloc(MIB);
    const CUdeviceptr refused[] = {block, rows, async, on_host, range, range + 2 * MIB, 4096};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) each(refused[i], 4096, CUDA_ERROR_INVALID_VALUE);
    each(whole, MIB, CUDA_SUCCESS);
    each(whole, MIB + 4096, CUDA_ERROR_INVALID_VALUE);
    each((CUdeviceptr)plain, MIB, CUDA_SUCCESS); /* the device has CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS */
    EXPECT(cuMemAdvise(whole, MIB, 3, 2), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(cuMemAdvise(whole, MIB, 7, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAdvise(whole, MIB, 4, 2)); /* takes a preferred location back, whatever it is */
    EXPECT(cuMemPrefetchAsync(whole, MIB, 2, NULL), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(cuMemPrefetchAsync_v2(whole, MIB, third, 0, NULL), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(cuMemPrefetchAsync_v2(whole, MIB, first, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuStreamAttachMemAsync(stream, whole, 0, 4));
    EXPECT(cuStreamAttachMemAsync(NULL, whole, 0, 4), CUDA_ERROR_INVALID_VALUE); /* singly to the default stream */
    EXPECT(cuStreamAttachMemAsync(stream, whole, 4096, 1), CUDA_ERROR_INVALID_VALUE); /* a part of it */
    EXPECT(cuStreamAttachMemAsync(stream, whole, 0, 3), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemHostRegister_v2((void *)block, 4096, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemHostRegister_v2((void *)async, 4096, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemHostRegister_v2((void *)range, 4096, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemHostRegister_v2(plain, MIB, 0));
    CHECK(cuMemHostUnregister(plain));
    CHECK(cuMemFree_v2(whole));
    each(whole, MIB, CUDA_ERROR_INVALID_VALUE);
}

static void reserved(void)
{
    CUmemGenericAllocationHandle handle;
    size_t before = free_memory();
    EXPECT(cuMemCreate(&handle, 2 * MIB, &on_first, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemCreate(&handle, 2 * MIB, &on_first, 1ull << 63), CUDA_ERROR_INVALID_VALUE);
    THAT(free_memory() == before);
    CHECK(cuMemCreate(&handle, 2 * MIB, &on_first, 0));
    CHECK(cuMemRelease(handle));
}

enum { BLOCKS = 4 };
static const size_t bytes_of[BLOCKS] = {1000, 100000, 700, 3 << 20};

static CUdeviceptr filled(size_t size, int value)
{
    CUdeviceptr block = linear_memory(size);
    CHECK(cuMemsetD8_v2(block, (unsigned char)value, size));
    return block;
}

static void share(int socket, const CUdeviceptr *blocks)
{
    CUipcMemHandle handles[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) CHECK(cuIpcGetMemHandle(&handles[i], blocks[i]));
    THAT(write(socket, handles, sizeof handles) == sizeof handles);
    wait_for(socket);
}

static void owns(int socket)
{
    CUdeviceptr blocks[BLOCKS], between[BLOCKS];
    begin();
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = filled(bytes_of[i], 0x10 + i);
        between[i] = filled(300, 0x20 + i); /* not shared */
    }
    share(socket, blocks);
    for (int i = 0; i < BLOCKS; i++) {
        THAT(byte_at(blocks[i]) == 0x10 + i && byte_at(blocks[i] + bytes_of[i] - 1) == 0x50 + i);
        THAT(byte_at(between[i]) == 0x20 + i && byte_at(between[i] + 299) == 0x20 + i);
        CHECK(cuMemsetD8_v2(blocks[i], (unsigned char)(0x30 + i), 1));
    }
    tell(socket);
    wait_for(socket); /* all are closed */
    for (int i = 0; i < BLOCKS; i++) CHECK(cuMemFree_v2(blocks[i]));
    for (int i = 0; i < BLOCKS; i++) THAT(byte_at(between[i]) == 0x20 + i);
    for (int i = BLOCKS - 1; i >= 0; i--) blocks[i] = filled(bytes_of[i], 0x60 + i);
    share(socket, blocks);
}

static void open_all(int socket, CUdeviceptr *blocks)
{
    CUipcMemHandle handles[BLOCKS];
    THAT(read(socket, handles, sizeof handles) == sizeof handles);
    for (int i = 0; i < BLOCKS; i++) CHECK(cuIpcOpenMemHandle_v2(&blocks[i], handles[i], 1));
}

static void imports(int socket)
{
    CUdeviceptr blocks[BLOCKS];
    begin();
    open_all(socket, blocks);
    for (int i = 0; i < BLOCKS; i++) {
        THAT(byte_at(blocks[i]) == 0x10 + i && byte_at(blocks[i] + bytes_of[i] - 1) == 0x10 + i);
        CHECK(cuMemsetD8_v2(blocks[i] + bytes_of[i] - 1, (unsigned char)(0x50 + i), 1));
    }
    tell(socket);
    wait_for(socket);
    for (int i = 0; i < BLOCKS; i++) {
        THAT(byte_at(blocks[i]) == 0x30 + i);
        CHECK(cuIpcCloseMemHandle(blocks[i]));
    }
    tell(socket);
    open_all(socket, blocks);
    for (int i = 0; i < BLOCKS; i++) {
        THAT(byte_at(blocks[i]) == 0x60 + i && byte_at(blocks[i] + bytes_of[i] - 1) == 0x60 + i);
        CHECK(cuIpcCloseMemHandle(blocks[i]));
    }
    tell(socket);
}

static void gives(int socket)
{
    CUipcMemHandle handle;
    begin();
    CHECK(cuIpcGetMemHandle(&handle, linear_memory(3 * MIB)));
    THAT(write(socket, &handle, sizeof handle) == sizeof handle);
    wait_for(socket);
}

/* There are no peers (SIMGPU_PEERS=0). */
static void is_refused(int socket)
{
    CUdeviceptr block;
    CUipcMemHandle handle;
    begin();
    THAT(read(socket, &handle, sizeof handle) == sizeof handle);
    use_device(1);
    EXPECT(cuIpcOpenMemHandle_v2(&block, handle, 1), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuIpcOpenMemHandle_v2(&block, handle, 1));
    CHECK(cuIpcCloseMemHandle(block));
    tell(socket);
}

#define NOTHING_THERE(call) EXPECT(call, CUDA_ERROR_INVALID_VALUE)

static void gone(void)
{
    enum { DEVICE_MEMORY = 2 };
    static const size_t sizes_of[] = {4096, 3 * MIB, 96 * MIB};
    CUdeviceptr blocks[3], live = linear_memory(MIB);
    CUcontext other;
    char bytes[512] = {0};
    CHECK(cuCtxCreate_v2(&other, 0, 0));
    for (int i = 0; i < 3; i++) blocks[i] = linear_memory(sizes_of[i]);
    CHECK(cuCtxDestroy_v2(other));
    CHECK(cuCtxSetCurrent(context));
    for (int i = 0; i < 3; i++) {
        CUdeviceptr last = blocks[i] + sizes_of[i] - sizeof bytes;
        CUDA_MEMCPY2D rows = {.srcMemoryType = DEVICE_MEMORY, .srcDevice = last, .srcPitch = 64, .dstMemoryType = DEVICE_MEMORY,
                              .dstDevice = live, .dstPitch = 64, .WidthInBytes = 64, .Height = 8};
        NOTHING_THERE(cuMemsetD8_v2(blocks[i], 1, sizeof bytes));
        NOTHING_THERE(cuMemsetD8Async(last, 1, sizeof bytes, NULL));
        NOTHING_THERE(cuMemcpyHtoD_v2(blocks[i], bytes, sizeof bytes));
        NOTHING_THERE(cuMemcpyDtoH_v2(bytes, last, sizeof bytes));
        NOTHING_THERE(cuMemcpyDtoD_v2(live, blocks[i], sizeof bytes));
        NOTHING_THERE(cuMemcpyDtoDAsync_v2(last, live, sizeof bytes, NULL));
        NOTHING_THERE(cuMemcpy2D_v2(&rows));
    }
    CHECK(cuMemsetD8_v2(live, 7, MIB));
    THAT(byte_at(live + MIB - 1) == 7);
    CHECK(cuMemFree_v2(live));
    NOTHING_THERE(cuMemFree_v2(blocks[2]));
}

static void neighbours(void) { processes(owns, imports); }
static void strangers(void) { processes(gives, is_refused); }

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"sizes", sizes}, {"runtime", runtime}, {"pitched", pitched}, {"managed", managed}, {"reserved", reserved}, {"gone", gone},
        {"neighbours", neighbours}, {"strangers", strangers},
    };
    if (argc == 3) runtime_name = argv[2];
    bool alone = argc < 2 || (strcmp(argv[1], "neighbours") && strcmp(argv[1], "strangers"));
    if (alone) begin();
    return PLAY(scenes, argc == 3 ? 2 : argc, argv);
}
