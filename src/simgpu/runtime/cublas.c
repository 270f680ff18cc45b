/* A stand-in cuBLAS. Handles remember their settings; computations succeed and compute nothing.
 *
 * It is written from the public headers. With it a program that is linked with cuBLAS runs on the simulated GPU, where
 * no kernel computes anything either. It makes no CUDA calls. Memory in which a routine would leave a result is not
 * changed, on the device or the host. The argument checks of the batched factorisations report success. */
#include <stddef.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))

enum { OK = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { VERSION = CUBLAS_MAJOR * 10000 + 100 };

typedef struct {
    void *stream, *workspace;
    size_t workspace_size;
    int math_mode, pointer_mode, atomics_mode, sm_count, emulation;
} Context;

API int cublasCreate_v2(Context **out)
{
    if (out == NULL) return INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return *out == NULL ? ALLOC_FAILED : OK;
}

API int cublasDestroy_v2(Context *context)
{
    if (context == NULL) return NOT_INITIALIZED;
    free(context);
    return OK;
}

API int cublasSetWorkspace_v2(Context *context, void *workspace, size_t size)
{
    if (context == NULL) return NOT_INITIALIZED;
    context->workspace = workspace;
    context->workspace_size = size;
    return OK;
}

/* A setting: its field, its setter and its getter. */
#define SETTING(setter, getter, type, field)      \
    API int setter(Context *context, type value)  \
    {                                             \
        if (context == NULL) return NOT_INITIALIZED; \
        context->field = value;                   \
        return OK;                                \
    }                                             \
    API int getter(Context *context, type *value) \
    {                                             \
        if (context == NULL) return NOT_INITIALIZED; \
        if (value == NULL) return INVALID_VALUE;  \
        *value = context->field;                  \
        return OK;                                \
    }
SETTING(cublasSetStream_v2, cublasGetStream_v2, void *, stream)
SETTING(cublasSetMathMode, cublasGetMathMode, int, math_mode)
SETTING(cublasSetPointerMode_v2, cublasGetPointerMode_v2, int, pointer_mode)
SETTING(cublasSetAtomicsMode, cublasGetAtomicsMode, int, atomics_mode)
SETTING(cublasSetSmCountTarget, cublasGetSmCountTarget, int, sm_count)
SETTING(cublasSetEmulationStrategy, cublasGetEmulationStrategy, int, emulation)

API int cublasGetVersion_v2(Context *context, int *version)
{
    (void)context;
    if (version == NULL) return INVALID_VALUE;
    *version = VERSION;
    return OK;
}

API int cublasGetProperty(int which, int *value)
{
    enum { MAJOR, MINOR, PATCH };
    if (value == NULL || which < MAJOR || which > PATCH) return INVALID_VALUE;
    *value = which == MAJOR ? CUBLAS_MAJOR : which == MINOR ? 1 : 0;
    return OK;
}

API size_t cublasGetCudartVersion(void)
{
    return CUBLAS_MAJOR * 1000;
}

static const struct {
    int code;
    const char *name, *text;
} statuses[] = {
    {OK, "CUBLAS_STATUS_SUCCESS", "success"},
    {NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "an unsupported value or parameter was passed to the function"},
    {NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "the functionality requested is not supported"},
};

API const char *cublasGetStatusName(int status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].code == status) return statuses[i].name;
    return "unknown";
}

API const char *cublasGetStatusString(int status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].code == status) return statuses[i].text;
    return "unknown";
}

/* Another library of the toolkit needs this name, which no header declares. It exists so that the name resolves. */
API int cublasSetEnvironmentMode(void)
{
    return NOT_SUPPORTED;
}

/* Factorisations that report on the host whether their arguments are valid. */
#define LEAST_SQUARES(T)                                                                                           \
    API int cublas##T##geqrfBatched(void *h, int m, int n, void *a, int lda, void *tau, int *info, int batch)      \
    {                                                                                                              \
        (void)h, (void)m, (void)n, (void)a, (void)lda, (void)tau, (void)batch;                                     \
        if (info != NULL) *info = 0;                                                                               \
        return OK;                                                                                                 \
    }                                                                                                              \
    API int cublas##T##gelsBatched(void *h, int trans, int m, int n, int nrhs, void *a, int lda, void *c, int ldc, \
                                   int *info, int *device_info, int batch)                                         \
    {                                                                                                              \
        (void)h, (void)trans, (void)m, (void)n, (void)nrhs, (void)a, (void)lda, (void)c, (void)ldc;                \
        (void)device_info, (void)batch;                                                                            \
        if (info != NULL) *info = 0;                                                                               \
        return OK;                                                                                                 \
    }                                                                                                              \
    API int cublas##T##getrsBatched(void *h, int trans, int n, int nrhs, void *a, int lda, const int *pivots,      \
                                    void *b, int ldb, int *info, int batch)                                        \
    {                                                                                                              \
        (void)h, (void)trans, (void)n, (void)nrhs, (void)a, (void)lda, (void)pivots, (void)b, (void)ldb;           \
        (void)batch;                                                                                               \
        if (info != NULL) *info = 0;                                                                               \
        return OK;                                                                                                 \
    }
