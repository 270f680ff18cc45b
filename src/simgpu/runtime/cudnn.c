/* The older functions of the stand-in cuDNN, which PyTorch uses for batch normalisation, recurrent nets and losses, and
 * ONNX Runtime 1.23 for all. Those that no framework of ours reaches say so and answer that they are not supported. */
#include "cudnn.h"

/* Every handle and descriptor, with what is asked for again. */
struct Object {
    void *stream;
    int type, format, dimensions, sizes[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
    struct { int cell, biases, directions, input, hidden, projection, layers; } rnn;
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
static int answer(size_t *out, size_t bytes)
{
    if (!out) return BAD_PARAM;
    *out = bytes;
    return OK;
}
static size_t bytes_of(const struct Object *tensor)
{
    size_t elements = tensor != NULL;
    for (int i = 0; tensor && i < tensor->dimensions; i++)
        if (tensor->sizes[i] > 1) elements += (size_t)(tensor->sizes[i] - 1) * (size_t)tensor->strides[i];
    return tensor ? (elements * bits_of(tensor->type) + 7) / 8 : 0;
}

#define OBJECT(name)                                                    \
    API int cudnnCreate##name(void **out) { return make(out); }         \
    API int cudnnDestroy##name(void *object) { return discard(object); }
OBJECT()
OBJECT(ActivationDescriptor)
OBJECT(CTCLossDescriptor)
OBJECT(ConvolutionDescriptor)
OBJECT(DropoutDescriptor)
OBJECT(FilterDescriptor)
OBJECT(LRNDescriptor)
OBJECT(OpTensorDescriptor)
OBJECT(PoolingDescriptor)
OBJECT(RNNDataDescriptor)
OBJECT(RNNDescriptor)
OBJECT(ReduceTensorDescriptor)
OBJECT(SpatialTransformerDescriptor)
OBJECT(TensorDescriptor)

#define SUCCEEDS(name) API int cudnn##name(void) { return OK; }
SUCCEEDS(ActivationBackward) SUCCEEDS(ActivationForward) SUCCEEDS(AddTensor) SUCCEEDS(AdvVersionCheck)
SUCCEEDS(BatchNormalizationBackward) SUCCEEDS(BatchNormalizationBackwardEx) SUCCEEDS(BatchNormalizationForwardInference)
SUCCEEDS(BatchNormalizationForwardTraining) SUCCEEDS(BatchNormalizationForwardTrainingEx) SUCCEEDS(BuildRNNDynamic)
SUCCEEDS(CTCLoss) SUCCEEDS(CTCLoss_v8) SUCCEEDS(CnnVersionCheck) SUCCEEDS(ConvolutionBackwardBias)
SUCCEEDS(ConvolutionBackwardData) SUCCEEDS(ConvolutionBackwardFilter) SUCCEEDS(ConvolutionBiasActivationForward)
SUCCEEDS(ConvolutionForward) SUCCEEDS(DeriveBNTensorDescriptor) SUCCEEDS(DropoutBackward) SUCCEEDS(DropoutForward)
SUCCEEDS(GraphVersionCheck) SUCCEEDS(LRNCrossChannelBackward) SUCCEEDS(LRNCrossChannelForward) SUCCEEDS(OpTensor)
SUCCEEDS(OpsVersionCheck) SUCCEEDS(PoolingBackward) SUCCEEDS(PoolingForward) SUCCEEDS(RNNBackwardData_v8)
SUCCEEDS(RNNBackwardWeights_v8) SUCCEEDS(RNNForward) SUCCEEDS(RNNSetClip_v8) SUCCEEDS(RNNSetClip_v9) SUCCEEDS(ReduceTensor)
SUCCEEDS(RestoreDropoutDescriptor) SUCCEEDS(ScaleTensor) SUCCEEDS(SetActivationDescriptor)
SUCCEEDS(SetActivationDescriptorSwishBeta) SUCCEEDS(SetCTCLossDescriptor) SUCCEEDS(SetCTCLossDescriptorEx)
SUCCEEDS(SetCTCLossDescriptor_v8) SUCCEEDS(SetCTCLossDescriptor_v9) SUCCEEDS(SetCallback) SUCCEEDS(SetConvolution2dDescriptor)
SUCCEEDS(SetConvolutionGroupCount) SUCCEEDS(SetConvolutionMathType) SUCCEEDS(SetConvolutionNdDescriptor)
SUCCEEDS(SetConvolutionReorderType) SUCCEEDS(SetDropoutDescriptor) SUCCEEDS(SetLRNDescriptor) SUCCEEDS(SetOpTensorDescriptor)
SUCCEEDS(SetPooling2dDescriptor) SUCCEEDS(SetPoolingNdDescriptor) SUCCEEDS(SetReduceTensorDescriptor)
SUCCEEDS(SetSpatialTransformerNdDescriptor) SUCCEEDS(SetTensor) SUCCEEDS(SoftmaxBackward) SUCCEEDS(SoftmaxForward)
SUCCEEDS(SpatialTfGridGeneratorBackward) SUCCEEDS(SpatialTfGridGeneratorForward) SUCCEEDS(SpatialTfSamplerBackward)
SUCCEEDS(SpatialTfSamplerForward) SUCCEEDS(TransformTensor)

API size_t cudnnGetVersion(void) { return VERSION; }
API size_t cudnnGetMaxDeviceVersion(void) { return VERSION; }
API size_t cudnnGetCudartVersion(void) { return 13000; }
API int cudnnGetProperty(int which, int *value)
{
    if (!value || which < 0 || which > 2) return BAD_PARAM;
    *value = which == 0 ? VERSION / 10000 : which == 1 ? VERSION / 100 % 100 : VERSION % 100;
    return OK;
}
API const char *cudnnGetErrorString(int status)
{
    return status == OK ? "CUDNN_STATUS_SUCCESS" : status == BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM"
        : status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "an error of the stand-in cuDNN";
}
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

/* Without strides the last dimension is the innermost. */
API int cudnnSetTensorNdDescriptor(struct Object *tensor, int type, int dimensions, const int *sizes, const int *strides)
{
    if (!tensor || !sizes || dimensions < 0 || dimensions > MAX_DIMENSIONS) return BAD_PARAM;
    tensor->type = type;
    tensor->dimensions = dimensions;
    for (int i = dimensions - 1, step = 1; i >= 0; step *= sizes[i--]) {
        tensor->sizes[i] = sizes[i];
        tensor->strides[i] = strides ? strides[i] : step;
    }
    return OK;
}
API int cudnnSetTensorNdDescriptorEx(struct Object *tensor, U int format, int type, int dimensions, const int *sizes)
{
    return cudnnSetTensorNdDescriptor(tensor, type, dimensions, sizes, NULL);
}
API int cudnnSetTensor4dDescriptor(struct Object *tensor, U int format, int type, int n, int c, int h, int w)
{
    return cudnnSetTensorNdDescriptor(tensor, type, 4, (int[]){n, c, h, w}, NULL);
}
API int cudnnSetTensor4dDescriptorEx(struct Object *tensor, int type, int n, int c, int h, int w, int ns, int cs, int hs, int ws)
{
    return cudnnSetTensorNdDescriptor(tensor, type, 4, (int[]){n, c, h, w}, (int[]){ns, cs, hs, ws});
}
API int cudnnGetTensorNdDescriptor(struct Object *tensor, int wanted, int *type, int *dimensions, int *sizes, int *strides)
{
    if (!tensor) return BAD_PARAM;
    int count = wanted < tensor->dimensions ? wanted : tensor->dimensions;
    *type = tensor->type;
    *dimensions = tensor->dimensions;
    memcpy(sizes, tensor->sizes, sizeof(int) * (size_t)count);
    if (strides) memcpy(strides, tensor->strides, sizeof(int) * (size_t)count);
    return OK;
}
API int cudnnGetTensorSizeInBytes(struct Object *tensor, size_t *bytes) { return tensor ? answer(bytes, bytes_of(tensor)) : BAD_PARAM; }

API int cudnnSetFilterNdDescriptor(struct Object *filter, int type, int format, int dimensions, const int *sizes)
{
    if (filter) filter->format = format;
    return cudnnSetTensorNdDescriptor(filter, type, dimensions, sizes, NULL);
}
API int cudnnSetFilter4dDescriptor(struct Object *filter, int type, int format, int k, int c, int h, int w)
{
    return cudnnSetFilterNdDescriptor(filter, type, format, 4, (int[]){k, c, h, w});
}
API int cudnnGetFilterNdDescriptor(struct Object *filter, int wanted, int *type, int *format, int *dimensions, int *sizes)
{
    if (filter) *format = filter->format;
    return cudnnGetTensorNdDescriptor(filter, wanted, type, dimensions, sizes, NULL);
}
API int cudnnGetFilterSizeInBytes(struct Object *filter, size_t *bytes) { return cudnnGetTensorSizeInBytes(filter, bytes); }

/* cudnnConvolutionFwdAlgoPerf_t and its like for the other directions: number and workspace of an algorithm. */
struct Performance { int algorithm, status; float time; size_t memory; int determinism, math, reserved[3]; };
static int algorithms(size_t operands, int wanted, int *found, struct Performance *out)
{
    if (wanted < 1 || !found || !out) return BAD_PARAM;
    *found = wanted < ENGINES ? wanted : ENGINES;
    for (int i = 0; i < *found; i++)
        out[i] = (struct Performance){.algorithm = offered(i), .time = (float)(i + 1), .memory = workspace_of(offered(i), operands)};
    return OK;
}
/* The three tensors of a convolution are a, b and c, in the order of the headers. */
#define CONVOLUTION(direction)                                                                                                        \
    API int cudnnGetConvolution##direction##AlgorithmMaxCount(U void *handle, int *count)                                             \
    {                                                                                                                                 \
        if (!count) return BAD_PARAM;                                                                                                 \
        *count = ENGINES;                                                                                                             \
        return OK;                                                                                                                    \
    }                                                                                                                                 \
    API int cudnnGetConvolution##direction##Algorithm_v7(U void *handle, void *a, void *b, U void *convolution, void *c, int wanted,  \
                                                         int *found, struct Performance *out)                                         \
    {                                                                                                                                 \
        return algorithms(bytes_of(a) + bytes_of(b) + bytes_of(c), wanted, found, out);                                               \
    }                                                                                                                                 \
    API int cudnnFindConvolution##direction##Algorithm(U void *handle, void *a, void *b, U void *convolution, void *c, int wanted,    \
                                                       int *found, struct Performance *out)                                           \
    {                                                                                                                                 \
        return algorithms(bytes_of(a) + bytes_of(b) + bytes_of(c), wanted, found, out);                                               \
    }                                                                                                                                 \
    API int cudnnFindConvolution##direction##AlgorithmEx(U void *handle, void *a, U void *a_at, void *b, U void *b_at,                \
                                                         U void *convolution, void *c, U void *c_at, int wanted, int *found,          \
                                                         struct Performance *out, U void *workspace, U size_t size)                   \
    {                                                                                                                                 \
        return algorithms(bytes_of(a) + bytes_of(b) + bytes_of(c), wanted, found, out);                                               \
    }                                                                                                                                 \
    API int cudnnGetConvolution##direction##WorkspaceSize(U void *handle, void *a, void *b, U void *convolution, void *c,             \
                                                          int algorithm, size_t *bytes)                                               \
    {                                                                                                                                 \
        if (algorithm < 0 || algorithm >= ENGINES) return NOT_SUPPORTED;                                                              \
        return answer(bytes, workspace_of(algorithm, bytes_of(a) + bytes_of(b) + bytes_of(c)));                                       \
    }
