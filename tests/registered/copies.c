/* Copies between devices. All hold for memory of cuMemAlloc without the library. Exits with 1 if a byte differs.
 *
 *   copies all        every function that copies, between all devices, with each device current
 *   copies streams    the same on a stream of a device that is not current
 *   copies others     a block, and memory that the driver allocated, on another device
 *   copies order      copies keep their place in the order of their stream
 *   copies enabled    the same after peer access is enabled, and after it is disabled
 *   copies captured   copies in a capture
 *   copies nodes      copies that are nodes of a graph
 *   copies apart      the same, and batches, between devices that cannot be peers: done, or refused without harm
 *   copies first-N    the first copy of a process is of this kind
 *   copies enable     prints how often cuMemSetAccess was called, as peers get access to 20 GiB */
#include "devices.h"

CUresult cuMemcpy_ptds(CUdeviceptr, CUdeviceptr, size_t), cuMemcpyAsync_ptsz(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr, CUdeviceptr, size_t), cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *), cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *);
CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *, CUstream), cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *);
CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *, CUstream);
CUresult cuGraphAddNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *);

static CUDA_MEMCPY2D rows(CUdeviceptr to, CUdeviceptr from, int type)
{
    return (CUDA_MEMCPY2D){.srcMemoryType = type, .srcDevice = from, .srcPitch = PITCH, .dstMemoryType = type, .dstDevice = to, .dstPitch = PITCH,
                           .WidthInBytes = PITCH, .Height = ROWS};
}
static CUDA_MEMCPY3D slices(CUdeviceptr to, CUdeviceptr from, int type)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = type, .srcDevice = from, .srcPitch = PITCH, .srcHeight = ROWS / 2, .dstMemoryType = type, .dstDevice = to,
                           .dstPitch = PITCH, .dstHeight = ROWS / 2, .WidthInBytes = PITCH, .Height = ROWS / 2, .Depth = 2};
}
#define FORM(name, call)                                                                         \
    static CUresult name(CUdeviceptr to, CUdeviceptr from, CUstream stream)                      \
    {                                                                                            \
        size_t size = PITCH * ROWS;                                                              \
        CUDA_MEMCPY2D plane = rows(to, from, DEVICE), any_plane = rows(to, from, UNIFIED);       \
        CUDA_MEMCPY3D box = slices(to, from, DEVICE), any_box = slices(to, from, UNIFIED);       \
        (void)stream, (void)size, (void)plane, (void)any_plane, (void)box, (void)any_box;        \
        return call;                                                                             \
    }
