/* Modules and kernels. Every image is accepted, every kernel is found, and a launch does nothing, with one exception: a
 * kernel named "wild" writes to an address that is not mapped. Later calls of its context tell of that. If the image is
 * no ELF file, every variable is found too. */
#include "sim.h"

#define U __attribute__((unused))

struct Kernel { char name[64]; struct Module *module; unsigned block[3], shared; };
struct Module { char globals[4096]; bool listed; struct Variable *variables; };

static CUresult load(struct Module **out, const void *image)
{
    ENTER("cuModuleLoad");
    REQUIRE(out);
    *out = calloc(1, sizeof **out);
    (*out)->listed = image_variables(image, &(*out)->variables);
    return CUDA_SUCCESS;
}
static CUresult unload(struct Module *module)
{
    REQUIRE(module);
    image_forget(module->variables);
    texture_module_gone(module);
    free(module);
    return CUDA_SUCCESS;
}
API CUresult cuModuleLoad(struct Module **out, U const char *path) { return load(out, NULL); }
API CUresult cuModuleLoadData(struct Module **out, const void *image) { return load(out, image); }
API CUresult cuModuleLoadDataEx(struct Module **out, const void *image, U unsigned n, U int *options, U void **values) { return load(out, image); }
API CUresult cuModuleLoadFatBinary(struct Module **out, const void *image) { return load(out, image); }
API CUresult cuModuleUnload(struct Module *module) { ENTER("cuModuleUnload"); return unload(module); }
static CUresult kernel(struct Kernel **out, struct Module *module, const char *name)
{
    ENTER("cuModuleGetFunction");
    REQUIRE(out && module && name);
    struct Kernel *k = calloc(1, sizeof *k);
    snprintf(k->name, sizeof k->name, "%s", name);
    k->module = module;
    *out = k;
    return CUDA_SUCCESS;
}
API CUresult cuModuleGetFunction(struct Kernel **out, struct Module *module, const char *name) { return kernel(out, module, name); }
static CUresult global(CUdeviceptr *out, size_t *size, struct Module *module, const char *name)
{
    ENTER("cuModuleGetGlobal");
    REQUIRE(module && name);
    /* cuda.h 13.5, cuModuleGetGlobal: a name that is not there is CUDA_ERROR_NOT_FOUND. */
    if (module->listed) return image_variable(module->variables, name, out, size) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    if (out) *out = (CUdeviceptr)module->globals;
    if (size) *size = sizeof module->globals;
    return CUDA_SUCCESS;
}
API CUresult cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *size, struct Module *m, const char *name) { return global(out, size, m, name); }
API CUresult cuModuleGetLoadingMode(int *mode) { REQUIRE(mode); *mode = 2; return CUDA_SUCCESS; }
API CUresult cuModuleGetFunctionCount(unsigned *count, U struct Module *m) { REQUIRE(count); *count = 0; return CUDA_SUCCESS; }

