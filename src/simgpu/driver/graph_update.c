/* Changes of executable graphs. A node of an executable graph is named by the node of the graph from which it was made.
 * Sources: cuda.h 13.0:20542-21212. */
#include "graph.h"

#define U __attribute__((unused))

static struct Node *node_of(const struct Exec *exec, const struct Node *node)
{
    for (struct Node *own = exec && node ? exec->graph->first : NULL; own; own = own->next)
        if (own->copied_from == node->id) return own;
    return NULL;
}

/* ---- one node */

static bool one_dimensional(const CUDA_MEMCPY3D *copy) { return copy->Height <= 1 && copy->Depth <= 1; }

/* cuda.h 13.0:20606: both the copy and the one that it replaces have one dimension. */
static CUresult set_copy(struct Node *own, const CUDA_MEMCPY3D *copy, struct Context *context)
{
    REQUIRE(copy && own->type == CU_GRAPH_NODE_TYPE_MEMCPY && one_dimensional(&own->copy) && one_dimensional(copy));
    REQUIRE(copy->WidthInBytes);
    return node_set_copy(own, copy, context);
}

static CUresult set_fill(struct Node *own, const CUDA_MEMSET_NODE_PARAMS *fill, struct Context *context)
{
    REQUIRE(fill && fill->width && fill->height);
    return node_set_fill(own, fill, context);
}

static CUresult set_event(struct Node *own, int type, struct Event *event)
{
    REQUIRE(own->type == type);
    return node_set_event(own, event);
}

static CUresult set_any(struct Node *own, const CUgraphNodeParams *p)
{
    REQUIRE(p && p->type == own->type);
    if (p->type == CU_GRAPH_NODE_TYPE_MEMCPY) return set_copy(own, &p->u.copy.params, p->u.copy.context);
    if (p->type == CU_GRAPH_NODE_TYPE_MEMSET) return set_fill(own, &p->u.fill, p->u.fill.ctx);
    return node_set(own, p);
}

