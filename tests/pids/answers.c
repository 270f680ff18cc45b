/* Prints every answer of NVML's functions that the library hooks, byte by byte but for gaps
 * between fields: `answers NAME...` with the functions' names.
 * The process holds memory and a context of two devices. Each function is asked with room enough, with none, with NULL, with
 * what it must refuse, and about each device. */
#include "client.h"

enum { ROOM = 8, ENTRY = 24 };
static void *library;

static void dump(const char *what, int result, unsigned count, const void *at, size_t size)
{
    printf("%s: %d %u ", what, result, count);
    for (size_t i = 0; i < size; i++) printf("%02x", ((const unsigned char *)at)[i]);
    printf("\n");
}

static void list(const char *name, void *device)
{
    int (*ask)(void *, unsigned *, void *) = dlsym(library, name);
    static const unsigned rooms[] = {ROOM, 1, 0};
    for (int i = 0; i < 3; i++) {
        unsigned char out[ROOM * ENTRY];
        memset(out, 0xa5, sizeof out);
        unsigned count = rooms[i];
        int result = ask(device, &count, out);
        size_t entry = strstr(name, "_v") ? ENTRY : 16; /* the four bytes behind a pid are no field */
        for (size_t at = 4; at < sizeof out; at += entry) memset(out + at, 0, 4);
        dump(name, result, count, out, sizeof out);
        count = rooms[i];
        if (!count) result = ask(device, &count, NULL), dump("with NULL", result, count, "", 0);
    }
    dump("without a count", ask(device, NULL, NULL), 0, "", 0);
}

static void memory(const char *name, void *device)
{
    int (*ask)(void *, void *) = dlsym(library, name);
    unsigned versions[] = {0x02000028, 0x01000028, 0};
    for (int i = 0; i < 3; i++) {
        unsigned char out[64];
        memset(out, 0xa5, sizeof out);
        memcpy(out, &versions[i], sizeof versions[i]);
        int result = ask(device, out);
        dump(name, result, 0, out, sizeof out);
    }
}

int main(int argc, char **argv)
{
    CUdeviceptr address;
    start_cuda();
    CHECK(cu(cuMemAlloc_v2)(&address, 100 << 20));
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    THAT(library && ((int (*)(void))dlsym(library, "nvmlInit_v2"))() == 0);
    for (int i = 1; i < argc; i++) {
        THAT(dlsym(library, argv[i]));
        for (unsigned index = 0; index < 3; index++) {
            void *device = NULL;
            ((int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(index, &device);
            if (strstr(argv[i], "Processes")) list(argv[i], device);
            else if (strstr(argv[i], "MemoryInfo")) memory(argv[i], device);
            else return fprintf(stderr, "answers: nobody asks %s\n", argv[i]), 2;
        }
    }
    return 0;
}
