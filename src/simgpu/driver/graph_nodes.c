/* Nodes of CUDA graphs and their parameters. A captured node has the parameters that its work has: memory of a copy is
 * named by its address (CU_MEMORYTYPE_UNIFIED), even if it is an array's. */
#include "graph.h"
#include <stddef.h>

#define U __attribute__((unused))
#define NODES CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count
/* The next node that is added to the graph has these dependencies. */
#define AFTER_DEPENDENCIES                                                         \
    CUresult linked_ = graph_next(graph, dependencies, count, NULL);               \
    if (linked_) return linked_

uint64_t graph_node_id(void)
{
    static uint64_t ids;
    return ++ids;
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
    node->id = graph_node_id();
    *graph->last = node;
    graph->last = &node->next;
    graph_link(graph, node);
    return node;
}

/* ---- parameters */

enum { UNIFIED = 4 };

void graph_work(struct Node *node, const struct Work *w)
{
    node->work = *w;
    if (w->kind == WORK_COPY)
        node->copy = (CUDA_MEMCPY3D){
            .srcMemoryType = UNIFIED, .srcDevice = (CUdeviceptr)w->from.base, .srcPitch = w->from.pitch,
            .srcHeight = w->from.pitch ? w->from.slice / w->from.pitch : 0,
            .dstMemoryType = UNIFIED, .dstDevice = (CUdeviceptr)w->to.base, .dstPitch = w->to.pitch,
            .dstHeight = w->to.pitch ? w->to.slice / w->to.pitch : 0,
            .WidthInBytes = w->width, .Height = w->height, .Depth = w->depth,
        };
    if (w->kind == WORK_FILL && node->type == CU_GRAPH_NODE_TYPE_MEMSET) {
        node->fill = (CUDA_MEMSET_NODE_PARAMS){.dst = (CUdeviceptr)w->to.base, .pitch = w->to.pitch, .height = w->height,
                                               .elementSize = (unsigned)w->element, .width = w->width / w->element};
        memcpy(&node->fill.value, w->value, sizeof node->fill.value);
    }
    if (w->kind == WORK_HOST) node->host = (CUDA_HOST_NODE_PARAMS){w->function, w->data};
}

static CUresult check_context(const struct Context *context)
{
    return context && context_device((CUcontext)context) < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult node_set_copy(struct Node *node, const CUDA_MEMCPY3D *copy, struct Context *context)
{
    REQUIRE(copy && node->type == CU_GRAPH_NODE_TYPE_MEMCPY);
    CUresult wrong = check_context(context);
    if (wrong) return wrong;
    node->copy = *copy;
    node->work = copy_work(copy);
    node->context = context;
    return CUDA_SUCCESS;
}

CUresult node_set_fill(struct Node *node, const CUDA_MEMSET_NODE_PARAMS *p, struct Context *context)
{
    REQUIRE(p && node->type == CU_GRAPH_NODE_TYPE_MEMSET);
    REQUIRE(p->elementSize == 1 || p->elementSize == 2 || p->elementSize == 4);
    CUresult wrong = check_context(context);
    if (wrong) return wrong;
    memcpy(&node->fill, p, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx)); /* version 1 ends there */
    node->fill.ctx = context;
    node->work = (struct Work){.kind = WORK_FILL, .to = {.base = (char *)p->dst, .pitch = p->pitch}, .element = p->elementSize,
                               .width = p->width * p->elementSize, .height = p->height, .depth = 1};
    memcpy(node->work.value, &p->value, p->elementSize);
    node->context = context;
    return CUDA_SUCCESS;
}

CUresult node_set_host(struct Node *node, const CUDA_HOST_NODE_PARAMS *p)
{
    REQUIRE(p && p->fn && node->type == CU_GRAPH_NODE_TYPE_HOST);
    node->host = *p;
    node->work = (struct Work){.kind = WORK_HOST, .function = p->fn, .data = p->userData};
    return CUDA_SUCCESS;
}

CUresult node_set_event(struct Node *node, struct Event *event)
{
    REQUIRE(event && (node->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD));
    event_hold(event);
    event_drop(node->event);
    node->event = event;
    return CUDA_SUCCESS;
}

