/* Scenes of two processes, which are joined by a socket. The other one is forked before either calls the driver. */
#ifndef TWO_PROCESSES_H
#define TWO_PROCESSES_H

#include "delayed.h"
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_for(int socket)
{
    char byte;
    THAT(read(socket, &byte, 1) == 1);
}
static void tell(int socket) { THAT(write(socket, "", 1) == 1); }

static void processes(void (*one)(int), void (*other)(int))
{
    int sockets[2], status;
    THAT(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t child = fork();
    if (child == 0) return close(sockets[0]), one(sockets[1]);
    close(sockets[1]);
    other(sockets[0]);
    THAT(waitpid(child, &status, 0) == child && status == 0);
}

#endif