FORM(unified, cuMemcpy(to, from, size))
FORM(unified_t, cuMemcpy_ptds(to, from, size))
FORM(unified_async, cuMemcpyAsync(to, from, size, stream))
FORM(unified_async_t, cuMemcpyAsync_ptsz(to, from, size, stream))
FORM(linear, cuMemcpyDtoD_v2(to, from, size))
FORM(linear_t, cuMemcpyDtoD_v2_ptds(to, from, size))
FORM(linear_async, cuMemcpyDtoDAsync_v2(to, from, size, stream))
FORM(linear_async_t, cuMemcpyDtoDAsync_v2_ptsz(to, from, size, stream))
FORM(plane, cuMemcpy2D_v2(&plane))
FORM(plane_t, cuMemcpy2D_v2_ptds(&any_plane))
FORM(plane_unaligned, cuMemcpy2DUnaligned_v2(&any_plane))
FORM(plane_async, cuMemcpy2DAsync_v2(&any_plane, stream))
FORM(plane_async_t, cuMemcpy2DAsync_v2_ptsz(&plane, stream))
FORM(box, cuMemcpy3D_v2(&any_box))
FORM(box_t, cuMemcpy3D_v2_ptds(&box))
FORM(box_async, cuMemcpy3DAsync_v2(&box, stream))
FORM(box_async_t, cuMemcpy3DAsync_v2_ptsz(&any_box, stream))
FORM(default_stream, cuMemcpyAsync(to, from, size, NULL))
FORM(batch, cuMemcpyBatchAsync_v2(&to, &from, &size, 1, NULL, NULL, 0, stream))
static CUDA_MEMCPY3D_BATCH_OP operation(CUdeviceptr to, CUdeviceptr from)
{
    enum { POINTER = CU_MEMCPY_OPERAND_TYPE_POINTER, IN_STREAM_ORDER = 1 };
    return (CUDA_MEMCPY3D_BATCH_OP){.src = {POINTER, {.ptr = {.ptr = from}}}, .dst = {POINTER, {.ptr = {.ptr = to, .rowLength = PITCH}}},
                                    .width = PITCH, .height = ROWS / 2, .depth = 2, .srcAccessOrder = IN_STREAM_ORDER};
}
static unsigned attributes[6] = {1 /* srcAccessOrder: in the order of the stream */};
FORM(attributed, cuMemcpyWithAttributesAsync(to, from, size, attributes, stream))
static CUresult box_batch(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CUDA_MEMCPY3D_BATCH_OP both[] = {operation(to, from), operation(to, from)};
    return cuMemcpy3DBatchAsync_v2(2, both, 0, stream);
}
static CUresult box_attributed(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CUDA_MEMCPY3D_BATCH_OP one = operation(to, from);
    return cuMemcpy3DWithAttributesAsync(&one, 0, stream);
}
#ifdef RUNTIME
enum { ON_DEVICES = 3, BY_ADDRESS = 4 };
CUresult cudaMemcpy(CUdeviceptr, CUdeviceptr, size_t, int), cudaMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, int, CUstream);
CUresult cudaMemcpyAsync_ptsz(CUdeviceptr, CUdeviceptr, size_t, int, CUstream);
typedef struct { int type, device; CUdeviceptr address; void *host; long reserved[8]; } cudaPointerAttributes;
CUresult cudaPointerGetAttributes(cudaPointerAttributes *, CUdeviceptr), cudaMemcpyPeer(CUdeviceptr, int, CUdeviceptr, int, size_t);
CUresult cudaMemcpy2D(CUdeviceptr, size_t, CUdeviceptr, size_t, size_t, size_t, int);
FORM(runtime, cudaMemcpy(to, from, size, ON_DEVICES))
FORM(runtime_by_address, cudaMemcpy(to, from, size, BY_ADDRESS))
FORM(runtime_async, cudaMemcpyAsync(to, from, size, ON_DEVICES, stream))
FORM(runtime_async_by_address, cudaMemcpyAsync(to, from, size, BY_ADDRESS, stream))
FORM(runtime_async_t, cudaMemcpyAsync_ptsz(to, from, size, ON_DEVICES, NULL))
FORM(runtime_default_stream, cudaMemcpyAsync(to, from, size, ON_DEVICES, NULL))
FORM(runtime_plane, cudaMemcpy2D(to, PITCH, from, PITCH, PITCH, ROWS, ON_DEVICES))
#endif
#define OF(form) {#form, form}
static const struct form { const char *name; CUresult (*copy)(CUdeviceptr, CUdeviceptr, CUstream); } forms[] = {
#ifdef RUNTIME
    OF(runtime), OF(runtime_by_address), OF(runtime_async), OF(runtime_async_by_address), OF(runtime_async_t), OF(runtime_default_stream), OF(runtime_plane),
#endif
    OF(unified), OF(unified_t), OF(unified_async), OF(unified_async_t), OF(linear), OF(linear_t), OF(linear_async), OF(linear_async_t), OF(plane),
    OF(plane_t), OF(plane_unaligned), OF(plane_async), OF(plane_async_t), OF(box), OF(box_t), OF(box_async), OF(box_async_t), OF(default_stream), OF(batch),
    OF(attributed), OF(box_batch), OF(box_attributed),
};
/* A batch and a copy with attributes have no form between contexts, so they need devices that can be peers. */
static int form_count(void)
{
    enum { WITHOUT_PEER_FORM = 4 };
    int count = sizeof forms / sizeof *forms;
    return can_be_peers() ? count : count - WITHOUT_PEER_FORM;
}

