/* Launches of kernels, and questions about kernels.
 *
 * A launch goes to the driver if the driver has the code, so that a capture gets its node. Otherwise the launch
 * succeeds without a node. In both cases nothing is computed. Attributes are plausible figures for a small kernel. */
#include "cudart.h"

enum { INVALID_CONFIGURATION = 9, CALL_DEPTH = 16 };

static int is_empty(Dim3 size)
{
    return size.x == 0 || size.y == 0 || size.z == 0;
}

static cudaError_t launch(const struct driver *cu, Handle kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared,
                          Stream stream, int cooperative)
{
    if (is_empty(grid) || is_empty(block)) return INVALID_CONFIGURATION;
    if (kernel == NULL) return SUCCESS;
    if (cooperative)
        return cu->cuLaunchCooperativeKernel(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared,
                                             stream, arguments);
    return cu->cuLaunchKernel(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream,
                              arguments, NULL);
}

#define LAUNCH Dim3 grid, Dim3 block, void **arguments, size_t shared, Stream stream

STREAM_FUNCTION(cudaLaunchKernel, _ptsz, (const void *function, LAUNCH),
                function, grid, block, arguments, shared, stream)
{
    Handle kernel;
    cudaError_t error = kernel_of(cu, function, &kernel);
    return error == SUCCESS ? launch(cu, kernel, grid, block, arguments, shared, stream, 0) : error;
}

STREAM_FUNCTION(cudaLaunchCooperativeKernel, _ptsz, (const void *function, LAUNCH),
                function, grid, block, arguments, shared, stream)
{
    Handle kernel;
    cudaError_t error = kernel_of(cu, function, &kernel);
    return error == SUCCESS ? launch(cu, kernel, grid, block, arguments, shared, stream, 1) : error;
}

/* Code compiled for version 13 looks its kernel up once and launches it by its handle. */
API cudaError_t __cudaGetKernel(Handle *kernel, const void *function)
{
    ENTER(cu, 0);
    return done(kernel_of(cu, function, kernel));
}

STREAM_FUNCTION(__cudaLaunchKernel, _ptsz, (Handle kernel, LAUNCH), kernel, grid, block, arguments, shared, stream)
{
    return launch(cu, kernel, grid, block, arguments, shared, stream, 0);
}

API cudaError_t cudaGetKernel(Handle *kernel, const void *function)
{
    return __cudaGetKernel(kernel, function);
}

API cudaError_t cudaGetFuncBySymbol(Handle *function, const void *symbol)
{
    return __cudaGetKernel(function, symbol);
}

/* cudaLaunchConfig_t differs from the driver's structure only in the width of the shared memory size. */
typedef struct {
    Dim3 grid, block;
    size_t shared;
    Stream stream;
    void *attributes;
    unsigned attribute_count;
} Config;

typedef struct {
    Dim3 grid, block;
    unsigned shared;
    Stream stream;
    void *attributes;
    unsigned attribute_count;
} DriverConfig;

STREAM_FUNCTION(cudaLaunchKernelExC, _ptsz, (const Config *config, const void *function, void **arguments),
                config, function, arguments)
{
    Handle kernel;
    if (config == NULL) return INVALID_VALUE;
    if (is_empty(config->grid) || is_empty(config->block)) return INVALID_CONFIGURATION;
    cudaError_t error = kernel_of(cu, function, &kernel);
    if (error != SUCCESS || kernel == NULL) return error;
    DriverConfig same = {config->grid,   config->block,      (unsigned)config->shared,
                         config->stream, config->attributes, config->attribute_count};
    return cu->cuLaunchKernelEx(&same, kernel, arguments, NULL);
}

/* kernel<<<...>>> pushes its configuration here, and the compiled stub pops it. */
static _Thread_local struct {
    Dim3 grid, block;
    size_t shared;
    Stream stream;
} calls[CALL_DEPTH];
static _Thread_local int depth;

API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, Stream stream)
{
    if (depth == CALL_DEPTH) return (unsigned)done(MISSING_CONFIGURATION);
    calls[depth].grid = grid;
    calls[depth].block = block;
    calls[depth].shared = shared;
    calls[depth++].stream = stream;
    return SUCCESS;
}

