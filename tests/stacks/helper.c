/* Allocates memory while an error of Python is set. Loaded into a Python process. */
#include "client.h"

int allocate_with_error(size_t size)
{
    void (*set)(void *, const char *) = (void (*)(void *, const char *))dlsym(RTLD_DEFAULT, "PyErr_SetString");
    void *(*occurred)(void) = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyErr_Occurred");
    void **value_error = dlsym(RTLD_DEFAULT, "PyExc_ValueError");
    CUdeviceptr address;
    set(*value_error, "kept");
    CHECK(cuMemAlloc_v2(&address, size));
    THAT(occurred() == *value_error);
    return 0;
}
