/* Memory that grows fast. "device": 3 GiB of a device of 4 GiB. "host": 256 MiB of resident memory. Waits until the library has
 * counted a surge, for at most 100 seconds, and prints how many there are of the device and of the host. */
#include "client.h"
#include <unistd.h>

#define MIB (1ull << 20)

__attribute__((noinline)) void take_a_lot(void)
{
    CUdeviceptr address;
    for (int i = 0; i < 3; i++) CHECK(cu(cuMemAlloc_v2)(&address, 1024 * MIB));
}

int main(int argc, char **argv)
{
    int of_host = argc > 1 && strcmp(argv[1], "host") == 0;
    CUdeviceptr small;
    start_cuda();
    CHECK(cu(cuMemAlloc_v2)(&small, MIB));
    if (of_host) {
        /* The first look takes the level that the host's memory grows from. */
        sleep(3);
        volatile char *bytes = malloc(256 * MIB);
        THAT(bytes);
        for (size_t i = 0; i < 256 * MIB; i += 4096) bytes[i] = 1;
    } else {
        take_a_lot();
    }
    const char *name = of_host ? "host.surges" : "device.0.surges";
    for (int tries = 0; tries < 10000 && figure_of(name) == 0; tries++) usleep(10000);
    printf("{\"device\":%llu,\"host\":%llu}\n", figure_of("device.0.surges"), figure_of("host.surges"));
    return 0;
}
