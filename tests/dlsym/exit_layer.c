/* A preloaded tool that says that the process ends, and then ends it through the next function. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

static void say_and_end(const char *name, int status)
{
    if (write(1, name, 5) == 5 && write(1, "\n", 1) == 1) ((void (*)(int))dlsym(RTLD_NEXT, name))(status);
    for (;;) {}
}

void _exit(int status) { say_and_end("_exit", status); for (;;) {} }
void _Exit(int status) { say_and_end("_Exit", status); for (;;) {} }
