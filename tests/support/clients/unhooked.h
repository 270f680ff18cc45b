/* Functions of the driver that no library hooks. */
#ifndef UNHOOKED_H
#define UNHOOKED_H

#include "client.h"
#include <link.h>

/* A function of the driver, from the driver's table of symbols. dlsym would return a hook. */
static inline void *of_the_driver(const char *name)
{
    struct link_map *map = dlopen("libcuda.so.1", RTLD_NOW);
    THAT(map);
    const ElfW(Sym) *symbols = NULL, *symbol;
    const char *strings = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) strings = (const void *)entry->d_un.d_ptr;
    }
    /* Linkers put the strings behind the symbols, so the table of symbols ends where the strings begin. */
    for (symbol = symbols; (const char *)symbol < strings; symbol++)
        if (symbol->st_shndx && !strcmp(strings + symbol->st_name, name)) return (char *)map->l_addr + symbol->st_value;
    fprintf(stderr, "no %s in the tables\n", name);
    exit(1);
}

#endif