API CUresult cuLibraryLoadData(struct Module **out, const void *code, U void *a, U void **b, U unsigned c, U void *d, U void **e, U unsigned f) { return load(out, code); }
API CUresult cuLibraryLoadFromFile(struct Module **out, U const char *path, U void *a, U void **b, U unsigned c, U void *d, U void **e, U unsigned f) { return load(out, NULL); }
API CUresult cuLibraryUnload(struct Module *library) { return unload(library); }
API CUresult cuLibraryGetKernel(struct Kernel **out, struct Module *library, const char *name) { return kernel(out, library, name); }
API CUresult cuLibraryGetModule(struct Module **out, struct Module *library) { REQUIRE(out && library); *out = library; return CUDA_SUCCESS; }
API CUresult cuLibraryGetGlobal(CUdeviceptr *out, size_t *size, struct Module *library, const char *name) { return global(out, size, library, name); }
API CUresult cuLibraryGetManaged(CUdeviceptr *out, size_t *size, struct Module *library, const char *name) { return global(out, size, library, name); }
API CUresult cuLibraryGetKernelCount(unsigned *count, U struct Module *library) { REQUIRE(count); *count = 0; return CUDA_SUCCESS; }
API CUresult cuLibraryEnumerateKernels(U struct Kernel **kernels, U unsigned count, U struct Module *library) { return CUDA_SUCCESS; }
API CUresult cuKernelGetFunction(void **out, struct Kernel *k) { REQUIRE(out && k); *out = k; return CUDA_SUCCESS; }
API CUresult cuKernelGetAttribute(int *value, U int attribute, U struct Kernel *k, U CUdevice device) { REQUIRE(value); *value = 1024; return CUDA_SUCCESS; }
API CUresult cuKernelSetAttribute(U int attribute, U int value, U struct Kernel *k, U CUdevice device) { return CUDA_SUCCESS; }
API CUresult cuKernelSetCacheConfig(U struct Kernel *k, U int config_, U CUdevice device) { return CUDA_SUCCESS; }
API CUresult cuKernelGetName(const char **name, struct Kernel *k) { REQUIRE(name && k); *name = k->name; return CUDA_SUCCESS; }

