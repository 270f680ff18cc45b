/* Copies and fills. They really move bytes, unless the stream is capturing. */
#include "sim.h"

uint64_t array_element(const CUDA_ARRAY3D_DESCRIPTOR *d);

/* Whether this is pageable host memory, which the device cannot reach: the driver copies it while the caller waits. */
static bool pageable(const void *address)
{
    uint64_t at = (uint64_t)address, start, size;
    return !table_find(at) && !table_find_registered(at) && !vmm_at(at, &start, &size);
}

/* Whether the host may read or write this memory without a call to the driver. */
static bool on_host(const void *address)
{
    Allocation *a = table_find((uint64_t)address);
    return a ? a->class == HOST || a->class == MANAGED : pageable(address) || table_find_registered((uint64_t)address);
}

/* Whether an address is of memory of a device, and no allocation holds it any more: it was freed, or its context destroyed.
 * A copy finds out where its ends are from their addresses (cuda.h 13.0:9575), so the call itself answers that there is
 * nothing. No source tells the code; cuMemFree of such memory answers CUDA_ERROR_INVALID_VALUE (ucx#10606). */
static bool is_gone(const void *address)
{
    uint64_t at = (uint64_t)address;
    return (arena_holds(at) || space_holds(at)) && !table_find(at) && !table_find_range(at);
}
static bool side_is_gone(const struct side *side) { return !side->of_array && is_gone(side->base); }

/* What a copy does: the device of its stream reads and writes, or with cuMemcpyPeer the devices of the two contexts do. */
struct route { bool peer; CUcontext to, from; };

/* A copy of mapped memory or of a pool's memory needs the access of the device that copies (cuda.h 13.0:13089, cuMemSetAccess). For memory of
 * cuMemAlloc the driver finds its own way between devices, with or without peer access. For mapped memory it does not:
 * llama.cpp#4606 and #4620 saw plain copies between devices fail, and PyTorch's CUDACachingAllocator::memcpyAsync calls
 * cuMemcpyPeerAsync instead, whose contexts name both devices. These sources speak of copies between devices. No source
 * says that fills, and copies from and to the host, need the access of the current device: any device's is enough. */
