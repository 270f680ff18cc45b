/* CUDA graphs. The node parameters of runtime and driver have the same layout, with two exceptions. A kernel node holds
 * a host function in the runtime and a kernel in the driver, and a conditional node holds its context in the driver. */
#include "cudart.h"

FORWARD(cudaGraphCreate, cuGraphCreate, (Handle *graph, unsigned flags), graph, flags)
FORWARD(cudaGraphDestroy, cuGraphDestroy, (Handle graph), graph)
FORWARD(cudaGraphClone, cuGraphClone, (Handle *clone, Handle graph), clone, graph)
FORWARD(cudaGraphDestroyNode, cuGraphDestroyNode, (Handle node), node)
FORWARD(cudaGraphNodeFindInClone, cuGraphNodeFindInClone, (Handle *node, Handle original, Handle clone),
        node, original, clone)
FORWARD(cudaGraphGetNodes, cuGraphGetNodes, (Handle graph, Handle *nodes, size_t *count), graph, nodes, count)
FORWARD(cudaGraphGetRootNodes, cuGraphGetRootNodes, (Handle graph, Handle *nodes, size_t *count), graph, nodes, count)
FORWARD(cudaGraphNodeGetType, cuGraphNodeGetType, (Handle node, int *type), node, type)
FORWARD(cudaGraphDebugDotPrint, cuGraphDebugDotPrint, (Handle graph, const char *path, unsigned flags),
        graph, path, flags)
FORWARD(cudaGraphRetainUserObject, cuGraphRetainUserObject,
        (Handle graph, Handle object, unsigned count, unsigned flags), graph, object, count, flags)
FORWARD(cudaGraphReleaseUserObject, cuGraphReleaseUserObject, (Handle graph, Handle object, unsigned count),
        graph, object, count)

/* Version 13 gave the plain names the edge data that the _v2 names have in version 12. */
#if CUDART_VERSION >= 13000
#define WITH_EDGES(name) name
#else
#define WITH_EDGES(name) name##_v2
FORWARD(cudaGraphAddDependencies, add_dependencies, (Handle graph, const Handle *from, const Handle *to, size_t count),
        graph, from, to, count)
FORWARD(cudaGraphRemoveDependencies, remove_dependencies,
        (Handle graph, const Handle *from, const Handle *to, size_t count), graph, from, to, count)
FORWARD(cudaGraphNodeGetDependencies, node_dependencies, (Handle node, Handle *nodes, size_t *count),
        node, nodes, count)
FORWARD(cudaGraphNodeGetDependentNodes, node_dependents, (Handle node, Handle *nodes, size_t *count),
        node, nodes, count)
FORWARD(cudaGraphGetEdges, graph_edges, (Handle graph, Handle *from, Handle *to, size_t *count),
        graph, from, to, count)
#endif
FORWARD(WITH_EDGES(cudaGraphAddDependencies), add_dependencies_edges,
        (Handle graph, const Handle *from, const Handle *to, const void *edges, size_t count),
        graph, from, to, edges, count)
FORWARD(WITH_EDGES(cudaGraphRemoveDependencies), remove_dependencies_edges,
        (Handle graph, const Handle *from, const Handle *to, const void *edges, size_t count),
        graph, from, to, edges, count)
FORWARD(WITH_EDGES(cudaGraphNodeGetDependencies), node_dependencies_edges,
        (Handle node, Handle *nodes, void *edges, size_t *count), node, nodes, edges, count)
FORWARD(WITH_EDGES(cudaGraphNodeGetDependentNodes), node_dependents_edges,
        (Handle node, Handle *nodes, void *edges, size_t *count), node, nodes, edges, count)
FORWARD(WITH_EDGES(cudaGraphGetEdges), graph_edges_data,
        (Handle graph, Handle *from, Handle *to, void *edges, size_t *count), graph, from, to, edges, count)

FORWARD(cudaGraphInstantiate, cuGraphInstantiateWithFlags, (Handle *exec, Handle graph, unsigned long long flags),
        exec, graph, flags)
FORWARD(cudaGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,
        (Handle *exec, Handle graph, unsigned long long flags), exec, graph, flags)
FORWARD_STREAM(cudaGraphInstantiateWithParams, _ptsz, cuGraphInstantiateWithParams,
               (Handle *exec, Handle graph, void *parameters), exec, graph, parameters)
FORWARD(cudaGraphExecGetFlags, cuGraphExecGetFlags, (Handle exec, unsigned long long *flags), exec, flags)
FORWARD(cudaGraphExecUpdate, cuGraphExecUpdate, (Handle exec, Handle graph, void *result), exec, graph, result)
FORWARD(cudaGraphExecDestroy, cuGraphExecDestroy, (Handle exec), exec)
FORWARD_STREAM(cudaGraphUpload, _ptsz, cuGraphUpload, (Handle exec, Stream stream), exec, stream)
FORWARD_STREAM(cudaGraphLaunch, _ptsz, cuGraphLaunch, (Handle exec, Stream stream), exec, stream)

