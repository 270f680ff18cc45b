/* The simulated GPU's CUDA graphs: a launch does what the nodes say. Exits with 1 otherwise.
 *
 *   graphs children      a child graph really runs, as its node's own copy
 *   graphs conditions    if, while and switch nodes run the body that the default value of their handle names
 *   graphs parameters    parameters of nodes can be asked for and set, also those of captured nodes
 *   graphs executable    parameters of one node of an executable graph, nodes that are disabled
 *   graphs update        cuGraphExecUpdate takes another graph's parameters, and names what differs
 *   graphs events        nodes that record an event and wait for one */
#include "delayed.h"
#include "more_api.h"

CUresult cuGraphAddChildGraphNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode, CUgraph *);
CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, CUgraphNodeParams *);
CUresult cuGraphConditionalHandleCreate(unsigned long long *, CUgraph, CUcontext, unsigned, unsigned);
CUresult cuGraphMemsetNodeGetParams(CUgraphNode, CUDA_MEMSET_NODE_PARAMS *);
CUresult cuGraphMemsetNodeSetParams(CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *);
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode, CUDA_MEMCPY3D *);
CUresult cuGraphHostNodeGetParams(CUgraphNode, CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphHostNodeSetParams(CUgraphNode, const CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec, CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *, CUcontext);
CUresult cuGraphExecHostNodeSetParams(CUgraphExec, CUgraphNode, const CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec, CUgraphNode, CUgraph);
CUresult cuGraphNodeSetEnabled(CUgraphExec, CUgraphNode, unsigned);
CUresult cuGraphNodeGetEnabled(CUgraphExec, CUgraphNode, unsigned *);
CUresult cuGraphNodeFindInClone(CUgraphNode *, CUgraphNode, CUgraph);
CUresult cuGraphExecUpdate_v2(CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *);
CUresult cuGraphInstantiateWithParams(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *);
CUresult cuGraphAddEventRecordNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent);
CUresult cuGraphAddEventWaitNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent);
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode, CUevent *);
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode, CUevent);

enum { BYTES = 4096, IF = 0, WHILE = 1, SWITCH = 2 };

static CUdeviceptr memory;
static CUstream stream;

static CUDA_MEMSET_NODE_PARAMS fill_of(size_t at, unsigned value)
{
    return (CUDA_MEMSET_NODE_PARAMS){.dst = memory + at, .value = value, .elementSize = 1, .width = 1, .height = 1};
}

static CUgraphNode fill(CUgraph graph, size_t at, unsigned value)
{
    CUgraphNode node;
    CUDA_MEMSET_NODE_PARAMS parameters = fill_of(at, value);
    CHECK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &parameters, context));
    return node;
}

static int byte(size_t at) { return byte_at(memory + at); }

static CUgraph new_graph(void)
{
    CUgraph graph;
    CHECK(cuGraphCreate(&graph, 0));
    return graph;
}

static CUgraphExec instance(CUgraph graph)
{
    CUgraphExec exec;
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static void launch(CUgraphExec exec)
{
    CHECK(cuMemsetD8Async(memory, 0, BYTES, stream));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
}

static void children(void)
{
    CUgraph graph = new_graph(), child = new_graph(), owned;
    CUgraphNode node, first = fill(child, 0, 1), found;
    CHECK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    fill(child, 1, 2); /* not in the node's copy */
    CHECK(cuGraphChildGraphNodeGetGraph(node, &owned));
    THAT(owned != child);
    CHECK(cuGraphNodeFindInClone(&found, first, owned));
    fill(owned, 2, 3); /* "changes to the graph will be reflected in the node" */
    EXPECT(cuGraphDestroy(owned), CUDA_ERROR_INVALID_VALUE);
    CUgraphExec exec = instance(graph);
    launch(exec);
    THAT(byte(0) == 1 && byte(1) == 0 && byte(2) == 3);
    /* A launch that is captured is a child graph. */
    CUgraph captured;
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuMemsetD8Async(memory + 3, 4, 1, stream));
    CHECK(cuStreamEndCapture(stream, &captured));
    CHECK(cuGraphExecDestroy(exec));
    exec = instance(captured);
    launch(exec);
    THAT(byte(0) == 1 && byte(2) == 3 && byte(3) == 4);
    CHECK(cuGraphExecDestroy(exec));
    /* A graph with memory nodes cannot be copied into a node. */
    CUDA_MEM_ALLOC_NODE_PARAMS allocation = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = BYTES};
    CUgraph with_memory = new_graph();
    CHECK(cuGraphAddMemAllocNode(&node, with_memory, NULL, 0, &allocation));
    EXPECT(cuGraphAddChildGraphNode(&node, graph, NULL, 0, with_memory), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuGraphAddMemAllocNode(&node, owned, NULL, 0, &allocation), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphDestroy(with_memory));
    CHECK(cuGraphDestroy(child));
    CHECK(cuGraphDestroy(captured));
    CHECK(cuGraphDestroy(graph));
}

