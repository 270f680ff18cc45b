/* CUDA graphs. A launch does the work of the nodes in its stream, one after the other, each after the nodes that it depends
 * on (edges.c). The kernels compute nothing, so no kernel sets a condition: at each launch a conditional node has its
 * handle's default value, and the body of a while node runs once (where a kernel would have to end the loop). */
#include "graph.h"

#define U __attribute__((unused))

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

API CUresult cuGraphCreate(CUgraph *out, unsigned flags) { ENTER("cuGraphCreate"); REQUIRE(out && !flags); *out = graph_new(); return CUDA_SUCCESS; }

/* The graph of a child graph node or a body stays the node's (cuda.h 13.0:19121). */
API CUresult cuGraphDestroy(CUgraph graph) { ENTER("cuGraphDestroy"); REQUIRE(graph && !graph->parent); graph_free(graph); return CUDA_SUCCESS; }

API CUresult cuGraphClone(CUgraph *out, CUgraph from)
{
    ENTER("cuGraphClone");
    REQUIRE(out && from);
    *out = graph_copy(from, false);
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph clone)
{
    ENTER("cuGraphNodeFindInClone");
    REQUIRE(out && original && clone);
    for (struct Node *node = clone->first; node; node = node->next)
        if (node->copied_from == original->id) return *out = node, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- executable graphs */

/* Which nodes the body of a conditional node may have: cuda.h 13.0:1882-1884, and memory nodes nowhere in it. */
static bool bodies_allowed(const struct Graph *graph)
{
    unsigned allowed = TYPE(CU_GRAPH_NODE_TYPE_KERNEL) | TYPE(CU_GRAPH_NODE_TYPE_EMPTY) | TYPE(CU_GRAPH_NODE_TYPE_GRAPH)
                     | TYPE(CU_GRAPH_NODE_TYPE_MEMSET) | TYPE(CU_GRAPH_NODE_TYPE_MEMCPY) | TYPE(CU_GRAPH_NODE_TYPE_CONDITIONAL);
    if (graph->body) return !graph_has(graph, ~allowed);
    for (const struct Node *node = graph->first; node; node = node->next)
        for (unsigned i = 0; node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL && i < node->conditional.size; i++)
            if (!bodies_allowed(node->conditional.bodies[i])) return false;
    return true;
}

/* Edges that make a circle have no order: the graph cannot be instantiated. */
static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    ENTER("cuGraphInstantiate");
    REQUIRE(out && graph && bodies_allowed(graph));
    struct Graph *copy = graph_copy(graph, true);
    REQUIRE(copy);
    *out = malloc(sizeof **out);
    **out = (struct Exec){copy, flags};
    return CUDA_SUCCESS;
}
API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) { return instantiate(out, graph, flags); }
API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, U CUgraphNode *node, U char *log, U size_t size) { return instantiate(out, graph, 0); }
API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, U CUgraphNode *node, U char *log, U size_t size) { return instantiate(out, graph, 0); }
API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    enum { SUCCEEDED, FAILED, INVALID_STRUCTURE };
    REQUIRE(p);
    CUresult result = instantiate(out, graph, p->flags);
    p->error = NULL;
    p->result = !result ? SUCCEEDED : out && graph ? INVALID_STRUCTURE : FAILED;
    return result;
}
PTSZ(cuGraphInstantiateWithParams);
API CUresult cuGraphExecGetFlags(CUgraphExec exec, unsigned long long *flags) { ENTER("cuGraphExecGetFlags"); REQUIRE(exec && flags); *flags = exec->flags; return CUDA_SUCCESS; }
API CUresult cuGraphUpload(U CUgraphExec exec, U CUstream stream) { ENTER("cuGraphUpload"); return CUDA_SUCCESS; }
PTSZ(cuGraphUpload);
API CUresult cuGraphExecDestroy(CUgraphExec exec) { ENTER("cuGraphExecDestroy"); REQUIRE(exec); graph_free(exec->graph); free(exec); return CUDA_SUCCESS; }

API CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, U unsigned flags)
{
    ENTER("cuGraphDebugDotPrint");
    REQUIRE(graph && path);
    FILE *file = fopen(path, "we");
    REQUIRE(file);
    fprintf(file, "digraph dot {\n");
    for (const struct Node *node = graph->first; node; node = node->next) {
        fprintf(file, "n%llu [label=\"type %d\"];\n", (unsigned long long)node->id, node->type);
        for (size_t i = 0; i < node->dependencies.count; i++)
            fprintf(file, "n%llu -> n%llu;\n", (unsigned long long)node->dependencies.at[i]->id, (unsigned long long)node->id);
    }
    fprintf(file, "}\n");
    fclose(file);
    return CUDA_SUCCESS;
}

