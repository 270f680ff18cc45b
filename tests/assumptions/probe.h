/* What the probes share. A probe is a small program that asks the driver whether one assumption of ours holds. It runs
 * in a process of its own, finds every driver function by name, and says what it saw with `claim` and `figure`. */
#ifndef PROBE_H
#define PROBE_H

#include "more_api.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* NEEDED: a strategy of the library relies on it. TELLS: the answer decides how something is done, or is a figure. */
enum weight { TELLS, NEEDED };
struct probe {
    const char *name;
    enum weight weight;
    const char *assumption, *source;
    void (*run)(void);
};
#define PROBE(name, weight, assumption, source)                                          \
    static void run_##name(void);                                                        \
    const struct probe probe_##name = {#name, weight, assumption, source, run_##name};   \
    static void run_##name(void)

/* ---- what a probe says. Its assumption holds if no claim of the probe fails. */
#define FORMATS(text, values) __attribute__((format(printf, text, values)))
/* Notes what was seen. If `seen_as_assumed` is false, the claim fails. Returns `seen_as_assumed`. */
FORMATS(2, 3) bool claim(bool seen_as_assumed, const char *format, ...);
FORMATS(1, 2) void figure(const char *format, ...);
/* The question cannot be put to this driver. Ends the probe. */
FORMATS(1, 2) _Noreturn void not_asked(const char *format, ...);
/* The probe could not go on: the assumption does not hold. */
FORMATS(1, 2) _Noreturn void failed(const char *format, ...);

/* ---- the driver */
/* The driver's function of this exported name. If the driver has none, the probe ends as not asked. */
void *driver_function(const char *name);
#define cu(name) ((__typeof__(&name))driver_function(#name))
const char *name_of_call(const char *text); /* cuX of the text cu(cuX)(...) */
#define CHECK(call)                                          \
    do {                                                     \
        CUresult result_ = (call);                           \
        if (result_) failed("%s answered %d", name_of_call(#call), result_); \
    } while (0)
#define NEED(call)                                              \
    do {                                                        \
        CUresult result_ = (call);                              \
        if (result_) not_asked("%s answered %d", name_of_call(#call), result_); \
    } while (0)

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *copy, CUstream stream); /* CUDA_MEMCPY3D_PEER has the contexts in the reserved fields */
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuStreamGetId(CUstream stream, unsigned long long *id);

/* Initialises the driver and makes the primary context of device 0 current. */
void begin(void);
/* Also those of the first `count` devices; not asked if there are fewer. */
void begin_on(int count);
extern CUcontext contexts[2]; /* primary contexts */
void current(int device);
int attribute_of_device(int attribute, int device);
/* Not asked unless the two devices can reach each other's memory. */
void need_peers(void);
CUstream new_stream(void); /* non-blocking, in the current context */
CUdeviceptr alloc(size_t size);

/* ---- virtual memory management */
enum { MIB = 1 << 20 };
size_t granule(void); /* the minimum granularity; not asked if virtual memory management is missing */
CUmemAllocationProp pinned_on(int device);
CUmemAccessDesc access_of(int device);
CUdeviceptr reserve(size_t size);
CUmemGenericAllocationHandle create(size_t size, int device);
void map(CUdeviceptr address, size_t size, CUmemGenericAllocationHandle handle);
void grant(CUdeviceptr address, size_t size, int device);
/* A new address of a handle of this size, accessible from device 0. */
CUdeviceptr address_of(CUmemGenericAllocationHandle handle, size_t size);
/* A reservation of `count` granules, each mapped to a handle of its own and accessible from `device`. */
CUdeviceptr mapped(unsigned count, int device);
size_t free_memory(void);

/* ---- bytes, checked on the host */
void fill(CUdeviceptr address, unsigned char value, size_t size);
/* Whether all bytes have this value, after all work of the context is done. */
bool holds_only(CUdeviceptr address, unsigned char value, size_t size);
/* Claims that all bytes have this value. */
void claim_bytes(const char *what, CUdeviceptr address, unsigned char value, size_t size);
/* Makes a device current, and all bytes have this value when it returns. */
void fill_on(int device, CUdeviceptr address, unsigned char value, size_t size);

/* ---- work that does not end by itself for a while */
enum kind { HOST_FUNCTION, KERNEL, KINDS };
extern const char *const kind_names[KINDS];
struct blocked { volatile uint32_t started, released, ended; }; /* also read and written by the kernel */
enum { BLOCK_MS = 300 };
/* Submits work that ends when it is released, or BLOCK_MS later. Returns when it runs, or is late to begin. */
struct blocked *block(enum kind kind, CUstream stream);
/* The same, and tells what kind of work it is. */
struct blocked *told_block(enum kind kind, CUstream stream);
void release(struct blocked *work);
bool kernels(void);
CUfunction wild_kernel(void);
/* Runs what follows once with each kind of blocked work that there is; `kind` is a name of the caller's. */
#define WITH_EACH(kind) for (enum kind kind = HOST_FUNCTION; kind < KINDS; kind++) if (kind == KERNEL && !kernels()) {} else

/* Whether a call that is made while `work` is blocked returns before that work has ended, with the time it took. */
#define RETURNS_AT_ONCE(work, what, call)                                                                       \
    do {                                                                                                        \
        bool over_ = (work)->ended; /* an earlier call waited */                                                \
        double before_ = now_us();                                                                              \
        CUresult answer_ = (call);                                                                              \
        if (answer_) failed("%s answered %d", what, answer_);                                                   \
        if (over_) claim(false, "%s after the work had ended", what);                                           \
        else claim(!(work)->ended, "%s %.0f us%s", what, now_us() - before_, (work)->ended ? " (waited)" : "");  \
    } while (0)

double now_us(void);

#endif
