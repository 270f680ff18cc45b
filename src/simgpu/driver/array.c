/* Arrays and mipmapped arrays. Their size is the sum of the bytes of their elements. Sparse ones, and those whose memory is
 * mapped later, take none: cuMemMapArrayAsync maps it (cuda.h 12.9:4740-4752, 13260-13269), which this device does not have. */
#include "sim.h"

static uint64_t channel_bytes(unsigned format)
{
    switch (format) {
    case 0x02: case 0x09: case 0x10: return 2;
    case 0x03: case 0x0a: case 0x20: return 4;
    case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca: case 0xcb: return 2; /* normalised */
    default: return 1;
    }
}

uint64_t array_element(const CUDA_ARRAY3D_DESCRIPTOR *d) { return channel_bytes(d->Format) * d->NumChannels; }

static uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    uint64_t rows = times(d->Height ? d->Height : 1, d->Depth ? d->Depth : 1);
    return times(times(d->Width, rows), array_element(d));
}

static CUresult create(Allocation **out, const CUDA_ARRAY3D_DESCRIPTOR *d, enum class class, uint64_t bytes,
                       struct Context *context, const char *api)
{
    REQUIRE(d->Width && d->NumChannels && (d->NumChannels <= 4) && d->NumChannels != 3);
    bool is_mapped_later = d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
    if (is_mapped_later) bytes = 0;
    struct extent *extents = NULL;
    if (!device_take(context->device, bytes, &extents)) return CUDA_ERROR_OUT_OF_MEMORY;
    void *data = is_mapped_later ? NULL : (void *)arena_take(bytes);
    if (!data && !is_mapped_later) return state_give(physical_of(context->device), bytes, &extents), CUDA_ERROR_OUT_OF_MEMORY;
    Allocation *a = table_new(class, context->device, bytes, bytes, api);
    a->taken = bytes;
    a->extents = extents;
    a->context = context_owner(context);
    a->shape = *d;
    a->data = data;
    table_add(a);
    *out = a;
    return CUDA_SUCCESS;
}

API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
    ENTER_CONTEXT("cuArrayCreate", context);
    REQUIRE(out && d);
    CUDA_ARRAY3D_DESCRIPTOR shape = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
    return create(out, &shape, ARRAY, bytes_of(&shape), context, "cuArrayCreate");
}
API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    ENTER_CONTEXT("cuArray3DCreate", context);
    REQUIRE(out && d);
    return create(out, d, ARRAY, bytes_of(d), context, "cuArray3DCreate");
}

/* the 32-bit descriptors */
typedef struct { unsigned Width, Height, Format, NumChannels; } DescriptorV1;
typedef struct { unsigned Width, Height, Depth, Format, NumChannels, Flags; } Descriptor3dV1;
API CUresult cuArrayCreate(CUarray *out, const DescriptorV1 *d)
{
    REQUIRE(d);
    CUDA_ARRAY_DESCRIPTOR wide = {d->Width, d->Height, d->Format, d->NumChannels};
    return cuArrayCreate_v2(out, &wide);
}
API CUresult cuArray3DCreate(CUarray *out, const Descriptor3dV1 *d)
{
    REQUIRE(d);
    CUDA_ARRAY3D_DESCRIPTOR wide = {d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags};
    return cuArray3DCreate_v2(out, &wide);
}

static Allocation *object(Allocation *handle, enum class class)
{
    Allocation *a = table_at((uint64_t)handle);
    return a && a->class == class ? a : NULL;
}

struct level { const Allocation *sought; bool found; };
static void find_level(Allocation *a, void *closure)
{
    struct level *level = closure;
    for (int i = 0; i < a->level_count; i++) level->found |= a->levels[i] == level->sought;
}

/* Whether this is an array, or a level of a mipmapped one. */
bool array_valid(const Allocation *array)
{
    struct level level = {array, array && object((Allocation *)array, ARRAY)};
    if (array && !level.found) table_each(find_level, &level);
    return level.found;
}
bool mipmap_valid(const Allocation *array) { return array && object((Allocation *)array, MIPMAP); }

