/* Shares physical memory with other processes. Reads commands from stdin, one a line, and answers each with a line.
 *
 *   c BYTES         makes a handle and exports it; answers the CUDA result, the handle and the descriptor
 *   r HANDLE        releases it; answers the CUDA result
 *   z DESCRIPTOR    closes it
 *   s DESCRIPTOR    sends it to the process that receives at the socket, which is the program's argument
 *   g               receives a descriptor; answers with it
 *   i DESCRIPTOR    imports its memory; answers the CUDA result and the handle */
#include "client.h"
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void pass(const char *path, int *fd, bool sends)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr head; } ancillary = {.room = {0}};
    char byte = 0;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = ancillary.room, .msg_controllen = sizeof ancillary.room};
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    int line = socket(AF_UNIX, SOCK_STREAM, 0), other = line;
    if (!sends) {
        THAT(!bind(line, (void *)&at, sizeof at) && !listen(line, 1) && (other = accept(line, NULL, NULL)) >= 0);
        THAT(recvmsg(other, &message, 0) == 1);
        memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof *fd);
        close(other), unlink(path);
    } else {
        while (connect(line, (void *)&at, sizeof at)) usleep(1000);
        ancillary.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&ancillary.head), fd, sizeof *fd);
        THAT(sendmsg(line, &message, 0) == 1);
    }
    close(line);
}

int main(int count, char **arguments)
{
    char line[99];
    start_cuda();
    while (count == 2 && fgets(line, sizeof line, stdin)) {
        long long number = line[1] ? atoll(line + 1) : 0;
        int fd = (int)number;
        CUmemGenericAllocationHandle handle = 0;
        CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
        CUresult result = 0;
        switch (line[0]) {
        case 'c':
            result = cu(cuMemCreate)(&handle, (size_t)number, &properties, 0);
            if (!result) CHECK(cu(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
            break;
        case 'r': result = cu(cuMemRelease)((CUmemGenericAllocationHandle)number), fd = 0; break;
        case 'z': THAT(!close(fd)); break;
        case 's': pass(arguments[1], &fd, true); break;
        case 'g': pass(arguments[1], &fd, false); printf("%d\n", fd), fflush(stdout); continue;
        case 'i': result = cu(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR); break;
        }
        printf("%d %llu %d\n", result, handle, fd), fflush(stdout);
    }
    return 0;
}
