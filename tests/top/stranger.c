/* Holds 64 MiB of device 0 until it is killed, or until its input ends. It says so in a line. */
#include "client.h"

int main(void)
{
    CUcontext context;
    CUdeviceptr address;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc_v2(&address, 64 << 20));
    puts("holds");
    fflush(stdout);
    return getchar() == EOF ? 0 : 1;
}