static CUresult check_access(struct Context *context, struct route route, const void *to, const void *from, size_t size)
{
    int writer = context->device, reader = context->device;
    if (route.peer) {
        writer = context_device(route.to), reader = context_device(route.from);
        if (writer < 0 || reader < 0) return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!route.peer && (on_host(to) || on_host(from))) writer = reader = ANY_DEVICE;
    bool allowed = accessible(writer, (uint64_t)to, size, true) && accessible(reader, (uint64_t)from, size, false);
    return allowed ? CUDA_SUCCESS : context_break(context, CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* Whether a synchronous operation on this memory ends before it returns. cuda.h 13.0:14811, SYNC_MEMOPS. */
static bool always_synchronises(const void *address)
{
    Allocation *a = table_find((uint64_t)address);
    return a && a->sync_memops;
}

/* Waits for the stream. A call that is not ordered by the stream holds its context meanwhile. */
static void wait_for_copy(struct Context *context, struct Queue *q, bool ordered)
{
    if (ordered) return work_wait(q);
    struct Context *hold = context_hold(context);
    work_wait(q);
    context_let_go(hold);
}

static CUresult move(void *to, const void *from, size_t size, CUstream stream, bool ordered, struct route route)
{
    ENTER_WORKING("cuMemcpy");
    CHECK_STREAM(stream);
    struct Context *context = stream_context(stream, context_current());
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    context_passes(context);
    if (!ordered) {
        CUresult forbidden = unsafe_while_capturing();
        if (forbidden) return forbidden;
    }
    REQUIRE(size == 0 || (to && from));
    struct Work work = {.kind = WORK_COPY, .to.base = to, .from.base = (char *)from, .width = size, .height = 1, .depth = 1, .peer = route.peer};
    /* A peer copy cannot be captured: JohannesGaessler/llama.cpp#5, by NVIDIA; connollydavid/wsl2-cuda-peercopy-capture. */
    if (route.peer && stream_captures(stream)) return capture_refuses(stream);
    SUBMIT_TO_CAPTURE(stream, CU_GRAPH_NODE_TYPE_MEMCPY, &work);
    REQUIRE(size == 0 || (!is_gone(to) && !is_gone(from)));
    CUresult refused = check_access(context, route, to, from, size);
    if (refused) return refused;
    struct Queue *q = work_queue(stream);
    if (!q) return memmove(to, from, size), CUDA_SUCCESS;
    bool wait = ordered ? pageable(to) : on_host(to) || (on_host(from) && !pageable(from));
    if (pageable(from)) {
        /* The source is read before the call returns. The destination may be written later. */
        if (!ordered) wait_for_copy(context, q, false);
        work.owned = malloc(size + 1);
        work.from.base = memcpy(work.owned, from, size);
    }
    work_add(q, work);
    if (wait || (!ordered && (always_synchronises(to) || always_synchronises(from)))) wait_for_copy(context, q, ordered);
    return CUDA_SUCCESS;
}

#define U __attribute__((unused))
#define OWN (struct route){0}
#define COPY(name, to_type, from_type)                                                                            \
    API CUresult name(to_type to, from_type from, size_t size) { return move((void *)to, (const void *)from, size, NULL, false, OWN); } \
    API CUresult name##_ptds(to_type to, from_type from, size_t size) { return move((void *)to, (const void *)from, size, PER_THREAD, false, OWN); }
#define COPY_ASYNC(name, to_type, from_type)                                                                      \
    API CUresult name(to_type to, from_type from, size_t size, CUstream stream) { return move((void *)to, (const void *)from, size, stream, true, OWN); } \
    API CUresult name##_ptsz(to_type to, from_type from, size_t size, CUstream stream) { return move((void *)to, (const void *)from, size, of_thread(stream), true, OWN); }
COPY(cuMemcpy, CUdeviceptr, CUdeviceptr)
COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *)
COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr)
COPY(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr)
COPY_ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
COPY_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
COPY_ASYNC(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)
#define PEER (struct route){true, a, b}
API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t size) { return move((void *)to, (const void *)from, size, NULL, false, PEER); }
API CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t size) { return move((void *)to, (const void *)from, size, PER_THREAD, false, PEER); }
API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t size, CUstream stream) { return move((void *)to, (const void *)from, size, stream, true, PEER); }
API CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t size, CUstream stream) { return move((void *)to, (const void *)from, size, of_thread(stream), true, PEER); }

static struct side side_of(int type, const void *host, CUdeviceptr device, CUarray array, size_t pitch, size_t height,
                           size_t x, size_t y, size_t z)
{
    struct side s = {.base = type == 1 ? (char *)host : (char *)device, .pitch = pitch, .slice = pitch * height};
    if (type == 3) {
        s.pitch = array->shape.Width * array_element(&array->shape);
        s.slice = s.pitch * (array->shape.Height ? array->shape.Height : 1);
        s.base = array->data;
        s.of_array = true;
    }
    s.base += x + y * s.pitch + z * s.slice;
    return s;
}

static CUresult box(struct side to, struct side from, size_t width, size_t height, size_t depth, CUstream stream, bool ordered, struct route route)
{
    ENTER_WORKING("cuMemcpy");
    CHECK_STREAM(stream);
    struct Context *context = stream_context(stream, context_current());
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    context_passes(context);
    struct Work work = {.kind = WORK_COPY, .to = to, .from = from, .width = width, .height = height, .depth = depth, .peer = route.peer};
    if (route.peer && stream_captures(stream)) return capture_refuses(stream);
    SUBMIT_TO_CAPTURE(stream, CU_GRAPH_NODE_TYPE_MEMCPY, &work);
    REQUIRE(!width || !height || !depth || (!side_is_gone(&to) && !side_is_gone(&from)));
    CUresult refused = CUDA_SUCCESS;
    for (size_t z = 0; z < depth && !refused; z++)
        for (size_t y = 0; y < height && !refused; y++)
            refused = check_access(context, route, to.base + z * to.slice + y * to.pitch, from.base + z * from.slice + y * from.pitch, width);
    if (refused) return refused;
    work_submit(stream, work);
    struct Queue *q = work_queue(stream);
    bool between_devices = !on_host(to.base) && !on_host(from.base);
    bool returns_early = ordered ? !pageable(to.base) && !pageable(from.base)
                                 : between_devices && !always_synchronises(to.base) && !always_synchronises(from.base);
    if (q && !returns_early) wait_for_copy(context, q, ordered);
    return CUDA_SUCCESS;
}

