/* One scene for each thing that broke others: asks the driver as documented, and ends with 1 where an answer is not the
 * documented one. What only the test can judge is printed.
 *
 *   behaviour SCENE */
#include "client.h"
#include "shim.h"
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#define THAT(condition)                                                                   \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);       \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static CUcontext contexts[2];

static void begin(void)
{
    CHECK(cuInit(0));
    for (int device = 2; device-- > 0;) {
        CHECK(cuDevicePrimaryCtxRetain(&contexts[device], device));
        CHECK(cuCtxSetCurrent(contexts[device]));
    }
}

static CUdeviceptr allocate(size_t size)
{
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, size));
    return address;
}

static size_t free_bytes(void)
{
    size_t bytes, total;
    CHECK(cuMemGetInfo_v2(&bytes, &total));
    return bytes;
}

/* Exactly the ten fields, and not a byte beyond. */
static void stats(void)
{
    struct { struct vramshim_stats s; uint64_t after; } out = {.after = 42};
    int (*ask)(int, struct vramshim_stats *) = dlsym(RTLD_DEFAULT, "vramshim_stats");
    uint64_t (*trim)(int) = dlsym(RTLD_DEFAULT, "vramshim_trim");
    CUdeviceptr too_much;
    THAT(ask && trim);
    begin();
    CUdeviceptr first = allocate(1000), hole = allocate(2000);
    allocate(3000);
    CHECK(cuMemFree_v2(hole));
    (void)first;
    EXPECT(cuMemAlloc_v2(&too_much, 1ull << 45), CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr large = allocate(16 << 20);
    CHECK(cuMemFree_v2(large));
    THAT(trim(0) == 16 << 20);
    THAT(ask(0, NULL) == -1 && ask(-2, &out.s) == -1 && ask(99, &out.s) == -1);
    THAT(ask(0, &out.s) == 0 && out.after == 42);
    const uint64_t *field = (const uint64_t *)&out.s;
    for (size_t i = 0; i < sizeof out.s / sizeof *field; i++) printf("%llu\n", (unsigned long long)field[i]);
}

static const struct { const char *name; void (*play)(void); } scenes[] = {
    {"stats", stats},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof scenes / sizeof *scenes; i++)
        if (!strcmp(scenes[i].name, argv[1])) return scenes[i].play(), 0;
    return fprintf(stderr, "usage: behaviour SCENE\n"), 2;
}
