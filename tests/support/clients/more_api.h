/* Functions of the driver beside those of cuda_api.h that several clients call. */
#ifndef MORE_API_H
#define MORE_API_H

#include "cuda_api.h"

typedef struct { unsigned char bytes[256]; } CUdevResource; /* with room to spare */
CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, int type);
CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups, const CUdevResource *input,
                                     CUdevResource *remaining, unsigned flags, unsigned least);
CUresult cuDevResourceGenerateDesc(void **description, CUdevResource *resources, unsigned count);
CUresult cuGreenCtxCreate(void **green, void *description, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(void *green);
CUresult cuGreenCtxStreamCreate(CUstream *stream, void *green, unsigned flags, int priority);
CUresult cuCtxFromGreenCtx(CUcontext *context, void *green);
CUresult cuModuleLoadData(CUmodule *module, const void *image), cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **parameters,
                        void **extra);
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *callback, void *data);
CUresult cuStreamBeginCaptureToCig(CUstream stream, void *const *parameters), cuStreamEndCaptureToCig(CUstream stream);
CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device);

#endif
