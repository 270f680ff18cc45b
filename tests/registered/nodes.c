/* A node of a graph gets another copy: one between devices. Exits with 1 if a copy fails while it runs, or a byte differs.
 * A copy may be refused with 801 by the call that asks for it.
 *
 *   nodes copy        cuGraphMemcpyNodeSetParams
 *   nodes elsewhere   the same, while the context of the other device is current
 *   nodes nowhere     the same, while no context is current
 *   nodes any         cuGraphNodeSetParams
 *   nodes any_v2      cuGraphNodeSetParams_v2
 *   nodes run_copy    cuGraphExecMemcpyNodeSetParams
 *   nodes run_any     cuGraphExecNodeSetParams
 *   nodes batch       a node with a batch of copies gives access to both ends, or is refused */
#include "devices.h"

static CUgraphNode node;
static CUgraphExec exec;
static CUdeviceptr to, from;

static CUDA_MEMCPY3D line(CUdeviceptr target, CUdeviceptr source)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = DEVICE, .srcDevice = source, .dstMemoryType = DEVICE, .dstDevice = target, .WidthInBytes = PITCH, .Height = 1, .Depth = 1};
}

/* The node copies from memory that the driver allocated on device 1, which device 0 can read. Then it gets a copy of the same
 * size, between the same contexts, from a block. */
static void change(CUresult (*set)(void), bool of_graph)
{
    size_t pitch;
    CUdeviceptr driver_memory;
    CUgraph graph;
    open_devices(2);
    from = allocate_on(1, SIZE), to = allocate_on(0, SIZE);
    use(1);
    CHECK(cuMemAllocPitch_v2(&driver_memory, &pitch, SIZE, 1, 4));
    fill(1, driver_memory, 33);
    fill(1, from, 44);
    fill(0, to, 255);
    CUDA_MEMCPY3D first = line(to, driver_memory);
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &first, contexts[0]));
    if (!of_graph) CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CUresult result = set();
    if (result) EXPECT(result, 801);
    use(0);
    if (of_graph) CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, streams[0]));
    finish();
    use(0);
    holds("changed node", to, result ? 33 : 44, PITCH);
}

#define SET(name, call, of_graph)                                                                                            \
    static CUresult set_##name(void)                                                                                         \
    {                                                                                                                        \
        CUDA_MEMCPY3D copy = line(to, from);                                                                                 \
        CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .u.copy = {.context = contexts[0], .params = copy}};     \
        (void)copy, (void)any;                                                                                               \
        return call;                                                                                                         \
    }                                                                                                                        \
    static void name(void) { change(set_##name, of_graph); }
SET(copy, cuGraphMemcpyNodeSetParams(node, &copy), true)
SET(elsewhere, (use(1), cuGraphMemcpyNodeSetParams(node, &copy)), true)
SET(nowhere, cuCtxSetCurrent(NULL) ? CUDA_ERROR_INVALID_CONTEXT : cuGraphMemcpyNodeSetParams(node, &copy), true)
SET(any, cuGraphNodeSetParams(node, &any), true)
SET(any_v2, cuGraphNodeSetParams_v2(node, &any), true)
SET(run_copy, cuGraphExecMemcpyNodeSetParams(exec, node, &copy, contexts[0]), false)
SET(run_any, cuGraphExecNodeSetParams(exec, node, &any), false)

/* The simulated driver has no such nodes, so the access is asked for. cuda.h 13.5:5128, CUDA_MEMCPY_BATCH_NODE_PARAMS. */
static void batch(void)
{
    enum { BATCH_NODE = 14 };
    struct { size_t count; CUdeviceptr *to, *from; size_t *sizes; void *attributes; size_t *indices, attribute_count; CUcontext context; } copies;
    CUgraph graph;
    size_t size = PITCH;
    CUresult (*add)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *) = optional_function("cuGraphAddNode");
    open_devices(2);
    from = allocate_on(1, SIZE), to = allocate_on(0, SIZE);
    CUgraphNodeParams wanted = {.type = BATCH_NODE};
    copies = (typeof(copies)){1, &to, &from, &size, NULL, NULL, 0, contexts[0]};
    memcpy(&wanted.u, &copies, sizeof copies);
    CHECK(cuGraphCreate(&graph, 0));
    EXPECT(add(&node, graph, NULL, 0, &wanted), 801);
    int flags = simgpu_access(from, 0);
    THAT(flags < 0 || (flags == 3) == can_be_peers());
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"copy", copy}, {"elsewhere", elsewhere}, {"nowhere", nowhere}, {"any", any},
                                          {"any_v2", any_v2}, {"run_copy", run_copy}, {"run_any", run_any}, {"batch", batch}};
    return PLAY(scenes, argc, argv);
}
