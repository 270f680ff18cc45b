/* Objects of the simulated GPU besides memory: textures, surfaces, arrays, and the launches of old. Exits with 1 if an
 * answer is wrong.
 *
 *   objects textures    texture and surface objects keep their descriptions, and refuse unaligned memory
 *   objects references  references of modules: what they are bound to, and the offset 0 of memory of cuMemAlloc
 *   objects arrays      copies between arrays, the host and linear memory
 *   objects launches    cuLaunchGrid and its relatives become nodes of a capture; modules that are linked from files
 *   objects many        70,000 blocks come and go without a mapping for each (vm.max_map_count) */
#include "delayed.h"
#include "more_api.h"

typedef struct Reference *CUtexref;
CUresult cuTexObjectCreate(uint64_t *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *, const CUDA_RESOURCE_VIEW_DESC *);
CUresult cuTexObjectDestroy(uint64_t);
CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *, uint64_t);
CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *, uint64_t);
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *, uint64_t);
CUresult cuSurfObjectCreate(uint64_t *, const CUDA_RESOURCE_DESC *);
CUresult cuSurfObjectDestroy(uint64_t);
CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *, uint64_t);
CUresult cuModuleGetTexRef(CUtexref *, CUmodule, const char *);
CUresult cuModuleGetSurfRef(CUtexref *, CUmodule, const char *);
CUresult cuTexRefSetAddress_v2(size_t *, CUtexref, CUdeviceptr, size_t);
CUresult cuTexRefGetAddress_v2(CUdeviceptr *, CUtexref);
CUresult cuTexRefSetAddress2D_v3(CUtexref, const CUDA_ARRAY_DESCRIPTOR *, CUdeviceptr, size_t);
CUresult cuTexRefSetArray(CUtexref, CUarray, unsigned);
CUresult cuTexRefGetArray(CUarray *, CUtexref);
CUresult cuTexRefSetFormat(CUtexref, unsigned, int);
CUresult cuTexRefGetFormat(unsigned *, int *, CUtexref);
CUresult cuSurfRefSetArray(CUtexref, CUarray, unsigned);
CUresult cuSurfRefGetArray(CUarray *, CUtexref);
CUresult cuMipmappedArrayGetLevel(CUarray *, CUmipmappedArray, unsigned);
CUresult cuMemcpyHtoA_v2(CUarray, size_t, const void *, size_t);
CUresult cuMemcpyAtoH_v2(void *, CUarray, size_t, size_t);
CUresult cuMemcpyAtoA_v2(CUarray, size_t, CUarray, size_t, size_t);
CUresult cuMemcpyHtoAAsync_v2(CUarray, size_t, const void *, size_t, CUstream);
CUresult cuMemcpyAtoHAsync_v2(void *, CUarray, size_t, size_t, CUstream);
CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *, CUarray);
CUresult cuFuncSetBlockShape(CUfunction, int, int, int);
CUresult cuFuncSetSharedSize(CUfunction, unsigned);
CUresult cuParamSetSize(CUfunction, unsigned);
CUresult cuLaunchGridAsync(CUfunction, int, int, CUstream);
CUresult cuLinkCreate_v2(unsigned, int *, void **, void **);
CUresult cuLinkAddFile_v2(void *, int, const char *, unsigned, int *, void **);
CUresult cuLinkDestroy(void *);

enum { ARRAY_RESOURCE, MIPMAP_RESOURCE, LINEAR_RESOURCE, PITCH_RESOURCE, FLOAT = CU_AD_FORMAT_FLOAT, ANY = MIB };

static CUDA_RESOURCE_DESC linear(CUdeviceptr address, size_t size)
{
    return (CUDA_RESOURCE_DESC){.type = LINEAR_RESOURCE, .res.linear = {address, FLOAT, 1, size}};
}

static CUarray new_array(size_t width, size_t height)
{
    CUarray array;
    CHECK(cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){width, height, FLOAT, 1}));
    return array;
}

