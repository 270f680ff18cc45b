/* Shared by the files of the stand-in CUDA runtime.
 *
 * With it an unmodified program that is linked with libcudart runs on the simulated driver. It is written from NVIDIA's
 * public headers and documentation alone, and is built once for each major version (CUDART_VERSION 12080 and 13000). It
 * reaches the driver as the real runtime does: at the first call, with dlopen("libcuda.so.1"),
 * dlsym("cuGetProcAddress_v2"), and then a look-up of every function by name and version. The library under test
 * interposes exactly these calls, so the stand-in must not link to the driver.
 *
 * Kernels do nothing. Memory, copies, streams, events, captures and graphs are the driver's. */
#ifndef SIMGPU_CUDART_H
#define SIMGPU_CUDART_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))

/* cudaError_t and CUresult have shared their numbers since CUDA 10.1, so a driver result is returned as it is. */
typedef int cudaError_t;
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_PITCH = 12,
    INVALID_SYMBOL = 13,
    INVALID_MEMCPY_DIRECTION = 21,
    INSUFFICIENT_DRIVER = 35,
    MISSING_CONFIGURATION = 52,
    INVALID_DEVICE_FUNCTION = 98,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    NOT_FOUND = 500,
    NOT_SUPPORTED = 801,
};

/* Handles are opaque pointers here. A device pointer is a 64-bit integer for the driver and a pointer for the runtime;
 * both are passed in the same registers on every supported platform. */
typedef void *Handle;
typedef void *Stream;

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { size_t width, height, depth; } Extent;
typedef struct { size_t x, y, z; } Pos;
typedef struct { void *ptr; size_t pitch, xsize, ysize; } PitchedPtr;
typedef struct { int x, y, z, w, kind; } ChannelDesc;
typedef struct { int type, id; } Location;
typedef struct { char bytes[64]; } IpcHandle;

/* cudaMemcpyKind */
enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };

/* Argument blocks of the driver's copies and arrays. */
typedef struct {
    size_t srcXInBytes, srcY;
    int srcMemoryType;
    const void *srcHost;
    const void *srcDevice;
    Handle srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    int dstMemoryType;
    void *dstHost;
    void *dstDevice;
    Handle dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} Copy2D;

typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    int srcMemoryType;
    const void *srcHost;
    const void *srcDevice;
    Handle srcArray;
    Handle srcContext;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    int dstMemoryType;
    void *dstHost;
    void *dstDevice;
    Handle dstArray;
    Handle dstContext;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} Copy3D;

typedef struct {
    size_t Width, Height, Depth;
    int Format;
    unsigned NumChannels, Flags;
} ArrayDesc;

/* CUmemorytype */
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };

#include "cudart_driver.h"

/* The driver's functions for this call, with a context current on this thread. Returns NULL and notes the error if
 * there is no driver or no context. `per_thread` selects the functions whose default stream is each thread's own. */
const struct driver *enter(int per_thread);
/* The same without a context, for questions that must not create one. */
const struct driver *enter_without_context(int per_thread);
/* The primary context of a device, retained at first use. */
cudaError_t primary_context(const struct driver *cu, int device, Handle *context);
cudaError_t current_device(const struct driver *cu, int *device);

/* Every call ends here. An error is kept for cudaGetLastError. */
cudaError_t done(cudaError_t error);
cudaError_t last_error(void);

/* The driver's kernel for a host function, loaded at first use. *kernel is NULL if the driver cannot load code. A
 * launch then does nothing, as it would with a kernel. */
cudaError_t kernel_of(const struct driver *cu, const void *host_function, Handle *kernel);
cudaError_t symbol_address(const struct driver *cu, const void *symbol, void **address, size_t *size);

#define ENTER(cu, per_thread)                         \
    const struct driver *cu = enter(per_thread);      \
    if (cu == NULL) return last_error()
#define ENTER_WITHOUT_CONTEXT(cu)                          \
    const struct driver *cu = enter_without_context(0);    \
    if (cu == NULL) return last_error()

/* A runtime function that is one driver function under another name. */
#define FORWARD(name, driver_name, params, ...) \
    API cudaError_t name params                 \
    {                                           \
        ENTER(cu, 0);                           \
        return done(cu->driver_name(__VA_ARGS__)); \
    }

/* The same, exported twice: `suffix` is what programs built for per-thread default streams call. */
#define FORWARD_STREAM(name, suffix, driver_name, params, ...) \
    FORWARD(name, driver_name, params, __VA_ARGS__)            \
    API cudaError_t name##suffix params                        \
    {                                                          \
        ENTER(cu, 1);                                          \
        return done(cu->driver_name(__VA_ARGS__));             \
    }

/* A function with a body of its own, exported twice; the body follows and sees `cu`. */
#define UNPACK(...) __VA_ARGS__
#define STREAM_FUNCTION(name, suffix, params, ...)                              \
    static cudaError_t name##_on(const struct driver *cu, UNPACK params);       \
    API cudaError_t name params                                                 \
    {                                                                           \
        ENTER(cu, 0);                                                           \
        return done(name##_on(cu, __VA_ARGS__));                                \
    }                                                                           \
    API cudaError_t name##suffix params                                         \
    {                                                                           \
        ENTER(cu, 1);                                                           \
        return done(name##_on(cu, __VA_ARGS__));                                \
    }                                                                           \
    static cudaError_t name##_on(const struct driver *cu, UNPACK params)

#endif