static unsigned char next_value(void)
{
    static unsigned char value;
    return value = value % 250 + 1;
}

static int shift; /* from the current device to that of the stream */

static void copy_by(const struct form *form, int here, int to_device, CUdeviceptr to, int from_device, CUdeviceptr from)
{
    unsigned char value = next_value();
    fill(from_device, from, value);
    fill(to_device, to, 255);
    use(here);
    CUresult result = form->copy(to + PITCH, from + PITCH, streams[(here + shift) % DEVICES]);
    if (result) fprintf(stderr, "%s from %d to %d on %d: %d\n", form->name, from_device, to_device, here, result), exit(1);
    CHECK(cuCtxSynchronize());
    finish();
    use(to_device);
    holds(form->name, to + PITCH, value, PITCH * ROWS);
    holds(form->name, to, 255, PITCH);
    holds(form->name, to + (ROWS + 1) * PITCH, 255, PITCH);
}

static void copy_all_ways(CUdeviceptr *blocks, int devices)
{
    for (int form = 0; form < form_count(); form++)
        for (int here = 0; here < devices; here++)
            for (int to = 0; to < devices; to++)
                for (int from = 0; from < devices; from++) copy_by(&forms[form], here, to, blocks[to], from, blocks[devices + from]);
}

#ifdef RUNTIME
static void told_by_the_runtime(const CUdeviceptr *blocks)
{
    enum { OF_DEVICE = 2 };
    cudaPointerAttributes found;
    fill(1, blocks[1], 0x5b);
    CHECK(cudaMemcpyPeer(blocks[0], 0, blocks[1], 1, SIZE));
    finish();
    use(0);
    holds("cudaMemcpyPeer", blocks[0], 0x5b, SIZE);
    for (int device = 0; device < DEVICES; device++) {
        CUdeviceptr inside = blocks[device] + SIZE / 2;
        CHECK(cudaPointerGetAttributes(&found, inside));
        THAT(found.type == OF_DEVICE && found.device == device && found.address == inside && !found.host);
        CHECK(cuMemFree_v2(blocks[device]));
        CHECK(cudaPointerGetAttributes(&found, inside));
        THAT(found.type == 0);
    }
}
#endif

static void all(void)
{
    CUdeviceptr blocks[2 * DEVICES];
    open_devices(DEVICES);
    for (int i = 0; i < 2 * DEVICES; i++) blocks[i] = allocate_on(i % DEVICES, SIZE);
    copy_all_ways(blocks, DEVICES);
#ifdef RUNTIME
    told_by_the_runtime(blocks);
#endif
}

static void on_other_streams(void)
{
    shift = 1;
    all();
}

static void others(void)
{
    open_devices(2);
    size_t pitch;
    CUdeviceptr block = allocate_on(0, SIZE), driver[3];
    use(1);
    CHECK(cuMemAllocPitch_v2(&driver[0], &pitch, SIZE, 1, 4));
    CHECK(cuMemAllocManaged(&driver[1], SIZE, 1));
    CHECK(cuMemAllocAsync(&driver[2], SIZE, streams[1]));
    /* Memory of a pool is there for other devices if the pool grants it (cuMemPoolSetAccess), which needs peers. */
    bool can = can_be_peers();
    CUmemoryPool pool;
    CHECK(cuDeviceGetDefaultMemPool(&pool, 1));
    CUresult (*grant)(CUmemoryPool, const CUmemAccessDesc *, size_t) = optional_function("cuMemPoolSetAccess");
    if (can) CHECK(grant(pool, &(CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}, 1));
    for (int i = 0; i < (can ? 3 : 2); i++)
        for (int here = 0; here < 2; here++)
            for (int form = 0; form < form_count(); form++) {
                copy_by(&forms[form], here, 0, block, 1, driver[i]);
                copy_by(&forms[form], here, 1, driver[i], 0, block);
            }
    if (!can) return;
    CUarray array;
    use(1);
    CHECK(cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){PITCH, ROWS, CU_AD_FORMAT_UNSIGNED_INT8, 1}));
    fill(0, block, 77);
    use(1);
    CHECK(cuMemcpyDtoA_v2(array, 0, block, PITCH));
    CHECK(cuMemcpyAtoD_v2(block + MIB, array, 0, PITCH));
    CUDA_MEMCPY2D plane = rows(block, block, DEVICE);
    plane.dstMemoryType = IN_ARRAY, plane.dstArray = array;
    CHECK(cuMemcpy2D_v2(&plane));
    finish();
}

