/* A driver whose cuGetProcAddress answers addresses that it does not export, and a runtime that asks it.
 *
 *   -DDRIVER    the driver
 *   -DRUNTIME   a runtime of CUDA 12.8
 *   otherwise   an application that prints whose functions it gets, and which function of the driver a call reaches */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef int (*get_t)(const char *, void **, int, unsigned long long, int *);

#ifdef DRIVER

static int say(const char *text) { return puts(text), fflush(stdout), 0; }

int cuInit(unsigned flags) { return flags != 0; }
int cuDriverGetVersion(int *version) { return *version = 13050, 0; }
int cuCtxSynchronize(void) { return say("waits for the current context"); }
int cuCtxSynchronize_v2(void *context) { return (void)context, say("waits for a context"); }
int cuGraphAddNode(void) { return say("adds a node"); }
int cuGraphAddNode_v2(void) { return say("adds a node with edges"); }

static int synchronize(void) { return cuCtxSynchronize(); }
static int synchronize_context(void *context) { return cuCtxSynchronize_v2(context); }
static int add_node(void) { return cuGraphAddNode(); }
static int add_node_with_edges(void) { return cuGraphAddNode_v2(); }
static int add_node_as_since_13_4(void) { return say("adds a node as since 13.4"); }
static int add_node_in_a_later_way(void) { return say("adds a node in a later way"); }

int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status)
{
    (void)flags;
    *out = NULL;
    if (version > 13050) return 1;
    if (!strcmp(name, "cuCtxSynchronize")) *out = version < 13000 ? (void *)synchronize : (void *)synchronize_context;
    if (!strcmp(name, "cuGraphAddNode") && version >= 12020)
        *out = version < 12030   ? (void *)add_node
               : version < 13040 ? (void *)add_node_with_edges
               : version < 13050 ? (void *)add_node_as_since_13_4
                                 : (void *)add_node_in_a_later_way;
    if (status) *status = !*out;
    return 0;
}

#elif defined RUNTIME

int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status);
int cudaRuntimeGetVersion(int *version) { return *version = 12080, 0; }
int cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status)
{
    return cuGetProcAddress_v2(name, out, 12080, flags, status);
}

#else

int cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status);

static const char *home(void *address)
{
    Dl_info info;
    if (!address || !dladdr(address, &info)) return "nowhere";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static void use(const char *way, const char *name, void *function)
{
    printf("%s %s: %s\n", way, name, home(function));
    fflush(stdout);
    if (function) ((int (*)(void *, void *, void *, void *, size_t, void *))function)((void *)0x1000, NULL, NULL, NULL, 0, NULL);
}

int main(void)
{
    static const struct { const char *name; int version; } asked[] = {
        {"cuCtxSynchronize", 12080}, {"cuCtxSynchronize", 13000}, {"cuGraphAddNode", 12020}, {"cuGraphAddNode", 12080}, {"cuGraphAddNode", 13040},
        {"cuGraphAddNode", 13050},
    };
    get_t get = (get_t)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        void *function = NULL;
        char way[16];
        snprintf(way, sizeof way, "%d", asked[i].version);
        get(asked[i].name, &function, asked[i].version, 0, NULL);
        use(way, asked[i].name, function);
    }
    void *function = NULL;
    cudaGetDriverEntryPoint("cuCtxSynchronize", &function, 0, NULL);
    use("runtime", "cuCtxSynchronize", function);
    return 0;
}

#endif
