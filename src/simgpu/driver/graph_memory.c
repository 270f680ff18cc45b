/* Memory nodes of CUDA graphs. An allocation node has its address from the start. It takes memory when the graph is
 * launched, from the device's graph memory, which is kept until it is trimmed. */
#include "graph.h"

enum { AUTO_FREE_ON_LAUNCH = 1 };

static uint64_t used[MAX_DEVICES], used_high[MAX_DEVICES], reserved[MAX_DEVICES], reserved_high[MAX_DEVICES];
static struct extent *extents[MAX_DEVICES];

uint64_t graph_used(int device) { return used[device]; }
uint64_t graph_reserved(int device) { return reserved[device]; }
void graph_reset(int device)
{
    state_give(physical_of(device), reserved[device], &extents[device]);
    used[device] = reserved[device] = 0;
}

/* cuda.h 13.0:19124: neither can be added to the graph of a child graph node. */
CUresult graph_add_alloc(struct Node **out, struct Graph *graph, int device, uint64_t size, CUdeviceptr *address)
{
    REQUIRE(size && device_valid(device) && !graph->parent);
    uint64_t at = arena_take(size);
    if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    node->device = device;
    node->size = size;
    node->address = *address = at;
    if (out) *out = node;
    return CUDA_SUCCESS;
}

CUresult graph_add_free(struct Node **out, struct Graph *graph, CUdeviceptr address)
{
    REQUIRE(address && !graph->parent);
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
    node->address = address;
    if (out) *out = node;
    return CUDA_SUCCESS;
}

CUresult graph_capture_alloc(struct Graph *graph, int device, uint64_t size, CUdeviceptr *out)
{
    REQUIRE(out);
    if (!graph->recaptured) return graph_add_alloc(NULL, graph, device, size, out);
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (!node || node->size != size || node->device != device) return CUDA_ERROR_GRAPH_RECAPTURE_FAILURE;
    *out = node->address;
    return CUDA_SUCCESS;
}

CUresult graph_capture_free(struct Graph *graph, CUdeviceptr address)
{
    if (!graph->recaptured) return graph_add_free(NULL, graph, address);
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
    return node && node->address == address ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_RECAPTURE_FAILURE;
}

void graph_freed(Allocation *a)
{
    used[a->device] -= a->requested;
    table_remove(a);
}

CUresult graph_launch_free(const struct Node *node)
{
    Allocation *a = table_at(node->address);
    REQUIRE(a && a->class == GRAPH);
    graph_freed(a);
    return CUDA_SUCCESS;
}

CUresult graph_launch_alloc(const struct Node *node, unsigned long long flags)
{
    int device = node->device;
    Allocation *before = table_at(node->address); /* still allocated by the last launch */
    REQUIRE(!before || flags & AUTO_FREE_ON_LAUNCH);
    if (before) graph_freed(before);
    uint64_t unused = reserved[device] - used[device];
    if (node->size > unused) {
        if (!device_take(device, node->size - unused, &extents[device])) return CUDA_ERROR_OUT_OF_MEMORY;
        reserved[device] += node->size - unused;
    }
    used[device] += node->size;
    if (used[device] > used_high[device]) used_high[device] = used[device];
    if (reserved[device] > reserved_high[device]) reserved_high[device] = reserved[device];
    Allocation *a = table_new(GRAPH, device, node->size, 0, "cuGraphLaunch");
    a->address = node->address;
    a->span = node->size;
    table_add(a);
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    ENTER("cuGraphMemAllocNodeGetParams");
    REQUIRE(node && p && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    memset(p, 0, sizeof *p);
    p->poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, node->device};
    p->bytesize = node->size;
    p->dptr = node->address;
    return CUDA_SUCCESS;
}
API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address) { ENTER("cuGraphMemFreeNodeGetParams"); REQUIRE(node && address && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE); *address = node->address; return CUDA_SUCCESS; }

API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    ENTER("cuDeviceGetGraphMemAttribute");
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    REQUIRE(value && attribute >= 0 && attribute < 4);
    uint64_t *const gauges[] = {used, used_high, reserved, reserved_high};
    *(uint64_t *)value = gauges[attribute][device];
    return CUDA_SUCCESS;
}
API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, int attribute, void *value) { (void)attribute, (void)value; ENTER("cuDeviceSetGraphMemAttribute"); if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE; used_high[device] = used[device]; reserved_high[device] = reserved[device]; return CUDA_SUCCESS; }
API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    ENTER("cuDeviceGraphMemTrim");
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    state_give(physical_of(device), reserved[device] - used[device], &extents[device]);
    reserved[device] = used[device];
    return CUDA_SUCCESS;
}

