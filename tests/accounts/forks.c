/* Forks while the library takes a seat, and tells the child's process id. The child lives until the job's input ends. It is
 * preloaded. */
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int madvise(void *address, size_t length, int advice)
{
    static int times;
    int result = (int)syscall(SYS_madvise, address, length, advice);
    if (advice != MADV_DONTFORK || ++times != 1) return result;
    pid_t child = fork();
    if (!child) {
        struct pollfd input = {.fd = STDIN_FILENO};
        while (poll(&input, 1, -1) <= 0 || !(input.revents & (POLLHUP | POLLERR))) {}
        _exit(0);
    }
    dprintf(STDOUT_FILENO, "%d\n", child);
    return result;
}
