/* Allocates and frees memory on command. Reads commands from stdin, one a line, and answers each with "done":
 *
 *   device N     makes the primary context of device N current
 *   context      creates another context of that device, which stays current
 *   alloc MIB    cuMemAlloc
 *   array MIB    cuArrayCreate, of 32-bit numbers
 *   free         frees the last block
 *   hide MIB     calls the driver's own cuMemAlloc, which no preloaded library sees */
#include "unhooked.h"

static uint64_t blocks[64];
static int count;

int main(void)
{
    char line[64];
    unsigned long long number = 0;
    CUcontext context;
    CUdeviceptr address;
    CHECK(cuInit(0));
    while (fgets(line, sizeof line, stdin)) {
        char *space = strchr(line, ' ');
        number = space ? strtoull(space, NULL, 10) : 0;
        line[strcspn(line, " \n")] = 0;
        if (!strcmp(line, "device")) {
            CHECK(cuDevicePrimaryCtxRetain(&context, (CUdevice)number));
            CHECK(cuCtxSetCurrent(context));
        } else if (!strcmp(line, "context")) {
            CUdevice device;
            CHECK(cuCtxGetDevice(&device));
            CHECK(cuCtxCreate_v2(&context, 0, device));
        } else if (!strcmp(line, "alloc")) {
            CHECK(cuMemAlloc_v2(&address, number << 20));
            blocks[count++] = address;
        } else if (!strcmp(line, "array")) {
            CUarray array;
            CHECK(cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){1024, number << 8, CU_AD_FORMAT_FLOAT, 1}));
        } else if (!strcmp(line, "free")) {
            CHECK(cuMemFree_v2(blocks[--count]));
        } else if (!strcmp(line, "hide")) {
            CUresult (*allocate)(CUdeviceptr *, size_t) = of_the_driver("cuMemAlloc_v2");
            CHECK(allocate(&address, number << 20));
        } else {
            fprintf(stderr, "holder: %s is no command\n", line);
            return 1;
        }
        puts("done");
        fflush(stdout);
    }
    return 0;
}