API cudaError_t __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void *stream)
{
    if (depth == 0) return done(MISSING_CONFIGURATION);
    depth--;
    *grid = calls[depth].grid;
    *block = calls[depth].block;
    *shared = calls[depth].shared;
    *(Stream *)stream = calls[depth].stream;
    return SUCCESS;
}

/* The device attributes from which the answers below are computed. */
enum { MAX_THREADS_PER_BLOCK = 1, SHARED_PER_BLOCK = 8, THREADS_PER_SM = 39, MAJOR = 75, MINOR = 76, SHARED_PER_SM = 81,
       BLOCKS_PER_SM = 106 };

static int device_attribute(const struct driver *cu, int attribute)
{
    int device = 0, value = 0;
    if (current_device(cu, &device) == SUCCESS) cu->cuDeviceGetAttribute(&value, attribute, device);
    return value;
}

typedef struct {
    size_t shared, constant, local;
    int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared, carveout;
    int cluster_must_be_set, cluster_width, cluster_height, cluster_depth, cluster_policy, non_portable_cluster;
    int reserved[16];
} FunctionAttributes;

API cudaError_t cudaFuncGetAttributes(FunctionAttributes *out, const void *function)
{
    Handle kernel;
    ENTER(cu, 0);
    cudaError_t error = kernel_of(cu, function, &kernel);
    if (error != SUCCESS) return done(error);
    int capability = 10 * device_attribute(cu, MAJOR) + device_attribute(cu, MINOR);
    *out = (FunctionAttributes){
        .max_threads = device_attribute(cu, MAX_THREADS_PER_BLOCK), .registers = 32,
        .ptx_version = capability, .binary_version = capability,
        .max_dynamic_shared = device_attribute(cu, SHARED_PER_BLOCK), .carveout = -1,
    };
    return SUCCESS;
}

static cudaError_t known(const void *function)
{
    Handle kernel;
    ENTER(cu, 0);
    return done(kernel_of(cu, function, &kernel));
}

API cudaError_t cudaFuncSetAttribute(const void *function, int attribute, int value)
{
    (void)attribute, (void)value;
    return known(function);
}

API cudaError_t cudaFuncSetCacheConfig(const void *function, int config)
{
    (void)config;
    return known(function);
}

API cudaError_t cudaFuncSetSharedMemConfig(const void *function, int config)
{
    (void)config;
    return known(function);
}

API cudaError_t cudaKernelSetAttributeForDevice(Handle kernel, int attribute, int value, int device)
{
    ENTER(cu, 0);
    return kernel == NULL ? SUCCESS : done(cu->cuKernelSetAttribute(attribute, value, kernel, device));
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int block_size,
                                                                       size_t shared, unsigned flags)
{
    (void)flags;
    Handle kernel;
    ENTER(cu, 0);
    cudaError_t error = kernel_of(cu, function, &kernel);
    if (error != SUCCESS) return done(error);
    if (blocks == NULL || block_size <= 0) return done(INVALID_VALUE);
    int warps = (block_size + 31) / 32;
    size_t fit = (size_t)(device_attribute(cu, THREADS_PER_SM) / (32 * warps));
    size_t most = (size_t)device_attribute(cu, BLOCKS_PER_SM);
    if (fit > most) fit = most;
    if (shared != 0 && fit > (size_t)device_attribute(cu, SHARED_PER_SM) / shared)
        fit = (size_t)device_attribute(cu, SHARED_PER_SM) / shared;
    *blocks = (int)fit;
    return SUCCESS;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size,
                                                              size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared, 0);
}

API cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *size, const void *function, int blocks, int block_size)
{
    (void)block_size;
    Handle kernel;
    ENTER(cu, 0);
    cudaError_t error = kernel_of(cu, function, &kernel);
    if (error != SUCCESS) return done(error);
    if (size == NULL || blocks <= 0) return done(INVALID_VALUE);
    *size = (size_t)(device_attribute(cu, SHARED_PER_SM) / blocks);
    return SUCCESS;
}

API cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const void *config)
{
    (void)config;
    *clusters = 1;
    return known(function);
}

API cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *function, const void *config)
{
    (void)config;
    *size = 1;
    return known(function);
}

FORWARD(cudaProfilerStart, cuProfilerStart, (void))
FORWARD(cudaProfilerStop, cuProfilerStop, (void))
