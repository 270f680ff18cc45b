/* A layer that answers for captures of CU_STREAM_PER_THREAD, which the simulator does not support. It records no
 * work. */
#include "cuda_api.h"

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { return (void)stream, (void)mode, CUDA_SUCCESS; }
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) { return (void)stream, *graph = NULL, CUDA_SUCCESS; }
