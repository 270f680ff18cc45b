/* Tests of the simulator alone, on a device of 1 GiB. In "kinds" and "processes" each request needs one piece
 * (SIMGPU_CONTIGUOUS=1). Exits with 1 if the simulator does not behave as documented.
 *
 *   extents kinds        requests of every class fit into gaps between blocks only, and free their gap again
 *   extents paging       the same requests, on a device that places memory in pages
 *   extents processes    the memory of a killed process is free again at its place */
#include "client.h"
#include <signal.h>
#include <sys/wait.h>

#define MIB (1ull << 20)

static CUcontext context;

static void start(void)
{
    context = start_cuda();
}

static void expect_free(size_t mib)
{
    size_t free_bytes, total;
    CHECK(cuMemGetInfo_v2(&free_bytes, &total));
    if (free_bytes == mib * MIB) return;
    fprintf(stderr, "extents: %zu bytes free instead of %zu MiB\n", free_bytes, mib);
    exit(1);
}

static CUdeviceptr take(size_t mib)
{
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, mib * MIB));
    return address;
}

static void give(CUdeviceptr address) { CHECK(cuMemFree_v2(address)); }

static void refuse(size_t mib)
{
    CUdeviceptr address;
    EXPECT(cuMemAlloc_v2(&address, mib * MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

/* Each function below allocates and frees memory of one class, and returns the result of the request. */

static CUresult linear(size_t size)
{
    CUdeviceptr address;
    CUresult result = cuMemAlloc_v2(&address, size);
    if (!result) give(address);
    return result;
}

static CUresult pitched(size_t size)
{
    CUdeviceptr address;
    size_t pitch;
    CUresult result = cuMemAllocPitch_v2(&address, &pitch, size / 1024, 1024, 4);
    if (!result) give(address);
    return result;
}

static CUresult managed(size_t size)
{
    CUdeviceptr address;
    CUresult result = cuMemAllocManaged(&address, size, 1);
    if (!result) give(address);
    return result;
}

static CUresult physical(size_t size)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CUresult result = cuMemCreate(&handle, size, &properties, 0);
    if (!result) CHECK(cuMemRelease(handle));
    return result;
}

static CUresult array(size_t size)
{
    CUDA_ARRAY_DESCRIPTOR descriptor = {size / 4 / 8192, 8192, CU_AD_FORMAT_FLOAT, 1};
    CUarray made;
    CUresult result = cuArrayCreate_v2(&made, &descriptor);
    if (!result) CHECK(cuArrayDestroy(made));
    return result;
}

static CUresult stream_ordered(size_t size)
{
    CUdeviceptr address;
    CUresult result = cuMemAllocAsync(&address, size, NULL);
    if (!result) CHECK(cuMemFreeAsync(address, NULL));
    CHECK(cuCtxSynchronize());
    return result;
}

static CUresult graph_node(size_t size)
{
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
        .poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = size};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CUresult result = cuGraphLaunch(exec, NULL);
    if (!result) give(parameters.dptr);
    CHECK(cuDeviceGraphMemTrim(0));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    return result;
}

static void kinds(CUresult longer_than_a_hole)
{
    CUresult (*const all[])(size_t) = {linear, pitched, managed, physical, array, stream_ordered, graph_node};
    for (size_t kind = 0; kind < sizeof all / sizeof *all; kind++) {
        CUdeviceptr blocks[4];
        for (int i = 0; i < 4; i++) blocks[i] = take(256);
        give(blocks[0]);
        give(blocks[2]);
        expect_free(512);
        EXPECT(all[kind](288 * MIB), longer_than_a_hole);
        EXPECT(all[kind](256 * MIB), CUDA_SUCCESS);
        EXPECT(all[kind](544 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        expect_free(512);
        give(blocks[1]);
        EXPECT(all[kind](768 * MIB), CUDA_SUCCESS);
        give(blocks[3]);
        give(take(1024));
    }
}

/* A pool takes the memory for a request in one piece. If another request needs memory, the pool gives up the end of the
 * piece that it took last. */
static void pool(void)
{
    CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUdeviceptr first, between, second;
    uint64_t keep = ~0ull;
    CHECK(cuMemPoolCreate(&pool, &properties));
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    CHECK(cuMemAllocFromPoolAsync(&first, 256 * MIB, pool, NULL));
    between = take(256);
    CHECK(cuMemAllocFromPoolAsync(&second, 512 * MIB, pool, NULL));
    give(between);
    CHECK(cuMemFreeAsync(first, NULL));
    expect_free(256);
    refuse(288);
    expect_free(512);
    give(take(256));
    CHECK(cuMemFreeAsync(second, NULL));
    give(take(1024));
    CHECK(cuMemPoolDestroy(pool));
    give(take(1024));
}

static void processes(void)
{
    int ready[2];
    char byte = 0;
    if (pipe(ready)) exit(1);
    pid_t child = fork();
    if (child == 0) {
        start();
        take(256);
        if (write(ready[1], &byte, 1) != 1) exit(1);
        for (;;) pause();
    }
    if (child < 0 || read(ready[0], &byte, 1) != 1) exit(1);
    start();
    CUdeviceptr ours = take(256);
    expect_free(512);
    refuse(768);
    give(take(512));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    expect_free(768);
    refuse(768); /* this process's block lies in between */
    CUdeviceptr rest = take(512);
    give(take(256));
    give(ours);
    give(take(512));
    give(rest);
    give(take(1024));
}

int main(int argc, char **argv)
{
    const char *scene = argc > 1 ? argv[1] : "";
    if (!strcmp(scene, "processes")) return processes(), 0;
    start();
    if (!strcmp(scene, "kinds")) kinds(CUDA_ERROR_OUT_OF_MEMORY), pool();
    else if (!strcmp(scene, "paging")) kinds(CUDA_SUCCESS);
    else return 2;
    return 0;
}
