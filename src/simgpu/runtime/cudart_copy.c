/* Copies and fills. The kind of a copy chooses the driver function. For cudaMemcpyDefault the driver finds the kind
 * from the addresses. */
#include "cudart.h"

STREAM_FUNCTION(cudaMemcpy, _ptds, (void *to, const void *from, size_t size, int kind), to, from, size, kind)
{
    if (size == 0) return SUCCESS;
    switch (kind) {
    case HOST_TO_DEVICE: return cu->cuMemcpyHtoD(to, from, size);
    case DEVICE_TO_HOST: return cu->cuMemcpyDtoH(to, from, size);
    case DEVICE_TO_DEVICE: return cu->cuMemcpyDtoD(to, from, size);
    case HOST_TO_HOST:
    case BY_ADDRESS: return cu->cuMemcpy(to, from, size);
    }
    return INVALID_MEMCPY_DIRECTION;
}

STREAM_FUNCTION(cudaMemcpyAsync, _ptsz, (void *to, const void *from, size_t size, int kind, Stream stream),
                to, from, size, kind, stream)
{
    if (size == 0) return SUCCESS;
    switch (kind) {
    case HOST_TO_DEVICE: return cu->cuMemcpyHtoDAsync(to, from, size, stream);
    case DEVICE_TO_HOST: return cu->cuMemcpyDtoHAsync(to, from, size, stream);
    case DEVICE_TO_DEVICE: return cu->cuMemcpyDtoDAsync(to, from, size, stream);
    case HOST_TO_HOST:
    case BY_ADDRESS: return cu->cuMemcpyAsync(to, from, size, stream);
    }
    return INVALID_MEMCPY_DIRECTION;
}

API cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t size)
{
    ENTER(cu, 0);
    Handle to_context, from_context;
    cudaError_t error = primary_context(cu, to_device, &to_context);
    if (error == SUCCESS) error = primary_context(cu, from_device, &from_context);
    return done(error == SUCCESS ? cu->cuMemcpyPeer(to, to_context, from, from_context, size) : error);
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                    Stream stream)
{
    ENTER(cu, 0);
    Handle to_context, from_context;
    cudaError_t error = primary_context(cu, to_device, &to_context);
    if (error == SUCCESS) error = primary_context(cu, from_device, &from_context);
    return done(error == SUCCESS ? cu->cuMemcpyPeerAsync(to, to_context, from, from_context, size, stream) : error);
}

static int from_type(int kind)
{
    return kind == BY_ADDRESS ? MEMORY_UNIFIED : kind == HOST_TO_DEVICE || kind == HOST_TO_HOST ? MEMORY_HOST : MEMORY_DEVICE;
}

static int to_type(int kind)
{
    return kind == BY_ADDRESS ? MEMORY_UNIFIED : kind == DEVICE_TO_HOST || kind == HOST_TO_HOST ? MEMORY_HOST : MEMORY_DEVICE;
}

static cudaError_t copy_2d(Copy2D *out, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                           size_t height, int kind)
{
    if (kind < HOST_TO_HOST || kind > BY_ADDRESS) return INVALID_MEMCPY_DIRECTION;
    if (height > 1 && (width > to_pitch || width > from_pitch)) return INVALID_PITCH;
    *out = (Copy2D){
        .srcMemoryType = from_type(kind), .srcHost = from, .srcDevice = from, .srcPitch = from_pitch,
        .dstMemoryType = to_type(kind), .dstHost = to, .dstDevice = to, .dstPitch = to_pitch,
        .WidthInBytes = width, .Height = height,
    };
    return SUCCESS;
}

STREAM_FUNCTION(cudaMemcpy2D, _ptds,
                (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind),
                to, to_pitch, from, from_pitch, width, height, kind)
{
    Copy2D copy;
    cudaError_t error = copy_2d(&copy, to, to_pitch, from, from_pitch, width, height, kind);
    if (error != SUCCESS || width == 0 || height == 0) return error;
    return cu->cuMemcpy2DUnaligned(&copy);
}

STREAM_FUNCTION(cudaMemcpy2DAsync, _ptsz,
                (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
                 Stream stream),
                to, to_pitch, from, from_pitch, width, height, kind, stream)
{
    Copy2D copy;
    cudaError_t error = copy_2d(&copy, to, to_pitch, from, from_pitch, width, height, kind);
    if (error != SUCCESS || width == 0 || height == 0) return error;
    return cu->cuMemcpy2DAsync(&copy, stream);
}