static void order(void)
{
    open_devices(2);
    CUdeviceptr from = allocate_on(0, SIZE), to = allocate_on(1, SIZE);
    for (int here = 0; here < 2; here++)
        for (int form = 0; form < form_count(); form++) {
            if (!strstr(forms[form].name, "async") || strstr(forms[form].name, "_t")) continue;
            fill(0, from, 1);
            use(here);
            CHECK(cuMemsetD8Async(here ? to : from, 2, SIZE, streams[here]));
            CHECK(forms[form].copy(to, from, streams[here]));
            CHECK(cuMemsetD8Async(from, 3, SIZE, streams[here]));
            finish();
            holds(forms[form].name, to, here ? 1 : 2, PITCH * ROWS);
        }
}

static void enabled(void)
{
    CUdeviceptr blocks[4];
    open_devices(2);
    for (int i = 0; i < 4; i++) blocks[i] = allocate_on(i % 2, SIZE);
    use(1);
    CHECK(cuCtxEnablePeerAccess(contexts[0], 0));
    copy_all_ways(blocks, 2);
    CUdeviceptr later = allocate_on(0, 300 * MIB);
    copy_by(&forms[2], 1, 1, blocks[1], 0, later);
    use(1);
    CHECK(cuCtxDisablePeerAccess(contexts[0]));
    copy_all_ways(blocks, 2);
}

/* A copy of another kind, made before, would have given access. */
static void first_by(CUresult (*copy)(CUdeviceptr, CUdeviceptr, CUstream))
{
    open_devices(2);
    CUdeviceptr to = allocate_on(0, SIZE), from = allocate_on(1, SIZE);
    copy_by(&(struct form){"first copy", copy}, 0, 0, to, 1, from);
}
static void first_attributed(void) { first_by(attributed); }
static void first_box_batch(void) { first_by(box_batch); }
static void first_box_attributed(void) { first_by(box_attributed); }

/* Runs a graph to its end. */
static void launch(CUgraph graph, CUstream stream)
{
    CUgraphExec exec;
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    finish();
}

static void captured(void)
{
    CUdeviceptr blocks[4];
    open_devices(2);
    for (int i = 0; i < 4; i++) blocks[i] = allocate_on(i % 2, SIZE);
    for (int turn = 0; turn < 2; turn++) {
        for (int form = 0; form < form_count(); form++)
            for (int here = 0; here < 2; here++) {
                CUgraph graph;
                if (!strstr(forms[form].name, "async")) continue;
                fill(1, blocks[3], 9);
                fill(0, blocks[0], 255);
                use(here);
                CHECK(cuStreamBeginCapture_v2(streams[here], form % 3));
                CHECK(forms[form].copy(blocks[0], blocks[3], streams[here]));
                CHECK(cuStreamEndCapture(streams[here], &graph));
                launch(graph, streams[here]);
                holds(forms[form].name, blocks[0], 9, PITCH * ROWS);
            }
        /* Memory that the pools obtain later can be copied as well. */
        for (int i = 0; i < 4; i++) blocks[i] = allocate_on(i % 2, 200 * MIB);
    }
}