#define SET(function, set, ...)                                                    \
    API CUresult function(CUgraphExec exec, CUgraphNode node, ##__VA_ARGS__)       \
    {                                                                              \
        ENTER(#function);                                                          \
        struct Node *own = node_of(exec, node);                                    \
        REQUIRE(own);                                                              \
        return set;                                                                \
    }
SET(cuGraphExecKernelNodeSetParams, node_set_kernel(own, p, 1), const CUDA_KERNEL_NODE_PARAMS *p)
SET(cuGraphExecKernelNodeSetParams_v2, node_set_kernel(own, p, 2), const CUDA_KERNEL_NODE_PARAMS *p)
SET(cuGraphExecMemcpyNodeSetParams, set_copy(own, p, context), const CUDA_MEMCPY3D *p, CUcontext context)
SET(cuGraphExecMemsetNodeSetParams, set_fill(own, p, context), const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context)
SET(cuGraphExecHostNodeSetParams, node_set_host(own, p), const CUDA_HOST_NODE_PARAMS *p)
SET(cuGraphExecEventRecordNodeSetEvent, set_event(own, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event), CUevent event)
SET(cuGraphExecEventWaitNodeSetEvent, set_event(own, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event), CUevent event)
SET(cuGraphExecNodeSetParams, set_any(own, p), CUgraphNodeParams *p)

/* cuda.h 13.0:20969: kernels, fills and copies alone. */
static bool can_be_disabled(const struct Node *node)
{
    return node->type == CU_GRAPH_NODE_TYPE_KERNEL || node->type == CU_GRAPH_NODE_TYPE_MEMSET || node->type == CU_GRAPH_NODE_TYPE_MEMCPY;
}
static CUresult enable(struct Node *own, bool enabled)
{
    REQUIRE(can_be_disabled(own));
    own->disabled = !enabled;
    return CUDA_SUCCESS;
}
static CUresult is_enabled(const struct Node *own, unsigned *enabled)
{
    REQUIRE(enabled && can_be_disabled(own));
    *enabled = !own->disabled;
    return CUDA_SUCCESS;
}
SET(cuGraphNodeSetEnabled, enable(own, enabled), unsigned enabled)
SET(cuGraphNodeGetEnabled, is_enabled(own, enabled), unsigned *enabled)

/* ---- a whole graph */

struct difference { int result; const struct Node *node, *from; };

static size_t length(const struct Graph *graph)
{
    size_t count = 0;
    for (const struct Node *node = graph->first; node; node = node->next) count++;
    return count;
}

/* The kind of memory of a copy may not change. A captured copy does not tell it. */
static bool same_kind(int own, int other)
{
    enum { UNIFIED = 4 };
    return own == other || own == UNIFIED || other == UNIFIED;
}

static struct difference compare(const struct Graph *own, const struct Graph *other);

static struct difference compare_node(const struct Node *own, const struct Node *other)
{
    struct difference same = {0}, changed = {CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, other, NULL};
    switch (own->type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
        bool kinds = same_kind(own->copy.srcMemoryType, other->copy.srcMemoryType) && same_kind(own->copy.dstMemoryType, other->copy.dstMemoryType);
        return kinds ? same : changed;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        bool shape = own->fill.width == other->fill.width && own->fill.height == other->fill.height && own->fill.pitch == other->fill.pitch;
        return own->fill.height <= 1 || shape ? same : changed; /* cuda.h 13.0:21149 */
    }
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return own->size == other->size && own->device == other->device ? same : changed;
    case CU_GRAPH_NODE_TYPE_GRAPH: return own->child && other->child ? compare(own->child, other->child) : same;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: break;
    default: return same;
    }
    if (own->conditional.type != other->conditional.type || own->conditional.size != other->conditional.size) return changed;
    for (unsigned i = 0; i < own->conditional.size && !same.result; i++)
        same = compare(own->conditional.bodies[i], other->conditional.bodies[i]);
    return same;
}

/* Both graphs are in an order that their edges and the order of creation alone decide on, so nodes at the same place are
 * a pair. */
static struct difference compare(const struct Graph *own, const struct Graph *other)
{
    if (length(own) != length(other)) return (struct difference){CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL, NULL};
    for (struct Node *a = own->first, *b = other->first; a; a = a->next, b = b->next) a->twin = b;
    for (const struct Node *a = own->first, *b = other->first; a; a = a->next, b = b->next) {
        struct difference topology = {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b, NULL};
        if (a->dependencies.count != b->dependencies.count) return topology;
        for (size_t i = 0; i < a->dependencies.count; i++)
            if (!nodes_have(&b->dependencies, a->dependencies.at[i]->twin)) return topology.from = b->dependencies.at[i], topology;
        if (a->type != b->type) return (struct difference){CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, b, NULL};
        struct difference found = compare_node(a, b);
        if (found.result) return found;
    }
    return (struct difference){0};
}

/* The nodes of `graph` are found by those of the graph from which `exec` was made, also after the update. */
static void take_names(struct Graph *to, const struct Graph *from)
{
    for (struct Node *a = to->first, *b = from->first; a; a = a->next, b = b->next) {
        a->copied_from = b->copied_from;
        if (a->type == CU_GRAPH_NODE_TYPE_GRAPH && a->child && b->child) take_names(a->child, b->child);
        for (unsigned i = 0; a->type == CU_GRAPH_NODE_TYPE_CONDITIONAL && i < a->conditional.size; i++)
            take_names(a->conditional.bodies[i], b->conditional.bodies[i]);
    }
}

/* The node of `graph` of which the copy is one; nodes of owned graphs are not told. */
static CUgraphNode told(const struct Graph *graph, const struct Node *copy)
{
    for (struct Node *node = copy ? graph->first : NULL; node; node = node->next)
        if (node->id == copy->copied_from) return node;
    return NULL;
}

static CUresult update(struct Graph **own, const struct Graph *graph, CUgraphExecUpdateResultInfo *info)
{
    struct Graph *copy = graph_copy(graph, true);
    struct difference found = copy ? compare(*own, copy) : (struct difference){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    *info = (CUgraphExecUpdateResultInfo){found.result, told(graph, found.node), told(graph, found.from)};
    if (found.result) {
        if (copy) graph_free(copy);
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    take_names(copy, *own);
    copy->parent = (*own)->parent;
    graph_free(*own);
    *own = copy;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    ENTER("cuGraphExecUpdate");
    REQUIRE(exec && graph && info);
    return update(&exec->graph, graph, info);
}
API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node, int *result)
{
    CUgraphExecUpdateResultInfo info = {CU_GRAPH_EXEC_UPDATE_ERROR, NULL, NULL};
    CUresult updated = cuGraphExecUpdate_v2(exec, graph, &info);
    if (node) *node = info.errorNode;
    if (result) *result = info.result;
    return updated;
}

static CUresult set_child(struct Node *own, const struct Graph *child)
{
    CUgraphExecUpdateResultInfo unused;
    REQUIRE(child && own->type == CU_GRAPH_NODE_TYPE_GRAPH && own->child);
    return update(&own->child, child, &unused) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
SET(cuGraphExecChildGraphNodeSetParams, set_child(own, child), CUgraph child)
