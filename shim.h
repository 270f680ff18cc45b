/* shim.h: the functions that libvramshim.so offers to the job.
 *
 * The job does not link with libvramshim.so: the library is preloaded (LD_PRELOAD). A job that must also run without
 * the library looks each function up with dlsym(RTLD_DEFAULT, "vramshim_stats"). dlsym returns NULL if the library is
 * not loaded. examples/stats.c shows how.
 *
 * All sizes are in bytes. A device has the number that the job gives it (after CUDA_VISIBLE_DEVICES). VRAMSHIM_HOST
 * stands for host memory that the job obtained through CUDA. Any thread may call any function at any time. No function
 * initialises CUDA. Until the job's first call that concerns memory, all totals are 0 and any device number is
 * accepted.
 *
 * In a signal handler only these functions may be called, because all others may wait for a lock that the interrupted
 * code holds: vramshim_version, vramshim_journal_path, vramshim_host_refused, and vramshim_stat with the names of totals
 * (see there).
 *
 * Growth. A function keeps its name, its arguments and its meaning. A struct keeps its fields, their order and its size
 * for ever, so it needs no field for a version. New figures get names, which vramshim_stat reads; vramshim_stat_names
 * tells which names the loaded library has. Functions may be added: look each one up with dlsym.
 *
 * Terms:
 *   the job         the program that the library is loaded into
 *   the next layer  what answers the library's calls: the NVIDIA driver, or a virtualisation layer in front of it
 *   segment         memory that a policy obtained from the next layer in one piece
 *   block           a part of a segment or of mapped memory: live (the job has it) or free
 *   policy          what cuts segments into blocks: naive_best_fit or auto_growth (see docs/strategies.md)
 *   account         a file with the bytes that processes which share a limit use (see docs/limits.md)
 */
#ifndef VRAMSHIM_SHIM_H
#define VRAMSHIM_SHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VRAMSHIM_HOST (-1)

/* Totals of one device, or of the host. "requested": bytes that the job asked for and still holds. "allocated": the
 * same bytes after rounding. "reserved": bytes that were obtained from the next layer. "peak": the largest value so
 * far. */
struct vramshim_stats {
    uint64_t requested, requested_peak;
    uint64_t allocated, allocated_peak;
    uint64_t reserved, reserved_peak;
    uint64_t free_inside;        /* free bytes inside segments; 0 in the totals of a single class */
    uint64_t largest_free_block; /* the largest contiguous part of free_inside; 0 in the totals of a single class.
                                    auto_growth can serve larger requests: it maps free memory side by side */
    uint64_t live;               /* number of live allocations */
    uint64_t failures;           /* number of calls for memory that failed */
};

/* Returns the version of the library, for example "0.1.0". The string has static storage. */
const char *vramshim_version(void);

/* Writes the totals of one device to *out. Returns 0 on success. Returns -1 and writes nothing if the job has no such
 * device or out is NULL. */
int vramshim_stats(int device, struct vramshim_stats *out);

/* Writes the totals of one class of memory on one device to *out. The classes are "linear", "pitched", "managed",
 * "host", "host_registered", "async", "vmm", "array", "mipmap", "imported", "graph" and "address_range". Returns 0 on
 * success. Returns -1 and writes nothing if the job has no such device, the class is unknown, or a pointer is NULL. */
int vramshim_class_stats(int device, const char *class_name, struct vramshim_stats *out);

/* The limit of this process on one device. All sizes are in bytes.
 *   limit      the limit; 0 if there is none
 *   used       bytes that count towards the limit: bytes of all processes that share the limit, or of this process
 *   available  bytes that may still be allocated; UINT64_MAX if there is no limit
 *   context    bytes that the driver held for this process besides its allocations at the last measurement
 *   group      1 if processes share the limit (VRAMSHIM_ACCOUNTS), 0 if it holds for this process alone */
struct vramshim_limit {
    uint64_t limit, used, available, context, group;
};

/* Writes the limit of one device to *out. Returns 0 on success. Returns -1 and writes nothing if out is NULL, if the
 * job has no such device, or if device is VRAMSHIM_HOST. If the job has not used the device yet, or the device has
 * neither a limit nor an account, "available" is UINT64_MAX and all other fields are 0. */
int vramshim_limit(int device, struct vramshim_limit *out);

