/* Texture and surface objects, and the references of modules. No kernel reads through them, so they only keep what they
 * are told, and refuse what the driver must refuse: memory and pitches without the alignment of attributes 14 and 51, and
 * what is no array. Sources: cuda.h 13.0:21900-22812 (references), 22844-23219 (objects). */
#include "sim.h"

enum { ALIGNMENT = 512, PITCH_ALIGNMENT = 32, LINEAR_ELEMENTS = 1 << 28, LINEAR_SIDE = 131072 };
enum { RESOURCE_ARRAY, RESOURCE_MIPMAP, RESOURCE_LINEAR, RESOURCE_PITCH2D };

bool array_valid(const Allocation *array), mipmap_valid(const Allocation *array);
uint64_t array_element(const CUDA_ARRAY3D_DESCRIPTOR *d);

/* ---- objects */

struct Object {
    uint64_t handle;
    bool surface, viewed;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
    struct Object *next;
};
static struct Object *objects;

static uint64_t element(unsigned format, unsigned channels)
{
    return array_element(&(CUDA_ARRAY3D_DESCRIPTOR){.Format = format, .NumChannels = channels});
}

/* Whether the device has this memory from `address` on. Managed memory and the host's are there too. */
static bool device_memory(CUdeviceptr address, size_t size)
{
    uint64_t start, mapped;
    Allocation *a = table_find(address);
    if (a && a->class != VMM) return size <= a->address + a->span - address;
    return vmm_at(address, &start, &mapped) && vmm_accessible(ANY_DEVICE, address, size, false);
}

static bool resource_valid(const CUDA_RESOURCE_DESC *r)
{
    if (r->flags) return false;
    switch (r->type) {
    case RESOURCE_ARRAY: return array_valid(r->res.array);
    case RESOURCE_MIPMAP: return mipmap_valid(r->res.array);
    case RESOURCE_LINEAR: {
        uint64_t bytes = element(r->res.linear.format, r->res.linear.channels);
        return bytes && r->res.linear.address % ALIGNMENT == 0 && r->res.linear.size / bytes <= LINEAR_ELEMENTS
            && device_memory(r->res.linear.address, r->res.linear.size);
    }
    case RESOURCE_PITCH2D: {
        uint64_t row = r->res.pitch2d.width * element(r->res.pitch2d.format, r->res.pitch2d.channels);
        return row && r->res.pitch2d.height && r->res.pitch2d.address % ALIGNMENT == 0 && r->res.pitch2d.pitch % PITCH_ALIGNMENT == 0
            && r->res.pitch2d.width <= LINEAR_SIDE && r->res.pitch2d.height <= LINEAR_SIDE && row <= r->res.pitch2d.pitch
            && device_memory(r->res.pitch2d.address, (r->res.pitch2d.height - 1) * r->res.pitch2d.pitch + row);
    }
    default: return false;
    }
}

static struct Object *add(uint64_t *out, const CUDA_RESOURCE_DESC *resource)
{
    static uint64_t handles;
    struct Object *o = calloc(1, sizeof *o);
    *o = (struct Object){.handle = *out = ++handles, .resource = *resource, .next = objects};
    return objects = o;
}

static struct Object **find(uint64_t handle, bool surface)
{
    struct Object **at = &objects;
    while (*at && ((*at)->handle != handle || (*at)->surface != surface)) at = &(*at)->next;
    return at;
}

static CUresult destroy(uint64_t handle, bool surface)
{
    struct Object **at = find(handle, surface), *gone = *at;
    REQUIRE(gone);
    *at = gone->next;
    free(gone);
    return CUDA_SUCCESS;
}

API CUresult cuTexObjectCreate(uint64_t *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view)
{
    ENTER_CONTEXT("cuTexObjectCreate", context);
    (void)context;
    REQUIRE(out && resource && texture && resource_valid(resource));
    REQUIRE(!view || resource->type == RESOURCE_ARRAY || resource->type == RESOURCE_MIPMAP); /* cuda.h 13.0:22839 */
    struct Object *o = add(out, resource);
    o->texture = *texture;
    o->viewed = view;
    if (view) o->view = *view;
    return CUDA_SUCCESS;
}
API CUresult cuTexObjectDestroy(uint64_t object) { ENTER_WORKING("cuTexObjectDestroy"); return destroy(object, false); }

API CUresult cuSurfObjectCreate(uint64_t *out, const CUDA_RESOURCE_DESC *resource)
{
    ENTER_CONTEXT("cuSurfObjectCreate", context);
    (void)context;
    REQUIRE(out && resource && resource->type == RESOURCE_ARRAY && resource_valid(resource));
    add(out, resource)->surface = true;
    return CUDA_SUCCESS;
}
API CUresult cuSurfObjectDestroy(uint64_t object) { ENTER_WORKING("cuSurfObjectDestroy"); return destroy(object, true); }