static CUgraph *conditional(CUgraph graph, int type, unsigned size, unsigned value, unsigned flags, CUresult wanted)
{
    CUgraphNode node;
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .u.conditional = {0, type, size, NULL, context}};
    CHECK(cuGraphConditionalHandleCreate(&parameters.u.conditional.handle, graph, context, value, flags));
    EXPECT(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &parameters), wanted);
    return parameters.u.conditional.graphs;
}

/* The bytes that are filled if each body fills a byte of its own. */
static void expect_bodies(int type, unsigned size, unsigned value, unsigned flags, const char *wanted)
{
    CUgraph graph = new_graph();
    CUgraph *bodies = conditional(graph, type, size, value, flags, CUDA_SUCCESS);
    for (unsigned i = 0; i < size; i++) fill(bodies[i], i, 1);
    CUgraphExec exec = instance(graph);
    CHECK(cuGraphDestroy(graph));
    launch(exec);
    for (unsigned i = 0; i < size; i++) THAT(byte(i) == (wanted[i] == '1'));
    CHECK(cuGraphExecDestroy(exec));
}

static void conditions(void)
{
    expect_bodies(IF, 1, 1, 1, "1");
    expect_bodies(IF, 1, 0, 1, "0");
    expect_bodies(IF, 2, 0, 1, "01");
    expect_bodies(IF, 2, 5, 1, "10");
    expect_bodies(IF, 2, 5, 0, "01"); /* the default value is not assigned */
    expect_bodies(WHILE, 1, 1, 1, "1");
    expect_bodies(WHILE, 1, 0, 1, "0");
    expect_bodies(SWITCH, 3, 2, 1, "001");
    expect_bodies(SWITCH, 3, 3, 1, "000");
    CUgraph graph = new_graph();
    conditional(graph, IF, 3, 0, 1, CUDA_ERROR_INVALID_VALUE);
    conditional(graph, WHILE, 2, 0, 1, CUDA_ERROR_INVALID_VALUE);
    /* A body has no host functions. Conditions may stand in bodies. */
    CUgraph *bodies = conditional(graph, IF, 1, 1, 1, CUDA_SUCCESS), *inner = conditional(bodies[0], SWITCH, 2, 1, 1, CUDA_SUCCESS);
    fill(inner[1], 7, 9);
    CUgraphExec exec = instance(graph);
    launch(exec);
    THAT(byte(7) == 9);
    CHECK(cuGraphExecDestroy(exec));
    CUgraphNode node;
    CUDA_HOST_NODE_PARAMS host = {free, NULL};
    CHECK(cuGraphAddHostNode(&node, inner[0], NULL, 0, &host));
    EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE);
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {0};
    EXPECT(cuGraphInstantiateWithParams(&exec, graph, &parameters), CUDA_ERROR_INVALID_VALUE);
    enum { INVALID_STRUCTURE = 2 };
    THAT(parameters.result == INVALID_STRUCTURE);
    CHECK(cuGraphDestroy(graph));
}

static int called;
static void call(void *by) { called += *(int *)by; }

static CUfunction kernel(void)
{
    CUmodule module;
    CUfunction function;
    CHECK(cuModuleLoadData(&module, "text"));
    CHECK(cuModuleGetFunction(&function, module, "f"));
    return function;
}

static CUgraphNode first_of(CUgraph graph)
{
    CUgraphNode node;
    size_t count = 1;
    CHECK(cuGraphGetNodes(graph, &node, &count));
    return node;
}