API CUresult cuFuncGetAttribute(int *value, int attribute, U struct Kernel *k)
{
    REQUIRE(value);
    static const int values[] = {1024, 0, 0, 0, 32, 90, 90, 0, 233472};
    *value = attribute >= 0 && attribute < 9 ? values[attribute] : 0;
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(U struct Kernel *k, U int attribute, U int value) { return CUDA_SUCCESS; }
API CUresult cuFuncSetCacheConfig(U struct Kernel *k, U int value) { return CUDA_SUCCESS; }
API CUresult cuFuncSetSharedMemConfig(U struct Kernel *k, U int value) { return CUDA_SUCCESS; }
API CUresult cuFuncGetModule(struct Module **out, struct Kernel *k) { REQUIRE(out && k); *out = k->module; return CUDA_SUCCESS; }
API CUresult cuFuncGetName(const char **name, struct Kernel *k) { REQUIRE(name && k); *name = k->name; return CUDA_SUCCESS; }
API CUresult cuFuncIsLoaded(int *state, U struct Kernel *k) { REQUIRE(state); *state = 1; return CUDA_SUCCESS; }
API CUresult cuFuncLoad(U struct Kernel *k) { return CUDA_SUCCESS; }

CUresult kernel_launched(const void *kernel, struct Context *context)
{
    const struct Kernel *k = kernel;
    if (!strcmp(k->name, "wild")) context_break(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    return CUDA_SUCCESS;
}

static CUresult launch(CUDA_KERNEL_NODE_PARAMS kernel, CUstream stream)
{
    ENTER_CONTEXT("cuLaunchKernel", context);
    context_passes(context);
    if (!kernel.func) return CUDA_ERROR_INVALID_HANDLE;
    CHECK_STREAM(stream);
    bool captured;
    CUresult result = graph_capture_kernel(stream, &kernel, &captured);
    if (result || captured) return result;
    kernel_launched(kernel.func, context);
    work_submit(stream, (struct Work){.kind = WORK_NOTHING});
    return CUDA_SUCCESS;
}
#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define KERNEL(parameters, extra) (CUDA_KERNEL_NODE_PARAMS){k, {gx, gy, gz}, {bx, by, bz}, shared, parameters, extra, NULL, NULL}
API CUresult cuLaunchKernel(struct Kernel *k, GRID, CUstream stream, void **parameters, void **extra) { return launch(KERNEL(parameters, extra), stream); }
API CUresult cuLaunchKernel_ptsz(struct Kernel *k, GRID, CUstream stream, void **parameters, void **extra) { return launch(KERNEL(parameters, extra), of_thread(stream)); }
API CUresult cuLaunchCooperativeKernel(struct Kernel *k, GRID, CUstream stream, void **parameters) { return launch(KERNEL(parameters, NULL), stream); }
API CUresult cuLaunchCooperativeKernel_ptsz(struct Kernel *k, GRID, CUstream stream, void **parameters) { return launch(KERNEL(parameters, NULL), of_thread(stream)); }
struct LaunchConfig { unsigned grid[3], block[3], shared; CUstream stream; void *attributes; unsigned count; };
static CUresult launch_as(const struct LaunchConfig *c, struct Kernel *k, void **parameters, void **extra, bool per_thread)
{
    REQUIRE(c);
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = k, .shared = c->shared, .parameters = parameters, .extra = extra};
    memcpy(kernel.grid, c->grid, sizeof kernel.grid);
    memcpy(kernel.block, c->block, sizeof kernel.block);
    return launch(kernel, per_thread ? of_thread(c->stream) : c->stream);
}
API CUresult cuLaunchKernelEx(const struct LaunchConfig *c, struct Kernel *k, void **parameters, void **extra) { return launch_as(c, k, parameters, extra, false); }
API CUresult cuLaunchKernelEx_ptsz(const struct LaunchConfig *c, struct Kernel *k, void **parameters, void **extra) { return launch_as(c, k, parameters, extra, true); }

/* ---- the launches that CUDA 4.0 replaced: cuda.h 13.0:18128-18537. The shape of the blocks is the kernel's. */
API CUresult cuFuncSetBlockShape(struct Kernel *k, int x, int y, int z) { if (!k) return CUDA_ERROR_INVALID_HANDLE; REQUIRE(x > 0 && y > 0 && z > 0); k->block[0] = (unsigned)x, k->block[1] = (unsigned)y, k->block[2] = (unsigned)z; return CUDA_SUCCESS; }
API CUresult cuFuncSetSharedSize(struct Kernel *k, unsigned bytes) { if (!k) return CUDA_ERROR_INVALID_HANDLE; k->shared = bytes; return CUDA_SUCCESS; }
API CUresult cuParamSetSize(struct Kernel *k, U unsigned bytes) { return k ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
API CUresult cuParamSeti(struct Kernel *k, U int offset, U unsigned value) { return k ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
API CUresult cuParamSetf(struct Kernel *k, U int offset, U float value) { return k ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
API CUresult cuParamSetv(struct Kernel *k, U int offset, void *value, U unsigned bytes) { REQUIRE(value); return k ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
API CUresult cuParamSetTexRef(struct Kernel *k, U int unit, void *reference) { REQUIRE(reference); return k ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
static CUresult launch_grid(struct Kernel *k, int width, int height, CUstream stream)
{
    if (!k) return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(width > 0 && height > 0 && k->block[0]);
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = k, .grid = {(unsigned)width, (unsigned)height, 1}, .shared = k->shared};
    memcpy(kernel.block, k->block, sizeof kernel.block);
    return launch(kernel, stream);
}
API CUresult cuLaunch(struct Kernel *k) { return launch_grid(k, 1, 1, NULL); }
API CUresult cuLaunchGrid(struct Kernel *k, int width, int height) { return launch_grid(k, width, height, NULL); }
API CUresult cuLaunchGridAsync(struct Kernel *k, int width, int height, CUstream stream) { return launch_grid(k, width, height, stream); }

/* cuda.h 13.0:17945: the streams are of different devices, and none is a default stream. */
struct LaunchParams { CUfunction function; unsigned grid[3], block[3], shared; CUstream stream; void **parameters; };
API CUresult cuLaunchCooperativeKernelMultiDevice(struct LaunchParams *list, unsigned count, U unsigned flags)
{
    REQUIRE(list && count);
    for (unsigned i = 0; i < count; i++) REQUIRE((uint64_t)list[i].stream > 2);
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !result; i++) {
        CUDA_KERNEL_NODE_PARAMS kernel = {.func = list[i].function, .shared = list[i].shared, .parameters = list[i].parameters};
        memcpy(kernel.grid, list[i].grid, sizeof kernel.grid);
        memcpy(kernel.block, list[i].block, sizeof kernel.block);
        result = launch(kernel, list[i].stream);
    }
    return result;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, U struct Kernel *k, int size, U size_t shared) { REQUIRE(blocks && size > 0); *blocks = 2048 / size; return CUDA_SUCCESS; }
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, U struct Kernel *k, int size, U size_t shared, U unsigned flags) { REQUIRE(blocks && size > 0); *blocks = 2048 / size; return CUDA_SUCCESS; }
API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, U struct Kernel *k, U void *f, U size_t shared, U int limit) { REQUIRE(grid && block); *grid = 264, *block = 1024; return CUDA_SUCCESS; }
API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, U struct Kernel *k, U int blocks, U int size) { REQUIRE(bytes); *bytes = 49152; return CUDA_SUCCESS; }

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, U struct Kernel *k, U void *f, U size_t shared, U int limit, U unsigned flags) { REQUIRE(grid && block); *grid = 264, *block = 1024; return CUDA_SUCCESS; }
API CUresult cuOccupancyMaxPotentialClusterSize(int *size, U struct Kernel *k, U const void *launch_config) { REQUIRE(size); *size = 8; return CUDA_SUCCESS; }
API CUresult cuOccupancyMaxActiveClusters(int *clusters, U struct Kernel *k, U const void *launch_config) { REQUIRE(clusters); *clusters = 16; return CUDA_SUCCESS; }