/* The arguments stay where they are: nothing here knows how many a kernel has, and no kernel reads them. */
enum { KERNEL_V1 = offsetof(CUDA_KERNEL_NODE_PARAMS, kern), KERNEL_V2 = sizeof(CUDA_KERNEL_NODE_PARAMS) };
CUresult node_set_kernel(struct Node *node, const CUDA_KERNEL_NODE_PARAMS *p, int version)
{
    REQUIRE(p && node->type == CU_GRAPH_NODE_TYPE_KERNEL);
    CUDA_KERNEL_NODE_PARAMS wanted = {0};
    memcpy(&wanted, p, version == 1 ? KERNEL_V1 : KERNEL_V2);
    REQUIRE((wanted.func || wanted.kern) && !(wanted.parameters && wanted.extra)); /* cuda.h 13.0:18704 */
    node->kernel = wanted;
    return CUDA_SUCCESS;
}

CUresult node_set(struct Node *node, const CUgraphNodeParams *p)
{
    REQUIRE(p && p->type == node->type);
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return node_set_kernel(node, &p->u.kernel, 2);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return node_set_copy(node, &p->u.copy.params, p->u.copy.context);
    case CU_GRAPH_NODE_TYPE_MEMSET: return node_set_fill(node, &p->u.fill, p->u.fill.ctx);
    case CU_GRAPH_NODE_TYPE_HOST: return node_set_host(node, &p->u.host);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return node_set_event(node, p->u.event);
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED; /* cuda.h 13.0:21488: memory nodes; external semaphores and batches are absent */
    }
}

/* ---- nodes */

/* A node whose parameters are refused is not added. */
static CUresult added(CUgraphNode *out, struct Node *node, CUresult result)
{
    if (!result) {
        if (out) *out = node;
        return CUDA_SUCCESS;
    }
    struct Graph *graph = node->graph;
    for (struct Node **at = &graph->first; *at; at = &(*at)->next)
        if (*at == node) {
            *at = NULL;
            graph->last = at;
            break;
        }
    graph_free_node(node);
    return result;
}

#define NODE(function, type, set, ...)                                             \
    API CUresult function(NODES, ##__VA_ARGS__)                                    \
    {                                                                              \
        ENTER(#function);                                                          \
        AFTER_DEPENDENCIES;                                                        \
        struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_##type);           \
        return added(out, node, set);                                              \
    }
NODE(cuGraphAddEmptyNode, EMPTY, CUDA_SUCCESS)
NODE(cuGraphAddKernelNode, KERNEL, node_set_kernel(node, p, 1), const CUDA_KERNEL_NODE_PARAMS *p)
NODE(cuGraphAddKernelNode_v2, KERNEL, node_set_kernel(node, p, 2), const CUDA_KERNEL_NODE_PARAMS *p)
NODE(cuGraphAddMemcpyNode, MEMCPY, node_set_copy(node, copy, context), const CUDA_MEMCPY3D *copy, CUcontext context)
NODE(cuGraphAddMemsetNode, MEMSET, node_set_fill(node, p, context), const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context)
NODE(cuGraphAddHostNode, HOST, node_set_host(node, p), const CUDA_HOST_NODE_PARAMS *p)
NODE(cuGraphAddEventRecordNode, EVENT_RECORD, node_set_event(node, event), CUevent event)
NODE(cuGraphAddEventWaitNode, WAIT_EVENT, node_set_event(node, event), CUevent event)

/* The child graph is copied, and then it has neither memory nodes nor conditional nodes (cuda.h 13.0:19084); or it is
 * moved, and then it has no conditional nodes (4738). */
static CUresult add_child(CUgraphNode *out, struct Graph *graph, struct Graph *child, int ownership)
{
    enum { CLONE, MOVE };
    unsigned conditional = TYPE(CU_GRAPH_NODE_TYPE_CONDITIONAL);
    REQUIRE(child && child != graph && !child->parent && (ownership == CLONE || ownership == MOVE));
    REQUIRE(!graph_has(child, ownership == CLONE ? MEMORY_NODES | conditional : conditional));
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_GRAPH);
    node->child = ownership == CLONE ? graph_copy(child, false) : child;
    node->child->parent = graph;
    if (out) *out = node;
    return CUDA_SUCCESS;
}
API CUresult cuGraphAddChildGraphNode(NODES, CUgraph child) { ENTER("cuGraphAddChildGraphNode"); AFTER_DEPENDENCIES; return add_child(out, graph, child, 0); }
API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) { ENTER("cuGraphChildGraphNodeGetGraph"); REQUIRE(node && graph && node->type == CU_GRAPH_NODE_TYPE_GRAPH); *graph = node->child; return CUDA_SUCCESS; }

