/* cudaGetDeviceProperties: the structure of this version, filled from the driver's attributes.
 *
 * The fields have the order and the types of the public header. Each line of the table names a field and the attribute
 * from which it is filled. Versions 12 and 13 have some different fields. */
#include "cudart.h"

typedef struct {
    char name[256];
    char uuid[16];
    char luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
#if CUDART_VERSION < 13000
    int clockRate;
#endif
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
#if CUDART_VERSION < 13000
    int deviceOverlap;
#endif
    int multiProcessorCount;
#if CUDART_VERSION < 13000
    int kernelExecTimeoutEnabled;
#endif
    int integrated, canMapHostMemory;
#if CUDART_VERSION < 13000
    int computeMode;
#endif
    int maxTexture1D, maxTexture1DMipmap;
#if CUDART_VERSION < 13000
    int maxTexture1DLinear;
#endif
    int maxTexture2D[2], maxTexture2DMipmap[2], maxTexture2DLinear[3], maxTexture2DGather[2];
    int maxTexture3D[3], maxTexture3DAlt[3], maxTextureCubemap;
    int maxTexture1DLayered[2], maxTexture2DLayered[3], maxTextureCubemapLayered[2];
    int maxSurface1D, maxSurface2D[2], maxSurface3D[3], maxSurface1DLayered[2], maxSurface2DLayered[3];
    int maxSurfaceCubemap, maxSurfaceCubemapLayered[2];
    size_t surfaceAlignment;
    int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount;
    int unifiedAddressing;
#if CUDART_VERSION < 13000
    int memoryClockRate;
#endif
    int memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor;
    int streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported;
#if CUDART_VERSION < 13000
    int singleToDoublePrecisionPerfRatio;
#endif
    int pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem;
    int cooperativeLaunch;
#if CUDART_VERSION < 13000
    int cooperativeMultiDeviceLaunch;
#endif
    size_t sharedMemPerBlockOptin;
    int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost, maxBlocksPerMultiProcessor;
    int accessPolicyMaxWindowSize;
    size_t reservedSharedMemPerBlock;
    int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported;
    int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
    unsigned gpuDirectRDMAFlushWritesOptions;
    int gpuDirectRDMAWritesOrdering;
    unsigned memoryPoolSupportedHandleTypes;
    int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch, unifiedFunctionPointers;
#if CUDART_VERSION < 13000
    int reserved[63];
#else
    int deviceNumaConfig, deviceNumaId, mpsEnabled, hostNumaId;
    unsigned gpuPciDeviceID, gpuPciSubsystemID;
    int hostNumaMultinodeIpcSupported;
    int reserved[56];
#endif
} Properties;

_Static_assert(sizeof(Properties) == (CUDART_VERSION < 13000 ? 1032 : 1008), "the size programs were compiled with");

