/* The habits of the layer, from the environment; the default is in parentheses:
 *
 *   LAYER_LIMIT        bytes of each device that a process may allocate (8GiB)
 *   LAYER_SHARED       file in which all processes that name it count together, as the processes of a container do (none)
 *   LAYER_SLOW         duration of each change of the book, with its lock held, for example 200us (0us)
 *   LAYER_VMM          0: the attribute says that there is no virtual memory management; broken: the attribute says yes,
 *                      and cuMemCreate fails; broken-map: cuMemMap fails; once: a second mapping of a handle fails;
 *                      uncounted: cuMemCreate is forwarded, and its memory is not charged, as in HAMi-core before
 *                      2025-09-15, in nvshare, and in vcuda-controller (1)
 *   LAYER_REFUSAL      the result of a request beyond the limit: -1 as in HAMi-core, 1 as in TGS (2)
 *   LAYER_FIGURE       driver: cuMemGetInfo tells what the process has of the driver, whatever the book has, as
 *                      vcuda-controller does, which asks NVML. With LAYER_VMM=uncounted its figure moves with cuMemCreate, and
 *                      nothing is refused (book)
 *   LAYER_EXPORTS      more: cuDevicePrimaryCtxRetain is exported and hooked, but dlsym does not hand the hook out; and the
 *                      layer begins by pthread_once, in which it uses the CUDA runtime, which retains the primary context. So
 *                      does Gemini of KubeShare (its hook.cpp). Only the preloaded form (what dlsym hands out)
 *   LAYER_FREES        listed: cuMemFree and cuMemFreeAsync have a list each, and answer -1 for an address that is not in
 *                      their list; memory of the job's own pools is in neither, and is not charged, as in
 *                      HAMi-core#93 (any)
 *   LAYER_NULLS        1: cuMemGetInfo writes to both pointers without a check, as in HAMi-core#234 (0)
 *   LAYER_ARRAYS       uncounted: cuArrayCreate and cuArray3DCreate are not charged, as in nvshare (its list of hooks) (1)
 *   LAYER_TOTAL        device: cuDeviceTotalMem answers for the whole device, and cuMemGetInfo for the limit, as in nvshare
 *                      (its list of hooks) (limit)
 *   LAYER_NVML         book: NVML's functions of memory and processes answer from the book, which has no contexts; only the
 *                      preloaded form. HAMi-core hooks nvmlDeviceGetMemoryInfo (driver)
 *   LAYER_BOOK         twice: pitched memory is charged twice; keeps: what cuMemFreeAsync frees stays charged. No layer is
 *                      known to do this; doctor must notice it (right)
 *   LAYER_WATCHER      pause between the rounds of a thread that asks NVML all the while, for example 100us, as HAMi-core's
 *                      and vgpu-manager's watchers do; each round lets some kernels pass; see watcher.c (none)
 *   LAYER_SCHEDULER    slice for which this process has the lock of a scheduler, and then has not, for example 300us.
 *                      Kernels, copies and allocations wait for it; see scheduler.c (none)
 *   LAYER_LINEAR       managed: cuMemAlloc is answered with managed memory, nothing else is charged, and cuMemGetInfo tells
 *                      the limit as free, whatever was taken; the rest of the device is a reserve. So does nvshare (its
 *                      hook.c). beyond: as well without a quota, as nvshare with NVSHARE_ENABLE_SINGLE_OVERSUB. oversold:
 *                      linear memory is charged, and is managed memory; totals and free memory are those of the limit, which
 *                      may be larger than the device, as in vgpu-manager's oversold mode (linear)
 *   LAYER_DEFAULT      1: dlsym asks RTLD_DEFAULT for every function of the driver, whatever the handle (0)
 *   LAYER_POOLS        0: no stream-ordered memory (1)
 *   LAYER_CONTIGUOUS   1: the device needs one piece of memory for each request (0)
 *   LAYER_FORGETFUL    1: dlsym returns NULL if a thread looks a symbol up with RTLD_NEXT for the second time (0) */
#include "layer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct habits habits = {.limit = 8ull << 30, .refusal = CUDA_ERROR_OUT_OF_MEMORY, .pools = true};

static bool is(const char *variable, const char *value)
{
    const char *found = getenv(variable);
    return found && !strcmp(found, value);
}

