/* Holds 64 MiB of device 0 until it is killed, or until its input ends. It says so in a line. */
#include "client.h"

int main(void)
{
    CUdeviceptr address;
    start_cuda();
    CHECK(cuMemAlloc_v2(&address, 64 << 20));
    puts("holds");
    fflush(stdout);
    return getchar() == EOF ? 0 : 1;
}
