/* A driver that captures CU_STREAM_PER_THREAD; the simulator's does not. Nothing is recorded. */
#include "cuda_api.h"

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { return (void)stream, (void)mode, CUDA_SUCCESS; }
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) { return (void)stream, *graph = NULL, CUDA_SUCCESS; }