static void refuse(const char *variable)
{
    fprintf(stderr, "layer: %s=\"%s\" is not accepted\n", variable, getenv(variable));
    abort(); /* a test with a wrong value must not pass */
}

static unsigned microseconds(const char *variable)
{
    const char *found = getenv(variable);
    char *unit = NULL;
    if (!found) return 0;
    unsigned number = (unsigned)strtoul(found, &unit, 10);
    if (strcmp(unit, "us")) refuse(variable);
    return number;
}

/* As nvshare hooks it: cuMemAlloc alone is charged. */
static void charge_linear_alone(void)
{
    habits.linear_is_managed = habits.whole_total = habits.arrays_uncounted = true;
    habits.vmm = VMM_UNCOUNTED;
    /* Managed memory may be larger than the device. The simulator reads its variables at the first call. */
    setenv("SIMGPU_MANAGED_BEYOND", "1", 1);
}

/* scripts/layers --torch calls it again, in the child of a process that was started with other habits. */
__attribute__((constructor)) API void layer_read_habits(void)
{
    const char *limit = getenv("LAYER_LIMIT"), *vmm = getenv("LAYER_VMM");
    char *unit = NULL;
    if (limit) {
        habits.limit = strtoull(limit, &unit, 10);
        if (!strcmp(unit, "GiB")) habits.limit <<= 30;
        else if (!strcmp(unit, "MiB")) habits.limit <<= 20;
        else if (*unit) refuse("LAYER_LIMIT");
    }
    if (getenv("LAYER_SHARED")) book_share(getenv("LAYER_SHARED"));
    habits.slow_microseconds = microseconds("LAYER_SLOW");
    habits.watch_microseconds = microseconds("LAYER_WATCHER");
    habits.slice_microseconds = microseconds("LAYER_SCHEDULER");
    if (is("LAYER_VMM", "0")) habits.vmm = VMM_REFUSED;
    else if (is("LAYER_VMM", "broken")) habits.vmm = VMM_CREATES_NOTHING;
    else if (is("LAYER_VMM", "broken-map")) habits.vmm = VMM_MAPS_NOTHING;
    else if (is("LAYER_VMM", "once")) habits.vmm = VMM_MAPS_ONCE;
    else if (is("LAYER_VMM", "uncounted")) habits.vmm = VMM_UNCOUNTED;
    else if (vmm && !is("LAYER_VMM", "1")) refuse("LAYER_VMM");
    if (is("LAYER_REFUSAL", "-1")) habits.refusal = (CUresult)-1;
    else if (is("LAYER_REFUSAL", "1")) habits.refusal = CUDA_ERROR_INVALID_VALUE;
    else if (getenv("LAYER_REFUSAL")) refuse("LAYER_REFUSAL");
    if (is("LAYER_FREES", "listed")) habits.frees_what_it_lists = true;
    else if (getenv("LAYER_FREES")) refuse("LAYER_FREES");
    habits.arrays_uncounted = is("LAYER_ARRAYS", "uncounted");
    habits.has_no_quota = is("LAYER_LINEAR", "beyond");
    habits.whole_total = is("LAYER_TOTAL", "device");
    habits.answers_management = is("LAYER_NVML", "book");
    habits.pitched_twice = is("LAYER_BOOK", "twice");
    habits.keeps_stream_ordered = is("LAYER_BOOK", "keeps");
    habits.asks_default = is("LAYER_DEFAULT", "1");
    habits.writes_to_null = is("LAYER_NULLS", "1");
    habits.pools = !is("LAYER_POOLS", "0");
    habits.forgetful = is("LAYER_FORGETFUL", "1");
    habits.figure_is_the_drivers = is("LAYER_FIGURE", "driver");
    habits.exports_more = is("LAYER_EXPORTS", "more");
    habits.oversold = is("LAYER_LINEAR", "oversold");
    if (habits.oversold) habits.vmm = VMM_REFUSED, setenv("SIMGPU_MANAGED_BEYOND", "1", 1);
    else if (is("LAYER_LINEAR", "managed") || habits.has_no_quota) charge_linear_alone();
    else if (getenv("LAYER_LINEAR")) refuse("LAYER_LINEAR");
    if (is("LAYER_CONTIGUOUS", "1")) setenv("SIMGPU_CONTIGUOUS", "1", 1);
}
