/* shim.h: what libvramshim.so tells a program that asks.
 *
 * The library is preloaded (LD_PRELOAD), so a program that wants to work without it too looks the functions up with
 * dlsym(RTLD_DEFAULT, "vramshim_stats") and does without them where that answers NULL.
 *
 * All sizes are bytes. A device is numbered as the program itself sees it (after CUDA_VISIBLE_DEVICES); VRAMSHIM_HOST
 * stands for host memory obtained through CUDA. Every function may be called from any thread, before and after CUDA is
 * initialised; none of them initialises it.
 */
#ifndef VRAMSHIM_SHIM_H
#define VRAMSHIM_SHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VRAMSHIM_HOST (-1)

/* One device, or the host. "requested": asked for by the program and still held. "allocated": the same after rounding.
 * "reserved": obtained from the layer below. */
struct vramshim_stats {
    uint64_t requested, requested_peak;
    uint64_t allocated, allocated_peak;
    uint64_t reserved, reserved_peak;
    uint64_t free_inside;        /* free inside reserved; 0 for a single class */
    uint64_t largest_free_block; /* the largest contiguous part of it; 0 for a single class. auto_growth can serve more:
                                    it maps free granules side by side */
    uint64_t live;               /* number of live allocations */
    uint64_t failures;           /* requests that failed */
};

/* The library's version, for example "0.1.0". Static storage. */
const char *vramshim_version(void);

/* Totals of one device. 0 on success; -1 where device is out of range or out is NULL (nothing is written). */
int vramshim_stats(int device, struct vramshim_stats *out);

/* Totals of one class of memory on one device: "linear", "pitched", "managed", "host", "host_registered", "async",
 * "vmm", "array", "mipmap", "imported", "graph", "address_range". -1 for an unknown class as well. */
int vramshim_class_stats(int device, const char *class_name, struct vramshim_stats *out);

/* What this process may have of a device, in bytes. "limit": the limit, 0 where there is none; "used": what counts towards
 * it, by this process or by its whole group (VRAMSHIM_ACCOUNTS); "available": what may be taken yet, UINT64_MAX where
 * there is no limit; "context": what the driver has for this process beside its allocations, as far as it was measured.
 * "group" is 1 where the limit is that of a group. */
struct vramshim_limit {
    uint64_t limit, used, available, context, group;
};

/* The limit of one device. 0 on success; -1 where device is out of range or out is NULL (nothing is written). All is 0 but
 * "available" where there is neither a limit nor a shared account, or nothing was asked of the device yet. */
int vramshim_limit(int device, struct vramshim_limit *out);

/* The whole account as JSON, by device and class:
 *   {"pid":N,"strategy":"...","events_lost":N,"totals":[{"device":N,"class":"...",
 *     "requested":{"current":N,"peak":N},"allocated":{...},"reserved":{...},"count":N,"failures":N},...]}
 * Writes at most capacity bytes, NUL included, and returns how many the whole text needs (call with NULL, 0 to learn). */
size_t vramshim_account(char *buffer, size_t capacity);

/* Path of this process's journal, as vramshim_account writes text; empty where none is kept. */
size_t vramshim_journal_path(char *buffer, size_t capacity);

/* Gives memory that holds no block back to the layer below; returns the bytes given back. */
uint64_t vramshim_trim(int device);

/* An allocator for PyTorch, so that every tensor is a request of its own and PyTorch's cache is out of the way:
 *
 *   allocator = torch.cuda.memory.CUDAPluggableAllocator(
 *       "/path/to/libvramshim.so", "vramshim_torch_alloc", "vramshim_torch_free")
 *   torch.cuda.memory.change_current_allocator(allocator)   # before CUDA is first used
 *   record = ctypes.CDLL("/path/to/libvramshim.so").vramshim_torch_record_stream
 *   allocator.allocator().set_record_stream_fn(ctypes.cast(record, ctypes.c_void_p).value)
 *
 * Serves from the strategy in force (naive_best_fit or auto_growth; under passthrough each tensor is the driver's). What
 * is freed on a stream is used again on that stream without waiting; on another one, or if another one was recorded for
 * it, only after the device was waited for. A job that makes streams of its own and has not recorded any yet always
 * waits. What is allocated or freed while a CUDA graph is captured, on the stream or by the thread that captures, stays
 * allocated: the graph may use it. NULL where there is no memory, with the reason on stderr; for 0 bytes as well. */
void *vramshim_torch_alloc(ptrdiff_t size, int device, void *stream);
void vramshim_torch_free(void *pointer, ptrdiff_t size, int device, void *stream);
void vramshim_torch_record_stream(void *pointer, void *stream);

#ifdef __cplusplus
}
#endif

#endif
