/* The preloaded form. It exports dlsym, which returns the hook of every hooked name, for any handle but RTLD_NEXT. */
#define _GNU_SOURCE
#include "layer.h"
#include "next_dlsym.h"

void *driver_symbol(const char *name)
{
    static void *library;
    if (!library && !(library = dlopen("libcuda.so.1", RTLD_NOW))) abort();
    return next_dlsym()(library, name);
}

void *management_symbol(const char *name)
{
    static void *library;
    if (!library) library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return NULL;
    return next_dlsym()(library, name);
}

void *management_of_process(const char *name)
{
    void *first = next_dlsym()(RTLD_DEFAULT, name);
    return first ? first : management_symbol(name);
}

/* The first use of the CUDA runtime retains the primary context of the device. */
static void begin(void)
{
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW);
    int (*free_nothing)(void *) = runtime ? next_dlsym()(runtime, "cudaFree") : NULL;
    if (free_nothing) free_nothing(NULL);
}
void layer_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (habits.exports_more) pthread_once(&once, begin);
}

/* Some layers guard dlsym against recursion in this way: a thread gets a function once. Then it gets NULL until the
 * pair of thread and function has left the list `told`. */
static bool told_before(void *found)
{
    enum { REMEMBERED = 100 };
    static struct { pthread_t thread; void *found; } told[REMEMBERED];
    static unsigned count;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    bool before = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REMEMBERED && !before; i++)
        before = told[i].found == found && pthread_equal(told[i].thread, pthread_self());
    if (!before) {
        told[count % REMEMBERED].thread = pthread_self();
        told[count++ % REMEMBERED].found = found;
    }
    pthread_mutex_unlock(&lock);
    return before;
}

API void *dlsym(void *restrict handle, const char *restrict name)
{
    if (handle == RTLD_NEXT && habits.forgetful) {
        void *found = next_dlsym()(handle, name); /* no tail call, so RTLD_NEXT means after the layer */
        return found && told_before(found) ? NULL : found;
    }
    void *ours = handle == RTLD_NEXT ? NULL : hook_named(name);
    if (!ours && handle != RTLD_NEXT) ours = management_hook(name);
    if (ours) return ours;
    void *everywhere = habits.asks_default && name[0] == 'c' && name[1] == 'u' ? next_dlsym()(RTLD_DEFAULT, name) : NULL;
    return everywhere ? everywhere : next_dlsym()(handle, name);
}