/* ---- launches */

static bool side_accessible(int device, const struct side *side, const struct Work *w, bool write)
{
    uint64_t size = (w->depth - 1) * side->slice + (w->height - 1) * side->pitch + w->width;
    return accessible(device, (uint64_t)side->base, w->width && w->height && w->depth ? size : 0, write);
}

/* Memory may have been unmapped since the capture. Then the graph faults. */
static CUresult launch_work(CUstream stream, const struct Work *w, struct Context *context)
{
    bool copies = w->kind == WORK_COPY && !w->peer, writes = copies || w->kind == WORK_FILL;
    if (writes && !side_accessible(context->device, &w->to, w, true)) return context_break(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    if (copies && !side_accessible(context->device, &w->from, w, false)) return context_break(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    work_submit(stream, *w);
    return CUDA_SUCCESS;
}

/* What a launch passes on from graph to graph. */
struct launch { CUstream stream; struct Context *context; unsigned long long flags; };

static CUresult run(const struct launch *launch, const struct Graph *graph);

static CUresult run_conditional(const struct launch *launch, const struct Conditional *c)
{
    bool first = c->type == COND_SWITCH ? c->value < c->size : c->value;
    if (first) return run(launch, c->bodies[c->type == COND_SWITCH ? c->value : 0]);
    return c->type == COND_IF && c->size == 2 ? run(launch, c->bodies[1]) : CUDA_SUCCESS;
}

static CUresult run_node(const struct launch *launch, const struct Node *node)
{
    struct Context *context = node->context ? node->context : launch->context;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return graph_launch_alloc(node, launch->flags);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return graph_launch_free(node);
    case CU_GRAPH_NODE_TYPE_GRAPH: return node->child ? run(launch, node->child) : CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return run_conditional(launch, &node->conditional);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return event_launch(node->event, launch->stream, false);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return event_launch(node->event, launch->stream, true);
    case CU_GRAPH_NODE_TYPE_KERNEL: return kernel_launched(node->kernel.func ? node->kernel.func : node->kernel.kern, context);
    default: return node->work.kind == WORK_NOTHING ? CUDA_SUCCESS : launch_work(launch->stream, &node->work, context);
    }
}

static CUresult run(const struct launch *launch, const struct Graph *graph)
{
    CUresult result = CUDA_SUCCESS;
    for (const struct Node *node = graph->first; node && !result; node = node->next)
        if (!node->disabled) result = run_node(launch, node);
    return result;
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    ENTER_WORKING("cuGraphLaunch");
    REQUIRE(exec);
    struct Context *context = stream_context(stream, context_current());
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    CHECK_STREAM(stream);
    bool captured;
    CUresult result = graph_capture_child(stream, exec->graph, &captured);
    if (result || captured) return result;
    work_submit(stream, (struct Work){.kind = WORK_NOTHING});
    return run(&(struct launch){stream, context, exec->flags}, exec->graph);
}
API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) { return cuGraphLaunch(exec, of_thread(stream)); }

struct UserObject { unsigned references; void *data; void (*destroy)(void *); };
API CUresult cuUserObjectCreate(struct UserObject **out, void *data, void (*destroy)(void *), unsigned references, U unsigned flags) { REQUIRE(out); *out = calloc(1, sizeof **out); **out = (struct UserObject){references, data, destroy}; return CUDA_SUCCESS; }
API CUresult cuUserObjectRetain(struct UserObject *o, unsigned count) { REQUIRE(o); o->references += count; return CUDA_SUCCESS; }
API CUresult cuUserObjectRelease(struct UserObject *o, unsigned count) { REQUIRE(o); if ((o->references -= count) == 0) { o->destroy(o->data); free(o); } return CUDA_SUCCESS; }
API CUresult cuGraphRetainUserObject(U CUgraph graph, struct UserObject *o, unsigned count, unsigned flags) { REQUIRE(o); if (!(flags & 1)) o->references += count; return CUDA_SUCCESS; }
API CUresult cuGraphReleaseUserObject(U CUgraph graph, struct UserObject *o, unsigned count) { return cuUserObjectRelease(o, count); }