API CUresult cuGraphAddMemAllocNode(NODES, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    ENTER("cuGraphAddMemAllocNode");
    REQUIRE(p);
    AFTER_DEPENDENCIES;
    return graph_add_alloc(out, graph, p->poolProps.location.id, p->bytesize, &p->dptr);
}
API CUresult cuGraphAddMemFreeNode(NODES, CUdeviceptr address) { ENTER("cuGraphAddMemFreeNode"); AFTER_DEPENDENCIES; return graph_add_free(out, graph, address); }

/* ---- conditional nodes: cuda.h 13.0:1853-1898, 21554-21582 */

API CUresult cuGraphConditionalHandleCreate(unsigned long long *out, CUgraph graph, CUcontext context, unsigned value, unsigned flags)
{
    enum { ASSIGN_DEFAULT = 1 };
    static uint64_t handles;
    ENTER("cuGraphConditionalHandleCreate");
    REQUIRE(out && graph && !(flags & ~(unsigned)ASSIGN_DEFAULT));
    if (!context) context = context_current();
    REQUIRE(context && context_device(context) >= 0);
    struct Condition *c = malloc(sizeof *c);
    *c = (struct Condition){++handles, context, flags & ASSIGN_DEFAULT ? value : 0, flags, graph->conditions};
    graph->conditions = c;
    *out = c->handle;
    return CUDA_SUCCESS;
}

/* A handle belongs to "this graph or one of its children" (cuda.h 13.0:21559). */
static const struct Condition *condition_of(const struct Graph *graph, uint64_t handle)
{
    for (; graph; graph = graph->parent)
        for (const struct Condition *c = graph->conditions; c; c = c->next)
            if (c->handle == handle) return c;
    return NULL;
}

static bool size_allowed(int type, unsigned size)
{
    switch (type) {
    case COND_IF: return size == 1 || size == 2;
    case COND_WHILE: return size == 1;
    case COND_SWITCH: return size > 0;
    default: return false;
    }
}

static CUresult add_conditional(CUgraphNode *out, struct Graph *graph, CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    const struct Condition *condition = condition_of(graph, p->handle);
    REQUIRE(condition && size_allowed(p->type, p->size) && (!p->ctx || p->ctx == condition->context));
    struct Node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_CONDITIONAL);
    struct Graph **bodies = calloc(p->size, sizeof *bodies);
    for (unsigned i = 0; i < p->size; i++) {
        bodies[i] = graph_new();
        bodies[i]->parent = graph;
        bodies[i]->body = true;
    }
    node->conditional = (struct Conditional){p->handle, p->type, p->size, bodies, condition->context, condition->value};
    p->graphs = bodies;
    if (out) *out = node;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddNode(NODES, CUgraphNodeParams *p)
{
    ENTER("cuGraphAddNode");
    REQUIRE(p);
    AFTER_DEPENDENCIES;
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return graph_add_alloc(out, graph, p->u.alloc.poolProps.location.id, p->u.alloc.bytesize, &p->u.alloc.dptr);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return graph_add_free(out, graph, p->u.free);
    case CU_GRAPH_NODE_TYPE_GRAPH: return add_child(out, graph, p->u.child.graph, p->u.child.ownership);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return add_conditional(out, graph, &p->u.conditional);
    }
    struct Node *node = graph_add(graph, p->type);
    return added(out, node, node_set(node, p));
}
API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *d, U const void *edges, size_t n, CUgraphNodeParams *p) { return cuGraphAddNode(out, graph, d, n, p); }

/* ---- questions and changes */

API CUresult cuGraphNodeGetType(CUgraphNode node, int *type) { ENTER("cuGraphNodeGetType"); REQUIRE(node && type); *type = node->type; return CUDA_SUCCESS; }

