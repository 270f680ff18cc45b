/* One scene for each fault that other interposing libraries have had. Each scene makes documented calls and exits with
 * 1 if an answer is not the documented one. Results that only the test can judge are printed.
 *
 *   behaviour SCENE */
#include "client.h"
#include "shim.h"
#include <stdbool.h>

static void begin(void)
{
    CHECK(cuInit(0));
    for (int device = 2; device-- > 0;) use_device(device);
}

/* Prints what cuGetProcAddress answers for every name on stdin, with several versions and flags. Last, prints the
 * answer for a name that does not exist. */
static void look_ups(void)
{
    static const int versions[] = {2000, 3010, 3020, 6000, 10000, 11020, 12000, 12030, 13000};
    char name[128];
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    while (scanf("%127s", name) == 1) {
        printf("%s: dlsym %d\n", name, dlsym(library, name) != NULL);
        char *suffix = strstr(name, "_v2");
        if (suffix) *suffix = 0;
        for (size_t v = 0; v < sizeof versions / sizeof *versions; v++)
            for (unsigned long long flags = 0; flags <= 2; flags++) {
                void *first = (void *)1, *second = (void *)1;
                int status = -1, one = cuGetProcAddress(name, &first, versions[v], flags);
                int two = cuGetProcAddress_v2(name, &second, versions[v], flags, &status);
                printf("%s %d %llu: %d %d %d %d %d\n", name, versions[v], flags, one, two, status, first != NULL, second != NULL);
                Dl_info place;
                /* Copies and fills of the first generation reach 32-bit addresses alone, which no policy hands out. */
                bool narrow = versions[v] < 3020 && (!strncmp(name, "cuMemcpy", 8) || !strncmp(name, "cuMemset", 8));
                if (getenv("EXPECT_OURS") && second && !narrow && !(dladdr(second, &place) && strstr(place.dli_fname, "vramshim")))
                    exit((fprintf(stderr, "%s %d %llu is not ours\n", name, versions[v], flags), 1));
            }
    }
    printf("%d\n", cuGetProcAddress_v2("cuNothing", (void **)&library, 13000, 0, NULL));
}

/* Calls the v2 function and the 32-bit function of one name, and a function of the per-thread default stream. */
static void generations(void)
{
    void *found;
    CUresult (*get)(const char *, void **, int, unsigned long long, int *);
    begin();
    CHECK(cuGetProcAddress("cuGetProcAddress", &found, 12000, 0));
    get = (__typeof__(get))found; /* cuGetProcAddress itself, from a look-up */
    CUdeviceptr wide = 0;
    CHECK(get("cuMemAlloc", &found, 3020, 0, NULL));
    CHECK(((CUresult (*)(CUdeviceptr *, size_t))found)(&wide, 1000));
    CUdeviceptr_v1 narrow = 0;
    CHECK(get("cuMemAlloc", &found, 3010, 0, NULL));
    CHECK(((CUresult (*)(CUdeviceptr_v1 *, unsigned))found)(&narrow, 3000));
    CHECK(get("cuMemAllocAsync", &found, 12000, 2, NULL));
    CHECK(((CUresult (*)(CUdeviceptr *, size_t, CUstream))found)(&wide, 5000, NULL));
    *count_of(0, LINEAR) = 4000;
    *count_of(0, ASYNC) = 5000;
    checkpoint();
}

/* A free that the next layer refuses frees nothing. */
static void refused(void)
{
    begin();
    CUdeviceptr address = linear_memory(1000);
    *count_of(0, LINEAR) = 1000;
    checkpoint();
    EXPECT(cuMemFree_v2(address), 999);
    checkpoint();
    CHECK(cuMemFree_v2(address));
    *count_of(0, LINEAR) = 0;
    checkpoint();
}

static void many(void)
{
    begin();
    for (int i = 0; i < 60000; i++) CHECK(cuMemFree_v2(linear_memory(1000)));
    linear_memory(5000);
    *count_of(0, LINEAR) = 5000;
    checkpoint();
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"look-ups", look_ups}, {"generations", generations}, {"refused", refused}, {"many", many},
    };
    return PLAY(scenes, argc, argv);
}