CONVOLUTION(Forward)
CONVOLUTION(BackwardData)
CONVOLUTION(BackwardFilter)

/* Batch normalisation keeps sums of each channel; with an activation, one bit of each element is kept until the way back. */
API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(U void *handle, U int mode, U int operations, U void *x, U void *z, U void *y,
                                                                 void *scale, U void *activation, size_t *bytes)
{
    return answer(bytes, rounded(2 * bytes_of(scale)));
}
API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(U void *handle, U int mode, U int operations, U void *x, U void *y, U void *dy,
                                                          U void *dz, U void *dx, void *scale, U void *activation, size_t *bytes)
{
    return answer(bytes, rounded(2 * bytes_of(scale)));
}
API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(U void *handle, U int mode, int operations, U void *activation, void *x,
                                                             size_t *bytes)
{
    return answer(bytes, operations == 0 ? 0 : rounded(bytes_of(x) / 16));
}

API int cudnnDropoutGetStatesSize(U void *handle, size_t *bytes) { return answer(bytes, 2 << 20); }
API int cudnnDropoutGetReserveSpaceSize(void *x, size_t *bytes) { return answer(bytes, rounded(bytes_of(x) / 16)); }
API int cudnnGetReductionIndicesSize(U void *handle, U void *reduction, U void *a, U void *c, size_t *bytes) { return answer(bytes, 0); }
API int cudnnGetReductionWorkspaceSize(U void *handle, U void *reduction, U void *a, void *c, size_t *bytes) { return answer(bytes, rounded(bytes_of(c))); }
API int cudnnGetCTCLossWorkspaceSize(U void *handle, void *probabilities, U void *gradients, U void *labels, U void *label_lengths,
                                     U void *input_lengths, U int algorithm, U void *loss, size_t *bytes)
{
    return answer(bytes, rounded(2 * bytes_of(probabilities)));
}
API int cudnnGetCTCLossWorkspaceSize_v8(U void *handle, U int algorithm, U void *loss, void *probabilities, U void *gradients, size_t *bytes)
{
    return answer(bytes, rounded(2 * bytes_of(probabilities)));
}

