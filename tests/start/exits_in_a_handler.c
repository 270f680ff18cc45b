/* A signal whose handler calls _exit arrives while the library grows its journal. `fallocate` here is what the library
 * calls, and raises the signal behind the system call. */
#include "client.h"
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int armed;

int fallocate(int fd, int mode, off_t offset, off_t length)
{
    long result = syscall(SYS_fallocate, fd, mode, offset, length);
    if (armed) raise(SIGTERM);
    return (int)result;
}

static void on_signal(int number) { _exit(number == SIGTERM ? 7 : 1); }

int main(void)
{
    CUdeviceptr address;
    signal(SIGTERM, on_signal);
    start_cuda();
    CHECK(cuMemAlloc_v2(&address, 4096));
    armed = 1;
    for (int i = 0; i < 100000; i++) {
        CHECK(cuMemFree_v2(address));
        CHECK(cuMemAlloc_v2(&address, 4096));
    }
    return fprintf(stderr, "the journal did not grow\n"), 1;
}
