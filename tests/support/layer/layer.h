/* A quota layer stands between the job and the driver and counts the device memory of a process against a limit, as
 * systems for GPU sharing do. It is written from the public headers. There are two forms: preloaded (preloaded.c), and
 * in place of libcuda.so.1 (replacing.c). All files of the layer include this header. */
#ifndef LAYER_H
#define LAYER_H

#include "cuda_api.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream);
CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status);
CUresult cuLaunchKernel(void *kernel, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y, unsigned block_z,
                        unsigned shared, CUstream stream, void **parameters, void **extra);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream);

/* The functions that the layer hooks. Each hook calls the driver's function. With -DWITHOUT_VMM the layer does not know
 * virtual memory management. */
#ifdef WITHOUT_VMM
#define HOOKED_PHYSICAL(X)
#else
#define HOOKED_PHYSICAL(X)                                                                                             \
    X(cuMemCreate) X(cuMemRelease) X(cuMemRetainAllocationHandle) X(cuMemMap) X(cuMemUnmap) X(cuMemAddressReserve)      \
    X(cuMemGetAllocationGranularity)
#endif
/* The calls that a scheduler holds back, and cuInit, after which a watcher begins. */
#define HOOKED_WORK(X)                                                                                                 \
    X(cuInit) X(cuLaunchKernel) X(cuMemcpy) X(cuMemcpyAsync) X(cuMemcpyHtoD_v2) X(cuMemcpyHtoDAsync_v2)                 \
    X(cuMemcpyDtoH_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoD_v2) X(cuMemcpyDtoDAsync_v2)
#define HOOKED(X)                                                                                                      \
    X(cuMemAlloc_v2) X(cuMemAlloc) X(cuMemAllocPitch_v2) X(cuMemAllocManaged) X(cuMemFree_v2) X(cuMemFree)              \
    X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz)               \
    X(cuMemFreeAsync) X(cuMemFreeAsync_ptsz) X(cuMemPoolCreate)                                                         \
    X(cuArrayCreate_v2) X(cuArray3DCreate_v2) X(cuArrayDestroy)                                                         \
    HOOKED_PHYSICAL(X) HOOKED_WORK(X)                                                                                  \
    X(cuMemGetInfo_v2) X(cuDeviceTotalMem_v2) X(cuDeviceGetAttribute)                                                   \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxReset_v2) X(cuCtxDestroy_v2)                                        \
    X(cuGetProcAddress) X(cuGetProcAddress_v2)
/* Functions of the driver that the layer calls for itself. */
#define ASKED(X) X(cuCtxGetDevice) X(cuCtxGetCurrent) X(cuPointerGetAttribute) X(cuStreamIsCapturing) X(cuStreamIsCapturing_ptsz)

/* ---- driver.c: the driver's functions */
struct driver {
#define FIELD(name) __typeof__(&name) name;
    HOOKED(FIELD) ASKED(FIELD)
#undef FIELD
};
const struct driver *driver(void);
int current_device(void); /* -1 without a context */
CUcontext current_context(void);

/* ---- preloaded.c and replacing.c: a function of the driver, NULL if it has none of this name */
void *driver_symbol(const char *name);

/* ---- look_up.c: the layer's hook of this name, or NULL */
void *hook_named(const char *name);

/* ---- preloaded.c and replacing.c: NVML's own function; the function of this name that the process finds first, which may
 * be another interposer's, or else NVML's own. NULL without NVML */
void *management_symbol(const char *name);
void *management_of_process(const char *name);

/* ---- management.c: the layer's hook of this name, or NULL */
void *management_hook(const char *name);

/* ---- watcher.c */
void watcher_begin(void);
void watcher_admit(void); /* waits until a kernel may be launched */

/* ---- scheduler.c */
void scheduler_begin(void);
void scheduler_admit(void); /* waits until this process has the lock of the scheduler */

/* ---- preloaded.c: with LAYER_EXPORTS=more, what the layer does once, at the first of its calls that needs it */
void layer_begin(void);

/* ---- habits.c, which lists the variables */
struct habits {
    uint64_t limit;
    unsigned slow_microseconds, watch_microseconds, slice_microseconds;
    enum { VMM_WORKS, VMM_REFUSED, VMM_CREATES_NOTHING, VMM_MAPS_NOTHING, VMM_MAPS_ONCE, VMM_UNCOUNTED } vmm;
    CUresult refusal;
    bool pools, forgetful, writes_to_null, asks_default, frees_what_it_lists;
    bool arrays_uncounted, pitched_twice, keeps_stream_ordered, whole_total, answers_management;
    bool linear_is_managed, has_no_quota, oversold, figure_is_the_drivers, exports_more;
};
extern struct habits habits;

/* ---- book.c */
enum kind { ADDRESS, HANDLE, STREAM_ORDERED, ARRAY };
struct entry {
    enum kind kind;
    uint64_t key, size;
    int device;
    CUcontext context; /* the entry goes with this context, or with the device if NULL */
    unsigned references;
    struct entry *next;
};
/* Called before the driver's function, so that two threads together never pass the limit. */
bool book_charge(int device, uint64_t size);
void book_refund(int device, uint64_t size);
void book_enter(struct entry entry);
/* Called before the driver frees, because the driver may hand the same address out again at once. The bytes stay
 * charged until book_refund. */
bool book_take(enum kind kind, uint64_t key, struct entry *out);
bool book_retain(uint64_t handle);
void book_forget(bool (*gone)(const struct entry *, const void *), const void *data);
uint64_t book_used(int device);
void book_share(const char *path); /* counts in this file from now on */

#endif
