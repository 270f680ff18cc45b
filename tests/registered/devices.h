/* Several devices, with a context and a stream on each, and blocks that are filled and compared. */
#ifndef DEVICES_H
#define DEVICES_H

#include "delayed.h"

enum { DEVICES = 3, SIZE = 3 * MIB, PITCH = 4096, ROWS = 64, DEVICE = 2, IN_ARRAY = 3, UNIFIED = 4 };

static CUcontext contexts[DEVICES + 1];
static CUstream streams[DEVICES + 1];

static void use(int device) { CHECK(cuCtxSetCurrent(contexts[device])); }

static void open_devices(int count)
{
    CHECK(cuInit(0));
    for (int i = 0; i < count; i++) contexts[i] = use_device(i), streams[i] = new_stream(NON_BLOCKING);
}

static CUdeviceptr allocate_on(int device, size_t size)
{
    use(device);
    return linear_memory(size);
}

static bool can_be_peers(void)
{
    int can;
    CHECK(((CUresult (*)(int *, int, int))optional_function("cuDeviceCanAccessPeer"))(&can, 0, 1));
    return can;
}

static void finish(void)
{
    for (int i = 0; i < DEVICES; i++)
        if (contexts[i]) {
            use(i);
            CHECK(cuCtxSynchronize());
        }
}

static void fill(int device, CUdeviceptr address, unsigned char value)
{
    use(device);
    CHECK(cuMemsetD8_v2(address, value, SIZE));
    CHECK(cuCtxSynchronize());
}

static void holds(const char *what, CUdeviceptr address, unsigned char value, size_t size)
{
    static unsigned char bytes[SIZE];
    CHECK(cuMemcpyDtoH_v2(bytes, address, size));
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != value) fprintf(stderr, "%s: byte %zu is %d instead of %d\n", what, i, bytes[i], value), exit(1);
}

#endif
