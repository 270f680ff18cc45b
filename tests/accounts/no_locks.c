/* A file system without locks of open files. It is preloaded. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

int fcntl(int file, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    if (command != F_OFD_SETLK && command != F_OFD_GETLK) return (int)syscall(SYS_fcntl, file, command, argument);
    errno = ENOLCK;
    return -1;
}