/* Writes one figure, by its name, to *value. All sizes are in bytes. N is the number of a device.
 *   pid                         the process, in its own pid namespace
 *   events_lost                 events that are not in the journal
 *   device.N.T                  a total of the device. T is requested, allocated, reserved or live, or one of these with
 *                               _peak, or failures
 *   device.N.class.C.T          the same of one class of memory (vramshim_class_stats)
 *   host.T, host.class.C.T      the same of the host
 *   device.N.guard_refusals     requests that the guard refused because they were too large (docs/guards.md); also
 *   host.guard_refusals         of pinned memory, and calls such as malloc that the host guard refused
 *   device.N.surges             how often the memory grew faster than VRAMSHIM_SURGE; host.surges: resident memory
 *   host.resident               resident memory of the process, as the kernel counts it
 *   host.pinned                 host memory obtained or registered through CUDA; not always resident for the kernel
 *   device.N.free_inside        as in struct vramshim_stats
 *   device.N.largest_free_block
 *   device.N.limit              as in struct vramshim_limit, also limit_used, limit_available, context and
 *                               limit_is_of_group
 * The totals are those of the library. It does not ask the driver, so of the driver's own pools and of launched graphs
 * the figure is that of the job's last call about them, or of the last vramshim_stats.
 *
 * Returns 0 on success. Otherwise it writes nothing and returns an errno value: EINVAL if a pointer is NULL, ENOENT if
 * there is no such figure, EAGAIN if another thread held the total all the time, so ask again. A figure of a device or
 * class that the job has not used is 0.
 *
 * In a signal handler: the names that end in a T of above, guard_refusals, surges, host.resident, pid and
 * events_lost. */
int vramshim_stat(const char *name, uint64_t *value);

/* Writes the names of all figures of the host and of the devices and classes that the job has used, with a line feed
 * between two names; the arguments and the result are as for vramshim_account. */
size_t vramshim_stat_names(char *buffer, size_t capacity);

/* Writes the totals of the process as JSON, by device and class:
 *   {"pid":N,"strategy":"...","events_lost":N,
 *     "host":{"resident":N,"pinned":N},"surges":[{"device":N,"count":N},...],"totals":[{"device":N,"class":"...",
 *     "requested":{"current":N,"peak":N},"allocated":{...},"reserved":{...},"count":N,"failures":N},...]}
 * "host" is null if the kernel does not say. Device -1 is the host.
 * Writes at most capacity bytes, the final NUL included. Returns the number of bytes that the whole text needs with its
 * NUL. With NULL and 0 the function writes nothing and returns this number. */
size_t vramshim_account(char *buffer, size_t capacity);

/* Writes the path of this process's journal; the arguments and the result are as for vramshim_account. The path is
 * empty if the process keeps no journal. */
size_t vramshim_journal_path(char *buffer, size_t capacity);

/* Names this moment in the journal, for example "epoch 3". The text is UTF-8, and is cut after 256 bytes. NULL does
 * nothing, and neither does a mark before the job's first call that concerns memory. A process can set 50,000 marks a
 * second, and 65,536 different texts; further marks are dropped. Annotations with NVTX are marks too, if the variable
 * NVTX_INJECTION64_PATH names the library, as `vramshim run` sets it. */
void vramshim_mark(const char *text);

/* For libvramshim_hostguard.so alone (docs/guards.md), which calls it for each request for host memory that it refuses:
 * the name of the function that was called, the bytes that were asked for, and the bound in bytes. The journal gets a
 * failed request of the host. A function that is not guarded and a NULL do nothing, and neither does a refusal before the
 * job's first call that concerns memory or inside a call of CUDA. Allocates nothing. */
void vramshim_host_refused(const char *call, uint64_t size, uint64_t bound);

/* Writes a copy of this process's journal to a file whose name must end in ".vraj", for `vramshim inspect`, `why`,
 * `report` and `export`. The copy has all events up to the call and none after it. The files of stacks and tensors beside
 * the journal are copied beside it. A file of this name is replaced once the copy is whole. The copy says that it was made
 * while the process ran.
 *
 * Returns 0 on success, else an errno value: EINVAL if path is NULL or ends otherwise, EBUSY if the copy would replace
 * the journal itself or a file beside it, ENODATA if the process keeps no journal or has not used CUDA yet, or that of
 * the file, such as ENOENT for a missing folder. */