#define NODE Handle *node, Handle graph, const Handle *dependencies, size_t count
FORWARD(cudaGraphAddEmptyNode, cuGraphAddEmptyNode, (NODE), node, graph, dependencies, count)
FORWARD(cudaGraphAddHostNode, cuGraphAddHostNode, (NODE, const void *parameters),
        node, graph, dependencies, count, parameters)
FORWARD(cudaGraphAddChildGraphNode, cuGraphAddChildGraphNode, (NODE, Handle child),
        node, graph, dependencies, count, child)
FORWARD(cudaGraphAddEventRecordNode, cuGraphAddEventRecordNode, (NODE, Handle event),
        node, graph, dependencies, count, event)
FORWARD(cudaGraphAddEventWaitNode, cuGraphAddEventWaitNode, (NODE, Handle event),
        node, graph, dependencies, count, event)
FORWARD(cudaGraphAddMemAllocNode, cuGraphAddMemAllocNode, (NODE, void *parameters),
        node, graph, dependencies, count, parameters)
FORWARD(cudaGraphAddMemFreeNode, cuGraphAddMemFreeNode, (NODE, void *memory),
        node, graph, dependencies, count, memory)
FORWARD(cudaGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams, (Handle node, void *out), node, out)
FORWARD(cudaGraphMemFreeNodeGetParams, cuGraphMemFreeNodeGetParams, (Handle node, void *out), node, out)
FORWARD(cudaGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph, (Handle node, Handle *graph), node, graph)

FORWARD(cudaDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute, (int device, int attribute, void *value),
        device, attribute, value)
FORWARD(cudaDeviceSetGraphMemAttribute, cuDeviceSetGraphMemAttribute, (int device, int attribute, void *value),
        device, attribute, value)
FORWARD(cudaDeviceGraphMemTrim, cuDeviceGraphMemTrim, (int device), device)

API cudaError_t cudaGraphAddMemsetNode(NODE, const void *parameters)
{
    ENTER(cu, 0);
    Handle context = NULL;
    cudaError_t error = cu->cuCtxGetCurrent(&context);
    return done(error == SUCCESS ? cu->cuGraphAddMemsetNode(node, graph, dependencies, count, parameters, context) : error);
}

/* cudaKernelNodeParams: the function comes first, the rest is as in the driver. */
typedef struct {
    const void *function;
    Dim3 grid, block;
    unsigned shared;
    void **arguments, **extra;
} KernelNode;

API cudaError_t cudaGraphAddKernelNode(NODE, const KernelNode *parameters)
{
    ENTER(cu, 0);
    if (parameters == NULL) return done(INVALID_VALUE);
    KernelNode translated = *parameters;
    Handle kernel = NULL;
    cudaError_t error = kernel_of(cu, parameters->function, &kernel);
    translated.function = kernel;
    return done(error == SUCCESS ? cu->cuGraphAddKernelNode(node, graph, dependencies, count, &translated) : error);
}

/* cudaGraphNodeParams: 256 bytes for every type of node. */
typedef struct {
    int type, reserved[3];
    union {
        long long size[29];
        struct {
            const void *function;
        } kernel;
        struct {
            unsigned long long handle;
            int type;
            unsigned count;
            Handle *bodies;
            Handle context;
        } conditional;
    };
    long long reserved_too;
} NodeParameters;

static cudaError_t add_node(NODE, const void *edges, NodeParameters *parameters)
{
    enum { KERNEL = 0, CONDITIONAL = 13 };
    ENTER(cu, 0);
    if (parameters == NULL) return done(INVALID_VALUE);
    NodeParameters translated = *parameters;
    cudaError_t error = SUCCESS;
    if (parameters->type == KERNEL) {
        Handle kernel = NULL;
        error = kernel_of(cu, parameters->kernel.function, &kernel);
        translated.kernel.function = kernel;
    } else if (parameters->type == CONDITIONAL) {
        error = cu->cuCtxGetCurrent(&translated.conditional.context);
    }
    if (error == SUCCESS) error = cu->cuGraphAddNode(node, graph, dependencies, edges, count, &translated);
    if (error == SUCCESS && parameters->type == CONDITIONAL)
        parameters->conditional.bodies = translated.conditional.bodies;
    else if (error == SUCCESS && parameters->type != KERNEL)
        *parameters = translated; /* an allocation node returns its address in the parameters */
    return done(error);
}

API cudaError_t WITH_EDGES(cudaGraphAddNode)(Handle *node, Handle graph, const Handle *dependencies, const void *edges,
                                             size_t count, NodeParameters *parameters)
{
    return add_node(node, graph, dependencies, count, edges, parameters);
}

#if CUDART_VERSION < 13000
API cudaError_t cudaGraphAddNode(NODE, NodeParameters *parameters)
{
    return add_node(node, graph, dependencies, count, NULL, parameters);
}
#endif

API cudaError_t cudaGraphConditionalHandleCreate(unsigned long long *handle, Handle graph, unsigned initial,
                                                 unsigned flags)
{
    ENTER(cu, 0);
    Handle context = NULL;
    cudaError_t error = cu->cuCtxGetCurrent(&context);
    return done(error == SUCCESS ? cu->cuGraphConditionalHandleCreate(handle, graph, context, initial, flags) : error);
}
