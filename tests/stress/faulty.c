/* A driver with a fault, as a layer that is preloaded in front of the simulated one. STRESS_FAULT names the fault, and
 * STRESS_AFTER after how many calls of the function it begins:
 *
 *   stays      cuMemGetInfo always tells what was free at its first call
 *   leaks      cuMemFree frees nothing, and says that it did
 *   corrupts   one byte of a block changes after it was written
 *   overlaps   cuMemAlloc hands out bytes of a live block
 *   crashes    cuMemAlloc crashes
 *   killed     the process gets SIGKILL during a cuMemAlloc
 *   hangs      cuMemFree does not return */
#include "tests/support/layer/next_dlsym.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static void *driver(const char *name)
{
    static void *library;
    if (!library && !(library = dlopen("libcuda.so.1", RTLD_NOW))) abort();
    return next_dlsym()(library, name);
}

/* Whether this is the fault, and its time has come. Workers alone have it, not the probe of devices before them. */
static int now(const char *fault, atomic_long *calls)
{
    const char *wanted = getenv("STRESS_FAULT"), *after = getenv("STRESS_AFTER");
    if (!wanted || strcmp(wanted, fault) || !getenv("VRAMSHIM_STRATEGY")) return 0;
    return atomic_fetch_add(calls, 1) >= (after ? atol(after) : 0);
}

static int hook_info(size_t *free, size_t *total)
{
    static atomic_long calls;
    static atomic_size_t first;
    int result = ((int (*)(size_t *, size_t *))driver("cuMemGetInfo_v2"))(free, total);
    if (result || !free) return result;
    size_t none = 0;
    if (now("stays", &calls) && !atomic_compare_exchange_strong(&first, &none, *free)) *free = first;
    return result;
}

static _Atomic uint64_t last; /* a live block, or 0 */

static int hook_free(uint64_t address)
{
    static atomic_long leaks, hangs;
    uint64_t freed = address;
    atomic_compare_exchange_strong(&last, &freed, 0);
    if (now("leaks", &leaks)) return 0;
    while (now("hangs", &hangs)) pause();
    return ((int (*)(uint64_t))driver("cuMemFree_v2"))(address);
}

static int hook_fill(uint64_t address, unsigned word, size_t count, void *stream)
{
    static atomic_long calls;
    int result = ((int (*)(uint64_t, unsigned, size_t, void *))driver("cuMemsetD32Async"))(address, word, count, stream);
    /* The memory of the simulated GPU is memory of the process. */
    if (!result && count > 1 && now("corrupts", &calls)) *(volatile uint8_t *)(address + 4 * (count / 2)) ^= 0x10;
    return result;
}

static int hook_alloc(uint64_t *out, size_t size)
{
    static atomic_long overlaps, crashes, killed;
    uint64_t live = last;
    if (now("crashes", &crashes)) raise(SIGSEGV);
    if (now("killed", &killed)) kill(getpid(), SIGKILL);
    if (live && now("overlaps", &overlaps)) return *out = live, 0;
    int result = ((int (*)(uint64_t *, size_t))driver("cuMemAlloc_v2"))(out, size);
    if (!result) last = *out;
    return result;
}

static const struct { const char *name; void *hook; } hooks[] = {
    {"cuMemGetInfo_v2", (void *)hook_info}, {"cuMemFree_v2", (void *)hook_free},
    {"cuMemsetD32Async", (void *)hook_fill}, {"cuMemAlloc_v2", (void *)hook_alloc},
};

__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name)
{
    for (size_t i = 0; handle != RTLD_NEXT && i < sizeof hooks / sizeof *hooks; i++)
        if (!strcmp(name, hooks[i].name) && next_dlsym()(handle, name)) return hooks[i].hook;
    return next_dlsym()(handle, name);
}