#define ASK(function, type, is_surface, field, condition)                      \
    API CUresult function(type *out, uint64_t object)                          \
    {                                                                          \
        ENTER(#function);                                                      \
        const struct Object *o = *find(object, is_surface);                    \
        REQUIRE(out && o && (condition));                                      \
        *out = o->field;                                                       \
        return CUDA_SUCCESS;                                                   \
    }
ASK(cuTexObjectGetResourceDesc, CUDA_RESOURCE_DESC, false, resource, true)
ASK(cuTexObjectGetTextureDesc, CUDA_TEXTURE_DESC, false, texture, true)
ASK(cuTexObjectGetResourceViewDesc, CUDA_RESOURCE_VIEW_DESC, false, view, o->viewed)
ASK(cuSurfObjectGetResourceDesc, CUDA_RESOURCE_DESC, true, resource, true)

API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *texels, int format, unsigned channels, CUdevice device)
{
    ENTER("cuDeviceGetTexture1DLinearMaxWidth");
    (void)format, (void)channels;
    REQUIRE(texels);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *texels = LINEAR_ELEMENTS;
    return CUDA_SUCCESS;
}

/* ---- references: of a module, or made by cuTexRefCreate. A surface reference has an array alone. */

struct Reference {
    char name[64];
    const void *module;
    Allocation *array, *mipmap;
    CUdeviceptr address;
    unsigned format, flags, anisotropy;
    int channels, address_modes[3], filter, mipmap_filter;
    float bias, clamp[2], border[4];
    struct Reference *next;
};
static struct Reference *references;

/* A module has every reference that it is asked for, as it has every kernel. */
static CUresult of_module(struct Reference **out, const void *module, const char *name)
{
    REQUIRE(out && module && name);
    for (struct Reference *r = references; r; r = r->next)
        if (r->module == module && !strcmp(r->name, name)) return *out = r, CUDA_SUCCESS;
    struct Reference *r = calloc(1, sizeof *r);
    snprintf(r->name, sizeof r->name, "%s", name);
    r->module = module;
    r->next = references;
    *out = references = r;
    return CUDA_SUCCESS;
}
API CUresult cuModuleGetTexRef(struct Reference **out, CUmodule module, const char *name) { ENTER("cuModuleGetTexRef"); return of_module(out, module, name); }
API CUresult cuModuleGetSurfRef(struct Reference **out, CUmodule module, const char *name) { ENTER("cuModuleGetSurfRef"); return of_module(out, module, name); }

void texture_module_gone(const void *module)
{
    for (struct Reference **at = &references, *gone; (gone = *at);)
        if (gone->module == module) *at = gone->next, free(gone);
        else at = &gone->next;
}

API CUresult cuTexRefCreate(struct Reference **out) { ENTER("cuTexRefCreate"); REQUIRE(out); *out = calloc(1, sizeof **out); return CUDA_SUCCESS; }
API CUresult cuTexRefDestroy(struct Reference *r) { ENTER("cuTexRefDestroy"); REQUIRE(r && !r->module); free(r); return CUDA_SUCCESS; }

/* Whatever was bound before is unbound. */
static CUresult bind(struct Reference *r, Allocation *array, Allocation *mipmap, CUdeviceptr address)
{
    r->array = array;
    r->mipmap = mipmap;
    r->address = address;
    return CUDA_SUCCESS;
}

