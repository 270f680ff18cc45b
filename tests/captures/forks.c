/* Graphs whose nodes have edges. Exits with 1 if an answer, an edge or a byte differs from what cuda.h promises.
 *
 *   forks joined    a capture over two streams: its edges, and the bytes that its launch moves
 *   forks errors    captures that were not joined, or that meet
 *   forks by_hand   edges that say another order than the one in which the nodes were added */
#include "delayed.h"

enum { SIZE = 4096 };
static unsigned char seen[SIZE];
static int host_calls;

/* A value in `seen` when the host function runs shows that the copy before it was done. */
static void looks(void *wanted)
{
    host_calls++;
    THAT(seen[0] == *(unsigned char *)wanted && seen[SIZE - 1] == *(unsigned char *)wanted);
}

static CUevent new_event(void)
{
    CUevent event;
    CHECK(cuEventCreate(&event, 0));
    return event;
}

static CUdeviceptr new_block(void)
{
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, SIZE));
    return address;
}

static void launch(CUgraph graph, CUstream stream)
{
    CUgraphExec exec;
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuGraphExecDestroy(exec));
}

static void after(CUstream waiting, CUstream recorded, CUevent event)
{
    CHECK(cuEventRecord(event, recorded));
    CHECK(cuStreamWaitEvent(waiting, event, 0));
}

static void fork_and_join(void)
{
    static unsigned char wanted = 7;
    CUstream origin = new_stream(NON_BLOCKING), fork = new_stream(NON_BLOCKING);
    CUevent forks = new_event(), joins = new_event();
    CUdeviceptr from = new_block(), to = new_block();
    CUgraph graph;
    CHECK(cuMemsetD8Async(from, 1, SIZE, origin));
    CHECK(cuMemsetD8Async(to, 1, SIZE, origin));
    CHECK(cuStreamSynchronize(origin));

    CHECK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuMemsetD8Async(from, wanted, SIZE, origin));
    after(fork, origin, forks);
    CHECK(cuMemcpyDtoDAsync_v2(to, from, SIZE, fork));
    CHECK(cuMemcpyDtoHAsync_v2(seen, to, SIZE, fork));
    CHECK(cuMemsetD8Async(from + 1, 9, 1, origin));
    after(origin, fork, joins);
    CHECK(cuLaunchHostFunc(origin, looks, &wanted));
    CHECK(cuStreamEndCapture(origin, &graph));
    THAT(seen[0] == 0 && host_calls == 0); /* nothing is done before the launch */

    /* fill -> copy -> copy -> host function, and fill -> fill -> host function */
    CUgraphNode nodes[8], ends[8], starts[8];
    size_t count = 8;
    CHECK(cuGraphGetNodes(graph, nodes, &count));
    THAT(count == 5 && nodes[5] == NULL && nodes[7] == NULL);
    CHECK(cuGraphGetRootNodes(graph, ends, (count = 8, &count)));
    THAT(count == 1 && ends[0] == nodes[0]);
    CHECK(cuGraphGetEdges(graph, NULL, NULL, &count));
    THAT(count == 5);
    CHECK(cuGraphGetEdges(graph, starts, ends, (count = 8, &count)));
    THAT(count == 5);
    for (size_t i = 0; i < count; i++) THAT(starts[i] != ends[i]);
    CHECK(cuGraphNodeGetDependencies(nodes[1], ends, (count = 8, &count)));
    THAT(count == 1 && ends[0] == nodes[0]);
    CHECK(cuGraphNodeGetDependentNodes(nodes[0], ends, (count = 8, &count)));
    THAT(count == 2 && ends[0] == nodes[1] && ends[1] == nodes[3]);
    CHECK(cuGraphNodeGetDependencies(nodes[4], ends, (count = 8, &count)));
    THAT(count == 2);

    launch(graph, origin);
    THAT(host_calls == 1 && seen[SIZE / 2] == wanted);
    CHECK(cuGraphDestroy(graph));
}

/* cuda.h 13.0:3086-3116: a capture that was not joined, an event of one that has ended, two captures that meet. */
static void errors(void)
{
    CUstream origin = new_stream(NON_BLOCKING), fork = new_stream(NON_BLOCKING);
    CUevent event = new_event();
    CUdeviceptr block = new_block();
    CUgraph graph;
    CHECK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    after(fork, origin, event);
    CHECK(cuMemsetD8Async(block, 1, SIZE, fork));
    EXPECT(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    THAT(!graph);
    CHECK(cuStreamSynchronize(fork)); /* captures no more */
    EXPECT(cuStreamWaitEvent(fork, event, 0), CUDA_ERROR_CAPTURED_EVENT);
    EXPECT(cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT);

    CHECK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuStreamBeginCapture_v2(fork, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuEventRecord(event, origin));
    enum { MERGE = 902 };
    EXPECT(cuStreamWaitEvent(fork, event, 0), MERGE);
    EXPECT(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT(cuStreamEndCapture(fork, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* The fill is added last, but its edge puts it before the copy. */
static void by_hand(void)
{
    static unsigned char wanted = 42;
    CUstream stream = new_stream(NON_BLOCKING);
    CUdeviceptr block = new_block();
    CUgraphNode copy, host, fill, found[2];
    CUgraph graph, other;
    CUgraphExec exec;
    size_t count = 2;
    CHECK(cuGraphCreate(&graph, 0));
    CUDA_MEMCPY3D copies = {.srcMemoryType = 2, .srcDevice = block, .dstMemoryType = 1, .dstHost = seen,
                            .WidthInBytes = SIZE, .Height = 1, .Depth = 1};
    CUDA_MEMSET_NODE_PARAMS fills = {.dst = block, .value = wanted, .elementSize = 1, .width = SIZE, .height = 1};
    CUDA_HOST_NODE_PARAMS calls = {looks, &wanted};
    CHECK(cuGraphAddMemcpyNode(&copy, graph, NULL, 0, &copies, context));
    CHECK(cuGraphAddHostNode(&host, graph, &copy, 1, &calls));
    CHECK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &fills, context));
    CHECK(cuGraphAddDependencies(graph, &fill, &copy, 1));
    EXPECT(cuGraphAddDependencies(graph, &fill, &copy, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuGraphRemoveDependencies(graph, &fill, &host, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphClone(&other, graph));
    host_calls = 0;
    launch(graph, stream);
    launch(other, stream);
    THAT(host_calls == 2);
    EXPECT(cuGraphAddHostNode(&host, other, &copy, 1, &calls), CUDA_ERROR_INVALID_VALUE); /* of another graph */

    CHECK(cuGraphAddDependencies(graph, &host, &fill, 1));
    EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE); /* a circle */
    CHECK(cuGraphRemoveDependencies(graph, &host, &fill, 1));
    CHECK(cuGraphDestroyNode(copy));
    CHECK(cuGraphGetEdges(graph, NULL, NULL, &count));
    THAT(count == 0);
    CHECK(cuGraphGetRootNodes(graph, found, (count = 2, &count)));
    THAT(count == 2 && found[0] == host && found[1] == fill);
    CHECK(cuGraphDestroy(graph));
    CHECK(cuGraphDestroy(other));
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"joined", fork_and_join}, {"errors", errors}, {"by_hand", by_hand}};
    begin();
    return PLAY(scenes, argc, argv);
}
