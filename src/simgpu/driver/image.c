/* The global variables of a module. The image of a module is often an ELF file (a cubin, see NVIDIA's "CUDA Binary
 * Utilities"). Its table of symbols says the size of each variable, and in which section its first value is. A client
 * copies as many bytes as the driver says, so a wrong size would damage the client's memory. */
#include "sim.h"
#include <elf.h>

struct Variable {
    char *name;
    size_t size;
    void *data;
    struct Variable *next;
};

static bool is_elf(const Elf64_Ehdr *head)
{
    return head && memcmp(head->e_ident, ELFMAG, SELFMAG) == 0 && head->e_ident[EI_CLASS] == ELFCLASS64
        && head->e_shentsize == sizeof(Elf64_Shdr);
}

static struct Variable *variable(const char *image, const Elf64_Shdr *section, const Elf64_Sym *symbol, const char *name)
{
    struct Variable *v = malloc(sizeof *v);
    *v = (struct Variable){strdup(name), symbol->st_size, calloc(1, symbol->st_size + 1), NULL};
    uint64_t at = symbol->st_value - section->sh_addr;
    if (section->sh_type != SHT_NOBITS && at + v->size <= section->sh_size) memcpy(v->data, image + section->sh_offset + at, v->size);
    return v;
}

bool image_variables(const void *image, struct Variable **out)
{
    const Elf64_Ehdr *head = image;
    *out = NULL;
    if (!is_elf(head)) return false;
    const Elf64_Shdr *sections = (const void *)((const char *)image + head->e_shoff);
    for (unsigned i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const char *names = (const char *)image + sections[sections[i].sh_link].sh_offset;
        const Elf64_Sym *symbols = (const void *)((const char *)image + sections[i].sh_offset);
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++) {
            if (ELF64_ST_TYPE(symbols[s].st_info) != STT_OBJECT || symbols[s].st_shndx == SHN_UNDEF || symbols[s].st_shndx >= head->e_shnum) continue;
            struct Variable *found = variable(image, &sections[symbols[s].st_shndx], &symbols[s], names + symbols[s].st_name);
            found->next = *out;
            *out = found;
        }
    }
    return true;
}

bool image_variable(const struct Variable *list, const char *name, CUdeviceptr *address, size_t *size)
{
    for (; list; list = list->next) {
        if (strcmp(list->name, name) != 0) continue;
        if (address) *address = (CUdeviceptr)list->data;
        if (size) *size = list->size;
        return true;
    }
    return false;
}

void image_forget(struct Variable *list)
{
    for (struct Variable *next; list; list = next) {
        next = list->next;
        free(list->name);
        free(list->data);
        free(list);
    }
}