static void parameters(void)
{
    CUgraph graph = new_graph();
    CUgraphNode node = fill(graph, 0, 1);
    CUDA_MEMSET_NODE_PARAMS given = fill_of(1, 2), told;
    CHECK(cuGraphMemsetNodeGetParams(node, &told));
    THAT(told.dst == memory && told.value == 1 && told.elementSize == 1 && told.width == 1 && told.height == 1);
    CHECK(cuGraphMemsetNodeSetParams(node, &given));
    CUDA_MEMCPY3D copy = {.srcMemoryType = 2, .srcDevice = memory + 1, .dstMemoryType = 2, .dstDevice = memory + 2,
                          .WidthInBytes = 1, .Height = 1, .Depth = 1}, told_copy;
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .u.copy = {0, 0, context, copy}};
    CUgraphNode copying;
    CHECK(cuGraphAddNode_v2(&copying, graph, &node, NULL, 1, &any));
    any.u.copy.params.dstDevice = memory + 3;
    CHECK(cuGraphNodeSetParams(copying, &any));
    EXPECT(cuGraphNodeSetParams(node, &any), CUDA_ERROR_INVALID_VALUE); /* of another type */
    CHECK(cuGraphMemcpyNodeGetParams(copying, &told_copy));
    THAT(told_copy.srcDevice == memory + 1 && told_copy.dstDevice == memory + 3 && told_copy.WidthInBytes == 1);
    int one = 1, ten = 10;
    CUDA_HOST_NODE_PARAMS host = {call, &one}, told_host;
    CUgraphNode calling;
    CHECK(cuGraphAddHostNode(&calling, graph, NULL, 0, &host));
    CHECK(cuGraphHostNodeGetParams(calling, &told_host));
    THAT(told_host.fn == call && told_host.userData == &one);
    host.userData = &ten;
    CHECK(cuGraphHostNodeSetParams(calling, &host));
    CUgraphExec exec = instance(graph);
    launch(exec);
    THAT(byte(0) == 0 && byte(1) == 2 && byte(2) == 0 && byte(3) == 2 && called == 10);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CUfunction function = kernel();
    CUDA_KERNEL_NODE_PARAMS told_kernel;
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuLaunchKernel(function, 2, 3, 4, 32, 1, 1, 64, stream, NULL, NULL));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphKernelNodeGetParams_v2(first_of(graph), &told_kernel));
    THAT(told_kernel.func == function && told_kernel.grid[1] == 3 && told_kernel.block[0] == 32 && told_kernel.shared == 64);
    CHECK(cuGraphDestroy(graph));
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuMemcpyDtoDAsync_v2(memory + 8, memory, 8, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    node = first_of(graph);
    CHECK(cuGraphMemcpyNodeGetParams(node, &told_copy));
    THAT(told_copy.srcDevice == memory && told_copy.dstDevice == memory + 8 && told_copy.WidthInBytes == 8);
    told_copy.dstDevice = memory + 16;
    CHECK(cuGraphMemcpyNodeSetParams(node, &told_copy));
    exec = instance(graph);
    CHECK(cuMemsetD8Async(memory, 5, 8, stream));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    THAT(byte(8) != 5 && byte(16) == 5);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
}

static void executable(void)
{
    CUgraph graph = new_graph(), child = new_graph();
    CUgraphNode filling = fill(graph, 0, 1), node;
    fill(child, 4, 1);
    CHECK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    CUgraphExec exec = instance(graph);
    CUDA_MEMSET_NODE_PARAMS given = fill_of(1, 2);
    CHECK(cuGraphExecMemsetNodeSetParams(exec, filling, &given, context));
    CHECK(cuGraphDestroy(child));
    child = new_graph();
    fill(child, 5, 1);
    CHECK(cuGraphExecChildGraphNodeSetParams(exec, node, child));
    fill(child, 6, 1);
    EXPECT(cuGraphExecChildGraphNodeSetParams(exec, node, child), CUDA_ERROR_INVALID_VALUE);
    launch(exec);
    THAT(byte(0) == 0 && byte(1) == 2 && byte(4) == 0 && byte(5) == 1 && byte(6) == 0);
    unsigned enabled;
    CHECK(cuGraphNodeSetEnabled(exec, filling, 0));
    CHECK(cuGraphNodeGetEnabled(exec, filling, &enabled));
    THAT(!enabled);
    EXPECT(cuGraphNodeSetEnabled(exec, node, 0), CUDA_ERROR_INVALID_VALUE); /* not of a child graph */
    launch(exec);
    THAT(byte(1) == 0 && byte(5) == 1);
    CHECK(cuGraphNodeSetEnabled(exec, filling, 1));
    launch(exec);
    THAT(byte(1) == 2);
    CHECK(cuGraphExecDestroy(exec));
    exec = instance(graph); /* the graph itself is as it was */
    launch(exec);
    THAT(byte(0) == 1 && byte(1) == 0 && byte(4) == 1);
}

