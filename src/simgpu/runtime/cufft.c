/* A stand-in cuFFT with the functions that the CUDA provider of ONNX Runtime 1.23 is linked with (cufft.h, cufftXt.h). */
#include <stddef.h>

#define API __attribute__((visibility("default")))
#define U __attribute__((unused))

API int cufftCreate(int *plan) { *plan = 1; return 0; }
API int cufftSetStream(void) { return 0; }
API int cufftXtExec(void) { return 0; }
API int cufftXtMakePlanMany(U int plan, U int rank, U long long *n, U long long *in, U long long istride, U long long idist, U int itype,
                            U long long *out, U long long ostride, U long long odist, U int otype, U long long batch, size_t *bytes, U int etype)
{
    *bytes = 0;
    return 0;
}