static void nodes(void)
{
    open_devices(2);
    CUdeviceptr to = allocate_on(0, SIZE), from = allocate_on(1, SIZE);
    for (int generic = 0; generic < 2; generic++)
        for (int here = 0; here < 2; here++) {
            CUgraph graph;
            CUgraphNode node;
            CUDA_MEMCPY3D box = slices(to, from, DEVICE);
            CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .u.copy = {.context = contexts[here], .params = box}};
            fill(1, from, 12);
            fill(0, to, 255);
            use(1 - here);
            CHECK(cuGraphCreate(&graph, 0));
            if (generic) CHECK(cuGraphAddNode(&node, graph, NULL, 0, &parameters));
            else CHECK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &box, contexts[here]));
            launch(graph, streams[1 - here]);
            holds("node", to, 12, PITCH * ROWS);
        }
}

/* A copy that cannot be made is refused by the call that asks for it, before any work fails. */
static void done_or_refused(CUresult result)
{
    if (result) EXPECT(result, 801);
}

static void apart(void)
{
    open_devices(2);
    CUdeviceptr to = allocate_on(0, SIZE), from = allocate_on(1, SIZE), second = to;
    size_t size = SIZE;
    for (int here = 0; here < 2; here++) {
        CUgraph graph;
        CUgraphNode node;
        CUDA_MEMCPY3D box = slices(to, from, DEVICE);
        fill(1, from, (unsigned char)(20 + here));
        use(here);
        done_or_refused(cuMemcpyBatchAsync_v2(&second, &from, &size, 1, NULL, NULL, 0, streams[here]));
        CHECK(cuGraphCreate(&graph, 0));
        done_or_refused(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &box, contexts[here]));
        launch(graph, streams[here]);
        use(here);
        CHECK(cuStreamBeginCapture_v2(streams[here], CU_STREAM_CAPTURE_MODE_RELAXED));
        done_or_refused(cuMemcpyAsync(to, from, SIZE, streams[here]));
        CHECK(cuStreamEndCapture(streams[here], &graph));
        launch(graph, streams[here]);
        use(here);
        CHECK(cuMemcpyAsync(to, from, SIZE, streams[here]));
        finish();
        holds("copy after refusals", to, (unsigned char)(20 + here), SIZE);
    }
}

static void enable(void)
{
    enum { BLOCKS = 640, PEERS = 3 };
    const size_t size = 32 * MIB; /* a larger block would be an allocation of the driver */
    CUdeviceptr blocks[BLOCKS], mine[PEERS + 1];
    open_devices(PEERS + 1);
    for (int i = 0; i < BLOCKS; i++) blocks[i] = allocate_on(0, size);
    for (int i = 1; i <= PEERS; i++) mine[i] = allocate_on(i, MIB);
    uint64_t before = simgpu_calls("cuMemSetAccess");
    for (int i = 1; i <= PEERS; i++) {
        use(i);
        CHECK(cuCtxEnablePeerAccess(contexts[0], 0));
    }
    printf("%llu ", (unsigned long long)(simgpu_calls("cuMemSetAccess") - before));
    before = simgpu_calls("cuMemSetAccess");
    for (int turn = 0; turn < 5; turn++) {
        CHECK(cuCtxDisablePeerAccess(contexts[0]));
        CHECK(cuCtxEnablePeerAccess(contexts[0], 0));
    }
    printf("%llu\n", (unsigned long long)(simgpu_calls("cuMemSetAccess") - before));
    for (int i = 1; i <= PEERS; i++)
        for (int block = 0; block < BLOCKS; block++) {
            use(i);
            CHECK(cuMemcpyAsync(mine[i], blocks[block] + size - MIB, MIB, NULL));
            CHECK(cuCtxSynchronize());
        }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"all", all}, {"streams", on_other_streams}, {"others", others}, {"order", order}, {"enabled", enabled}, {"captured", captured}, {"nodes", nodes}, {"apart", apart},
        {"enable", enable}, {"first-attributed", first_attributed}, {"first-box-batch", first_box_batch}, {"first-box-attributed", first_box_attributed},
    };
    return PLAY(scenes, argc, argv);
}
