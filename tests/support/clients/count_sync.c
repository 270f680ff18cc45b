/* A layer between the library and the driver that counts the calls that wait for work: cuCtxSynchronize and
 * cuEventSynchronize. */
#include <dlfcn.h>
#include <stdatomic.h>

static atomic_int count;

int waits(void) { return count; }

int cuCtxSynchronize(void)
{
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "cuCtxSynchronize");
    count++;
    return next ? next() : 500;
}

int cuEventSynchronize(void *event)
{
    int (*next)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "cuEventSynchronize");
    count++;
    return next ? next(event) : 500;
}
