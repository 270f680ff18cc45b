/* Arrays and mipmapped arrays. Their size is the sum of the bytes of their elements. Sparse ones, and those whose memory is
 * mapped later, take none: cuMemMapArrayAsync maps it (cuda.h 12.9:4740-4752, 13260-13269). Their contents are kept beside the
 * memory that is mapped, so mapping moves no bytes. */
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
    void *data = (void *)arena_take(bytes);
    if (!data) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t backing = bytes;
    if (is_mapped_later) bytes = 0;
    struct extent *extents = NULL;
    if (!device_take(context->device, bytes, &extents)) return arena_give((uint64_t)data, backing, false), CUDA_ERROR_OUT_OF_MEMORY;
    Allocation *a = table_new(class, context->device, bytes, bytes, api);
    a->taken = bytes;
    a->extents = extents;
    a->context = context_owner(context);
    a->shape = *d;
    a->data = data;
    a->backing = backing;
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

/* ---- memory that is mapped later (cuda.h 13.0:12985-13100) */

struct Tile { Allocation *memory; unsigned place[8]; struct Tile *next; };

/* Ends the mapping of one place, or of all. */
static void unmap(Allocation *a, const unsigned *place)
{
    for (struct Tile **at = &a->tiles, *tile; (tile = *at);) {
        if (place && memcmp(tile->place, place, sizeof tile->place)) {
            at = &tile->next;
            continue;
        }
        *at = tile->next;
        tile->memory->mappings--;
        vmm_unused(tile->memory);
        free(tile);
    }
}
void array_unmap(Allocation *a) { unmap(a, NULL); }

/* CUarrayMapInfo */
struct map_info {
    int resource_type;
    Allocation *resource;
    int subresource_type;
    union { unsigned place[8]; uint64_t tail[3]; } at;
    int operation, handle_type;
    CUmemGenericAllocationHandle memory;
    unsigned long long offset;
    unsigned devices, flags, reserved[2];
};
enum { MAP_OPERATION = 1, UNMAP_OPERATION = 2 }; /* CUmemOperationType */

API CUresult cuMemMapArrayAsync(struct map_info *list, unsigned count, CUstream stream)
{
    STREAM_CALL("cuMemMapArrayAsync");
    if (!config()->vmm) return CUDA_ERROR_NOT_SUPPORTED;
    REQUIRE(list && count);
    for (unsigned i = 0; i < count; i++) {
        const struct map_info *m = &list[i];
        Allocation *a = object(m->resource, m->resource_type ? MIPMAP : ARRAY), *memory = vmm_handle(m->memory);
        REQUIRE(a && a->shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) && !m->flags && !m->handle_type);
        REQUIRE(m->operation == UNMAP_OPERATION || (m->operation == MAP_OPERATION && memory && memory->class == VMM && m->offset < memory->requested));
    }
    for (unsigned i = 0; i < count; i++) {
        const struct map_info *m = &list[i];
        unmap(m->resource, m->at.place); /* what was mapped there before is mapped no more */
        if (m->operation == UNMAP_OPERATION) continue;
        struct Tile *tile = calloc(1, sizeof *tile);
        *tile = (struct Tile){.memory = vmm_handle(m->memory), .next = m->resource->tiles};
        memcpy(tile->place, m->at.place, sizeof tile->place);
        tile->memory->mappings++;
        m->resource->tiles = tile;
    }
    return CUDA_SUCCESS;
}
PTSZ(cuMemMapArrayAsync);

/* A tile has 64 KiB. Every level has tiles of its own, so there is no tail. */
typedef struct { struct { unsigned width, height, depth; } tile; unsigned first_tail_level; unsigned long long tail_size; unsigned flags, reserved[4]; } Sparse;
static CUresult sparse(Sparse *out, const Allocation *a)
{
    REQUIRE(out && a && a->shape.Flags & CUDA_ARRAY3D_SPARSE);
    *out = (Sparse){.tile = {(unsigned)(65536 / 128 / array_element(&a->shape)), 128, 1}, .first_tail_level = (unsigned)a->level_count};
    return CUDA_SUCCESS;
}
API CUresult cuArrayGetSparseProperties(Sparse *out, CUarray array) { ENTER("cuArrayGetSparseProperties"); return sparse(out, object(array, ARRAY)); }
API CUresult cuMipmappedArrayGetSparseProperties(Sparse *out, CUmipmappedArray array) { ENTER("cuMipmappedArrayGetSparseProperties"); return sparse(out, object(array, MIPMAP)); }
