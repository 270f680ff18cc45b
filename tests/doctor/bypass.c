/* Ways to device memory that no preloaded library sees, and then a long rest.
 *
 *   tables   the driver's functions from its ELF tables
 *   mixed    the same for one block of two, which is freed through the function everybody finds
 *   twice    a second copy of the driver, with dlmopen
 *   stranger frees an address that nobody gave it
 *   child    another program, started without LD_PRELOAD, that allocates as usual
 *   plain    allocates as usual */
#include "client.h"
#include <link.h>
#include <unistd.h>

enum { MIB = 1 << 20 };
typedef CUresult (*alloc_t)(CUdeviceptr *, size_t);

/* The address of an exported function, as the tables of the mapped file have it. */
static void *in_tables(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    struct link_map *map;
    THAT(library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0);
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) strings = (const void *)entry->d_un.d_ptr;
    }
    /* The strings follow the symbols, as every linker lays them out. */
    for (const ElfW(Sym) *symbol = symbols; (const char *)symbol < strings; symbol++)
        if (symbol->st_shndx && strcmp(strings + symbol->st_name, name) == 0) return (void *)(map->l_addr + symbol->st_value);
    THAT(!"in the tables");
    return NULL;
}

static void enter(void)
{
    CUcontext context;
    CHECK(cu(cuInit)(0));
    CHECK(cu(cuDevicePrimaryCtxRetain)(&context, 0));
    CHECK(cu(cuCtxSetCurrent)(context));
}

int main(int argc, char **argv)
{
    if (argc != 2) return fprintf(stderr, "usage: bypass tables|mixed|twice|stranger|child|plain\n"), 2;
    CUdeviceptr block, hidden;
    if (strcmp(argv[1], "tables") == 0) {
        enter();
        CHECK(((alloc_t)in_tables("cuMemAlloc_v2"))(&block, 64 * MIB));
    } else if (strcmp(argv[1], "mixed") == 0) {
        enter();
        CHECK(cu(cuMemAlloc_v2)(&block, 64 * MIB));
        CHECK(((alloc_t)in_tables("cuMemAlloc_v2"))(&hidden, 2048ull * MIB));
        usleep(300000); /* long enough for NVML to be asked */
        CHECK(cu(cuMemFree_v2)(hidden));
    } else if (strcmp(argv[1], "twice") == 0) {
        enter();
        CHECK(cu(cuMemAlloc_v2)(&block, 64 * MIB));
        THAT(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW));
    } else if (strcmp(argv[1], "stranger") == 0) {
        enter();
        CHECK(cu(cuMemAlloc_v2)(&block, 64 * MIB));
        EXPECT(cu(cuMemFree_v2)(0x12345000), CUDA_ERROR_INVALID_VALUE);
    } else if (strcmp(argv[1], "child") == 0) {
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", argv[0], "plain", NULL);
        return 1;
    } else {
        enter();
        CHECK(cu(cuMemAlloc_v2)(&block, 64 * MIB));
    }
    for (;;) pause();
}
