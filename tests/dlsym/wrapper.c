/* Wraps `greet`: prints WHO and calls the next `greet`. Compiled once for the program and once for each of its
 * libraries. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void greet(const char *name) {
    static int depth;
    if (++depth > 1)
        abort(); /* RTLD_NEXT found this function itself */
    printf(WHO " ");
    fflush(stdout);
#ifdef LAST
    printf("%s\n", name);
    fflush(stdout);
#else
    void (*next)(const char *) = (void (*)(const char *))dlsym(RTLD_NEXT, "greet");
    if (!next)
        abort();
    next(name);
#endif
    depth--;
}

int puts(const char *text) {
    static int depth;
    if (++depth > 1)
        abort();
    int (*next)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "puts");
    if (!next)
        abort();
    fputs(WHO " ", stdout);
    int result = next(text);
    depth--;
    return result;
}

#ifdef MAIN
int main(void) {
    greet("world");
    puts("hello");
    return 0;
}
#endif