int vramshim_dump(const char *path);

/* Changes a setting while the job runs. The names are those of the variables without VRAMSHIM_ and in small letters, the
 * values are those of the variables (`vramshim variables`):
 *   stacks         off, python, native or both
 *   stack_depth    1 to 128
 *   idle_release   a time with a unit, such as 30s; 0 for never
 * Returns 0 on success, else an errno value: EINVAL if a pointer is NULL or the value is not accepted, ENOENT if no
 * setting has this name, EPERM if the setting is fixed when the job starts, ENODATA if the job has not used CUDA yet, or
 * keeps no journal for stacks. */
int vramshim_set(const char *name, const char *value);

/* Gives segments and mapped memory of a device that have no live block back to the next layer. Returns the bytes given
 * back. */
uint64_t vramshim_trim(int device);

/* An allocator for PyTorch, in place of PyTorch's cache. Every tensor is then a separate request to the library.
 * `vramshim run --torch allocator` and `vramshim.torch.install()` (src/python) pass these functions to PyTorch, and let
 * PyTorch's own functions report the library's figures. docs/pytorch.md says more.
 *
 * The strategy in force serves the requests: naive_best_fit and auto_growth serve a tensor with a block, passthrough
 * asks the next layer for each tensor.
 *
 * Reuse. Memory that the job freed on a stream serves the next request of that stream at once. Another stream gets the
 * memory when an event tells that its work is done. The same holds if the job recorded another stream for the tensor. If
 * a job creates streams and has not recorded any stream yet, all work of the context must be done first. A request waits
 * only if the device has no other memory.
 *
 * Captures. A CUDA graph may use memory at each launch. So memory stays allocated if it was allocated or freed during a
 * capture, on the captured stream or by the capturing thread. It is given back when PyTorch says that the last graph of
 * its private pool is gone, or when the capture fails. Until then, a capture of that pool may use it again for a request
 * of the same size on the same stream.
 *
 * Under passthrough each tensor is an allocation of the driver, and vramshim_torch_free waits for the GPU as cuMemFree
 * does.
 *
 * If a layer for GPU sharing stands before the library, each tensor is an allocation of that layer, so that its limit holds.
 *
 * vramshim_torch_alloc returns NULL for a size of 0 bytes. If the request fails, vramshim_torch_alloc throws an exception
 * of PyTorch's: c10::OutOfMemoryError if there is no memory. If PyTorch is not loaded, it returns NULL and writes the
 * reason to stderr. */
void *vramshim_torch_alloc(ptrdiff_t size, int device, void *stream);
void vramshim_torch_free(void *pointer, ptrdiff_t size, int device, void *stream);
void vramshim_torch_record_stream(void *pointer, void *stream);

/* Functions for the setters of PyTorch's allocator object: a capture begins or ends to use a private pool, a graph is
 * gone, and torch.cuda.empty_cache() was called. A private pool has two numbers. */
void vramshim_torch_begin_pool(int device, uint64_t first, uint64_t second, void *filter);
void vramshim_torch_end_pool(int device, uint64_t first, uint64_t second);
void vramshim_torch_release_pool(int device, uint64_t first, uint64_t second);
void vramshim_torch_empty_cache(void);

/* Before vramshim_torch_alloc throws c10::OutOfMemoryError, it calls `observer` in the same thread, with the device and
 * the bytes of the request. `observer` must not throw. NULL ends that; another observer replaces it. */
void vramshim_torch_observe(void (*observer)(int device, uint64_t bytes));

/* Lets tensors of a device hold this many bytes together. A tensor that exceeds the sum is refused. */
void vramshim_torch_allow(int device, uint64_t bytes);

/* PyTorch uses another allocator from now on, so no further stream is recorded for tensors that live. */
void vramshim_torch_replaced(void);

/* The figures of torch.cuda.memory_stats_as_nested_dict() and the segments of torch.cuda.memory_snapshot() as JSON, in
 * PyTorch's words; the arguments and the result are as for vramshim_account. */
size_t vramshim_torch_stats(int device, char *buffer, size_t capacity);
size_t vramshim_torch_snapshot(char *buffer, size_t capacity);

/* Begin the peaks, or the sums, of these figures anew. */
void vramshim_torch_reset_peaks(int device);
void vramshim_torch_reset_sums(int device);

#ifdef __cplusplus
}
#endif

#endif
