/* Finds the driver for the stand-in runtime, and chooses the context of a call.
 *
 * Nothing happens before the first call. Then libcuda.so.1 is opened, dlsym finds cuGetProcAddress_v2, and every
 * function of the table is looked up by name and version. A missing function is replaced by one that returns "not
 * supported". Contexts are the devices' primary contexts, retained at first use. If the program made a context current
 * itself, that context is used, as the runtime's documentation says. */
#include "cudart.h"

#include <dlfcn.h>
#include <pthread.h>

enum { PER_THREAD_DEFAULT_STREAM = 2 };
enum { MAX_DEVICES = 64 };

typedef cudaError_t GetProcAddress(const char *, void **, int, unsigned long long, int *);

static struct driver tables[2];
static GetProcAddress *get_proc_address;
static cudaError_t load_error, init_error;
static int device_count;

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static Handle primary[MAX_DEVICES];
static unsigned resets;

static _Thread_local int thread_device;
static _Thread_local Handle thread_primary;
static _Thread_local unsigned thread_resets;

/* Replaces every missing function. On all supported platforms the caller removes the arguments from the stack. */
static cudaError_t not_supported(void)
{
    return NOT_SUPPORTED;
}

static void fill(struct driver *table, unsigned long long flags)
{
    void *found;
#define ASK(field, name, version)                                                          \
    found = NULL;                                                                          \
    if (get_proc_address(name, &found, version, flags, NULL) != SUCCESS || found == NULL)  \
        found = (void *)(uintptr_t)not_supported;                                          \
    memcpy(&table->field, &found, sizeof found);
#define ASK_NAME(name, version, params) ASK(name, #name, version)
#define ASK_RENAMED(field, name, version, params) ASK(field, name, version)
    DRIVER_FUNCTIONS(ASK_NAME)
    DRIVER_RENAMED(ASK_RENAMED)
}

static void load_driver(void)
{
    load_error = INSUFFICIENT_DRIVER;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return;
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    if (symbol == NULL) return;
    memcpy(&get_proc_address, &symbol, sizeof symbol);
    fill(&tables[0], 0);
    load_error = SUCCESS;
}

static void load_per_thread(void)
{
    fill(&tables[1], PER_THREAD_DEFAULT_STREAM);
}

static const struct driver *loaded(int per_thread)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT, once_per_thread = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_driver);
    if (load_error != SUCCESS) return NULL;
    if (per_thread) pthread_once(&once_per_thread, load_per_thread);
    return &tables[per_thread];
}

static void init_driver(void)
{
    const struct driver *cu = loaded(0);
    int version = 0;
    if (cu == NULL) {
        init_error = load_error;
        return;
    }
    init_error = cu->cuInit(0);
    if (init_error == SUCCESS) init_error = cu->cuDriverGetVersion(&version);
    if (init_error == SUCCESS && version / 1000 < CUDART_VERSION / 1000) init_error = INSUFFICIENT_DRIVER;
    if (init_error == SUCCESS) init_error = cu->cuDeviceGetCount(&device_count);
    if (init_error == SUCCESS && device_count == 0) init_error = NO_DEVICE;
    if (device_count > MAX_DEVICES) device_count = MAX_DEVICES;
}

const struct driver *enter_without_context(int per_thread)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_driver);
    if (init_error != SUCCESS) {
        done(init_error);
        return NULL;
    }
    return loaded(per_thread);
}

cudaError_t primary_context(const struct driver *cu, int device, Handle *context)
{
    cudaError_t error = SUCCESS;
    if (device < 0 || device >= device_count) return INVALID_DEVICE;
    pthread_mutex_lock(&contexts_lock);
    if (primary[device] == NULL) error = cu->cuDevicePrimaryCtxRetain(&primary[device], device);
    *context = primary[device];
    pthread_mutex_unlock(&contexts_lock);
    return error;
}

static cudaError_t make_current(const struct driver *cu, int device)
{
    unsigned now = __atomic_load_n(&resets, __ATOMIC_ACQUIRE);
    Handle context;
    cudaError_t error = primary_context(cu, device, &context);
    if (error == SUCCESS) error = cu->cuCtxSetCurrent(context);
    if (error == SUCCESS) {
        thread_primary = context;
        thread_resets = now;
    }
    return error;
}