LEAST_SQUARES(S) LEAST_SQUARES(D) LEAST_SQUARES(C) LEAST_SQUARES(Z)

/* All computing functions. The caller removes the arguments from the stack, so one signature fits all. */
#define ONE(name) API int name(void) { return OK; }
#define WIDE(name) ONE(name) ONE(name##_64)
#define REAL(name) WIDE(cublasS##name) WIDE(cublasD##name)
#define COMPLEX(name) WIDE(cublasC##name) WIDE(cublasZ##name)
#define ALL(name) REAL(name) COMPLEX(name)

/* vectors */
ALL(axpy_v2) ALL(copy_v2) ALL(scal_v2) ALL(swap_v2) ALL(rot_v2) ALL(rotg_v2)
REAL(dot_v2) REAL(nrm2_v2) REAL(asum_v2) REAL(rotm_v2) REAL(rotmg_v2) COMPLEX(dotc_v2) COMPLEX(dotu_v2)
WIDE(cublasScnrm2_v2) WIDE(cublasDznrm2_v2) WIDE(cublasScasum_v2) WIDE(cublasDzasum_v2)
WIDE(cublasCsscal_v2) WIDE(cublasZdscal_v2) WIDE(cublasCsrot_v2) WIDE(cublasZdrot_v2)
WIDE(cublasIsamax_v2) WIDE(cublasIdamax_v2) WIDE(cublasIcamax_v2) WIDE(cublasIzamax_v2)
WIDE(cublasIsamin_v2) WIDE(cublasIdamin_v2) WIDE(cublasIcamin_v2) WIDE(cublasIzamin_v2)
WIDE(cublasAxpyEx) WIDE(cublasCopyEx) WIDE(cublasScalEx) WIDE(cublasSwapEx) WIDE(cublasDotEx) WIDE(cublasDotcEx)
WIDE(cublasNrm2Ex) WIDE(cublasAsumEx) WIDE(cublasRotEx) WIDE(cublasIamaxEx) WIDE(cublasIaminEx)

/* matrix and vector */
ALL(gemv_v2) ALL(gbmv_v2) ALL(trmv_v2) ALL(tbmv_v2) ALL(tpmv_v2) ALL(trsv_v2) ALL(tbsv_v2) ALL(tpsv_v2) ALL(symv_v2)
ALL(syr_v2) ALL(syr2_v2) ALL(gemvBatched) ALL(gemvStridedBatched)
REAL(ger_v2) REAL(sbmv_v2) REAL(spmv_v2) REAL(spr_v2) REAL(spr2_v2)
COMPLEX(gerc_v2) COMPLEX(geru_v2) COMPLEX(hemv_v2) COMPLEX(hbmv_v2) COMPLEX(hpmv_v2) COMPLEX(her_v2) COMPLEX(her2_v2)
COMPLEX(hpr_v2) COMPLEX(hpr2_v2)
WIDE(cublasHSHgemvBatched) WIDE(cublasHSSgemvBatched) WIDE(cublasTSTgemvBatched) WIDE(cublasTSSgemvBatched)
WIDE(cublasHSHgemvStridedBatched) WIDE(cublasHSSgemvStridedBatched)
WIDE(cublasTSTgemvStridedBatched) WIDE(cublasTSSgemvStridedBatched)

/* matrix and matrix */
ALL(gemm_v2) ALL(gemmBatched) ALL(gemmStridedBatched) ALL(symm_v2) ALL(syrk_v2) ALL(syr2k_v2) ALL(syrkx) ALL(trmm_v2)
ALL(trsm_v2) ALL(trsmBatched) ALL(geam) ALL(dgmm) ALL(getrfBatched) ALL(getriBatched) ALL(matinvBatched) ALL(tpttr)
ALL(trttp)
COMPLEX(hemm_v2) COMPLEX(herk_v2) COMPLEX(her2k_v2) COMPLEX(herkx) COMPLEX(gemm3m)
REAL(gemmGroupedBatched)
WIDE(cublasHgemm) WIDE(cublasHgemmBatched) WIDE(cublasHgemmStridedBatched) WIDE(cublasSgemmEx) WIDE(cublasCgemmEx)
WIDE(cublasGemmEx) WIDE(cublasGemmBatchedEx) WIDE(cublasGemmStridedBatchedEx) WIDE(cublasGemmGroupedBatchedEx)

/* between host and device */
WIDE(cublasSetVector) WIDE(cublasGetVector) WIDE(cublasSetMatrix) WIDE(cublasGetMatrix)
WIDE(cublasSetVectorAsync) WIDE(cublasGetVectorAsync) WIDE(cublasSetMatrixAsync) WIDE(cublasGetMatrixAsync)

ONE(cublasLoggerConfigure) ONE(cublasSetLoggerCallback) ONE(cublasGetLoggerCallback)
