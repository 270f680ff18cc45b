/* A library that calls the runtime with which it was linked. The test builds one such library for each of two
 * runtimes. */
#include <stddef.h>

int cudaMalloc(void **, size_t), cudaFree(void *), cudaPeekAtLastError(void), cudaRuntimeGetVersion(int *);
int cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);

int obtain(void **out, size_t size) { return cudaMalloc(out, size); }
int give_back(void *address) { return cudaFree(address); }
int last_error(void) { return cudaPeekAtLastError(); }
int version(void)
{
    int number = 0;
    cudaRuntimeGetVersion(&number);
    return number / 1000;
}
void *driver_function(const char *name, unsigned version)
{
    void *found = NULL;
    int status;
    return cudaGetDriverEntryPointByVersion(name, &found, version, 0, &status) ? NULL : found;
}
