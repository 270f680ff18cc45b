/* A library that makes the kernel module nvidia_peermem look as if it were loaded. */
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int access(const char *path, int mode)
{
    if (strcmp(path, "/sys/module/nvidia_peermem") == 0) return 0;
    return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}