/* Nothing here knows the parameters of a kernel, so it has none. */
API CUresult cuFuncGetParamCount(U struct Kernel *k, size_t *count) { REQUIRE(count); *count = 0; return CUDA_SUCCESS; }
API CUresult cuFuncGetParamInfo(U struct Kernel *k, U size_t index, U size_t *offset, U size_t *size) { return CUDA_ERROR_INVALID_VALUE; }
API CUresult cuKernelGetParamInfo(U struct Kernel *k, U size_t index, U size_t *offset, U size_t *size) { return CUDA_ERROR_INVALID_VALUE; }
API CUresult cuKernelGetLibrary(struct Module **out, struct Kernel *k) { REQUIRE(out && k); *out = k->module; return CUDA_SUCCESS; }
API CUresult cuModuleEnumerateFunctions(U struct Kernel **functions, U unsigned count, U struct Module *m) { return CUDA_SUCCESS; }

struct Link { char image[64]; };
API CUresult cuLinkCreate_v2(U unsigned n, U int *options, U void **values, struct Link **out) { REQUIRE(out); *out = calloc(1, sizeof **out); return CUDA_SUCCESS; }
API CUresult cuLinkAddData_v2(U struct Link *l, U int type, U void *data, U size_t size, U const char *name, U unsigned n, U int *o, U void **v) { return CUDA_SUCCESS; }
API CUresult cuLinkComplete(struct Link *l, void **out, size_t *size) { REQUIRE(l && out && size); *out = l->image, *size = sizeof l->image; return CUDA_SUCCESS; }
API CUresult cuLinkCreate(U unsigned n, U int *options, U void **values, struct Link **out) { return cuLinkCreate_v2(n, options, values, out); }
API CUresult cuLinkAddData(U struct Link *l, U int type, U void *data, U size_t size, U const char *name, U unsigned n, U int *o, U void **v) { REQUIRE(l); return CUDA_SUCCESS; }
/* cuda.h 13.0:8190: CUDA_ERROR_FILE_NOT_FOUND. */
API CUresult cuLinkAddFile_v2(struct Link *l, U int type, const char *path, U unsigned n, U int *o, U void **v)
{
    enum { FILE_NOT_FOUND = 301 };
    REQUIRE(l && path);
    return access(path, R_OK) ? FILE_NOT_FOUND : CUDA_SUCCESS;
}
API CUresult cuLinkAddFile(struct Link *l, int type, const char *path, unsigned n, int *o, void **v) { return cuLinkAddFile_v2(l, type, path, n, o, v); }
API CUresult cuLinkDestroy(struct Link *l) { free(l); return CUDA_SUCCESS; }
