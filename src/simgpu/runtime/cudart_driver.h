/* The driver functions that the stand-in runtime uses: the name and the CUDA version for cuGetProcAddress, and the
 * parameters. If a name is used in two versions, the second has a field name of its own (DRIVER_RENAMED). */
#ifndef SIMGPU_CUDART_DRIVER_H
#define SIMGPU_CUDART_DRIVER_H

#define DRIVER_FUNCTIONS(X)                                                                                     \
    /* devices and contexts */                                                                                  \
    X(cuInit, 2000, (unsigned))                                                                                 \
    X(cuDriverGetVersion, 2020, (int *))                                                                        \
    X(cuGetErrorString, 6000, (int, const char **))                                                             \
    X(cuDeviceGetCount, 2000, (int *))                                                                          \
    X(cuDeviceGetName, 2000, (char *, int, int))                                                                \
    X(cuDeviceGetUuid, 11040, (void *, int))                                                                    \
    X(cuDeviceGetLuid, 10000, (char *, unsigned *, int))                                                        \
    X(cuDeviceTotalMem, 3020, (size_t *, int))                                                                  \
    X(cuDeviceGetAttribute, 2000, (int *, int, int))                                                            \
    X(cuDeviceGetPCIBusId, 4010, (char *, int, int))                                                            \
    X(cuDeviceGetByPCIBusId, 4010, (int *, const char *))                                                       \
    X(cuDeviceCanAccessPeer, 4000, (int *, int, int))                                                           \
    X(cuDeviceGetP2PAttribute, 8000, (int *, int, int, int))                                                    \
    X(cuDeviceGetDefaultMemPool, 11020, (Handle *, int))                                                        \
    X(cuDeviceGetMemPool, 11020, (Handle *, int))                                                               \
    X(cuDeviceSetMemPool, 11020, (int, Handle))                                                                 \
    X(cuDeviceGetGraphMemAttribute, 11040, (int, int, void *))                                                  \
    X(cuDeviceSetGraphMemAttribute, 11040, (int, int, void *))                                                  \
    X(cuDeviceGraphMemTrim, 11040, (int))                                                                       \
    X(cuFlushGPUDirectRDMAWrites, 11030, (int, int))                                                            \
    X(cuDevicePrimaryCtxRetain, 7000, (Handle *, int))                                                          \
    X(cuDevicePrimaryCtxRelease, 11000, (int))                                                                  \
    X(cuDevicePrimaryCtxReset, 11000, (int))                                                                    \
    X(cuDevicePrimaryCtxGetState, 7000, (int, unsigned *, int *))                                               \
    X(cuDevicePrimaryCtxSetFlags, 11000, (int, unsigned))                                                       \
    X(cuCtxGetCurrent, 4000, (Handle *))                                                                        \
    X(cuCtxSetCurrent, 4000, (Handle))                                                                          \
    X(cuCtxGetDevice, 2000, (int *))                                                                            \
    X(cuCtxSynchronize, 2000, (void))                                                                           \
    X(cuCtxSetLimit, 3010, (int, size_t))                                                                       \
    X(cuCtxGetLimit, 3010, (size_t *, int))                                                                     \
    X(cuCtxGetCacheConfig, 3020, (int *))                                                                       \
    X(cuCtxSetCacheConfig, 3020, (int))                                                                         \
    X(cuCtxGetStreamPriorityRange, 5050, (int *, int *))                                                        \
    X(cuCtxResetPersistingL2Cache, 11000, (void))                                                               \
    X(cuCtxEnablePeerAccess, 4000, (Handle, unsigned))                                                          \
    X(cuCtxDisablePeerAccess, 4000, (Handle))                                                                   \
    X(cuProfilerStart, 4000, (void))                                                                            \
    X(cuProfilerStop, 4000, (void))                                                                             \
    /* memory */                                                                                                \
    X(cuMemGetInfo, 3020, (size_t *, size_t *))                                                                 \
    X(cuMemAlloc, 3020, (void **, size_t))                                                                      \
    X(cuMemFree, 3020, (void *))                                                                                \
    X(cuMemAllocPitch, 3020, (void **, size_t *, size_t, size_t, unsigned))                                     \
    X(cuMemAllocManaged, 6000, (void **, size_t, unsigned))                                                     \
    X(cuMemAllocHost, 3020, (void **, size_t))                                                                  \
    X(cuMemHostAlloc, 2020, (void **, size_t, unsigned))                                                        \
    X(cuMemFreeHost, 2000, (void *))                                                                            \
    X(cuMemHostRegister, 6050, (void *, size_t, unsigned))                                                      \
    X(cuMemHostUnregister, 4000, (void *))                                                                      \
    X(cuMemHostGetDevicePointer, 3020, (void **, void *, unsigned))                                             \
    X(cuMemHostGetFlags, 2030, (unsigned *, void *))                                                            \
    X(cuPointerGetAttributes, 7000, (unsigned, int *, void **, const void *))                                   \
    X(cuMemAdvise, 8000, (const void *, size_t, int, int))                                                      \
    X(cuMemPrefetchAsync, 8000, (const void *, size_t, int, Stream))                                            \
    X(cuMemRangeGetAttribute, 8000, (void *, size_t, int, const void *, size_t))                                \
    X(cuMemRangeGetAttributes, 8000, (void **, size_t *, int *, size_t, const void *, size_t))                  \
    X(cuIpcGetMemHandle, 4010, (IpcHandle *, void *))                                                           \
    X(cuIpcOpenMemHandle, 11000, (void **, IpcHandle, unsigned))                                                \
    X(cuIpcCloseMemHandle, 4010, (void *))                                                                      \
    X(cuIpcGetEventHandle, 4010, (IpcHandle *, Handle))                                                         \
    X(cuIpcOpenEventHandle, 4010, (Handle *, IpcHandle))                                                        \
    X(cuMemAllocAsync, 11020, (void **, size_t, Stream))                                                        \
    X(cuMemAllocFromPoolAsync, 11020, (void **, size_t, Handle, Stream))                                        \
    X(cuMemFreeAsync, 11020, (void *, Stream))                                                                  \
    X(cuMemPoolCreate, 11020, (Handle *, const void *))                                                         \
    X(cuMemPoolDestroy, 11020, (Handle))                                                                        \
    X(cuMemPoolTrimTo, 11020, (Handle, size_t))                                                                 \
    X(cuMemPoolSetAttribute, 11020, (Handle, int, void *))                                                      \
    X(cuMemPoolGetAttribute, 11020, (Handle, int, void *))                                                      \
    X(cuMemPoolSetAccess, 11020, (Handle, const void *, size_t))                                                \
    X(cuMemPoolGetAccess, 11020, (int *, Handle, Location *))                                                   \
    X(cuMemPoolExportToShareableHandle, 11020, (void *, Handle, int, unsigned long long))                       \
    X(cuMemPoolImportFromShareableHandle, 11020, (Handle *, void *, int, unsigned long long))                   \
    X(cuMemPoolExportPointer, 11020, (void *, void *))                                                          \
    X(cuMemPoolImportPointer, 11020, (void **, Handle, void *))                                                 \
    X(cuImportExternalMemory, 10000, (Handle *, const void *))                                                  \
    X(cuExternalMemoryGetMappedBuffer, 10000, (void **, Handle, const void *))                                  \
    X(cuDestroyExternalMemory, 10000, (Handle))                                                                 \
    X(cuArray3DCreate, 3020, (Handle *, const ArrayDesc *))                                                     \
    X(cuArray3DGetDescriptor, 3020, (ArrayDesc *, Handle))                                                      \
    X(cuArrayDestroy, 2000, (Handle))                                                                           \
    X(cuArrayGetMemoryRequirements, 11060, (void *, Handle, int))                                               \
    X(cuMipmappedArrayCreate, 5000, (Handle *, const ArrayDesc *, unsigned))                                    \
    X(cuMipmappedArrayGetLevel, 5000, (Handle *, Handle, unsigned))                                             \
    X(cuMipmappedArrayDestroy, 5000, (Handle))                                                                  \
    X(cuMipmappedArrayGetMemoryRequirements, 11060, (void *, Handle, int))                                      \
    /* copies */                                                                                                \
    X(cuMemcpy, 4000, (void *, const void *, size_t))                                                           \
    X(cuMemcpyAsync, 4000, (void *, const void *, size_t, Stream))                                              \
    X(cuMemcpyHtoD, 3020, (void *, const void *, size_t))                                                       \
    X(cuMemcpyHtoDAsync, 3020, (void *, const void *, size_t, Stream))                                          \
    X(cuMemcpyDtoH, 3020, (void *, const void *, size_t))                                                       \
    X(cuMemcpyDtoHAsync, 3020, (void *, const void *, size_t, Stream))                                          \
    X(cuMemcpyDtoD, 3020, (void *, const void *, size_t))                                                       \
    X(cuMemcpyDtoDAsync, 3020, (void *, const void *, size_t, Stream))                                          \
    X(cuMemcpy2DUnaligned, 3020, (const Copy2D *))                                                              \
    X(cuMemcpy2DAsync, 3020, (const Copy2D *, Stream))                                                          \
    X(cuMemcpy3D, 3020, (const Copy3D *))                                                                       \
    X(cuMemcpy3DAsync, 3020, (const Copy3D *, Stream))                                                          \
    X(cuMemcpyPeer, 4000, (void *, Handle, const void *, Handle, size_t))                                       \
    X(cuMemcpyPeerAsync, 4000, (void *, Handle, const void *, Handle, size_t, Stream))                          \
    X(cuMemsetD8, 3020, (void *, unsigned char, size_t))                                                        \
    X(cuMemsetD8Async, 3020, (void *, unsigned char, size_t, Stream))                                           \
    X(cuMemsetD2D8, 3020, (void *, size_t, unsigned char, size_t, size_t))                                      \
    X(cuMemsetD2D8Async, 3020, (void *, size_t, unsigned char, size_t, size_t, Stream))                         \
    /* streams and events */                                                                                    \
    X(cuStreamCreate, 2000, (Stream *, unsigned))                                                               \
    X(cuStreamCreateWithPriority, 5050, (Stream *, unsigned, int))                                              \
    X(cuStreamDestroy, 4000, (Stream))                                                                          \
    X(cuStreamQuery, 2000, (Stream))                                                                            \
    X(cuStreamSynchronize, 2000, (Stream))                                                                      \
    X(cuStreamWaitEvent, 3020, (Stream, Handle, unsigned))                                                      \
    X(cuStreamAddCallback, 5000, (Stream, void (*)(Stream, int, void *), void *, unsigned))                     \
    X(cuStreamAttachMemAsync, 6000, (Stream, void *, size_t, unsigned))                                         \
    X(cuStreamGetPriority, 5050, (Stream, int *))                                                               \
    X(cuStreamGetFlags, 5050, (Stream, unsigned *))                                                             \
    X(cuStreamGetId, 12000, (Stream, unsigned long long *))                                                     \
    X(cuStreamGetDevice, 12080, (Stream, int *))                                                                \
    X(cuStreamCopyAttributes, 11000, (Stream, Stream))                                                          \
    X(cuStreamGetAttribute, 11000, (Stream, int, void *))                                                       \
    X(cuStreamSetAttribute, 11000, (Stream, int, const void *))                                                 \
    X(cuStreamBeginCapture, 10010, (Stream, int))                                                               \
    X(cuStreamBeginCaptureToGraph, 12030, (Stream, Handle, const Handle *, const void *, size_t, int))          \
    X(cuStreamEndCapture, 10000, (Stream, Handle *))                                                            \
    X(cuStreamIsCapturing, 10000, (Stream, int *))                                                              \
    X(cuThreadExchangeStreamCaptureMode, 10010, (int *))                                                        \
    X(cuEventCreate, 2000, (Handle *, unsigned))                                                                \
    X(cuEventDestroy, 4000, (Handle))                                                                           \
    X(cuEventQuery, 2000, (Handle))                                                                             \
    X(cuEventRecord, 2000, (Handle, Stream))                                                                    \
    X(cuEventRecordWithFlags, 11010, (Handle, Stream, unsigned))                                                \
    X(cuEventSynchronize, 2000, (Handle))                                                                       \
    X(cuEventElapsedTime, 2000, (float *, Handle, Handle))                                                      \
    X(cuLaunchHostFunc, 10000, (Stream, void (*)(void *), void *))                                              \
    X(cuUserObjectCreate, 11030, (Handle *, void *, void (*)(void *), unsigned, unsigned))                      \
    X(cuUserObjectRetain, 11030, (Handle, unsigned))                                                            \
    X(cuUserObjectRelease, 11030, (Handle, unsigned))                                                           \
    X(cuGraphRetainUserObject, 11030, (Handle, Handle, unsigned, unsigned))                                     \
    X(cuGraphReleaseUserObject, 11030, (Handle, Handle, unsigned))                                              \
    /* code */                                                                                                  \
    X(cuLibraryLoadData, 12000, (Handle *, const void *, void *, void **, unsigned, void *, void **, unsigned)) \
    X(cuLibraryLoadFromFile, 12000,                                                                             \
      (Handle *, const char *, void *, void **, unsigned, void *, void **, unsigned))                           \
    X(cuLibraryUnload, 12000, (Handle))                                                                         \
    X(cuLibraryGetKernel, 12000, (Handle *, Handle, const char *))                                              \
    X(cuLibraryGetGlobal, 12000, (void **, size_t *, Handle, const char *))                                     \
    X(cuLibraryGetManaged, 12000, (void **, size_t *, Handle, const char *))                                    \
    X(cuLibraryGetKernelCount, 12040, (unsigned *, Handle))                                                     \
    X(cuLibraryEnumerateKernels, 12040, (Handle *, unsigned, Handle))                                           \
    X(cuKernelSetAttribute, 12000, (int, int, Handle, int))                                                     \
    X(cuLaunchKernel, 4000,                                                                                     \
      (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **, void **)) \
    X(cuLaunchKernelEx, 11060, (const void *, Handle, void **, void **))                                        \
    X(cuLaunchCooperativeKernel, 9000,                                                                          \
      (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **))          \
    /* graphs */                                                                                                \
    X(cuGraphCreate, 10000, (Handle *, unsigned))                                                               \
    X(cuGraphDestroy, 10000, (Handle))                                                                          \
    X(cuGraphClone, 10000, (Handle *, Handle))                                                                  \
    X(cuGraphDestroyNode, 10000, (Handle))                                                                      \
    X(cuGraphNodeFindInClone, 10000, (Handle *, Handle, Handle))                                                \
    X(cuGraphGetNodes, 10000, (Handle, Handle *, size_t *))                                                     \
    X(cuGraphGetRootNodes, 10000, (Handle, Handle *, size_t *))                                                 \
    X(cuGraphNodeGetType, 10000, (Handle, int *))                                                               \
    X(cuGraphAddKernelNode, 10000, (Handle *, Handle, const Handle *, size_t, const void *))                    \
    X(cuGraphAddMemcpyNode, 10000, (Handle *, Handle, const Handle *, size_t, const Copy3D *, Handle))          \
    X(cuGraphAddMemsetNode, 10000, (Handle *, Handle, const Handle *, size_t, const void *, Handle))            \
    X(cuGraphAddHostNode, 10000, (Handle *, Handle, const Handle *, size_t, const void *))                      \
    X(cuGraphAddEmptyNode, 10000, (Handle *, Handle, const Handle *, size_t))                                   \
    X(cuGraphAddChildGraphNode, 10000, (Handle *, Handle, const Handle *, size_t, Handle))                      \
    X(cuGraphAddEventRecordNode, 11010, (Handle *, Handle, const Handle *, size_t, Handle))                     \
    X(cuGraphAddEventWaitNode, 11010, (Handle *, Handle, const Handle *, size_t, Handle))                       \
    X(cuGraphAddMemAllocNode, 11040, (Handle *, Handle, const Handle *, size_t, void *))                        \
    X(cuGraphAddMemFreeNode, 11040, (Handle *, Handle, const Handle *, size_t, void *))                         \
    X(cuGraphMemAllocNodeGetParams, 11040, (Handle, void *))                                                    \
    X(cuGraphMemFreeNodeGetParams, 11040, (Handle, void *))                                                     \
    X(cuGraphChildGraphNodeGetGraph, 10000, (Handle, Handle *))                                                 \
    X(cuGraphAddNode, 12030, (Handle *, Handle, const Handle *, const void *, size_t, void *))                  \
    X(cuGraphConditionalHandleCreate, 12030, (unsigned long long *, Handle, Handle, unsigned, unsigned))        \
    X(cuGraphInstantiateWithFlags, 11040, (Handle *, Handle, unsigned long long))                               \
    X(cuGraphInstantiateWithParams, 12000, (Handle *, Handle, void *))                                          \
    X(cuGraphExecGetFlags, 12000, (Handle, unsigned long long *))                                               \
    X(cuGraphExecUpdate, 12000, (Handle, Handle, void *))                                                       \
    X(cuGraphExecDestroy, 10000, (Handle))                                                                      \
    X(cuGraphUpload, 11010, (Handle, Stream))                                                                   \
    X(cuGraphLaunch, 10000, (Handle, Stream))                                                                   \
    X(cuGraphDebugDotPrint, 11030, (Handle, const char *, unsigned))

