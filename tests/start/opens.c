/* Opens the library that the argument names, which nobody preloaded, and calls it, also in a namespace of its own. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int use(void *library)
{
    char text[4096];
    const char *(*version)(void) = library ? dlsym(library, "vramshim_version") : NULL;
    size_t (*names)(char *, size_t) = library ? dlsym(library, "vramshim_stat_names") : NULL;
    if (!version || !names) return fprintf(stderr, "%s\n", dlerror()), 1;
    printf("%s\n", version());
    printf("vramshim_stat_names: %s\n", names(text, sizeof text) > 4 && strstr(text, "pid") ? "yes" : "no");
    return 0;
}

int main(int count, char **arguments)
{
    if (count != 2 && count != 3) return 2;
    if (count == 3) return use(dlmopen(LM_ID_NEWLM, arguments[1], RTLD_NOW));
    return use(dlopen(arguments[1], RTLD_NOW));
}
