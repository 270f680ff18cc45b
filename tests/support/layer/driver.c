/* The driver's functions, all looked up at the first call. */
#include "layer.h"
#include <string.h>

static struct driver the_driver;

static void find_all(void)
{
    void *found;
#define FIND(name)                 \
    found = driver_symbol(#name);  \
    memcpy(&the_driver.name, &found, sizeof found);
    HOOKED(FIND)
    ASKED(FIND)
#undef FIND
}

const struct driver *driver(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_all);
    return &the_driver;
}

int current_device(void)
{
    int device;
    return driver()->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
}

CUcontext current_context(void)
{
    CUcontext context;
    return driver()->cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}
