/* Shared by the test clients: three ways to reach the driver, a count of the client's own allocations, and a
 * checkpoint. A checkpoint prints this count beside the simulator's table and the library's ledger.
 *
 *   (nothing)   linked to libcuda.so.1
 *   -DDLOPEN    every function through dlopen and dlsym
 *   -DPROC      every function through cuGetProcAddress_v2 */
#ifndef CLIENT_H
#define CLIENT_H

#include "cuda_api.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void *driver_function(const char *name)
{
    static void *library;
    if (!library && !(library = dlopen("libcuda.so.1", RTLD_NOW))) {
        fprintf(stderr, "client: %s\n", dlerror());
        exit(1);
    }
#ifdef PROC
    CUresult (*get)(const char *, void **, int, unsigned long long, int *) = dlsym(library, "cuGetProcAddress_v2");
    char base[128];
    snprintf(base, sizeof base, "%s", name);
    /* Some names have another signature in another version: the 32-bit functions before 3.2, and cuCtxCreate since
     * 11.4. */
    static const char *const first[] = {"cuMemAlloc", "cuMemFree", "cuMemGetInfo", NULL};
    int version = strncmp(name, "cuCtxCreate", 11) ? 12080 : 11000;
    char *suffix = strstr(base, "_v2");
    if (suffix) *suffix = 0;
    for (int i = 0; first[i] && !suffix; i++)
        if (strcmp(first[i], base) == 0) version = 3010;
    void *found = NULL;
    if (get(base, &found, version, 0, NULL) != CUDA_SUCCESS) found = NULL;
#else
    void *found = dlsym(library, name);
#endif
    if (!found) {
        fprintf(stderr, "client: no %s\n", name);
        exit(1);
    }
    return found;
}

#if defined(DLOPEN) || defined(PROC)
#define cu(name) ((__typeof__(&name))driver_function(#name))
#else
#define cu(name) name
#endif

#define CHECK(call)                                                                    \
    do {                                                                               \
        CUresult result_ = (call);                                                     \
        if (result_ != CUDA_SUCCESS) {                                                 \
            fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, result_); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)
#define EXPECT(call, wanted)                                                           \
    do {                                                                               \
        CUresult result_ = (call);                                                     \
        if (result_ != (wanted)) {                                                     \
            fprintf(stderr, "%s:%d: %s: %d instead of %d\n", __FILE__, __LINE__, #call, result_, wanted); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)
#define THAT(condition)                                                                \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* Makes the primary context of a device, which is current then. */
static inline CUcontext use_device(int device)
{
    CUcontext context;
    CHECK(cu(cuDevicePrimaryCtxRetain)(&context, device));
    CHECK(cu(cuCtxSetCurrent)(context));
    return context;
}

static inline CUcontext start_cuda(void)
{
    CHECK(cu(cuInit)(0));
    return use_device(0);
}

enum { NON_BLOCKING = 1 };
static inline CUstream new_stream(unsigned flags)
{
    CUstream stream;
    CHECK(cu(cuStreamCreate)(&stream, flags));
    return stream;
}

static inline CUdeviceptr linear_memory(size_t size)
{
    CUdeviceptr address;
    CHECK(cu(cuMemAlloc_v2)(&address, size));
    return address;
}

/* Physical memory of device 0, and its mapping with access for the device. */
static inline CUmemGenericAllocationHandle physical_memory(size_t size)
{
    CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = device};
    CUmemGenericAllocationHandle handle;
    CHECK(cu(cuMemCreate)(&handle, size, &properties, 0));
    return handle;
}

static inline void map_memory(CUdeviceptr address, size_t size, CUmemGenericAllocationHandle handle)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cu(cuMemMap)(address, size, 0, handle, 0));
    CHECK(cu(cuMemSetAccess)(address, size, &access, 1));
}

static inline CUmemoryPool pool_on(int device)
{
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location};
    CUmemoryPool pool;
    CHECK(cu(cuMemPoolCreate)(&pool, &properties));
    return pool;
}

