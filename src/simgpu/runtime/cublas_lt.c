/* A stand-in cuBLASLt. Descriptors can be created, set and freed, the heuristic offers one algorithm, and a
 * multiplication succeeds without computing. See cublas.c, the other half of the same library. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { OK = 0, ALLOC_FAILED = 3, INVALID_VALUE = 7, DESCRIPTOR_SIZE = 256 };
enum { VERSION = CUBLAS_MAJOR * 10000 + 100 };

static int make(void **out)
{
    if (out == NULL) return INVALID_VALUE;
    *out = calloc(1, DESCRIPTOR_SIZE);
    return *out == NULL ? ALLOC_FAILED : OK;
}

static int discard(void *descriptor)
{
    free(descriptor);
    return OK;
}

API int cublasLtCreate(void **out) { return make(out); }
API int cublasLtDestroy(void *handle) { return discard(handle); }

/* A type of descriptor. Attributes that are set are not stored, because nothing here reads them. */
#define DESCRIPTOR(name)                                                       \
    API int cublasLt##name##Create(void **out) { return make(out); }           \
    API int cublasLt##name##Destroy(void *descriptor) { return discard(descriptor); } \
    API int cublasLt##name##SetAttribute(void) { return OK; }                  \
    API int cublasLt##name##Init_internal(void *descriptor, size_t size)       \
    {                                                                          \
        memset(descriptor, 0, size);                                           \
        return OK;                                                             \
    }
DESCRIPTOR(MatmulDesc)
DESCRIPTOR(MatmulPreference)
DESCRIPTOR(MatrixLayout)
DESCRIPTOR(MatrixTransformDesc)

API int cublasLtMatmul(void) { return OK; }
API int cublasLtMatrixTransform(void) { return OK; }

typedef struct {
    unsigned long long algorithm[8];
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} Heuristic;

API int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                       void *preference, int wanted, Heuristic *out, int *found)
{
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    if (wanted < 1 || out == NULL || found == NULL) return INVALID_VALUE;
    memset(out, 0, sizeof *out);
    out->waves = 1;
    *found = 1;
    return OK;
}

API int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int id, void *algorithm)
{
    (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d, (void)id;
    memset(algorithm, 0, sizeof ((Heuristic *)0)->algorithm);
    return OK;
}

API int cublasLtMatmulAlgoCheck(void *handle, void *operation, void *a, void *b, void *c, void *d, const void *algorithm,
                                Heuristic *out)
{
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d;
    memset(out, 0, sizeof *out);
    memcpy(out->algorithm, algorithm, sizeof out->algorithm);
    return OK;
}

/* cublasLt.h 12.9 and 13.1. The attribute is not stored, because nothing here reads it. ONNX Runtime sets some. */
API int cublasLtMatmulAlgoConfigSetAttribute(void) { return OK; }

API size_t cublasLtGetVersion(void) { return VERSION; }
API size_t cublasLtGetCudartVersion(void) { return CUBLAS_MAJOR * 1000; }

API int cublasLtGetProperty(int which, int *value)
{
    enum { MAJOR, MINOR, PATCH };
    if (value == NULL || which < MAJOR || which > PATCH) return INVALID_VALUE;
    *value = which == MAJOR ? CUBLAS_MAJOR : which == MINOR ? 1 : 0;
    return OK;
}

API const char *cublasLtGetStatusName(int status)
{
    return status == OK ? "CUBLAS_STATUS_SUCCESS" : status == INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "unknown";
}

API const char *cublasLtGetStatusString(int status)
{
    return status == OK ? "success" : status == INVALID_VALUE ? "an invalid value" : "unknown";
}