const struct driver *enter(int per_thread)
{
    const struct driver *cu = enter_without_context(per_thread);
    if (cu == NULL) return NULL;
    Handle current = NULL;
    cudaError_t error = cu->cuCtxGetCurrent(&current);
    int reset_since = thread_resets != __atomic_load_n(&resets, __ATOMIC_ACQUIRE);
    int unset = error == SUCCESS && current == NULL;
    if (unset || (reset_since && current == thread_primary)) error = make_current(cu, thread_device);
    if (error != SUCCESS) {
        done(error);
        return NULL;
    }
    return cu;
}

cudaError_t current_device(const struct driver *cu, int *device)
{
    Handle current = NULL;
    cudaError_t error = cu->cuCtxGetCurrent(&current);
    if (error == SUCCESS && current != NULL) return cu->cuCtxGetDevice(device);
    *device = thread_device;
    return SUCCESS;
}

API cudaError_t cudaGetDeviceCount(int *count)
{
    if (count == NULL) return done(INVALID_VALUE);
    *count = 0;
    ENTER_WITHOUT_CONTEXT(cu);
    *count = device_count;
    return SUCCESS;
}

API cudaError_t cudaGetDevice(int *device)
{
    ENTER_WITHOUT_CONTEXT(cu);
    if (device == NULL) return done(INVALID_VALUE);
    return done(current_device(cu, device));
}

API cudaError_t cudaSetDevice(int device)
{
    ENTER_WITHOUT_CONTEXT(cu);
    if (device < 0 || device >= device_count) return done(INVALID_DEVICE);
    thread_device = device;
    return done(make_current(cu, device));
}

API cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
    enum { FLAGS_ARE_VALID = 1 };
    ENTER_WITHOUT_CONTEXT(cu);
    if (device < 0 || device >= device_count) return done(INVALID_DEVICE);
    Handle context;
    cudaError_t error = SUCCESS;
    if (flags & FLAGS_ARE_VALID) error = cu->cuDevicePrimaryCtxSetFlags(device, device_flags);
    return done(error == SUCCESS ? primary_context(cu, device, &context) : error);
}

API cudaError_t cudaDeviceReset(void)
{
    ENTER_WITHOUT_CONTEXT(cu);
    int device;
    cudaError_t error = current_device(cu, &device);
    if (error != SUCCESS) return done(error);
    pthread_mutex_lock(&contexts_lock);
    Handle context = primary[device];
    primary[device] = NULL;
    error = cu->cuDevicePrimaryCtxReset(device);
    if (context != NULL) cu->cuDevicePrimaryCtxRelease(device);
    __atomic_add_fetch(&resets, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&contexts_lock);
    return done(error);
}

API cudaError_t cudaDriverGetVersion(int *version)
{
    if (version == NULL) return done(INVALID_VALUE);
    *version = 0; /* documented: without a driver the version is 0, and there is no error */
    const struct driver *cu = loaded(0);
    return cu == NULL ? SUCCESS : done(cu->cuDriverGetVersion(version));
}

API cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (version == NULL) return done(INVALID_VALUE);
    *version = CUDART_VERSION;
    return SUCCESS;
}

/* Documented: for a name or version that the driver lacks, the call succeeds, returns NULL and sets the reason. */
static cudaError_t entry_point(const char *name, void **found, unsigned version, unsigned long long flags, int *status,
                               int per_thread)
{
    const struct driver *cu = loaded(0);
    int driver_version = 0, why = 0;
    if (name == NULL || found == NULL) return done(INVALID_VALUE);
    *found = NULL;
    if (cu == NULL) return done(load_error);
    cudaError_t error = cu->cuDriverGetVersion(&driver_version);
    if (error != SUCCESS) return done(error);
    if (version > (unsigned)driver_version) return done(INVALID_VALUE);
    if (flags == 0 && per_thread) flags = PER_THREAD_DEFAULT_STREAM;
    error = cu->get_proc_address(name, found, (int)version, flags, &why);
    if (status != NULL) *status = why;
    return done(error == NOT_FOUND ? SUCCESS : error);
}

API cudaError_t cudaGetDriverEntryPoint(const char *name, void **found, unsigned long long flags, int *status)
{
    return entry_point(name, found, CUDART_VERSION, flags, status, 0);
}

API cudaError_t cudaGetDriverEntryPoint_ptsz(const char *name, void **found, unsigned long long flags, int *status)
{
    return entry_point(name, found, CUDART_VERSION, flags, status, 1);
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version,
                                                 unsigned long long flags, int *status)
{
    return entry_point(name, found, version, flags, status, 0);
}

API cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **found, unsigned version,
                                                      unsigned long long flags, int *status)
{
    return entry_point(name, found, version, flags, status, 1);
}
