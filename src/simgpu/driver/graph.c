/* CUDA graphs. A launch does the work of the nodes in its stream, one after the other, each after the nodes that it depends
 * on (edges.c). Kernels, child graphs and events have no work. An allocation node has its address from the start. It takes
 * memory when the graph is launched, from the device's graph memory, which is kept until it is trimmed. */
#include "graph.h"

struct Exec { struct Node *nodes; unsigned long long flags; };
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

struct Graph *graph_new(void)
{
    struct Graph *g = calloc(1, sizeof *g);
    g->last = &g->first;
    return g;
}

void graph_begin_recapture(struct Graph *graph) { graph->recaptured = &graph->first; }

bool graph_end_recapture(struct Graph *graph)
{
    bool complete = !*graph->recaptured;
    graph->recaptured = NULL;
    return complete;
}

/* In a recapture the node that is there already, or NULL if it is of another type. */
struct Node *graph_add(struct Graph *graph, int type)
{
    if (graph->recaptured) {
        struct Node *node = *graph->recaptured;
        if (!node || node->type != type) return NULL;
        graph->recaptured = &node->next;
        graph_link(graph, node);
        return node;
    }
    struct Node *node = calloc(1, sizeof *node);
    node->type = type;
    *graph->last = node;
    graph->last = &node->next;
    graph_link(graph, node);
    return node;
}

void graph_work(struct Node *node, const struct Work *work) { node->work = *work; }

static CUresult add_alloc(struct Node **out, struct Graph *graph, int device, uint64_t size, CUdeviceptr *address)
{
    REQUIRE(size && device_valid(device));
    uint64_t at = arena_take(size);
    if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    node->device = device;
    node->size = size;
    node->address = *address = at;
    if (out) *out = node;
    return CUDA_SUCCESS;
}

static CUresult add_free(struct Node **out, struct Graph *graph, CUdeviceptr address)
{
    REQUIRE(address);
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
    node->address = address;
    if (out) *out = node;
    return CUDA_SUCCESS;
}

CUresult graph_capture_alloc(struct Graph *graph, int device, uint64_t size, CUdeviceptr *out)
{
    REQUIRE(out);
    if (!graph->recaptured) return add_alloc(NULL, graph, device, size, out);
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (!node || node->size != size || node->device != device) return CUDA_ERROR_GRAPH_RECAPTURE_FAILURE;
    *out = node->address;
    return CUDA_SUCCESS;
}

CUresult graph_capture_free(struct Graph *graph, CUdeviceptr address)
{
    if (!graph->recaptured) return add_free(NULL, graph, address);
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
    return node && node->address == address ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_RECAPTURE_FAILURE;
}

void graph_freed(Allocation *a)
{
    used[a->device] -= a->requested;
    table_remove(a);
}

API CUresult cuGraphCreate(CUgraph *out, unsigned flags) { (void)flags; ENTER("cuGraphCreate"); REQUIRE(out); *out = graph_new(); return CUDA_SUCCESS; }

API CUresult cuGraphDestroy(CUgraph graph) { ENTER("cuGraphDestroy"); REQUIRE(graph); graph_free_nodes(graph->first); nodes_clear(&graph->dependencies); free(graph); return CUDA_SUCCESS; }

API CUresult cuGraphClone(CUgraph *out, CUgraph from)
{
    ENTER("cuGraphClone");
    REQUIRE(out && from);
    *out = graph_new();
    (*out)->first = graph_copy(from, *out, false);
    while (*(*out)->last) (*out)->last = &(*(*out)->last)->next;
    return CUDA_SUCCESS;
}

#define NODES CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count
/* The next node that is added to the graph has these dependencies. */
#define AFTER_DEPENDENCIES                                                         \
    CUresult linked_ = graph_next(graph, dependencies, count, NULL);               \
    if (linked_) return linked_