#define SET(function, condition, action, ...)                                  \
    API CUresult function(struct Reference *r, __VA_ARGS__)                    \
    {                                                                          \
        ENTER(#function);                                                      \
        REQUIRE(r && (condition));                                             \
        action;                                                                \
        return CUDA_SUCCESS;                                                   \
    }
enum { OVERRIDE_FORMAT = 1 }; /* CU_TRSA_OVERRIDE_FORMAT, which must be set (cuda.h 13.0:21911) */
SET(cuTexRefSetArray, flags == OVERRIDE_FORMAT && array_valid(array), bind(r, array, NULL, 0), Allocation *array, unsigned flags)
SET(cuTexRefSetMipmappedArray, flags == OVERRIDE_FORMAT && mipmap_valid(array), bind(r, NULL, array, 0), Allocation *array, unsigned flags)
SET(cuSurfRefSetArray, !flags && array_valid(array), bind(r, array, NULL, 0), Allocation *array, unsigned flags)
SET(cuTexRefSetFormat, channels >= 1 && channels <= 4, (r->format = format, r->channels = channels), unsigned format, int channels)
SET(cuTexRefSetAddressMode, dimension >= 0 && dimension < 3, r->address_modes[dimension] = mode, int dimension, int mode)
SET(cuTexRefSetFilterMode, true, r->filter = mode, int mode)
SET(cuTexRefSetMipmapFilterMode, true, r->mipmap_filter = mode, int mode)
SET(cuTexRefSetMipmapLevelBias, true, r->bias = bias, float bias)
SET(cuTexRefSetMipmapLevelClamp, true, (r->clamp[0] = least, r->clamp[1] = most), float least, float most)
SET(cuTexRefSetMaxAnisotropy, true, r->anisotropy = most, unsigned most)
SET(cuTexRefSetBorderColor, color, memcpy(r->border, color, sizeof r->border), const float *color)
SET(cuTexRefSetFlags, true, r->flags = flags, unsigned flags)

/* For memory of cuMemAlloc "the offset is guaranteed to be 0" (cuda.h 13.0:21984), and without room for an offset it must
 * be. */
API CUresult cuTexRefSetAddress_v2(size_t *offset, struct Reference *r, CUdeviceptr address, size_t size)
{
    ENTER("cuTexRefSetAddress");
    REQUIRE(r && (!size || device_memory(address, size)) && (offset || address % ALIGNMENT == 0));
    if (offset) *offset = address % ALIGNMENT;
    return bind(r, NULL, NULL, size ? address - address % ALIGNMENT : 0);
}
API CUresult cuTexRefSetAddress(unsigned *offset, struct Reference *r, CUdeviceptr_v1 address, unsigned size)
{
    size_t wide = 0;
    CUresult result = cuTexRefSetAddress_v2(offset ? &wide : NULL, r, address, size);
    if (offset) *offset = (unsigned)wide;
    return result;
}
API CUresult cuTexRefSetAddress2D_v3(struct Reference *r, const CUDA_ARRAY_DESCRIPTOR *d, CUdeviceptr address, size_t pitch)
{
    ENTER("cuTexRefSetAddress2D");
    REQUIRE(r && d && d->Width && d->Height && address % ALIGNMENT == 0 && pitch % PITCH_ALIGNMENT == 0);
    REQUIRE(d->Width <= LINEAR_SIDE && d->Height <= LINEAR_SIDE && device_memory(address, (d->Height - 1) * pitch + d->Width * element(d->Format, d->NumChannels)));
    r->format = d->Format;
    r->channels = (int)d->NumChannels;
    return bind(r, NULL, NULL, address);
}
API CUresult cuTexRefSetAddress2D_v2(struct Reference *r, const CUDA_ARRAY_DESCRIPTOR *d, CUdeviceptr address, size_t pitch) { return cuTexRefSetAddress2D_v3(r, d, address, pitch); }

#define GET(function, type, value, condition)                                  \
    API CUresult function(type *out, struct Reference *r)                      \
    {                                                                          \
        ENTER(#function);                                                      \
        REQUIRE(out && r && (condition));                                      \
        *out = value;                                                          \
        return CUDA_SUCCESS;                                                   \
    }
GET(cuTexRefGetAddress_v2, CUdeviceptr, r->address, r->address)
GET(cuTexRefGetAddress, CUdeviceptr_v1, (CUdeviceptr_v1)r->address, r->address && r->address >> 32 == 0)
GET(cuTexRefGetArray, CUarray, r->array, r->array)
GET(cuSurfRefGetArray, CUarray, r->array, r->array)
GET(cuTexRefGetMipmappedArray, CUmipmappedArray, r->mipmap, r->mipmap)
GET(cuTexRefGetFilterMode, int, r->filter, true)
GET(cuTexRefGetMipmapFilterMode, int, r->mipmap_filter, true)
GET(cuTexRefGetMipmapLevelBias, float, r->bias, true)
GET(cuTexRefGetMaxAnisotropy, int, (int)r->anisotropy, true)
GET(cuTexRefGetFlags, unsigned, r->flags, true)
API CUresult cuTexRefGetAddressMode(int *out, struct Reference *r, int dimension) { ENTER("cuTexRefGetAddressMode"); REQUIRE(out && r && dimension >= 0 && dimension < 3); *out = r->address_modes[dimension]; return CUDA_SUCCESS; }
API CUresult cuTexRefGetFormat(unsigned *format, int *channels, struct Reference *r) { ENTER("cuTexRefGetFormat"); REQUIRE(r); if (format) *format = r->format; if (channels) *channels = r->channels; return CUDA_SUCCESS; }
API CUresult cuTexRefGetMipmapLevelClamp(float *least, float *most, struct Reference *r) { ENTER("cuTexRefGetMipmapLevelClamp"); REQUIRE(least && most && r); *least = r->clamp[0], *most = r->clamp[1]; return CUDA_SUCCESS; }
API CUresult cuTexRefGetBorderColor(float *color, struct Reference *r) { ENTER("cuTexRefGetBorderColor"); REQUIRE(color && r); memcpy(color, r->border, sizeof r->border); return CUDA_SUCCESS; }