STREAM_FUNCTION(cudaMemcpy2DToArray, _ptds,
                (Handle to, size_t x, size_t y, const void *from, size_t from_pitch, size_t width, size_t height, int kind),
                to, x, y, from, from_pitch, width, height, kind)
{
    Copy2D copy = {
        .srcMemoryType = from_type(kind), .srcHost = from, .srcDevice = from, .srcPitch = from_pitch,
        .dstMemoryType = MEMORY_ARRAY, .dstArray = to, .dstXInBytes = x, .dstY = y,
        .WidthInBytes = width, .Height = height,
    };
    return cu->cuMemcpy2DUnaligned(&copy);
}

STREAM_FUNCTION(cudaMemcpy2DFromArray, _ptds,
                (void *to, size_t to_pitch, Handle from, size_t x, size_t y, size_t width, size_t height, int kind),
                to, to_pitch, from, x, y, width, height, kind)
{
    Copy2D copy = {
        .srcMemoryType = MEMORY_ARRAY, .srcArray = from, .srcXInBytes = x, .srcY = y,
        .dstMemoryType = to_type(kind), .dstHost = to, .dstDevice = to, .dstPitch = to_pitch,
        .WidthInBytes = width, .Height = height,
    };
    return cu->cuMemcpy2DUnaligned(&copy);
}

/* cudaMemcpy3DParms: widths and x positions count elements if an array takes part, and bytes otherwise. */
typedef struct {
    Handle from_array;
    Pos from_at;
    PitchedPtr from;
    Handle to_array;
    Pos to_at;
    PitchedPtr to;
    Extent extent;
    int kind;
} Parameters3D;

static size_t element_size(const struct driver *cu, Handle array)
{
    ArrayDesc found;
    if (array == NULL || cu->cuArray3DGetDescriptor(&found, array) != SUCCESS) return 1;
    switch (found.Format) {
    case 0x03: case 0x0a: case 0x20: return 4 * found.NumChannels;
    case 0x02: case 0x09: case 0x10: return 2 * found.NumChannels;
    }
    return found.NumChannels;
}

static Copy3D copy_3d(const struct driver *cu, const Parameters3D *p)
{
    size_t from_unit = element_size(cu, p->from_array), to_unit = element_size(cu, p->to_array);
    size_t unit = p->from_array != NULL ? from_unit : to_unit;
    return (Copy3D){
        .srcXInBytes = p->from_at.x * from_unit, .srcY = p->from_at.y, .srcZ = p->from_at.z,
        .srcMemoryType = p->from_array != NULL ? MEMORY_ARRAY : from_type(p->kind),
        .srcHost = p->from.ptr, .srcDevice = p->from.ptr, .srcArray = p->from_array,
        .srcPitch = p->from.pitch, .srcHeight = p->from.ysize,
        .dstXInBytes = p->to_at.x * to_unit, .dstY = p->to_at.y, .dstZ = p->to_at.z,
        .dstMemoryType = p->to_array != NULL ? MEMORY_ARRAY : to_type(p->kind),
        .dstHost = p->to.ptr, .dstDevice = p->to.ptr, .dstArray = p->to_array,
        .dstPitch = p->to.pitch, .dstHeight = p->to.ysize,
        .WidthInBytes = p->extent.width * unit, .Height = p->extent.height, .Depth = p->extent.depth,
    };
}

STREAM_FUNCTION(cudaMemcpy3D, _ptds, (const Parameters3D *parameters), parameters)
{
    if (parameters == NULL) return INVALID_VALUE;
    Copy3D copy = copy_3d(cu, parameters);
    return cu->cuMemcpy3D(&copy);
}

STREAM_FUNCTION(cudaMemcpy3DAsync, _ptsz, (const Parameters3D *parameters, Stream stream), parameters, stream)
{
    if (parameters == NULL) return INVALID_VALUE;
    Copy3D copy = copy_3d(cu, parameters);
    return cu->cuMemcpy3DAsync(&copy, stream);
}

API cudaError_t cudaGraphAddMemcpyNode(Handle *node, Handle graph, const Handle *dependencies, size_t count,
                                       const Parameters3D *parameters)
{
    ENTER(cu, 0);
    if (parameters == NULL) return done(INVALID_VALUE);
    Copy3D copy = copy_3d(cu, parameters);
    Handle context = NULL;
    cudaError_t error = cu->cuCtxGetCurrent(&context);
    return done(error == SUCCESS ? cu->cuGraphAddMemcpyNode(node, graph, dependencies, count, &copy, context) : error);
}

