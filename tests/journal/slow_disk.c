/* A disk so slow that it takes hours to allocate blocks, as far as the clocks of the process tell. It is preloaded. */
#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 10 * 3600 };

static volatile int late;

int fallocate(int file, int mode, off_t from, off_t bytes)
{
    late = SECONDS;
    return (int)syscall(SYS_fallocate, file, mode, from, bytes);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0) time->tv_sec += late;
    return result;
}