static void refuses(CUgraphExec exec, CUgraph graph, int result, CUgraphNode node)
{
    CUgraphExecUpdateResultInfo info;
    EXPECT(cuGraphExecUpdate_v2(exec, graph, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    THAT(info.result == result && info.errorNode == node);
}

static void update(void)
{
    CUgraphExecUpdateResultInfo info;
    CUgraph graph = new_graph(), other = new_graph();
    CUgraphNode own = fill(graph, 0, 1);
    CUgraphExec exec = instance(graph);
    CUgraphNode node = fill(other, 1, 2);
    CHECK(cuGraphExecUpdate_v2(exec, other, &info));
    THAT(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS && !info.errorNode);
    launch(exec);
    THAT(byte(0) == 0 && byte(1) == 2);
    /* The first graph's nodes name the nodes still. */
    CUDA_MEMSET_NODE_PARAMS given = fill_of(2, 3);
    CHECK(cuGraphExecMemsetNodeSetParams(exec, own, &given, context));
    EXPECT(cuGraphExecMemsetNodeSetParams(exec, node, &given, context), CUDA_ERROR_INVALID_VALUE);
    launch(exec);
    THAT(byte(1) == 0 && byte(2) == 3);
    fill(other, 3, 1);
    refuses(exec, other, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL);
    CHECK(cuGraphDestroy(other));
    other = new_graph();
    CUDA_HOST_NODE_PARAMS host = {call, &called};
    CHECK(cuGraphAddHostNode(&node, other, NULL, 0, &host));
    refuses(exec, other, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, node);
    CHECK(cuGraphDestroy(other));
    launch(exec); /* a refused update changes nothing */
    THAT(byte(2) == 3);
    CHECK(cuGraphExecDestroy(exec));
    fill(graph, 1, 1);
    exec = instance(graph);
    other = new_graph();
    CUgraphNode from = fill(other, 0, 1);
    node = fill(other, 1, 1);
    CHECK(cuGraphAddDependencies(other, &from, &node, 1));
    refuses(exec, other, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node);
}

static void events(void)
{
    CUevent event, told;
    CUgraph graph = new_graph();
    CUgraphNode node, waits;
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuGraphAddEventRecordNode(&node, graph, NULL, 0, event));
    CHECK(cuGraphEventRecordNodeGetEvent(node, &told));
    THAT(told == event);
    CUgraphExec exec = instance(graph);
    CHECK(cuMemsetD8Async(memory, 1, 1, stream));
    CHECK(cuGraphLaunch(exec, stream));
    EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY); /* with SIMGPU_DELAYED the fill comes later */
    CHECK(cuEventSynchronize(event));
    THAT(byte(0) == 1);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    /* Work that comes after a node that waits comes after the event's work. */
    CUstream other = new_stream(NON_BLOCKING);
    graph = new_graph();
    CHECK(cuGraphAddEventWaitNode(&waits, graph, NULL, 0, event));
    CHECK(cuGraphEventWaitNodeSetEvent(waits, event));
    exec = instance(graph);
    CHECK(cuMemsetD8Async(memory, 2, 1, other));
    CHECK(cuEventRecord(event, other));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuMemcpyDtoDAsync_v2(memory + 1, memory, 1, stream));
    CHECK(cuEventDestroy_v2(event));
    CHECK(cuStreamSynchronize(stream));
    THAT(byte(1) == 2);
    EXPECT(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"children", children}, {"conditions", conditions}, {"parameters", parameters},
        {"executable", executable}, {"update", update}, {"events", events},
    };
    begin();
    stream = new_stream(NON_BLOCKING);
    memory = linear_memory(BYTES);
    return PLAY(scenes, argc, argv);
}