#define BOTH_VERSIONS(X)                                                                                       \
    X(sharedMemPerBlock, 8) X(regsPerBlock, 12) X(warpSize, 10) X(memPitch, 11) X(maxThreadsPerBlock, 1)       \
    X(maxThreadsDim[0], 2) X(maxThreadsDim[1], 3) X(maxThreadsDim[2], 4)                                       \
    X(maxGridSize[0], 5) X(maxGridSize[1], 6) X(maxGridSize[2], 7)                                             \
    X(totalConstMem, 9) X(major, 75) X(minor, 76) X(textureAlignment, 14) X(texturePitchAlignment, 51)         \
    X(multiProcessorCount, 16) X(integrated, 18) X(canMapHostMemory, 19)                                       \
    X(maxTexture1D, 21) X(maxTexture1DMipmap, 77) X(maxTexture2D[0], 22) X(maxTexture2D[1], 23)                \
    X(maxTexture2DMipmap[0], 73) X(maxTexture2DMipmap[1], 74)                                                  \
    X(maxTexture2DLinear[0], 70) X(maxTexture2DLinear[1], 71) X(maxTexture2DLinear[2], 72)                     \
    X(maxTexture2DGather[0], 45) X(maxTexture2DGather[1], 46)                                                  \
    X(maxTexture3D[0], 24) X(maxTexture3D[1], 25) X(maxTexture3D[2], 26)                                       \
    X(maxTexture3DAlt[0], 47) X(maxTexture3DAlt[1], 48) X(maxTexture3DAlt[2], 49) X(maxTextureCubemap, 52)     \
    X(maxTexture1DLayered[0], 42) X(maxTexture1DLayered[1], 43)                                                \
    X(maxTexture2DLayered[0], 27) X(maxTexture2DLayered[1], 28) X(maxTexture2DLayered[2], 29)                  \
    X(maxTextureCubemapLayered[0], 53) X(maxTextureCubemapLayered[1], 54)                                      \
    X(maxSurface1D, 55) X(maxSurface2D[0], 56) X(maxSurface2D[1], 57)                                          \
    X(maxSurface3D[0], 58) X(maxSurface3D[1], 59) X(maxSurface3D[2], 60)                                       \
    X(maxSurface1DLayered[0], 61) X(maxSurface1DLayered[1], 62)                                                \
    X(maxSurface2DLayered[0], 63) X(maxSurface2DLayered[1], 64) X(maxSurface2DLayered[2], 65)                  \
    X(maxSurfaceCubemap, 66) X(maxSurfaceCubemapLayered[0], 67) X(maxSurfaceCubemapLayered[1], 68)             \
    X(surfaceAlignment, 30) X(concurrentKernels, 31) X(ECCEnabled, 32)                                         \
    X(pciBusID, 33) X(pciDeviceID, 34) X(pciDomainID, 50) X(tccDriver, 35) X(asyncEngineCount, 40)             \
    X(unifiedAddressing, 41) X(memoryBusWidth, 37) X(l2CacheSize, 38) X(persistingL2CacheMaxSize, 108)         \
    X(maxThreadsPerMultiProcessor, 39) X(streamPrioritiesSupported, 78) X(globalL1CacheSupported, 79)          \
    X(localL1CacheSupported, 80) X(sharedMemPerMultiprocessor, 81) X(regsPerMultiprocessor, 82)                \
    X(managedMemory, 83) X(isMultiGpuBoard, 84) X(multiGpuBoardGroupID, 85) X(hostNativeAtomicSupported, 86)   \
    X(pageableMemoryAccess, 88) X(concurrentManagedAccess, 89) X(computePreemptionSupported, 90)               \
    X(canUseHostPointerForRegisteredMem, 91) X(cooperativeLaunch, 95) X(sharedMemPerBlockOptin, 97)            \
    X(pageableMemoryAccessUsesHostPageTables, 100) X(directManagedMemAccessFromHost, 101)                      \
    X(maxBlocksPerMultiProcessor, 106) X(accessPolicyMaxWindowSize, 109) X(reservedSharedMemPerBlock, 111)     \
    X(hostRegisterSupported, 99) X(sparseCudaArraySupported, 112) X(hostRegisterReadOnlySupported, 113)        \
    X(timelineSemaphoreInteropSupported, 114) X(memoryPoolsSupported, 115) X(gpuDirectRDMASupported, 116)      \
    X(gpuDirectRDMAFlushWritesOptions, 117) X(gpuDirectRDMAWritesOrdering, 118)                                \
    X(memoryPoolSupportedHandleTypes, 119) X(deferredMappingCudaArraySupported, 121)                           \
    X(ipcEventSupported, 125) X(clusterLaunch, 120) X(unifiedFunctionPointers, 129)

#if CUDART_VERSION < 13000
#define THIS_VERSION(X)                                                                                        \
    X(clockRate, 13) X(deviceOverlap, 15) X(kernelExecTimeoutEnabled, 17) X(computeMode, 20)                   \
    X(maxTexture1DLinear, 69) X(memoryClockRate, 36) X(singleToDoublePrecisionPerfRatio, 87)                   \
    X(cooperativeMultiDeviceLaunch, 96)
#else
#define THIS_VERSION(X)                                                                                        \
    X(deviceNumaConfig, 130) X(deviceNumaId, 131) X(mpsEnabled, 133) X(hostNumaId, 134)                        \
    X(gpuPciDeviceID, 139) X(gpuPciSubsystemID, 140) X(hostNumaMultinodeIpcSupported, 143)
#endif

/* In version 12 the name without a suffix fills the shorter structure of version 11. No program here is built with
 * it. */
#if CUDART_VERSION < 13000
#define GET_PROPERTIES cudaGetDeviceProperties_v2
#else
#define GET_PROPERTIES cudaGetDeviceProperties
#endif

/* An attribute that an older driver does not know stays zero. */
API cudaError_t GET_PROPERTIES(Properties *out, int device)
{
    ENTER_WITHOUT_CONTEXT(cu);
    if (out == NULL) return done(INVALID_VALUE);
    memset(out, 0, sizeof *out);
    cudaError_t error = cu->cuDeviceGetName(out->name, sizeof out->name, device);
    if (error == SUCCESS) error = cu->cuDeviceTotalMem(&out->totalGlobalMem, device);
    if (error != SUCCESS) return done(error);
    cu->cuDeviceGetUuid(out->uuid, device);
    cu->cuDeviceGetLuid(out->luid, &out->luidDeviceNodeMask, device);
    int value;
#define FILL(field, attribute) \
    if (cu->cuDeviceGetAttribute(&value, attribute, device) == SUCCESS) out->field = (__typeof__(out->field))value;
    BOTH_VERSIONS(FILL)
    THIS_VERSION(FILL)
    return SUCCESS;
}