static void textures(void)
{
    uint64_t object, surface;
    CUDA_RESOURCE_DESC told, given;
    CUDA_TEXTURE_DESC texture = {.filterMode = 1, .maxAnisotropy = 4}, told_texture;
    /* The driver's memory is aligned for textures, so a policy's blocks are, also small ones (cuda.h 13.0:22898). */
    for (int i = 0; i < 64; i++) {
        given = linear(linear_memory((size_t)i * 24 + 4), (size_t)i * 24 + 4);
        CHECK(cuTexObjectCreate(&object, &given, &texture, NULL));
        CHECK(cuTexObjectDestroy(object));
    }
    CUdeviceptr address = linear_memory(ANY);
    given = linear(address, ANY);
    CHECK(cuTexObjectCreate(&object, &given, &texture, NULL));
    CHECK(cuTexObjectGetResourceDesc(&told, object));
    THAT(told.type == LINEAR_RESOURCE && told.res.linear.address == address && told.res.linear.size == ANY);
    CHECK(cuTexObjectGetTextureDesc(&told_texture, object));
    THAT(told_texture.filterMode == 1 && told_texture.maxAnisotropy == 4);
    CUDA_RESOURCE_VIEW_DESC view = {.format = 1};
    EXPECT(cuTexObjectGetResourceViewDesc(&view, object), CUDA_ERROR_INVALID_VALUE); /* there is none */
    EXPECT(cuSurfObjectDestroy(object), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuTexObjectDestroy(object));
    EXPECT(cuTexObjectDestroy(object), CUDA_ERROR_INVALID_VALUE);
    given = linear(address + 4, 64);
    EXPECT(cuTexObjectCreate(&object, &given, &texture, NULL), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr rows;
    size_t pitch;
    CHECK(cuMemAllocPitch_v2(&rows, &pitch, 400, 30, 4));
    given = (CUDA_RESOURCE_DESC){.type = PITCH_RESOURCE, .res.pitch2d = {rows, FLOAT, 1, 100, 30, pitch}};
    CHECK(cuTexObjectCreate(&object, &given, &texture, NULL));
    CHECK(cuTexObjectDestroy(object));
    given.res.pitch2d.pitch = pitch + 4;
    EXPECT(cuTexObjectCreate(&object, &given, &texture, NULL), CUDA_ERROR_INVALID_VALUE);
    CUarray array = new_array(16, 16);
    given = (CUDA_RESOURCE_DESC){.type = ARRAY_RESOURCE, .res.array = array};
    CHECK(cuTexObjectCreate(&object, &given, &texture, &view));
    CHECK(cuTexObjectGetResourceViewDesc(&view, object));
    THAT(view.format == 1);
    CHECK(cuSurfObjectCreate(&surface, &given));
    CHECK(cuSurfObjectGetResourceDesc(&told, surface));
    THAT(told.res.array == array);
    CHECK(cuSurfObjectDestroy(surface));
    CHECK(cuTexObjectDestroy(object));
    CUmipmappedArray mipmap;
    CUDA_ARRAY3D_DESCRIPTOR shape = {16, 16, 0, FLOAT, 1, 0};
    CHECK(cuMipmappedArrayCreate(&mipmap, &shape, 3));
    given = (CUDA_RESOURCE_DESC){.type = MIPMAP_RESOURCE, .res.array = mipmap};
    CHECK(cuTexObjectCreate(&object, &given, &texture, NULL));
    EXPECT(cuSurfObjectCreate(&surface, &given), CUDA_ERROR_INVALID_VALUE);
    given.type = ARRAY_RESOURCE;
    EXPECT(cuTexObjectCreate(&surface, &given, &texture, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMipmappedArrayGetLevel(&given.res.array, mipmap, 1));
    CHECK(cuSurfObjectCreate(&surface, &given));
    CHECK(cuArrayDestroy(array));
}

static CUmodule new_module(void)
{
    CUmodule module;
    CHECK(cuModuleLoadData(&module, "text"));
    return module;
}

static void references(void)
{
    CUmodule module = new_module();
    CUtexref texture, again, surface;
    CUarray array = new_array(16, 16), told;
    CUdeviceptr address, told_address;
    size_t offset = 1;
    unsigned format;
    int channels;
    CHECK(cuModuleGetTexRef(&texture, module, "t"));
    CHECK(cuModuleGetTexRef(&again, module, "t"));
    THAT(texture == again);
    CHECK(cuTexRefSetFormat(texture, FLOAT, 2));
    CHECK(cuTexRefGetFormat(&format, &channels, texture));
    THAT(format == FLOAT && channels == 2);
    for (size_t size = 4; size < 3000; size += 148) {
        CHECK(cuMemAlloc_v2(&address, size));
        CHECK(cuTexRefSetAddress_v2(&offset, texture, address, size));
        THAT(offset == 0);
    }
    CHECK(cuTexRefSetAddress_v2(NULL, texture, address, 64));
    CHECK(cuTexRefGetAddress_v2(&told_address, texture));
    THAT(told_address == address);
    CHECK(cuTexRefSetAddress_v2(&offset, texture, address + 16, 64));
    THAT(offset == 16);
    CHECK(cuTexRefSetArray(texture, array, 1));
    EXPECT(cuTexRefGetAddress_v2(&told_address, texture), CUDA_ERROR_INVALID_VALUE); /* unbound */
    CHECK(cuTexRefGetArray(&told, texture));
    THAT(told == array);
    CHECK(cuModuleGetSurfRef(&surface, module, "s"));
    EXPECT(cuSurfRefGetArray(&told, surface), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuSurfRefSetArray(surface, array, 0));
    CHECK(cuSurfRefGetArray(&told, surface));
    CUDA_ARRAY_DESCRIPTOR shape = {8, 8, FLOAT, 1};
    CHECK(cuMemAlloc_v2(&address, 8 * 64));
    CHECK(cuTexRefSetAddress2D_v3(texture, &shape, address, 64));
    EXPECT(cuTexRefSetAddress2D_v3(texture, &shape, address, 40), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuModuleUnload(module));
}

static void arrays(void)
{
    char given[256], told[256];
    CUarray one = new_array(64, 0), other = new_array(64, 0);
    CUdeviceptr address = linear_memory(256);
    CUstream stream = new_stream(NON_BLOCKING);
    for (int i = 0; i < 256; i++) given[i] = (char)i;
    CHECK(cuMemcpyHtoA_v2(one, 0, given, 256));
    CHECK(cuMemcpyAtoA_v2(other, 128, one, 0, 64));
    CHECK(cuMemcpyAtoH_v2(told, other, 128, 64));
    THAT(!memcmp(told, given, 64));
    CHECK(cuMemcpyAtoD_v2(address, one, 64, 64));
    CHECK(cuMemcpyDtoA_v2(other, 0, address, 64));
    CHECK(cuMemcpyAtoHAsync_v2(told, other, 0, 64, stream));
    CHECK(cuStreamSynchronize(stream));
    THAT(!memcmp(told, given + 64, 64));
    CHECK(cuMemcpyHtoAAsync_v2(other, 64, given, 64, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyAtoH_v2(told, other, 64, 64));
    THAT(!memcmp(told, given, 64));
    CUDA_ARRAY_DESCRIPTOR shape;
    CHECK(cuArrayGetDescriptor_v2(&shape, one));
    THAT(shape.Width == 64 && shape.Format == FLOAT);
    CHECK(cuArrayDestroy(one));
    CHECK(cuArrayDestroy(other));
}

static void launches(void)
{
    CUfunction function;
    CUstream stream = new_stream(NON_BLOCKING);
    CUgraph graph;
    CUgraphNode node;
    size_t count = 1;
    CUDA_KERNEL_NODE_PARAMS kernel;
    CHECK(cuModuleGetFunction(&function, new_module(), "f"));
    EXPECT(cuLaunchGridAsync(function, 3, 2, stream), CUDA_ERROR_INVALID_VALUE); /* no shape yet */
    CHECK(cuFuncSetBlockShape(function, 32, 4, 1));
    CHECK(cuFuncSetSharedSize(function, 128));
    CHECK(cuParamSetSize(function, 8));
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuLaunchGridAsync(function, 3, 2, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphGetNodes(graph, &node, &count));
    CHECK(cuGraphKernelNodeGetParams_v2(node, &kernel));
    THAT(kernel.grid[0] == 3 && kernel.grid[1] == 2 && kernel.block[1] == 4 && kernel.shared == 128);
    void *link;
    enum { FILE_NOT_FOUND = 301 };
    CHECK(cuLinkCreate_v2(0, NULL, NULL, &link));
    CHECK(cuLinkAddFile_v2(link, 0, "/proc/self/exe", 0, NULL, NULL));
    EXPECT(cuLinkAddFile_v2(link, 0, "/nowhere", 0, NULL, NULL), FILE_NOT_FOUND);
    CHECK(cuLinkDestroy(link));
}

static void many(void)
{
    enum { BLOCKS = 70000, BYTES = 70000 };
    static CUdeviceptr blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) blocks[i] = linear_memory(BYTES);
    for (int i = 0; i < BLOCKS; i += 2) {
        CHECK(cuMemsetD8_v2(blocks[i], 1, 1));
        CHECK(cuMemFree_v2(blocks[i]));
    }
    THAT(byte_at(linear_memory(BYTES)) == 0); /* freed memory is given back to the host */
    THAT(mappings() < 1000);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"textures", textures}, {"references", references}, {"arrays", arrays}, {"launches", launches},
        {"many", many},
    };
    begin();
    return PLAY(scenes, argc, argv);
}