API CUresult cuArrayDestroy(CUarray array)
{
    ENTER("cuArrayDestroy");
    work_wait_all();
    Allocation *a = object(array, ARRAY);
    if (!a) return CUDA_ERROR_INVALID_HANDLE;
    table_remove(a);
    return CUDA_SUCCESS;
}

API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray array) { ENTER("cuArray3DGetDescriptor"); REQUIRE(d && array); *d = array->shape; return CUDA_SUCCESS; }
API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *d, CUarray array)
{
    ENTER("cuArrayGetDescriptor");
    REQUIRE(d && array);
    *d = (CUDA_ARRAY_DESCRIPTOR){array->shape.Width, array->shape.Height, array->shape.Format, array->shape.NumChannels};
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetDescriptor(DescriptorV1 *d, CUarray array)
{
    ENTER("cuArrayGetDescriptor");
    REQUIRE(d && array);
    *d = (DescriptorV1){(unsigned)array->shape.Width, (unsigned)array->shape.Height, array->shape.Format, array->shape.NumChannels};
    return CUDA_SUCCESS;
}
API CUresult cuArray3DGetDescriptor(Descriptor3dV1 *d, CUarray array)
{
    ENTER("cuArray3DGetDescriptor");
    REQUIRE(d && array);
    *d = (Descriptor3dV1){(unsigned)array->shape.Width, (unsigned)array->shape.Height, (unsigned)array->shape.Depth,
                          array->shape.Format, array->shape.NumChannels, array->shape.Flags};
    return CUDA_SUCCESS;
}

typedef struct { size_t size, alignment; unsigned reserved[4]; } Requirements;
API CUresult cuArrayGetMemoryRequirements(Requirements *r, CUarray array, CUdevice device) { (void)device; ENTER("cuArrayGetMemoryRequirements"); REQUIRE(r && array); *r = (Requirements){.size = array->reserved, .alignment = 512}; return CUDA_SUCCESS; }
API CUresult cuMipmappedArrayGetMemoryRequirements(Requirements *r, CUmipmappedArray array, CUdevice device) { return cuArrayGetMemoryRequirements(r, array, device); }

static uint64_t halved(uint64_t extent, unsigned level) { return extent ? (extent >> level ? extent >> level : 1) : 0; }

static CUDA_ARRAY3D_DESCRIPTOR level_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
    CUDA_ARRAY3D_DESCRIPTOR l = *d;
    l.Width = halved(d->Width, level);
    l.Height = halved(d->Height, level);
    if (!(d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP))) l.Depth = halved(d->Depth, level);
    return l;
}

API CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    ENTER_CONTEXT("cuMipmappedArrayCreate", context);
    REQUIRE(out && d && levels <= 16);
    if (!levels) levels = 1;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < levels && bytes < UINT64_MAX; i++) {
        CUDA_ARRAY3D_DESCRIPTOR level = level_of(d, i);
        if (__builtin_add_overflow(bytes, bytes_of(&level), &bytes)) bytes = UINT64_MAX;
    }
    CUresult result = create(out, d, MIPMAP, bytes, context, "cuMipmappedArrayCreate");
    if (result) return result;
    char *at = (*out)->data; /* NULL if there is no memory */
    for (unsigned i = 0; i < levels; i++) {
        Allocation *level = calloc(1, sizeof *level);
        level->shape = level_of(d, i);
        level->reserved = bytes_of(&level->shape);
        level->data = at;
        if (at) at += level->reserved;
        (*out)->levels[(*out)->level_count++] = level;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray array, unsigned level) { ENTER("cuMipmappedArrayGetLevel"); REQUIRE(out && object(array, MIPMAP) && (int)level < array->level_count); *out = array->levels[level]; return CUDA_SUCCESS; }
API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    ENTER("cuMipmappedArrayDestroy");
    work_wait_all();
    Allocation *a = object(array, MIPMAP);
    if (!a) return CUDA_ERROR_INVALID_HANDLE;
    table_remove(a);
    return CUDA_SUCCESS;
}
