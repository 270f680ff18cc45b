/* Loads two libraries with RTLD_LOCAL, each with a runtime of its own, and uses them in turn.
 *
 *   two_runtimes LIBRARY LIBRARY */
#include "client.h"

enum { USERS = 2 };
static struct user {
    int (*obtain)(void **, size_t), (*give_back)(void *), (*last_error)(void), (*version)(void);
    void *(*driver_function)(const char *, unsigned);
} users[USERS];

int main(int argc, char **argv)
{
    if (argc != 1 + USERS) return fprintf(stderr, "usage: two_runtimes LIBRARY LIBRARY\n"), 2;
    for (int i = 0; i < USERS; i++) {
        void *library = dlopen(argv[1 + i], RTLD_NOW | RTLD_LOCAL);
        if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
        users[i] = (struct user){dlsym(library, "obtain"), dlsym(library, "give_back"), dlsym(library, "last_error"), dlsym(library, "version"),
                                dlsym(library, "driver_function")};
    }
    void *memory[USERS], *none;
    for (int i = 0; i < USERS; i++) {
        CHECK(users[i].obtain(&memory[i], 1000 + (size_t)i));
        printf("version %d\n", users[i].version());
    }
    *count_of(0, LINEAR) = 2001;
    checkpoint();
    /* cudaGetLastError returns an error in the runtime in which it happened, and in no other. */
    for (int i = 0; i < USERS; i++) {
        EXPECT(users[i].obtain(&none, 1ull << 50), CUDA_ERROR_OUT_OF_MEMORY);
        printf("errors %d %d\n", users[0].last_error(), users[1].last_error());
    }
    CHECK(users[0].give_back(memory[0]));
    *count_of(0, LINEAR) = 1001;
    checkpoint();
    /* Calls the driver through a pointer from the runtime, as frameworks do for functions that the runtime lacks. */
    for (int i = 0; i < USERS; i++) {
        CUdeviceptr address;
        CUresult (*allocate)(CUdeviceptr *, size_t) = users[i].driver_function("cuMemAlloc", 12000);
        if (!allocate || users[i].driver_function("cuNothing", 12000)) return 1;
        CHECK(allocate(&address, 3000));
    }
    *count_of(0, LINEAR) += 6000;
    checkpoint();
    return 0;
}