/* Recurrent nets. The weights of all layers come first, each layer's input matrices, recurrent matrices and projection;
 * then the biases in the same order. A bidirectional layer is two. */
enum { LSTM = 2, GRU = 3, NO_BIAS = 0, DOUBLE_BIAS = 2 };
static size_t gates(const struct Object *net) { return net->rnn.cell == LSTM ? 4 : net->rnn.cell == GRU ? 3 : 1; }
static size_t output(const struct Object *net) { return (size_t)(net->rnn.projection ? net->rnn.projection : net->rnn.hidden); }
static size_t layers(const struct Object *net) { return (size_t)(net->rnn.layers * net->rnn.directions); }
static size_t columns(const struct Object *net, size_t layer, size_t matrix)
{
    if (matrix >= 2 * gates(net)) return (size_t)net->rnn.hidden;
    if (matrix >= gates(net)) return output(net);
    return layer < (size_t)net->rnn.directions ? (size_t)net->rnn.input : output(net) * (size_t)net->rnn.directions;
}
static int projected(const struct Object *net) { return net->rnn.projection && net->rnn.projection != net->rnn.hidden; }
/* The elements of a layer's weights before a matrix. */
static size_t before(const struct Object *net, size_t layer, size_t matrix)
{
    size_t elements = 0;
    for (size_t i = 0; i < matrix; i++) elements += columns(net, layer, i) * (i < 2 * gates(net) ? (size_t)net->rnn.hidden : output(net));
    return elements;
}
static size_t matrices(const struct Object *net) { return 2 * gates(net) + (projected(net) ? 1 : 0); }
static size_t biases(const struct Object *net) { return net->rnn.biases == NO_BIAS ? 0 : (net->rnn.biases == DOUBLE_BIAS ? 2 : 1) * gates(net); }
static size_t weights(const struct Object *net, size_t end)
{
    size_t elements = 0;
    for (size_t layer = 0; layer < end; layer++) elements += before(net, layer, matrices(net));
    return elements;
}