#define PLAIN_NODE(function, type, ...)                                            \
    API CUresult function(NODES, ##__VA_ARGS__)                                    \
    {                                                                              \
        ENTER(#function);                                                          \
        AFTER_DEPENDENCIES;                                                        \
        struct Node *node = graph_add(graph, type);                                \
        if (out) *out = node;                                                      \
        return CUDA_SUCCESS;                                                       \
    }
PLAIN_NODE(cuGraphAddEmptyNode, CU_GRAPH_NODE_TYPE_EMPTY)
PLAIN_NODE(cuGraphAddKernelNode, CU_GRAPH_NODE_TYPE_KERNEL, __attribute__((unused)) const void *p)
PLAIN_NODE(cuGraphAddKernelNode_v2, CU_GRAPH_NODE_TYPE_KERNEL, __attribute__((unused)) const void *p)
PLAIN_NODE(cuGraphAddChildGraphNode, CU_GRAPH_NODE_TYPE_GRAPH, __attribute__((unused)) CUgraph g)
PLAIN_NODE(cuGraphAddEventRecordNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, __attribute__((unused)) CUevent e)
PLAIN_NODE(cuGraphAddEventWaitNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, __attribute__((unused)) CUevent e)

static CUresult add_copy(CUgraphNode *out, CUgraph graph, const CUDA_MEMCPY3D *copy, CUcontext context)
{
    REQUIRE(copy);
    if (context && context_device(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEMCPY);
    node->work = copy_work(copy);
    node->context = context;
    if (out) *out = node;
    return CUDA_SUCCESS;
}
API CUresult cuGraphAddMemcpyNode(NODES, const CUDA_MEMCPY3D *copy, CUcontext context)
{
    ENTER("cuGraphAddMemcpyNode");
    AFTER_DEPENDENCIES;
    return add_copy(out, graph, copy, context);
}

static CUresult add_fill(CUgraphNode *out, CUgraph graph, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context)
{
    REQUIRE(p && (p->elementSize == 1 || p->elementSize == 2 || p->elementSize == 4));
    if (context && context_device(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEMSET);
    node->work = (struct Work){.kind = WORK_FILL, .to = {.base = (char *)p->dst, .pitch = p->pitch}, .element = p->elementSize,
                               .width = p->width * p->elementSize, .height = p->height, .depth = 1};
    memcpy(node->work.value, &p->value, p->elementSize);
    node->context = context;
    if (out) *out = node;
    return CUDA_SUCCESS;
}
API CUresult cuGraphAddMemsetNode(NODES, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context)
{
    ENTER("cuGraphAddMemsetNode");
    AFTER_DEPENDENCIES;
    return add_fill(out, graph, p, context);
}

static CUresult add_host(CUgraphNode *out, CUgraph graph, const CUDA_HOST_NODE_PARAMS *p)
{
    REQUIRE(p && p->fn);
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_HOST);
    node->work = (struct Work){.kind = WORK_HOST, .function = p->fn, .data = p->userData};
    if (out) *out = node;
    return CUDA_SUCCESS;
}
API CUresult cuGraphAddHostNode(NODES, const CUDA_HOST_NODE_PARAMS *p)
{
    ENTER("cuGraphAddHostNode");
    AFTER_DEPENDENCIES;
    return add_host(out, graph, p);
}

API CUresult cuGraphAddMemAllocNode(NODES, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    ENTER("cuGraphAddMemAllocNode");
    REQUIRE(p);
    AFTER_DEPENDENCIES;
    return add_alloc(out, graph, p->poolProps.location.id, p->bytesize, &p->dptr);
}
API CUresult cuGraphAddMemFreeNode(NODES, CUdeviceptr address)
{
    ENTER("cuGraphAddMemFreeNode");
    AFTER_DEPENDENCIES;
    return add_free(out, graph, address);
}

API CUresult cuGraphAddNode(NODES, CUgraphNodeParams *p)
{
    ENTER("cuGraphAddNode");
    REQUIRE(p);
    AFTER_DEPENDENCIES;
    if (p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return add_alloc(out, graph, p->u.alloc.poolProps.location.id, p->u.alloc.bytesize, &p->u.alloc.dptr);
    if (p->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return add_free(out, graph, p->u.free);
    if (p->type == CU_GRAPH_NODE_TYPE_MEMCPY) return add_copy(out, graph, &p->u.copy.params, p->u.copy.context);
    if (p->type == CU_GRAPH_NODE_TYPE_MEMSET) return add_fill(out, graph, &p->u.fill, p->u.fill.ctx);
    if (p->type == CU_GRAPH_NODE_TYPE_HOST) return add_host(out, graph, &p->u.host);
    struct Node *node = graph_add(graph, p->type);
    if (out) *out = node;
    return CUDA_SUCCESS;
}
API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *d, const void *edges, size_t n, CUgraphNodeParams *p) { (void)edges; return cuGraphAddNode(out, graph, d, n, p); }

API CUresult cuGraphNodeGetType(CUgraphNode node, int *type) { ENTER("cuGraphNodeGetType"); REQUIRE(node && type); *type = node->type; return CUDA_SUCCESS; }
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

#define U __attribute__((unused))
/* Edges that make a circle have no order: the graph cannot be instantiated. */
static CUresult flatten(CUgraph graph, struct Node **nodes)
{
    *nodes = graph_copy(graph, NULL, true);
    return *nodes || !graph->first ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    ENTER("cuGraphInstantiate");
    REQUIRE(out && graph);
    struct Node *nodes;
    CUresult result = flatten(graph, &nodes);
    if (result) return result;
    *out = malloc(sizeof **out);
    **out = (struct Exec){nodes, flags};
    return CUDA_SUCCESS;
}
API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, U CUgraphNode *node, U char *log, U size_t size) { return cuGraphInstantiateWithFlags(out, graph, 0); }
API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, U CUgraphNode *node, U char *log, U size_t size) { return cuGraphInstantiateWithFlags(out, graph, 0); }
API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, unsigned long long *parameters) { REQUIRE(parameters); return cuGraphInstantiateWithFlags(out, graph, parameters[0]); }
PTSZ(cuGraphInstantiateWithParams);
API CUresult cuGraphExecGetFlags(CUgraphExec exec, unsigned long long *flags) { ENTER("cuGraphExecGetFlags"); REQUIRE(exec && flags); *flags = exec->flags; return CUDA_SUCCESS; }
API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, U void *difference)
{
    ENTER("cuGraphExecUpdate");
    REQUIRE(exec && graph);
    struct Node *nodes;
    CUresult result = flatten(graph, &nodes);
    if (result) return result;
    graph_free_nodes(exec->nodes);
    exec->nodes = nodes;
    return CUDA_SUCCESS;
}
API CUresult cuGraphUpload(U CUgraphExec exec, U CUstream stream) { ENTER("cuGraphUpload"); return CUDA_SUCCESS; }
PTSZ(cuGraphUpload);
API CUresult cuGraphDebugDotPrint(U CUgraph graph, U const char *path, U unsigned flags) { return CUDA_ERROR_NOT_SUPPORTED; }

