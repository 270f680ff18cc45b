/* Uses device memory, in most scenes past a preloaded library. Then waits until it is killed.
 *
 *   tables   allocates through an address from the driver's ELF tables
 *   mixed    allocates a second block as `tables` does, and frees it with the cuMemFree that dlsym finds
 *   twice    loads a second copy of the driver with dlmopen
 *   stranger frees an address that was never allocated
 *   child    starts another program without LD_PRELOAD, which allocates with cuMemAlloc
 *   plain    allocates with cuMemAlloc */
#include "client.h"
#include <link.h>
#include <unistd.h>

enum { MIB = 1 << 20 };
typedef CUresult (*alloc_t)(CUdeviceptr *, size_t);

/* The address of an exported function, from the ELF tables of the mapped file. */
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
    /* Linkers put the strings behind the symbols, so the table of symbols ends where the strings begin. */
    for (const ElfW(Sym) *symbol = symbols; (const char *)symbol < strings; symbol++)
        if (symbol->st_shndx && strcmp(strings + symbol->st_name, name) == 0) return (void *)(map->l_addr + symbol->st_value);
    THAT(!"in the tables");
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 2) return fprintf(stderr, "usage: bypass tables|mixed|twice|stranger|child|plain\n"), 2;
    CUdeviceptr block, hidden;
    if (strcmp(argv[1], "child") == 0) {
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", argv[0], "plain", NULL);
        return 1;
    }
    start_cuda();
    if (strcmp(argv[1], "tables") == 0) {
        CHECK(((alloc_t)in_tables("cuMemAlloc_v2"))(&block, 64 * MIB));
    } else if (strcmp(argv[1], "mixed") == 0) {
        CHECK(cu(cuMemAlloc_v2)(&block, 64 * MIB));
        CHECK(((alloc_t)in_tables("cuMemAlloc_v2"))(&hidden, 2048ull * MIB));
        usleep(1500000); /* long enough for the doctor to ask NVML, also on a busy machine */
        CHECK(cu(cuMemFree_v2)(hidden));
    } else if (strcmp(argv[1], "twice") == 0) {
        CHECK(cu(cuMemAlloc_v2)(&block, 64 * MIB));
        THAT(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW));
    } else if (strcmp(argv[1], "stranger") == 0) {
        CHECK(cu(cuMemAlloc_v2)(&block, 64 * MIB));
        EXPECT(cu(cuMemFree_v2)(0x12345000), CUDA_ERROR_INVALID_VALUE);
    } else {
        CHECK(cu(cuMemAlloc_v2)(&block, 64 * MIB));
    }
    for (;;) pause();
}