API int cudnnSetRNNDescriptor_v8(struct Object *net, U int algorithm, int cell, int bias, int direction, U int input_mode, int type, U int precision,
                                 U int math, int input, int hidden, int projection, int count, U void *dropout, U unsigned flags)
{
    if (!net || input < 1 || hidden < 1 || count < 1 || cell < 0 || cell > GRU) return BAD_PARAM;
    net->type = type;
    net->rnn.cell = cell, net->rnn.biases = bias, net->rnn.directions = direction + 1;
    net->rnn.input = input, net->rnn.hidden = hidden, net->rnn.projection = projection, net->rnn.layers = count;
    return OK;
}
API int cudnnSetRNNDataDescriptor(struct Object *data, int type, U int layout, int length, int batch, int vector, U const int *lengths, U void *fill)
{
    return cudnnSetTensorNdDescriptor(data, type, 3, (int[]){length, batch, vector}, NULL);
}
API int cudnnGetRNNWeightSpaceSize(U void *handle, struct Object *net, size_t *bytes)
{
    if (!net) return BAD_PARAM;
    return answer(bytes, (weights(net, layers(net)) + layers(net) * biases(net) * (size_t)net->rnn.hidden) * bits_of(net->type) / 8);
}
API int cudnnGetRNNTempSpaceSizes(U void *handle, struct Object *net, int training, struct Object *x, size_t *work, size_t *reserve)
{
    if (!net || !x) return BAD_PARAM;
    size_t steps = (size_t)x->sizes[0] * (size_t)x->sizes[1] * (size_t)net->rnn.hidden * layers(net) * bits_of(net->type) / 8;
    if (reserve) *reserve = training ? rounded(steps * (gates(net) + 2)) : 0;
    return answer(work, rounded(steps * gates(net)));
}
API int cudnnGetRNNWeightParams(U void *handle, struct Object *net, int layer, U size_t size, char *space, int id, struct Object *matrix,
                                void **matrix_at, struct Object *bias, void **bias_at)
{
    if (!net || layer < 0 || id < 0 || (size_t)layer >= layers(net)) return BAD_PARAM;
    size_t wanted = (size_t)id, bytes = bits_of(net->type) / 8, hidden = (size_t)net->rnn.hidden;
    int rows = wanted < 2 * gates(net) ? net->rnn.hidden : (int)output(net);
    if (matrix_at) *matrix_at = NULL;
    if (bias_at) *bias_at = NULL;
    if (matrix_at && wanted < matrices(net)) {
        *matrix_at = space + (weights(net, (size_t)layer) + before(net, (size_t)layer, wanted)) * bytes;
        cudnnSetTensorNdDescriptor(matrix, net->type, 3, (int[]){1, rows, (int)columns(net, (size_t)layer, wanted)}, NULL);
    }
    /* With one bias a gate, cuDNN adds it to the product of the input (1) or of the recurrent matrix (3). */
    size_t first = net->rnn.biases == 3 ? gates(net) : 0;
    if (bias_at && wanted >= first && wanted - first < biases(net)) {
        *bias_at = space + (weights(net, layers(net)) + ((size_t)layer * biases(net) + wanted - first) * hidden) * bytes;
        cudnnSetTensorNdDescriptor(bias, net->type, 3, (int[]){1, net->rnn.hidden, 1}, NULL);
    }
    return OK;
}

