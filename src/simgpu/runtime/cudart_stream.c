/* Streams, events, host functions and stream capture. */
#include "cudart.h"

FORWARD(cudaStreamCreate, cuStreamCreate, (Stream *stream), stream, 0)
FORWARD(cudaStreamCreateWithFlags, cuStreamCreate, (Stream *stream, unsigned flags), stream, flags)
FORWARD(cudaStreamCreateWithPriority, cuStreamCreateWithPriority, (Stream *stream, unsigned flags, int priority),
        stream, flags, priority)
FORWARD(cudaStreamDestroy, cuStreamDestroy, (Stream stream), stream)

FORWARD_STREAM(cudaStreamQuery, _ptsz, cuStreamQuery, (Stream stream), stream)
FORWARD_STREAM(cudaStreamSynchronize, _ptsz, cuStreamSynchronize, (Stream stream), stream)
FORWARD_STREAM(cudaStreamWaitEvent, _ptsz, cuStreamWaitEvent, (Stream stream, Handle event, unsigned flags),
               stream, event, flags)
FORWARD_STREAM(cudaStreamAddCallback, _ptsz, cuStreamAddCallback,
               (Stream stream, void (*function)(Stream, int, void *), void *data, unsigned flags),
               stream, function, data, flags)
FORWARD_STREAM(cudaStreamAttachMemAsync, _ptsz, cuStreamAttachMemAsync,
               (Stream stream, void *memory, size_t size, unsigned flags), stream, memory, size, flags)
FORWARD_STREAM(cudaStreamGetPriority, _ptsz, cuStreamGetPriority, (Stream stream, int *priority), stream, priority)
FORWARD_STREAM(cudaStreamGetFlags, _ptsz, cuStreamGetFlags, (Stream stream, unsigned *flags), stream, flags)
FORWARD_STREAM(cudaStreamGetId, _ptsz, cuStreamGetId, (Stream stream, unsigned long long *id), stream, id)
FORWARD_STREAM(cudaStreamGetDevice, _ptsz, cuStreamGetDevice, (Stream stream, int *device), stream, device)
FORWARD_STREAM(cudaStreamCopyAttributes, _ptsz, cuStreamCopyAttributes, (Stream to, Stream from), to, from)
FORWARD_STREAM(cudaStreamGetAttribute, _ptsz, cuStreamGetAttribute, (Stream stream, int attribute, void *value),
               stream, attribute, value)
FORWARD_STREAM(cudaStreamSetAttribute, _ptsz, cuStreamSetAttribute, (Stream stream, int attribute, const void *value),
               stream, attribute, value)

FORWARD(cudaEventCreate, cuEventCreate, (Handle *event), event, 0)
FORWARD(cudaEventCreateWithFlags, cuEventCreate, (Handle *event, unsigned flags), event, flags)
FORWARD(cudaEventDestroy, cuEventDestroy, (Handle event), event)
FORWARD(cudaEventQuery, cuEventQuery, (Handle event), event)
FORWARD(cudaEventSynchronize, cuEventSynchronize, (Handle event), event)
FORWARD(cudaEventElapsedTime, cuEventElapsedTime, (float *ms, Handle start, Handle end), ms, start, end)
#if CUDART_VERSION < 13000
FORWARD(cudaEventElapsedTime_v2, cuEventElapsedTime, (float *ms, Handle start, Handle end), ms, start, end)
#endif
FORWARD_STREAM(cudaEventRecord, _ptsz, cuEventRecord, (Handle event, Stream stream), event, stream)
FORWARD_STREAM(cudaEventRecordWithFlags, _ptsz, cuEventRecordWithFlags, (Handle event, Stream stream, unsigned flags),
               event, stream, flags)

FORWARD_STREAM(cudaLaunchHostFunc, _ptsz, cuLaunchHostFunc, (Stream stream, void (*function)(void *), void *data),
               stream, function, data)

FORWARD(cudaUserObjectCreate, cuUserObjectCreate,
        (Handle *object, void *data, void (*destroy)(void *), unsigned count, unsigned flags),
        object, data, destroy, count, flags)
FORWARD(cudaUserObjectRetain, cuUserObjectRetain, (Handle object, unsigned count), object, count)
FORWARD(cudaUserObjectRelease, cuUserObjectRelease, (Handle object, unsigned count), object, count)

FORWARD_STREAM(cudaStreamBeginCapture, _ptsz, cuStreamBeginCapture, (Stream stream, int mode), stream, mode)
FORWARD_STREAM(cudaStreamBeginCaptureToGraph, _ptsz, cuStreamBeginCaptureToGraph,
               (Stream stream, Handle graph, const Handle *dependencies, const void *edges, size_t count, int mode),
               stream, graph, dependencies, edges, count, mode)
FORWARD_STREAM(cudaStreamEndCapture, _ptsz, cuStreamEndCapture, (Stream stream, Handle *graph), stream, graph)
FORWARD_STREAM(cudaStreamIsCapturing, _ptsz, cuStreamIsCapturing, (Stream stream, int *status), stream, status)
FORWARD(cudaThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int *mode), mode)

/* Version 13 gave the plain names the edge data that _v3 and _v2 have in version 12. */
#if CUDART_VERSION >= 13000
FORWARD_STREAM(cudaStreamGetCaptureInfo, _ptsz, capture_info_edges,
               (Stream stream, int *status, unsigned long long *id, Handle *graph, const Handle **dependencies,
                const void **edges, size_t *count),
               stream, status, id, graph, dependencies, edges, count)
FORWARD_STREAM(cudaStreamUpdateCaptureDependencies, _ptsz, update_capture_edges,
               (Stream stream, Handle *dependencies, const void *edges, size_t count, unsigned flags),
               stream, dependencies, edges, count, flags)
#else
FORWARD_STREAM(cudaStreamGetCaptureInfo, _ptsz, capture_info, (Stream stream, int *status, unsigned long long *id),
               stream, status, id, NULL, NULL, NULL)
FORWARD_STREAM(cudaStreamGetCaptureInfo_v2, _ptsz, capture_info,
               (Stream stream, int *status, unsigned long long *id, Handle *graph, const Handle **dependencies,
                size_t *count),
               stream, status, id, graph, dependencies, count)
FORWARD_STREAM(cudaStreamGetCaptureInfo_v3, _ptsz, capture_info_edges,
               (Stream stream, int *status, unsigned long long *id, Handle *graph, const Handle **dependencies,
                const void **edges, size_t *count),
               stream, status, id, graph, dependencies, edges, count)
FORWARD_STREAM(cudaStreamUpdateCaptureDependencies, _ptsz, update_capture,
               (Stream stream, Handle *dependencies, size_t count, unsigned flags), stream, dependencies, count, flags)
FORWARD_STREAM(cudaStreamUpdateCaptureDependencies_v2, _ptsz, update_capture_edges,
               (Stream stream, Handle *dependencies, const void *edges, size_t count, unsigned flags),
               stream, dependencies, edges, count, flags)
#endif
