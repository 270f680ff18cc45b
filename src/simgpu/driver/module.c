/* Modules and kernels. Every image is accepted, every kernel is found, and a launch does nothing, with one exception: a
 * kernel named "wild" writes to an address that is not mapped. Later calls of its context tell of that. If the image is
 * no ELF file, every variable is found too. */
#include "sim.h"

#define U __attribute__((unused))

struct Kernel { char name[64]; struct Module *module; };
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

static CUresult launch(struct Kernel *k, CUstream stream)
{
    ENTER_CONTEXT("cuLaunchKernel", context);
    if (!k) return CUDA_ERROR_INVALID_HANDLE;
    CHECK_STREAM(stream);
    SUBMIT_TO_CAPTURE(stream, CU_GRAPH_NODE_TYPE_KERNEL, NULL);
    if (!strcmp(k->name, "wild")) context_break(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    work_submit(stream, (struct Work){.kind = WORK_NOTHING});
    return CUDA_SUCCESS;
}
#define GRID U unsigned gx, U unsigned gy, U unsigned gz, U unsigned bx, U unsigned by, U unsigned bz, U unsigned shared
API CUresult cuLaunchKernel(struct Kernel *k, GRID, CUstream stream, U void **parameters, U void **extra) { return launch(k, stream); }
API CUresult cuLaunchKernel_ptsz(struct Kernel *k, GRID, CUstream stream, U void **parameters, U void **extra) { return launch(k, of_thread(stream)); }
API CUresult cuLaunchCooperativeKernel(struct Kernel *k, GRID, CUstream stream, U void **parameters) { return launch(k, stream); }
API CUresult cuLaunchCooperativeKernel_ptsz(struct Kernel *k, GRID, CUstream stream, U void **parameters) { return launch(k, of_thread(stream)); }
struct LaunchConfig { unsigned gx, gy, gz, bx, by, bz, shared; CUstream stream; void *attributes; unsigned count; };
API CUresult cuLaunchKernelEx(const struct LaunchConfig *c, struct Kernel *k, U void **parameters, U void **extra) { REQUIRE(c); return launch(k, c->stream); }
API CUresult cuLaunchKernelEx_ptsz(const struct LaunchConfig *c, struct Kernel *k, U void **parameters, U void **extra) { REQUIRE(c); return launch(k, of_thread(c->stream)); }

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, U struct Kernel *k, int size, U size_t shared) { REQUIRE(blocks && size > 0); *blocks = 2048 / size; return CUDA_SUCCESS; }
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, U struct Kernel *k, int size, U size_t shared, U unsigned flags) { REQUIRE(blocks && size > 0); *blocks = 2048 / size; return CUDA_SUCCESS; }
API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, U struct Kernel *k, U void *f, U size_t shared, U int limit) { REQUIRE(grid && block); *grid = 264, *block = 1024; return CUDA_SUCCESS; }
API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, U struct Kernel *k, U int blocks, U int size) { REQUIRE(bytes); *bytes = 49152; return CUDA_SUCCESS; }

struct Link { char image[64]; };
API CUresult cuLinkCreate_v2(U unsigned n, U int *options, U void **values, struct Link **out) { REQUIRE(out); *out = calloc(1, sizeof **out); return CUDA_SUCCESS; }
API CUresult cuLinkAddData_v2(U struct Link *l, U int type, U void *data, U size_t size, U const char *name, U unsigned n, U int *o, U void **v) { return CUDA_SUCCESS; }
API CUresult cuLinkComplete(struct Link *l, void **out, size_t *size) { REQUIRE(l && out && size); *out = l->image, *size = sizeof l->image; return CUDA_SUCCESS; }
API CUresult cuLinkDestroy(struct Link *l) { free(l); return CUDA_SUCCESS; }