static CUresult copy2d(const CUDA_MEMCPY2D *c, CUstream stream, bool ordered)
{
    REQUIRE(c);
    return box(side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstPitch, 0, c->dstXInBytes, c->dstY, 0),
               side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcPitch, 0, c->srcXInBytes, c->srcY, 0),
               c->WidthInBytes, c->Height, 1, stream, ordered, OWN);
}
static struct side to_of(const CUDA_MEMCPY3D *c)
{
    return side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstPitch, c->dstHeight, c->dstXInBytes, c->dstY, c->dstZ);
}
static struct side from_of(const CUDA_MEMCPY3D *c)
{
    return side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcPitch, c->srcHeight, c->srcXInBytes, c->srcY, c->srcZ);
}
struct Work copy_work(const CUDA_MEMCPY3D *c)
{
    return (struct Work){.kind = WORK_COPY, .to = to_of(c), .from = from_of(c), .width = c->WidthInBytes, .height = c->Height, .depth = c->Depth};
}
static CUresult copy3d(const CUDA_MEMCPY3D *c, CUstream stream, bool ordered, bool peer)
{
    REQUIRE(c);
    /* CUDA_MEMCPY3D_PEER has the contexts where CUDA_MEMCPY3D has reserved pointers. */
    struct route route = {peer, c->reserved1, c->reserved0};
    return box(to_of(c), from_of(c), c->WidthInBytes, c->Height, c->Depth, stream, ordered, peer ? route : OWN);
}
API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *c) { return copy2d(c, NULL, false); }
API CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *c) { return copy2d(c, PER_THREAD, false); }
API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream stream) { return copy2d(c, stream, true); }
API CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *c, CUstream stream) { return copy2d(c, of_thread(stream), true); }
API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *c) { return copy2d(c, NULL, false); }
API CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *c) { return copy2d(c, PER_THREAD, false); }
API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *c) { return copy3d(c, NULL, false, false); }
API CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *c) { return copy3d(c, PER_THREAD, false, false); }
API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *c, CUstream stream) { return copy3d(c, stream, true, false); }
API CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *c, CUstream stream) { return copy3d(c, of_thread(stream), true, false); }

API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D *c) { return copy3d(c, NULL, false, true); }
API CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D *c) { return copy3d(c, PER_THREAD, false, true); }
API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *c, CUstream stream) { return copy3d(c, stream, true, true); }
API CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D *c, CUstream stream) { return copy3d(c, of_thread(stream), true, true); }

/* rapidsai/rmm#2518: a batch on a capturing stream answers 900, and the capture goes on. */
static CUresult batch(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUstream stream)
{
    REQUIRE(to && from && sizes && count && stream);
    if (stream_captures(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && !result; i++) result = move((void *)to[i], (void *)from[i], sizes[i], stream, true, OWN);
    return result;
}
API CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, U void *attributes, U size_t *indices, U size_t number, U size_t *failed, CUstream stream) { return batch(to, from, sizes, count, stream); }
API CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, U void *attributes, U size_t *indices, U size_t number, U size_t *failed, CUstream stream) { return batch(to, from, sizes, count, of_thread(stream)); }
API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, U void *attributes, U size_t *indices, U size_t number, CUstream stream) { return batch(to, from, sizes, count, stream); }

API CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t size, void *attributes, CUstream stream) { REQUIRE(attributes); return move((void *)to, (void *)from, size, stream, true, OWN); }
API CUresult cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t size, void *attributes, CUstream stream) { return cuMemcpyWithAttributesAsync(to, from, size, attributes, of_thread(stream)); }

/* cuda.h 13.5:4972-5003, 11695-11705: lengths are in elements of the array, or bytes if there is none; a length of 0 is that of
 * the copy. */
