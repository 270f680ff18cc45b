/* A stand-in cuDNN 9 with the functions that the CUDA provider of ONNX Runtime 1.23 is linked with. Each succeeds and
 * computes nothing. The parameters are those of cudnn_ops_v9.h, cudnn_cnn_v9.h, cudnn_adv_v9.h and cudnn_graph_v9.h. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define U __attribute__((unused))

enum { OK = 0, BAD_PARAM = 2000, ALLOC_FAILED = 4003, VERSION = 91000, MAX_DIMENSIONS = 8 };

/* Every handle and descriptor. Only a tensor's shape and a handle's stream are asked for again. */
struct Object {
    void *stream;
    int type, dimensions, sizes[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
};

static int make(void **out)
{
    if (!out) return BAD_PARAM;
    *out = calloc(1, sizeof(struct Object));
    return *out ? OK : ALLOC_FAILED;
}
static int discard(void *object)
{
    free(object);
    return OK;
}

#define OBJECT(create, destroy)                        \
    API int create(void **out) { return make(out); }   \
    API int destroy(void *object) { return discard(object); }
OBJECT(cudnnCreate, cudnnDestroy)
OBJECT(cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor)
OBJECT(cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor)
OBJECT(cudnnCreateDropoutDescriptor, cudnnDestroyDropoutDescriptor)
OBJECT(cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor)
OBJECT(cudnnCreateLRNDescriptor, cudnnDestroyLRNDescriptor)
OBJECT(cudnnCreatePoolingDescriptor, cudnnDestroyPoolingDescriptor)
OBJECT(cudnnCreateRNNDataDescriptor, cudnnDestroyRNNDataDescriptor)
OBJECT(cudnnCreateRNNDescriptor, cudnnDestroyRNNDescriptor)
OBJECT(cudnnCreateReduceTensorDescriptor, cudnnDestroyReduceTensorDescriptor)
OBJECT(cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor)
API int cudnnBackendCreateDescriptor(U int type, void **out) { return make(out); }
API int cudnnBackendDestroyDescriptor(void *object) { return discard(object); }

#define SUCCEEDS(name) API int name(void) { return OK; }
SUCCEEDS(cudnnActivationForward)
SUCCEEDS(cudnnAddTensor)
SUCCEEDS(cudnnBackendExecute)
SUCCEEDS(cudnnBackendFinalize)
SUCCEEDS(cudnnBackendSetAttribute)
SUCCEEDS(cudnnBatchNormalizationForwardInference)
SUCCEEDS(cudnnBatchNormalizationForwardTraining)
SUCCEEDS(cudnnConvolutionBiasActivationForward)
SUCCEEDS(cudnnConvolutionForward)
SUCCEEDS(cudnnDeriveBNTensorDescriptor)
SUCCEEDS(cudnnLRNCrossChannelForward)
SUCCEEDS(cudnnPoolingForward)
SUCCEEDS(cudnnRNNForward)
SUCCEEDS(cudnnReduceTensor)
SUCCEEDS(cudnnSetActivationDescriptor)
SUCCEEDS(cudnnSetConvolutionGroupCount)
SUCCEEDS(cudnnSetConvolutionMathType)
SUCCEEDS(cudnnSetConvolutionNdDescriptor)
SUCCEEDS(cudnnSetDropoutDescriptor)
SUCCEEDS(cudnnSetFilterNdDescriptor)
SUCCEEDS(cudnnSetLRNDescriptor)
SUCCEEDS(cudnnSetPoolingNdDescriptor)
SUCCEEDS(cudnnSetRNNDataDescriptor)
SUCCEEDS(cudnnSetRNNDescriptor_v8)
SUCCEEDS(cudnnSetReduceTensorDescriptor)
SUCCEEDS(cudnnSoftmaxForward)

API size_t cudnnGetVersion(void) { return VERSION; }
API const char *cudnnGetErrorString(int status) { return status == OK ? "CUDNN_STATUS_SUCCESS" : "an error of the stand-in cuDNN"; }
API void cudnnGetLastErrorString(char *text, size_t room) { snprintf(text, room, "%s", ""); }

API int cudnnSetStream(struct Object *handle, void *stream)
{
    if (!handle) return BAD_PARAM;
    handle->stream = stream;
    return OK;
}
API int cudnnGetStream(struct Object *handle, void **stream)
{
    if (!handle || !stream) return BAD_PARAM;
    *stream = handle->stream;
    return OK;
}

API int cudnnSetTensorNdDescriptor(struct Object *tensor, int type, int dimensions, const int *sizes, const int *strides)
{
    if (!tensor || dimensions < 0 || dimensions > MAX_DIMENSIONS) return BAD_PARAM;
    tensor->type = type;
    tensor->dimensions = dimensions;
    memcpy(tensor->sizes, sizes, sizeof(int) * (size_t)dimensions);
    memcpy(tensor->strides, strides, sizeof(int) * (size_t)dimensions);
    return OK;
}
API int cudnnGetTensorNdDescriptor(struct Object *tensor, int wanted, int *type, int *dimensions, int *sizes, int *strides)
{
    if (!tensor) return BAD_PARAM;
    int count = wanted < tensor->dimensions ? wanted : tensor->dimensions;
    *type = tensor->type;
    *dimensions = tensor->dimensions;
    memcpy(sizes, tensor->sizes, sizeof(int) * (size_t)count);
    memcpy(strides, tensor->strides, sizeof(int) * (size_t)count);
    return OK;
}

/* No attribute has an element, so no engine is offered. */
API int cudnnBackendGetAttribute(U void *object, U int name, U int type, U int64_t wanted, int64_t *count, U void *out)
{
    if (count) *count = 0;
    return OK;
}

/* cudnnConvolutionFwdAlgoPerf_t: the first algorithm, whose status is success. */
struct Performance { int algorithm, status; float time; size_t memory; int determinism, math, reserved[3]; };
static int one_algorithm(int wanted, int *found, struct Performance *out)
{
    if (wanted < 1 || !found || !out) return BAD_PARAM;
    memset(out, 0, sizeof *out);
    *found = 1;
    return OK;
}
API int cudnnGetConvolutionForwardAlgorithm_v7(U void *handle, U void *x, U void *w, U void *convolution, U void *y, int wanted,
                                               int *found, struct Performance *out)
{
    return one_algorithm(wanted, found, out);
}
API int cudnnFindConvolutionForwardAlgorithmEx(U void *handle, U void *x, U void *from, U void *w, U void *filter,
                                               U void *convolution, U void *y, U void *to, int wanted, int *found,
                                               struct Performance *out, U void *workspace, U size_t size)
{
    return one_algorithm(wanted, found, out);
}

static int no_bytes(size_t *bytes)
{
    if (!bytes) return BAD_PARAM;
    *bytes = 0;
    return OK;
}
API int cudnnDropoutGetStatesSize(U void *handle, size_t *bytes) { return no_bytes(bytes); }
API int cudnnGetConvolutionForwardWorkspaceSize(U void *handle, U void *x, U void *w, U void *convolution, U void *y, U int algorithm, size_t *bytes) { return no_bytes(bytes); }
API int cudnnGetReductionIndicesSize(U void *handle, U void *reduction, U void *a, U void *c, size_t *bytes) { return no_bytes(bytes); }
API int cudnnGetReductionWorkspaceSize(U void *handle, U void *reduction, U void *a, U void *c, size_t *bytes) { return no_bytes(bytes); }
API int cudnnGetRNNTempSpaceSizes(U void *handle, U void *rnn, U int mode, U void *x, size_t *work, size_t *reserve)
{
    if (reserve) *reserve = 0;
    return no_bytes(work);
}
API int cudnnGetRNNWeightParams(U void *handle, U void *rnn, U int layer, U size_t size, U const void *weights, U int id,
                                U void *matrix, void **matrix_at, U void *bias, void **bias_at)
{
    if (matrix_at) *matrix_at = NULL;
    if (bias_at) *bias_at = NULL;
    return OK;
}
