/* Registration of compiled CUDA code. When such code is loaded, it tells the runtime its images of device code, and
 * which host function or variable stands for which name in them.
 *
 * The runtime only stores images and names, because a framework registers a hundred thousand names at import, even in a
 * program that never uses a GPU. It loads an image into the driver when one of the image's names is first used. */
#include "cudart.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    void *code;
    Handle library;
    int tried;
    size_t first; /* list of its entries, newest first: index + 1, 0 ends the list */
} Image;

typedef struct {
    const void *key; /* the address of the host function or variable, or a kernel's handle */
    const char *name;
    Image *image; /* NULL once unregistered */
    Handle kernel;
    size_t size; /* of a variable */
    size_t next;
} Entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Entry *entries;
static size_t entry_count, entry_room;
static size_t *slots; /* open addressing: index + 1, 0 is empty */
static size_t slot_count;
static Image handed_out; /* owns the kernels whose handles the program has from the driver */

static size_t *slot_of(const void *key)
{
    size_t at = ((uintptr_t)key >> 4) * 0x9e3779b97f4a7c15u >> 16;
    for (at &= slot_count - 1; slots[at] != 0 && entries[slots[at] - 1].key != key;) at = (at + 1) & (slot_count - 1);
    return &slots[at];
}

/* Makes room for one more entry, and keeps at least half of the slots empty. */
static int grow(void)
{
    if (entry_count < entry_room) return 1;
    size_t room = entry_room == 0 ? 1024 : 2 * entry_room;
    Entry *more = realloc(entries, room * sizeof *more);
    if (more != NULL) entries = more;
    size_t *wider = more != NULL ? calloc(2 * room, sizeof *wider) : NULL;
    if (wider == NULL) return 0;
    free(slots);
    slots = wider;
    slot_count = 2 * room;
    entry_room = room;
    for (size_t i = 0; i < entry_count; i++) *slot_of(entries[i].key) = i + 1;
    return 1;
}

static void add(Image *image, const void *key, const char *name, size_t size, Handle kernel)
{
    pthread_mutex_lock(&lock);
    if (grow()) {
        size_t *slot = slot_of(key);
        if (*slot == 0) *slot = ++entry_count;
        entries[*slot - 1] = (Entry){key, name, image, kernel, size, image->first};
        image->first = *slot;
    }
    pthread_mutex_unlock(&lock);
}

static Entry *find(const void *key)
{
    if (slot_count == 0) return NULL;
    size_t index = *slot_of(key);
    return index == 0 || entries[index - 1].image == NULL ? NULL : &entries[index - 1];
}

static Handle library_of(const struct driver *cu, Image *image)
{
    if (!image->tried) {
        image->tried = 1;
        if (cu->cuLibraryLoadData(&image->library, image->code, NULL, NULL, 0, NULL, NULL, 0) != SUCCESS)
            image->library = NULL;
    }
    return image->library;
}

cudaError_t kernel_of(const struct driver *cu, const void *host_function, Handle *kernel)
{
    pthread_mutex_lock(&lock);
    Entry *entry = find(host_function);
    if (entry != NULL && entry->kernel == NULL) {
        Handle library = library_of(cu, entry->image);
        if (library == NULL || cu->cuLibraryGetKernel(&entry->kernel, library, entry->name) != SUCCESS)
            entry->kernel = NULL;
    }
    *kernel = entry != NULL ? entry->kernel : NULL;
    pthread_mutex_unlock(&lock);
    return entry != NULL ? SUCCESS : INVALID_DEVICE_FUNCTION;
}

cudaError_t symbol_address(const struct driver *cu, const void *symbol, void **address, size_t *size)
{
    cudaError_t error = INVALID_SYMBOL;
    pthread_mutex_lock(&lock);
    Entry *entry = find(symbol);
    Handle library = entry != NULL && entry->size != 0 ? library_of(cu, entry->image) : NULL;
    if (library != NULL) error = cu->cuLibraryGetGlobal(address, size, library, entry->name);
    pthread_mutex_unlock(&lock);
    return error == SUCCESS ? SUCCESS : INVALID_SYMBOL;
}