/* A function of the library, or NULL without the library. */
#define library_function(name) ((__typeof__(&name))dlsym(RTLD_DEFAULT, #name))

static inline unsigned long long figure_of(const char *name)
{
    int (*stat)(const char *, uint64_t *) = dlsym(RTLD_DEFAULT, "vramshim_stat");
    uint64_t value = 0;
    THAT(stat && stat(name, &value) == 0);
    return value;
}

struct scene { const char *name; void (*play)(void); };

static inline int play(const struct scene *scenes, size_t count, int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < count; i++)
        if (!strcmp(scenes[i].name, argv[1])) return scenes[i].play(), 0;
    return fprintf(stderr, "usage: %s SCENE\n", argv[0]), 2;
}
#define PLAY(scenes, argc, argv) play(scenes, sizeof(scenes) / sizeof *(scenes), argc, argv)

enum { LINEAR, PITCHED, MANAGED, HOST, HOST_REGISTERED, ASYNC, VMM, ARRAY, MIPMAP, IMPORTED, GRAPH, ADDRESS_RANGE, CLASSES };
static const char *const class_names[CLASSES] = {
    "linear", "pitched", "managed", "host", "host_registered", "async", "vmm", "array", "mipmap", "imported", "graph",
    "address_range",
};
/* Bytes allocated and not yet freed, by device (the last row is the host) and class. */
static _Atomic long long own[17][CLASSES];
static inline _Atomic long long *count_of(int device, int class) { return &own[device < 0 ? 16 : device][class]; }

/* A function of the simulator or of a layer, or NULL if there is none. */
static inline void *optional_function(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    if (found) return found;
    /* The driver may have been loaded with RTLD_LOCAL. */
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

/* Prints a figure of a quota layer, if it has one of this name. */
static inline void print_figure(const char *function, const char *name)
{
    unsigned long long (*figure)(void) = optional_function(function);
    if (figure) printf("\"%s\":%llu,", name, figure());
}

/* Prints the book of a quota layer (tests/support/layer), by device, and how often its habits had an effect. */
static inline void print_layer(void)
{
    uint64_t (*used)(int) = optional_function("layer_used"), (*limit)(void) = optional_function("layer_limit");
    if (!used || !limit) return;
    printf(",\"layer\":{");
    print_figure("layer_second_mappings", "second_mappings");
    print_figure("layer_rounds", "rounds");
    print_figure("layer_waits", "waits");
    printf("\"limit\":%llu,\"used\":[", (unsigned long long)limit());
    for (int device = 0; device < 16; device++) printf("%s%llu", device ? "," : "", (unsigned long long)used(device));
    printf("]}");
}

/* Prints one line of JSON: {"own":[...],"account":{...},"truth":{...},"layer":{...}}. "account" is null without the
 * library, and "truth" is null without the simulator; "layer" is printed only if there is a layer. */
static inline void checkpoint(void)
{
    static char buffer[1 << 24];
    size_t (*truth)(char *, size_t) = optional_function("simgpu_truth");
    size_t (*account)(char *, size_t) = dlsym(RTLD_DEFAULT, "vramshim_account");
    printf("{\"own\":[");
    const char *comma = "";
    for (int device = 0; device < 17; device++)
        for (int class = 0; class < CLASSES; class++)
            if (own[device][class]) {
                printf("%s{\"device\":%d,\"class\":\"%s\",\"requested\":%lld}", comma, device == 16 ? -1 : device,
                       class_names[class], own[device][class]);
                comma = ",";
            }
    /* vramshim_account is called before simgpu_truth. It asks the driver's pools how much they hold, and its answer
     * must be right even if nothing asked the pools before. */
    printf("],\"account\":");
    if (account) account(buffer, sizeof buffer), fputs(buffer, stdout);
    else printf("null");
    printf(",\"truth\":");
    if (truth) truth(buffer, sizeof buffer), fputs(buffer, stdout);
    else printf("null");
    print_layer();
    printf("}\n");
    fflush(stdout);
}

#endif