static struct side operand_side(const CUmemcpy3DOperand *o, const CUDA_MEMCPY3D_BATCH_OP *op, size_t element)
{
    if (o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) return side_of(3, NULL, 0, o->op.array.array, 0, 0, o->op.array.x * element, o->op.array.y, o->op.array.z);
    size_t row = o->op.ptr.rowLength ? o->op.ptr.rowLength : op->width, rows = o->op.ptr.layerHeight ? o->op.ptr.layerHeight : op->height;
    return (struct side){.base = (char *)o->op.ptr.ptr, .pitch = row * element, .slice = row * element * rows};
}
static CUresult operation(const CUDA_MEMCPY3D_BATCH_OP *op, CUstream stream)
{
    REQUIRE(op && op->width && op->height && op->depth);
    size_t element = 1;
    for (int i = 0; i < 2; i++) {
        const CUmemcpy3DOperand *o = i ? &op->dst : &op->src;
        REQUIRE(o->type == CU_MEMCPY_OPERAND_TYPE_POINTER || o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY);
        if (o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) element = array_element(&o->op.array.array->shape);
    }
    return box(operand_side(&op->dst, op, element), operand_side(&op->src, op, element), op->width * element, op->height, op->depth, stream, true, OWN);
}
static CUresult batch_3d(size_t count, const CUDA_MEMCPY3D_BATCH_OP *operations, CUstream stream)
{
    REQUIRE(count && operations && stream);
    if (stream_captures(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && !result; i++) result = operation(&operations[i], stream);
    return result;
}
API CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, U size_t *failed, U unsigned long long flags, CUstream stream) { return batch_3d(count, operations, stream); }
API CUresult cuMemcpy3DBatchAsync_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, U size_t *failed, U unsigned long long flags, CUstream stream) { return batch_3d(count, operations, of_thread(stream)); }
API CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, U unsigned long long flags, CUstream stream) { return batch_3d(count, operations, stream); }
API CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, U unsigned long long flags, CUstream stream) { return batch_3d(count, operations, of_thread(stream)); }
API CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, U unsigned long long flags, CUstream stream) { return operation(op, stream); }
API CUresult cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *op, U unsigned long long flags, CUstream stream) { return operation(op, of_thread(stream)); }

/* Copies of bytes from an offset of an array on. */
static CUresult row(struct side to, struct side from, size_t size, CUstream stream, bool ordered) { return box(to, from, size, 1, 1, stream, ordered, OWN); }
#define IN_ARRAY(array, offset) side_of(3, NULL, 0, array, 0, 0, offset, 0, 0)
#define LINEAR_SIDE(address) (struct side){.base = (char *)(address)}
#define ROW(name, refused, to_side, from_side, size, ...)                                                         \
    API CUresult name(__VA_ARGS__, size_t size) { REQUIRE(!(refused)); return row(to_side, from_side, size, NULL, false); } \
    API CUresult name##_ptds(__VA_ARGS__, size_t size) { REQUIRE(!(refused)); return row(to_side, from_side, size, PER_THREAD, false); }
#define ROW_ASYNC(name, refused, to_side, from_side, size, ...)                                                   \
    API CUresult name(__VA_ARGS__, size_t size, CUstream stream) { REQUIRE(!(refused)); return row(to_side, from_side, size, stream, true); } \
    API CUresult name##_ptsz(__VA_ARGS__, size_t size, CUstream stream) { REQUIRE(!(refused)); return row(to_side, from_side, size, of_thread(stream), true); }
ROW(cuMemcpyDtoA_v2, !to || !from, IN_ARRAY(to, offset), LINEAR_SIDE(from), size, CUarray to, size_t offset, CUdeviceptr from)
ROW(cuMemcpyAtoD_v2, !to || !from, LINEAR_SIDE(to), IN_ARRAY(from, offset), size, CUdeviceptr to, CUarray from, size_t offset)
ROW(cuMemcpyHtoA_v2, !to || !from, IN_ARRAY(to, offset), LINEAR_SIDE(from), size, CUarray to, size_t offset, const void *from)
ROW(cuMemcpyAtoH_v2, !to || !from, LINEAR_SIDE(to), IN_ARRAY(from, offset), size, void *to, CUarray from, size_t offset)
ROW(cuMemcpyAtoA_v2, !to || !from, IN_ARRAY(to, there), IN_ARRAY(from, here), size, CUarray to, size_t there, CUarray from, size_t here)
ROW_ASYNC(cuMemcpyHtoAAsync_v2, !to || !from, IN_ARRAY(to, offset), LINEAR_SIDE(from), size, CUarray to, size_t offset, const void *from)
ROW_ASYNC(cuMemcpyAtoHAsync_v2, !to || !from, LINEAR_SIDE(to), IN_ARRAY(from, offset), size, void *to, CUarray from, size_t offset)

