/* CUDA arrays and mipmapped arrays: a channel description becomes the driver's element format and channel count. */
#include "cudart.h"

enum { CHANNEL_SIGNED, CHANNEL_UNSIGNED, CHANNEL_FLOAT };

static const struct {
    int kind, bits, format;
} formats[] = {
    {CHANNEL_UNSIGNED, 8, 0x01}, {CHANNEL_UNSIGNED, 16, 0x02}, {CHANNEL_UNSIGNED, 32, 0x03},
    {CHANNEL_SIGNED, 8, 0x08},   {CHANNEL_SIGNED, 16, 0x09},   {CHANNEL_SIGNED, 32, 0x0a},
    {CHANNEL_FLOAT, 16, 0x10},   {CHANNEL_FLOAT, 32, 0x20},
};

#define FORMAT_COUNT (sizeof formats / sizeof *formats)

static cudaError_t describe(ArrayDesc *out, const ChannelDesc *channels, Extent extent, unsigned flags)
{
    if (channels == NULL) return INVALID_VALUE;
    unsigned count = (channels->x != 0) + (channels->y != 0) + (channels->z != 0) + (channels->w != 0);
    for (size_t i = 0; i < FORMAT_COUNT; i++)
        if (formats[i].kind == channels->kind && formats[i].bits == channels->x) {
            *out = (ArrayDesc){extent.width, extent.height, extent.depth, formats[i].format, count, flags};
            return SUCCESS;
        }
    return INVALID_VALUE;
}

static cudaError_t create(Handle *out, const ChannelDesc *channels, Extent extent, unsigned flags)
{
    ENTER(cu, 0);
    ArrayDesc description;
    cudaError_t error = describe(&description, channels, extent, flags);
    return done(error == SUCCESS ? cu->cuArray3DCreate(out, &description) : error);
}

API cudaError_t cudaMallocArray(Handle *out, const ChannelDesc *channels, size_t width, size_t height, unsigned flags)
{
    return create(out, channels, (Extent){width, height, 0}, flags);
}

API cudaError_t cudaMalloc3DArray(Handle *out, const ChannelDesc *channels, Extent extent, unsigned flags)
{
    return create(out, channels, extent, flags);
}

API cudaError_t cudaMallocMipmappedArray(Handle *out, const ChannelDesc *channels, Extent extent, unsigned levels,
                                         unsigned flags)
{
    ENTER(cu, 0);
    ArrayDesc description;
    cudaError_t error = describe(&description, channels, extent, flags);
    return done(error == SUCCESS ? cu->cuMipmappedArrayCreate(out, &description, levels) : error);
}

API cudaError_t cudaFreeArray(Handle array)
{
    ENTER(cu, 0);
    return array == NULL ? SUCCESS : done(cu->cuArrayDestroy(array));
}

API cudaError_t cudaFreeMipmappedArray(Handle array)
{
    ENTER(cu, 0);
    return array == NULL ? SUCCESS : done(cu->cuMipmappedArrayDestroy(array));
}

FORWARD(cudaGetMipmappedArrayLevel, cuMipmappedArrayGetLevel, (Handle *out, Handle array, unsigned level),
        out, array, level)
FORWARD(cudaArrayGetMemoryRequirements, cuArrayGetMemoryRequirements, (void *out, Handle array, int device),
        out, array, device)
FORWARD(cudaMipmappedArrayGetMemoryRequirements, cuMipmappedArrayGetMemoryRequirements,
        (void *out, Handle array, int device), out, array, device)

API ChannelDesc cudaCreateChannelDesc(int x, int y, int z, int w, int kind)
{
    return (ChannelDesc){x, y, z, w, kind};
}

API cudaError_t cudaArrayGetInfo(ChannelDesc *channels, Extent *extent, unsigned *flags, Handle array)
{
    ENTER(cu, 0);
    ArrayDesc found;
    cudaError_t error = cu->cuArray3DGetDescriptor(&found, array);
    if (error != SUCCESS) return done(error);
    if (extent != NULL) *extent = (Extent){found.Width, found.Height, found.Depth};
    if (flags != NULL) *flags = found.Flags;
    for (size_t i = 0; channels != NULL && i < FORMAT_COUNT; i++)
        if (formats[i].format == found.Format) {
            int bits = formats[i].bits;
            *channels = (ChannelDesc){bits, found.NumChannels > 1 ? bits : 0, found.NumChannels > 2 ? bits : 0,
                                      found.NumChannels > 3 ? bits : 0, formats[i].kind};
        }
    return SUCCESS;
}

API cudaError_t cudaGetChannelDesc(ChannelDesc *channels, Handle array)
{
    return cudaArrayGetInfo(channels, NULL, NULL, array);
}
