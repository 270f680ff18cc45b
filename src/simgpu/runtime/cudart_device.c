/* Questions about devices, and settings of the current context. A question with a device number needs no context. */
#include "cudart.h"

#define QUESTION(name, driver_name, params, ...)   \
    API cudaError_t name params                    \
    {                                              \
        ENTER_WITHOUT_CONTEXT(cu);                 \
        return done(cu->driver_name(__VA_ARGS__)); \
    }

QUESTION(cudaDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, int device),
         value, attribute, device)
QUESTION(cudaDeviceGetPCIBusId, cuDeviceGetPCIBusId, (char *text, int size, int device), text, size, device)
QUESTION(cudaDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, (int *device, const char *text), device, text)
QUESTION(cudaDeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, int device, int peer), can, device, peer)
QUESTION(cudaDeviceGetP2PAttribute, cuDeviceGetP2PAttribute, (int *value, int attribute, int device, int peer),
         value, attribute, device, peer)

FORWARD(cudaDeviceSynchronize, cuCtxSynchronize, (void))
FORWARD(cudaDeviceGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int *least, int *greatest), least, greatest)
FORWARD(cudaDeviceGetLimit, cuCtxGetLimit, (size_t *value, int limit), value, limit)
FORWARD(cudaDeviceSetLimit, cuCtxSetLimit, (int limit, size_t value), limit, value)
FORWARD(cudaDeviceGetCacheConfig, cuCtxGetCacheConfig, (int *config), config)
FORWARD(cudaDeviceSetCacheConfig, cuCtxSetCacheConfig, (int config), config)
FORWARD(cudaDeviceFlushGPUDirectRDMAWrites, cuFlushGPUDirectRDMAWrites, (int target, int scope), target, scope)
FORWARD(cudaCtxResetPersistingL2Cache, cuCtxResetPersistingL2Cache, (void))

#if CUDART_VERSION < 13000 /* older names of the same functions */
FORWARD(cudaThreadSynchronize, cuCtxSynchronize, (void))
#endif

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    ENTER(cu, 0);
    Handle context;
    cudaError_t error = primary_context(cu, peer, &context);
    return done(error == SUCCESS ? cu->cuCtxEnablePeerAccess(context, flags) : error);
}

API cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    ENTER(cu, 0);
    Handle context;
    cudaError_t error = primary_context(cu, peer, &context);
    return done(error == SUCCESS ? cu->cuCtxDisablePeerAccess(context) : error);
}

API cudaError_t cudaGetDeviceFlags(unsigned *flags)
{
    int device, active;
    ENTER_WITHOUT_CONTEXT(cu);
    cudaError_t error = current_device(cu, &device);
    return done(error == SUCCESS ? cu->cuDevicePrimaryCtxGetState(device, flags, &active) : error);
}

API cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    int device;
    ENTER_WITHOUT_CONTEXT(cu);
    cudaError_t error = current_device(cu, &device);
    return done(error == SUCCESS ? cu->cuDevicePrimaryCtxSetFlags(device, flags) : error);
}

API cudaError_t cudaDeviceGetSharedMemConfig(int *config)
{
    if (config == NULL) return done(INVALID_VALUE);
    *config = 1; /* four-byte banks, the only size that current devices have */
    return SUCCESS;
}

API cudaError_t cudaDeviceSetSharedMemConfig(int config)
{
    (void)config;
    return SUCCESS;
}
