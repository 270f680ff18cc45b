/* A job that asks the library for the totals of its memory. Without the library the program says so and ends.
 *
 * Build, from the root of the repository (no CUDA headers needed):
 *
 *     cc -std=c11 -O2 -Wall -Wextra -o target/stats examples/stats.c -I . -ldl
 *
 * Run the program under the library, on a simulated GPU of 4 GiB or on a real GPU:
 *
 *     target/release/vramshim run --sim 4GiB --strategy auto_growth -- target/stats
 *     target/release/vramshim run -- target/stats
 *
 * Exit code: 0 if the totals match what this program holds, or the library is not loaded; else 1. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_DEFAULT */
#endif
#include "shim.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1 << 20)

/* The part of the CUDA driver API that this program calls, with the signatures of cuda.h. */
typedef int CUresult;
typedef void *CUcontext;
typedef unsigned long long CUdeviceptr;

static void *driver;

static void *driver_function(const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "stats: the driver has no function %s\n", name);
        exit(1);
    }
    return found;
}

static void check(CUresult result, const char *call)
{
    if (result == 0) return;
    fprintf(stderr, "stats: %s failed with CUDA error %d\n", call, result);
    exit(1);
}

/* The functions of shim.h; NULL if the library is not loaded. __typeof__ takes the types that shim.h declares. */
static __typeof__(&vramshim_version) shim_version;
static __typeof__(&vramshim_stats) shim_stats;
static __typeof__(&vramshim_limit) shim_limit;
static __typeof__(&vramshim_account) shim_account;
static __typeof__(&vramshim_journal_path) shim_journal_path;

static int find_library(void)
{
    shim_version = (__typeof__(shim_version))dlsym(RTLD_DEFAULT, "vramshim_version");
    shim_stats = (__typeof__(shim_stats))dlsym(RTLD_DEFAULT, "vramshim_stats");
    shim_limit = (__typeof__(shim_limit))dlsym(RTLD_DEFAULT, "vramshim_limit");
    shim_account = (__typeof__(shim_account))dlsym(RTLD_DEFAULT, "vramshim_account");
    shim_journal_path = (__typeof__(shim_journal_path))dlsym(RTLD_DEFAULT, "vramshim_journal_path");
    return shim_version && shim_stats && shim_limit && shim_account && shim_journal_path;
}

static struct vramshim_stats show(const char *moment)
{
    struct vramshim_stats stats;
    if (shim_stats(0, &stats) != 0) {
        fprintf(stderr, "stats: vramshim_stats has no device 0\n");
        exit(1);
    }
    printf("%-16s requested %4" PRIu64 " MiB, reserved %4" PRIu64 " MiB, free inside %4" PRIu64 " MiB, %" PRIu64 " live\n",
           moment, stats.requested / MIB, stats.reserved / MIB, stats.free_inside / MIB, stats.live);
    return stats;
}

/* Fetches a text of any length: the first call asks for its size, the second for the text. */
static char *text_of(size_t (*function)(char *, size_t))
{
    size_t size = function(NULL, 0);
    char *text = malloc(size + 1);
    if (!text) exit(1);
    text[0] = 0;
    function(text, size);
    return text;
}

int main(void)
{
    if (!find_library()) {
        printf("libvramshim.so is not loaded: start this program with vramshim run\n");
        return 0;
    }
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "stats: %s\n", dlerror());
        return 1;
    }
    CUresult (*init)(unsigned) = driver_function("cuInit");
    CUresult (*retain)(CUcontext *, int) = driver_function("cuDevicePrimaryCtxRetain");
    CUresult (*set_current)(CUcontext) = driver_function("cuCtxSetCurrent");
    CUresult (*allocate)(CUdeviceptr *, size_t) = driver_function("cuMemAlloc_v2");
    CUresult (*release)(CUdeviceptr) = driver_function("cuMemFree_v2");
    CUcontext context;
    check(init(0), "cuInit");
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(set_current(context), "cuCtxSetCurrent");
    printf("libvramshim.so %s\n", shim_version());

    CUdeviceptr blocks[10];
    for (int i = 0; i < 10; i++) check(allocate(&blocks[i], 64 * MIB), "cuMemAlloc");
    struct vramshim_stats full = show("10 allocated");
    for (int i = 0; i < 10; i += 2) check(release(blocks[i]), "cuMemFree");
    struct vramshim_stats half = show("5 of them freed");

    struct vramshim_limit limit;
    if (shim_limit(0, &limit) == 0 && limit.limit > 0)
        printf("limit            %" PRIu64 " MiB, %" PRIu64 " MiB used\n", limit.limit / MIB, limit.used / MIB);
    else
        printf("limit            none\n");
    char *journal = text_of(shim_journal_path), *account = text_of(shim_account);
    printf("journal          %s\n", *journal ? journal : "none");
    printf("ledger           %s\n", account);
    free(journal);
    free(account);
    for (int i = 1; i < 10; i += 2) check(release(blocks[i]), "cuMemFree");

    int matches = full.requested == 640 * MIB && half.requested == 320 * MIB && half.live == 5;
    if (!matches) fprintf(stderr, "stats: the totals do not match what this program holds\n");
    return !matches;
}