static int not_served(const char *name, int *told)
{
    if (!__atomic_exchange_n(told, 1, __ATOMIC_RELAXED))
        fprintf(stderr, "simgpu: the stand-in cuDNN has no %s; it answers CUDNN_STATUS_NOT_SUPPORTED\n", name);
    return NOT_SUPPORTED;
}
#define MISSING(name)                             \
    API int cudnn##name(void)                     \
    {                                             \
        static int told;                          \
        return not_served("cudnn" #name, &told);  \
    }
MISSING(BackendPopulateCudaGraph) MISSING(BackendUpdateCudaGraph) MISSING(CreateAttnDescriptor)
MISSING(CreateFusedOpsConstParamPack) MISSING(CreateFusedOpsPlan) MISSING(CreateFusedOpsVariantParamPack)
MISSING(CreateSeqDataDescriptor) MISSING(CreateTensorTransformDescriptor) MISSING(DeriveNormTensorDescriptor)
MISSING(DestroyAttnDescriptor) MISSING(DestroyFusedOpsConstParamPack) MISSING(DestroyFusedOpsPlan)
MISSING(DestroyFusedOpsVariantParamPack) MISSING(DestroySeqDataDescriptor) MISSING(DestroyTensorTransformDescriptor)
MISSING(DivisiveNormalizationBackward) MISSING(DivisiveNormalizationForward) MISSING(FusedOpsExecute)
MISSING(GetActivationDescriptor) MISSING(GetActivationDescriptorSwishBeta) MISSING(GetAttnDescriptor)
MISSING(GetCTCLossDescriptor) MISSING(GetCTCLossDescriptorEx) MISSING(GetCTCLossDescriptor_v8) MISSING(GetCTCLossDescriptor_v9)
MISSING(GetCallback) MISSING(GetConvolution2dDescriptor) MISSING(GetConvolution2dForwardOutputDim)
MISSING(GetConvolutionGroupCount) MISSING(GetConvolutionMathType) MISSING(GetConvolutionNdDescriptor)
MISSING(GetConvolutionNdForwardOutputDim) MISSING(GetConvolutionReorderType) MISSING(GetDropoutDescriptor)
MISSING(GetFilter4dDescriptor) MISSING(GetFoldedConvBackwardDataDescriptors) MISSING(GetFusedOpsConstParamPackAttribute)
MISSING(GetFusedOpsVariantParamPackAttribute) MISSING(GetLRNDescriptor) MISSING(GetMultiHeadAttnBuffers)
MISSING(GetMultiHeadAttnWeights) MISSING(GetNormalizationBackwardWorkspaceSize)
MISSING(GetNormalizationForwardTrainingWorkspaceSize) MISSING(GetNormalizationTrainingReserveSpaceSize)
MISSING(GetOpTensorDescriptor) MISSING(GetPooling2dDescriptor) MISSING(GetPooling2dForwardOutputDim)
MISSING(GetPoolingNdDescriptor) MISSING(GetPoolingNdForwardOutputDim) MISSING(GetRNNDataDescriptor) MISSING(GetRNNDescriptor_v8)
MISSING(GetReduceTensorDescriptor) MISSING(GetSeqDataDescriptor) MISSING(GetTensor4dDescriptor)
MISSING(GetTensorTransformDescriptor) MISSING(Im2Col) MISSING(InitTransformDest) MISSING(MakeFusedOpsPlan)
MISSING(MultiHeadAttnBackwardData) MISSING(MultiHeadAttnBackwardWeights) MISSING(MultiHeadAttnForward)
MISSING(NormalizationBackward) MISSING(NormalizationForwardInference) MISSING(NormalizationForwardTraining)
MISSING(QueryRuntimeError) MISSING(RNNGetClip_v8) MISSING(RNNGetClip_v9) MISSING(ReorderFilterAndBias) MISSING(SetAttnDescriptor)
MISSING(SetFusedOpsConstParamPackAttribute) MISSING(SetFusedOpsVariantParamPackAttribute) MISSING(SetSeqDataDescriptor)
MISSING(SetTensorTransformDescriptor) MISSING(TransformFilter) MISSING(TransformTensorEx)