API cudaError_t cudaGetSymbolAddress(void **address, const void *symbol)
{
    size_t size;
    ENTER(cu, 0);
    return done(symbol_address(cu, symbol, address, &size));
}

API cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol)
{
    void *address;
    ENTER(cu, 0);
    return done(symbol_address(cu, symbol, &address, size));
}

API cudaError_t cudaFuncGetName(const char **name, const void *function)
{
    pthread_mutex_lock(&lock);
    Entry *entry = find(function);
    if (entry != NULL) *name = entry->name;
    pthread_mutex_unlock(&lock);
    return done(entry != NULL ? SUCCESS : INVALID_DEVICE_FUNCTION);
}

API cudaError_t cudaLibraryGetKernel(Handle *kernel, Handle library, const char *name)
{
    ENTER(cu, 0);
    cudaError_t error = cu->cuLibraryGetKernel(kernel, library, name);
    if (error == SUCCESS) add(&handed_out, *kernel, name, 0, *kernel);
    return done(error);
}

#define OPTIONS void *jit, void **jit_values, unsigned jit_count, void *options, void **values, unsigned count
FORWARD(cudaLibraryLoadData, cuLibraryLoadData, (Handle *library, const void *code, OPTIONS),
        library, code, jit, jit_values, jit_count, options, values, count)
FORWARD(cudaLibraryLoadFromFile, cuLibraryLoadFromFile, (Handle *library, const char *path, OPTIONS),
        library, path, jit, jit_values, jit_count, options, values, count)
FORWARD(cudaLibraryUnload, cuLibraryUnload, (Handle library), library)
FORWARD(cudaLibraryGetGlobal, cuLibraryGetGlobal, (void **address, size_t *size, Handle library, const char *name),
        address, size, library, name)
FORWARD(cudaLibraryGetManaged, cuLibraryGetManaged, (void **address, size_t *size, Handle library, const char *name),
        address, size, library, name)
FORWARD(cudaLibraryGetKernelCount, cuLibraryGetKernelCount, (unsigned *count, Handle library), count, library)
FORWARD(cudaLibraryEnumerateKernels, cuLibraryEnumerateKernels, (Handle *kernels, unsigned count, Handle library),
        kernels, count, library)

API void **__cudaRegisterFatBinary(void *code)
{
    Image *image = calloc(1, sizeof *image);
    if (image != NULL) image->code = code;
    return (void **)image;
}

API void __cudaRegisterFatBinaryEnd(void **image)
{
    (void)image;
}

/* This runs at exit, when the driver may be unloaded already, so images are not unloaded. */
API void __cudaUnregisterFatBinary(void **handle)
{
    Image *image = (Image *)handle;
    if (image == NULL) return;
    pthread_mutex_lock(&lock);
    for (size_t at = image->first; at != 0; at = entries[at - 1].next)
        if (entries[at - 1].image == image) entries[at - 1].image = NULL;
    pthread_mutex_unlock(&lock);
    free(image);
}

API char __cudaInitModule(void **image)
{
    (void)image;
    return 1;
}

API void __cudaRegisterFunction(void **image, const char *host, char *device, const char *name, int threads, void *tid,
                                void *bid, void *block, void *grid, int *warp)
{
    (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    if (image != NULL) add((Image *)image, host, name, 0, NULL);
}

API void __cudaRegisterVar(void **image, char *host, char *device, const char *name, int external, size_t size,
                           int constant, int global)
{
    (void)device, (void)external, (void)constant, (void)global;
    if (image != NULL) add((Image *)image, host, name, size, NULL);
}

API void __cudaRegisterManagedVar(void **image, void **host, char *device, const char *name, int external, size_t size,
                                  int constant, int global)
{
    (void)device, (void)external, (void)constant, (void)global;
    if (image != NULL) add((Image *)image, host, name, size, NULL);
}