static CUresult fill(CUdeviceptr to, size_t pitch, const void *value, size_t element, size_t width, size_t height, CUstream stream, bool ordered)
{
    ENTER_WORKING("cuMemset");
    CHECK_STREAM(stream);
    struct Context *context = stream_context(stream, context_current());
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    context_passes(context);
    if (!ordered) {
        CUresult forbidden = unsafe_while_capturing();
        if (forbidden) return forbidden;
    }
    REQUIRE(to || !width);
    struct Work work = {.kind = WORK_FILL, .to = {.base = (char *)to, .pitch = pitch}, .element = element, .width = width * element, .height = height, .depth = 1};
    memcpy(work.value, value, element);
    SUBMIT_TO_CAPTURE(stream, CU_GRAPH_NODE_TYPE_MEMSET, &work);
    REQUIRE(!width || !height || !is_gone((void *)to));
    for (size_t y = 0; y < height; y++)
        if (!vmm_accessible(ANY_DEVICE, to + y * pitch, width * element, true)) return context_break(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    work_submit(stream, work);
    /* A fill of device memory does not make the caller wait. */
    struct Queue *q = work_queue(stream);
    if (q && !ordered && (on_host((void *)to) || always_synchronises((void *)to))) wait_for_copy(context, q, false);
    return CUDA_SUCCESS;
}

#define SET_ON(function, type, stream, ordered, ...)                                                              \
    API CUresult function(CUdeviceptr to, type value, size_t count, ##__VA_ARGS__) { return fill(to, 0, &value, sizeof value, count, 1, stream, ordered); }
#define SET(name, type)                                                                                            \
    SET_ON(name##_v2, type, NULL, false)                                                                           \
    SET_ON(name##_v2_ptds, type, PER_THREAD, false)                                                                \
    SET_ON(name##Async, type, s, true, CUstream s)                                                                 \
    SET_ON(name##Async_ptsz, type, of_thread(s), true, CUstream s)
#define SET2D_ON(function, type, stream, ordered, ...)                                                            \
    API CUresult function(CUdeviceptr to, size_t pitch, type value, size_t w, size_t h, ##__VA_ARGS__) { return fill(to, pitch, &value, sizeof value, w, h, stream, ordered); }
#define SET2D(name, type)                                                                                          \
    SET2D_ON(name##_v2, type, NULL, false)                                                                         \
    SET2D_ON(name##_v2_ptds, type, PER_THREAD, false)                                                              \
    SET2D_ON(name##Async, type, s, true, CUstream s)                                                               \
    SET2D_ON(name##Async_ptsz, type, of_thread(s), true, CUstream s)
SET(cuMemsetD8, unsigned char)
SET(cuMemsetD16, unsigned short)
SET(cuMemsetD32, unsigned)
SET2D(cuMemsetD2D8, unsigned char)
SET2D(cuMemsetD2D16, unsigned short)
SET2D(cuMemsetD2D32, unsigned)

/* The 32-bit functions, for addresses of cuMemAlloc's first generation. */
#define NARROW(name, wide, to_type, from_type) API CUresult name(to_type to, from_type from, unsigned size) { return wide(to, from, size); }
#define NARROW_ASYNC(name, wide, to_type, from_type) API CUresult name(to_type to, from_type from, unsigned size, CUstream stream) { return wide(to, from, size, stream); }
#define NARROW_SET(name, wide, type) API CUresult name(CUdeviceptr_v1 to, type value, unsigned count) { return wide(to, value, count); }
NARROW(cuMemcpyHtoD, cuMemcpyHtoD_v2, CUdeviceptr_v1, const void *)
NARROW(cuMemcpyDtoH, cuMemcpyDtoH_v2, void *, CUdeviceptr_v1)
NARROW(cuMemcpyDtoD, cuMemcpyDtoD_v2, CUdeviceptr_v1, CUdeviceptr_v1)
NARROW_ASYNC(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, CUdeviceptr_v1, const void *)
NARROW_ASYNC(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, void *, CUdeviceptr_v1)
NARROW_ASYNC(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, CUdeviceptr_v1, CUdeviceptr_v1)
NARROW_SET(cuMemsetD8, cuMemsetD8_v2, unsigned char)
NARROW_SET(cuMemsetD16, cuMemsetD16_v2, unsigned short)
NARROW_SET(cuMemsetD32, cuMemsetD32_v2, unsigned)