static bool accessible(int device, const struct side *side, const struct Work *w, bool write)
{
    uint64_t size = (w->depth - 1) * side->slice + (w->height - 1) * side->pitch + w->width;
    return vmm_accessible(device, (uint64_t)side->base, w->width && w->height && w->depth ? size : 0, write);
}

/* Memory may have been unmapped since the capture. Then the graph faults. */
static CUresult launch_work(CUstream stream, const struct Work *w, struct Context *context)
{
    bool copies = w->kind == WORK_COPY && !w->peer, writes = copies || w->kind == WORK_FILL;
    if (writes && !accessible(context->device, &w->to, w, true)) return context_break(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    if (copies && !accessible(context->device, &w->from, w, false)) return context_break(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    work_submit(stream, *w);
    return CUDA_SUCCESS;
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    ENTER_WORKING("cuGraphLaunch");
    REQUIRE(exec);
    struct Context *context = stream_context(stream, context_current());
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    CHECK_STREAM(stream);
    SUBMIT_TO_CAPTURE(stream, CU_GRAPH_NODE_TYPE_GRAPH, NULL);
    work_submit(stream, (struct Work){.kind = WORK_NOTHING});
    for (struct Node *node = exec->nodes; node; node = node->next) {
        CUresult result = node->work.kind == WORK_NOTHING ? CUDA_SUCCESS : launch_work(stream, &node->work, node->context ? node->context : context);
        if (result) return result;
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
            Allocation *a = table_at(node->address);
            REQUIRE(a && a->class == GRAPH);
            graph_freed(a);
        }
        if (node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) continue;
        int device = node->device;
        Allocation *before = table_at(node->address); /* still allocated by the last launch */
        REQUIRE(!before || exec->flags & AUTO_FREE_ON_LAUNCH);
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
    }
    return CUDA_SUCCESS;
}
API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) { return cuGraphLaunch(exec, of_thread(stream)); }
API CUresult cuGraphExecDestroy(CUgraphExec exec) { ENTER("cuGraphExecDestroy"); REQUIRE(exec); graph_free_nodes(exec->nodes); free(exec); return CUDA_SUCCESS; }

API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    ENTER("cuDeviceGetGraphMemAttribute");
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    REQUIRE(value && attribute >= 0 && attribute < 4);
    uint64_t *const gauges[] = {used, used_high, reserved, reserved_high};
    *(uint64_t *)value = gauges[attribute][device];
    return CUDA_SUCCESS;
}
API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, U int attribute, U void *value) { ENTER("cuDeviceSetGraphMemAttribute"); if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE; used_high[device] = used[device]; reserved_high[device] = reserved[device]; return CUDA_SUCCESS; }
API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    ENTER("cuDeviceGraphMemTrim");
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    state_give(physical_of(device), reserved[device] - used[device], &extents[device]);
    reserved[device] = used[device];
    return CUDA_SUCCESS;
}

struct UserObject { unsigned references; void *data; void (*destroy)(void *); };
API CUresult cuUserObjectCreate(struct UserObject **out, void *data, void (*destroy)(void *), unsigned references, U unsigned flags) { REQUIRE(out); *out = calloc(1, sizeof **out); **out = (struct UserObject){references, data, destroy}; return CUDA_SUCCESS; }
API CUresult cuUserObjectRetain(struct UserObject *o, unsigned count) { REQUIRE(o); o->references += count; return CUDA_SUCCESS; }
API CUresult cuUserObjectRelease(struct UserObject *o, unsigned count) { REQUIRE(o); if ((o->references -= count) == 0) { o->destroy(o->data); free(o); } return CUDA_SUCCESS; }
API CUresult cuGraphRetainUserObject(U CUgraph graph, struct UserObject *o, unsigned count, unsigned flags) { REQUIRE(o); if (!(flags & 1)) o->references += count; return CUDA_SUCCESS; }
API CUresult cuGraphReleaseUserObject(U CUgraph graph, struct UserObject *o, unsigned count) { return cuUserObjectRelease(o, count); }