API cudaError_t cudaGraphAddMemcpyNode1D(Handle *node, Handle graph, const Handle *dependencies, size_t count, void *to,
                                         const void *from, size_t size, int kind)
{
    Parameters3D parameters = {
        .from = {(void *)(uintptr_t)from, size, size, 1}, .to = {to, size, size, 1}, .extent = {size, 1, 1}, .kind = kind,
    };
    return cudaGraphAddMemcpyNode(node, graph, dependencies, count, &parameters);
}

STREAM_FUNCTION(cudaMemset, _ptds, (void *memory, int value, size_t size), memory, value, size)
{
    return size == 0 ? SUCCESS : cu->cuMemsetD8(memory, (unsigned char)value, size);
}

STREAM_FUNCTION(cudaMemsetAsync, _ptsz, (void *memory, int value, size_t size, Stream stream),
                memory, value, size, stream)
{
    return size == 0 ? SUCCESS : cu->cuMemsetD8Async(memory, (unsigned char)value, size, stream);
}

STREAM_FUNCTION(cudaMemset2D, _ptds, (void *memory, size_t pitch, int value, size_t width, size_t height),
                memory, pitch, value, width, height)
{
    if (width == 0 || height == 0) return SUCCESS;
    return cu->cuMemsetD2D8(memory, pitch, (unsigned char)value, width, height);
}

STREAM_FUNCTION(cudaMemset2DAsync, _ptsz,
                (void *memory, size_t pitch, int value, size_t width, size_t height, Stream stream),
                memory, pitch, value, width, height, stream)
{
    if (width == 0 || height == 0) return SUCCESS;
    return cu->cuMemsetD2D8Async(memory, pitch, (unsigned char)value, width, height, stream);
}

STREAM_FUNCTION(cudaMemset3DAsync, _ptsz, (PitchedPtr memory, int value, Extent extent, Stream stream),
                memory, value, extent, stream)
{
    cudaError_t error = SUCCESS;
    for (size_t z = 0; error == SUCCESS && z < extent.depth; z++) {
        char *slice = (char *)memory.ptr + z * memory.pitch * memory.ysize;
        if (extent.width == 0 || extent.height == 0) break;
        error = cu->cuMemsetD2D8Async(slice, memory.pitch, (unsigned char)value, extent.width, extent.height, stream);
    }
    return error;
}

STREAM_FUNCTION(cudaMemset3D, _ptds, (PitchedPtr memory, int value, Extent extent), memory, value, extent)
{
    cudaError_t error = cudaMemset3DAsync_on(cu, memory, value, extent, NULL);
    return error == SUCCESS ? cu->cuStreamSynchronize(NULL) : error;
}

/* Copies to and from a device variable: the address is checked against the variable's size, then a plain copy
 * follows. */
static cudaError_t locate(const struct driver *cu, const void *symbol, size_t size, size_t offset, char **address)
{
    void *start;
    size_t length;
    cudaError_t error = symbol_address(cu, symbol, &start, &length);
    if (error != SUCCESS) return error;
    if (offset > length || size > length - offset) return INVALID_VALUE;
    *address = (char *)start + offset;
    return SUCCESS;
}

STREAM_FUNCTION(cudaMemcpyToSymbol, _ptds, (const void *symbol, const void *from, size_t size, size_t offset, int kind),
                symbol, from, size, offset, kind)
{
    char *address;
    cudaError_t error = locate(cu, symbol, size, offset, &address);
    return error == SUCCESS ? cudaMemcpy_on(cu, address, from, size, kind) : error;
}

STREAM_FUNCTION(cudaMemcpyToSymbolAsync, _ptsz,
                (const void *symbol, const void *from, size_t size, size_t offset, int kind, Stream stream),
                symbol, from, size, offset, kind, stream)
{
    char *address;
    cudaError_t error = locate(cu, symbol, size, offset, &address);
    return error == SUCCESS ? cudaMemcpyAsync_on(cu, address, from, size, kind, stream) : error;
}

STREAM_FUNCTION(cudaMemcpyFromSymbol, _ptds, (void *to, const void *symbol, size_t size, size_t offset, int kind),
                to, symbol, size, offset, kind)
{
    char *address;
    cudaError_t error = locate(cu, symbol, size, offset, &address);
    return error == SUCCESS ? cudaMemcpy_on(cu, to, address, size, kind) : error;
}

STREAM_FUNCTION(cudaMemcpyFromSymbolAsync, _ptsz,
                (void *to, const void *symbol, size_t size, size_t offset, int kind, Stream stream),
                to, symbol, size, offset, kind, stream)
{
    char *address;
    cudaError_t error = locate(cu, symbol, size, offset, &address);
    return error == SUCCESS ? cudaMemcpyAsync_on(cu, to, address, size, kind, stream) : error;
}
