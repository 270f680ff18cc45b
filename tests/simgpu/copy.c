/* Copies and fills: they really move bytes, at once, unless the stream is capturing. */
#include "sim.h"

uint64_t array_element(const CUDA_ARRAY3D_DESCRIPTOR *d);

static CUresult move(void *to, const void *from, size_t size, CUstream stream, bool ordered)
{
    ENTER("cuMemcpy");
    if (!stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!ordered) {
        CUresult forbidden = unsafe_while_capturing();
        if (forbidden) return forbidden;
    }
    REQUIRE(size == 0 || (to && from));
    if (stream_submit(stream, CU_GRAPH_NODE_TYPE_MEMCPY)) memmove(to, from, size);
    return CUDA_SUCCESS;
}

#define U __attribute__((unused))
#define COPY(name, to_type, from_type)                                                                            \
    API CUresult name(to_type to, from_type from, size_t size) { return move((void *)to, (const void *)from, size, NULL, false); } \
    PTDS(name)
#define COPY_ASYNC(name, to_type, from_type)                                                                      \
    API CUresult name(to_type to, from_type from, size_t size, CUstream stream) { return move((void *)to, (const void *)from, size, stream, true); } \
    PTSZ(name)
COPY(cuMemcpy, CUdeviceptr, CUdeviceptr);
COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *);
COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr);
COPY(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr);
COPY_ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr);
COPY_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *);
COPY_ASYNC(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr);
COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr);
API CUresult cuMemcpyPeer(CUdeviceptr to, U CUcontext a, CUdeviceptr from, U CUcontext b, size_t size) { return move((void *)to, (const void *)from, size, NULL, false); }
PTDS(cuMemcpyPeer);
API CUresult cuMemcpyPeerAsync(CUdeviceptr to, U CUcontext a, CUdeviceptr from, U CUcontext b, size_t size, CUstream stream) { return move((void *)to, (const void *)from, size, stream, true); }
PTSZ(cuMemcpyPeerAsync);

/* One side of a copy in rows and slices. */
struct side { char *base; size_t pitch, slice; };

static struct side side_of(int type, const void *host, CUdeviceptr device, CUarray array, size_t pitch, size_t height,
                           size_t x, size_t y, size_t z)
{
    struct side s = {type == 1 ? (char *)host : (char *)device, pitch, pitch * height};
    if (type == 3) {
        s.pitch = array->shape.Width * array_element(&array->shape);
        s.slice = s.pitch * (array->shape.Height ? array->shape.Height : 1);
        s.base = array->data;
    }
    s.base += x + y * s.pitch + z * s.slice;
    return s;
}

static CUresult box(struct side to, struct side from, size_t width, size_t height, size_t depth, CUstream stream)
{
    ENTER("cuMemcpy");
    if (!stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!stream_submit(stream, CU_GRAPH_NODE_TYPE_MEMCPY)) return CUDA_SUCCESS;
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++)
            memmove(to.base + z * to.slice + y * to.pitch, from.base + z * from.slice + y * from.pitch, width);
    return CUDA_SUCCESS;
}

static CUresult copy2d(const CUDA_MEMCPY2D *c, CUstream stream)
{
    REQUIRE(c);
    return box(side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstPitch, 0, c->dstXInBytes, c->dstY, 0),
               side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcPitch, 0, c->srcXInBytes, c->srcY, 0),
               c->WidthInBytes, c->Height, 1, stream);
}
static CUresult copy3d(const CUDA_MEMCPY3D *c, CUstream stream)
{
    REQUIRE(c);
    return box(side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstPitch, c->dstHeight, c->dstXInBytes, c->dstY, c->dstZ),
               side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcPitch, c->srcHeight, c->srcXInBytes, c->srcY, c->srcZ),
               c->WidthInBytes, c->Height, c->Depth, stream);
}
API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *c) { return copy2d(c, NULL); }
PTDS(cuMemcpy2D_v2);
API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *c) { return copy2d(c, NULL); }
PTDS(cuMemcpy2DUnaligned_v2);
API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream stream) { return copy2d(c, stream); }
PTSZ(cuMemcpy2DAsync_v2);
API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *c) { return copy3d(c, NULL); }
PTDS(cuMemcpy3D_v2);
API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *c, CUstream stream) { return copy3d(c, stream); }
PTSZ(cuMemcpy3DAsync_v2);

static CUresult fill(CUdeviceptr to, size_t pitch, const void *value, size_t element, size_t width, size_t height, CUstream stream, bool ordered)
{
    ENTER("cuMemset");
    if (!stream_valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!ordered) {
        CUresult forbidden = unsafe_while_capturing();
        if (forbidden) return forbidden;
    }
    REQUIRE(to || !width);
    if (!stream_submit(stream, CU_GRAPH_NODE_TYPE_MEMSET)) return CUDA_SUCCESS;
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x++) memcpy((char *)to + y * pitch + x * element, value, element);
    return CUDA_SUCCESS;
}

#define SET(name, type)                                                                                            \
    API CUresult name##_v2(CUdeviceptr to, type value, size_t count) { return fill(to, 0, &value, sizeof value, count, 1, NULL, false); } \
    PTDS(name##_v2);                                                                                               \
    API CUresult name##Async(CUdeviceptr to, type value, size_t count, CUstream s) { return fill(to, 0, &value, sizeof value, count, 1, s, true); } \
    PTSZ(name##Async)
#define SET2D(name, type)                                                                                          \
    API CUresult name##_v2(CUdeviceptr to, size_t pitch, type value, size_t w, size_t h) { return fill(to, pitch, &value, sizeof value, w, h, NULL, false); } \
    PTDS(name##_v2);                                                                                               \
    API CUresult name##Async(CUdeviceptr to, size_t pitch, type value, size_t w, size_t h, CUstream s) { return fill(to, pitch, &value, sizeof value, w, h, s, true); } \
    PTSZ(name##Async)
SET(cuMemsetD8, unsigned char);
SET(cuMemsetD16, unsigned short);
SET(cuMemsetD32, unsigned);
SET2D(cuMemsetD2D8, unsigned char);
SET2D(cuMemsetD2D16, unsigned short);
SET2D(cuMemsetD2D32, unsigned);