#define GET(function, node_type, out_type, field, bytes)                           \
    API CUresult function(CUgraphNode node, out_type *out)                         \
    {                                                                              \
        ENTER(#function);                                                          \
        REQUIRE(node && out && node->type == CU_GRAPH_NODE_TYPE_##node_type);      \
        memcpy(out, &node->field, bytes);                                          \
        return CUDA_SUCCESS;                                                       \
    }
GET(cuGraphKernelNodeGetParams, KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel, KERNEL_V1)
GET(cuGraphKernelNodeGetParams_v2, KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel, KERNEL_V2)
GET(cuGraphMemcpyNodeGetParams, MEMCPY, CUDA_MEMCPY3D, copy, sizeof *out)
GET(cuGraphMemsetNodeGetParams, MEMSET, CUDA_MEMSET_NODE_PARAMS, fill, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx))
GET(cuGraphHostNodeGetParams, HOST, CUDA_HOST_NODE_PARAMS, host, sizeof *out)
GET(cuGraphEventRecordNodeGetEvent, EVENT_RECORD, CUevent, event, sizeof *out)
GET(cuGraphEventWaitNodeGetEvent, WAIT_EVENT, CUevent, event, sizeof *out)

#define SET(function, set, ...)                                                    \
    API CUresult function(CUgraphNode node, ##__VA_ARGS__) { ENTER(#function); REQUIRE(node); return set; }
SET(cuGraphKernelNodeSetParams, node_set_kernel(node, p, 1), const CUDA_KERNEL_NODE_PARAMS *p)
SET(cuGraphKernelNodeSetParams_v2, node_set_kernel(node, p, 2), const CUDA_KERNEL_NODE_PARAMS *p)
SET(cuGraphMemcpyNodeSetParams, node_set_copy(node, p, node->context), const CUDA_MEMCPY3D *p)
SET(cuGraphMemsetNodeSetParams, node_set_fill(node, p, node->context), const CUDA_MEMSET_NODE_PARAMS *p)
SET(cuGraphHostNodeSetParams, node_set_host(node, p), const CUDA_HOST_NODE_PARAMS *p)
SET(cuGraphEventRecordNodeSetEvent, node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? node_set_event(node, event) : CUDA_ERROR_INVALID_VALUE, CUevent event)
SET(cuGraphEventWaitNodeSetEvent, node->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ? node_set_event(node, event) : CUDA_ERROR_INVALID_VALUE, CUevent event)
SET(cuGraphNodeSetParams, node_set(node, p), CUgraphNodeParams *p)
API CUresult cuGraphNodeSetParams_v2(CUgraphNode node, CUgraphNodeParams *p) { return cuGraphNodeSetParams(node, p); }

/* Attributes of kernel nodes (priority, access windows) have no effect here and are not kept. */
API CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) { REQUIRE(to && from); return CUDA_SUCCESS; }
API CUresult cuGraphKernelNodeGetAttribute(U CUgraphNode node, U int attribute, U void *value) { return CUDA_ERROR_NOT_SUPPORTED; }
API CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, U int attribute, const void *value) { REQUIRE(node && value); return CUDA_SUCCESS; }

/* ---- captured nodes that do more than work */

/* The node that a capturing stream adds; NULL if it does not capture. */
static CUresult captured_node(CUstream stream, int type, struct Node **node)
{
    struct Graph *graph;
    *node = NULL;
    CUresult result = stream_capture(stream, type, &graph);
    if (graph && !(*node = graph_add(graph, type))) return capture_failed(stream);
    return result;
}

CUresult graph_capture_kernel(CUstream stream, const CUDA_KERNEL_NODE_PARAMS *kernel, bool *captured)
{
    struct Node *node;
    CUresult result = captured_node(stream, CU_GRAPH_NODE_TYPE_KERNEL, &node);
    if ((*captured = node)) node->kernel = *kernel;
    return result;
}

CUresult graph_capture_event(CUstream stream, struct Event *event, bool wait, bool *captured)
{
    struct Node *node;
    CUresult result = captured_node(stream, wait ? CU_GRAPH_NODE_TYPE_WAIT_EVENT : CU_GRAPH_NODE_TYPE_EVENT_RECORD, &node);
    if ((*captured = node)) return node_set_event(node, event);
    return result;
}

CUresult graph_capture_child(CUstream stream, const struct Graph *child, bool *captured)
{
    *captured = false;
    bool possible = !graph_has(child, MEMORY_NODES | TYPE(CU_GRAPH_NODE_TYPE_CONDITIONAL));
    if (!possible && stream_captures(stream)) return CUDA_ERROR_NOT_SUPPORTED; /* see add_child */
    struct Node *node;
    CUresult result = captured_node(stream, CU_GRAPH_NODE_TYPE_GRAPH, &node);
    if (!(*captured = node)) return result;
    graph_free(node->child); /* of the graph that is recaptured */
    node->child = graph_copy(child, false);
    node->child->parent = node->graph;
    return CUDA_SUCCESS;
}