#define DRIVER_RENAMED(X)                                                                                         \
    X(prefetch_to, "cuMemPrefetchAsync", 12020, (const void *, size_t, Location, unsigned, Stream))               \
    X(advise_at, "cuMemAdvise", 12020, (const void *, size_t, int, Location))                                     \
    X(capture_info, "cuStreamGetCaptureInfo", 11030,                                                              \
      (Stream, int *, unsigned long long *, Handle *, const Handle **, size_t *))                                 \
    X(capture_info_edges, "cuStreamGetCaptureInfo", 12030,                                                        \
      (Stream, int *, unsigned long long *, Handle *, const Handle **, const void **, size_t *))                  \
    X(update_capture, "cuStreamUpdateCaptureDependencies", 11030, (Stream, Handle *, size_t, unsigned))           \
    X(update_capture_edges, "cuStreamUpdateCaptureDependencies", 12030,                                           \
      (Stream, Handle *, const void *, size_t, unsigned))                                                         \
    X(add_dependencies, "cuGraphAddDependencies", 10000, (Handle, const Handle *, const Handle *, size_t))        \
    X(add_dependencies_edges, "cuGraphAddDependencies", 12030,                                                    \
      (Handle, const Handle *, const Handle *, const void *, size_t))                                             \
    X(remove_dependencies, "cuGraphRemoveDependencies", 10000, (Handle, const Handle *, const Handle *, size_t))  \
    X(remove_dependencies_edges, "cuGraphRemoveDependencies", 12030,                                              \
      (Handle, const Handle *, const Handle *, const void *, size_t))                                             \
    X(node_dependencies, "cuGraphNodeGetDependencies", 10000, (Handle, Handle *, size_t *))                       \
    X(node_dependencies_edges, "cuGraphNodeGetDependencies", 12030, (Handle, Handle *, void *, size_t *))         \
    X(node_dependents, "cuGraphNodeGetDependentNodes", 10000, (Handle, Handle *, size_t *))                       \
    X(node_dependents_edges, "cuGraphNodeGetDependentNodes", 12030, (Handle, Handle *, void *, size_t *))         \
    X(graph_edges, "cuGraphGetEdges", 10000, (Handle, Handle *, Handle *, size_t *))                              \
    X(graph_edges_data, "cuGraphGetEdges", 12030, (Handle, Handle *, Handle *, void *, size_t *))                 \
    X(get_proc_address, "cuGetProcAddress", 12000, (const char *, void **, int, unsigned long long, int *))

struct driver {
#define FIELD(name, version, params) cudaError_t (*name) params;
#define RENAMED_FIELD(field, name, version, params) cudaError_t (*field) params;
    DRIVER_FUNCTIONS(FIELD)
    DRIVER_RENAMED(RENAMED_FIELD)
#undef FIELD
#undef RENAMED_FIELD
};

#endif
