/* A file system without locks of open files, or with ALL without any locks. It is preloaded. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

int fcntl(int file, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
#ifdef ALL
    bool refused = command == F_SETLK || command == F_GETLK;
#else
    bool refused = false;
#endif
    if (!refused && command != F_OFD_SETLK && command != F_OFD_GETLK) return (int)syscall(SYS_fcntl, file, command, argument);
    errno = ENOLCK;
    return -1;
}
