/* Edges of CUDA graphs. Each node keeps the nodes that it depends on. A node that is captured depends on the last nodes
 * before it in its stream, and on those of the events that its stream has waited for since. Edge data is always the
 * default, zero. */
#include "graph.h"

bool nodes_have(const struct Nodes *nodes, const struct Node *node)
{
    for (size_t i = 0; i < nodes->count; i++)
        if (nodes->at[i] == node) return true;
    return false;
}

void nodes_add(struct Nodes *nodes, struct Node *node)
{
    if (nodes_have(nodes, node)) return;
    nodes->at = realloc(nodes->at, (nodes->count + 1) * sizeof *nodes->at);
    nodes->at[nodes->count++] = node;
}

void nodes_add_all(struct Nodes *to, const struct Nodes *from)
{
    for (size_t i = 0; i < from->count; i++) nodes_add(to, from->at[i]);
}

void nodes_clear(struct Nodes *nodes)
{
    free(nodes->at);
    *nodes = (struct Nodes){0};
}

static void nodes_remove(struct Nodes *nodes, const struct Node *node)
{
    size_t kept = 0;
    for (size_t i = 0; i < nodes->count; i++)
        if (nodes->at[i] != node) nodes->at[kept++] = nodes->at[i];
    nodes->count = kept;
}

static bool belongs(const struct Graph *graph, const struct Node *node) { return node && node->graph == graph; }

/* cuda.h 13.0:18646: the dependencies may have no duplicates. */
CUresult graph_next(struct Graph *graph, const CUgraphNode *dependencies, size_t count, struct Nodes *ends)
{
    REQUIRE(graph && (dependencies || !count));
    nodes_clear(&graph->dependencies);
    graph->ends = ends;
    for (size_t i = 0; i < count; i++) {
        REQUIRE(belongs(graph, dependencies[i]) && !nodes_have(&graph->dependencies, dependencies[i]));
        nodes_add(&graph->dependencies, dependencies[i]);
    }
    return CUDA_SUCCESS;
}

void graph_link(struct Graph *graph, struct Node *node)
{
    if (!graph->recaptured) {
        node->graph = graph;
        node->dependencies = graph->dependencies;
        graph->dependencies = (struct Nodes){0};
    }
    if (!graph->ends) return;
    nodes_clear(graph->ends);
    nodes_add(graph->ends, node);
    graph->ends = NULL;
}

bool graph_has_memory(const struct Graph *graph)
{
    for (const struct Node *node = graph->first; node; node = node->next)
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return true;
    return false;
}

void graph_free_nodes(struct Node *node)
{
    for (struct Node *next; node; node = next) {
        next = node->next;
        nodes_clear(&node->dependencies);
        free(node);
    }
}

/* ---- copies */

static struct Node *copy_of(const struct Node *node, struct Graph *to)
{
    struct Node *copy = malloc(sizeof *copy);
    *copy = *node;
    copy->graph = to;
    copy->dependencies = (struct Nodes){0};
    copy->next = NULL;
    return copy;
}

static bool ready(const struct Node *node, bool flat)
{
    for (size_t i = 0; flat && i < node->dependencies.count; i++)
        if (!node->dependencies.at[i]->copy) return false;
    return !node->copy;
}

struct Node *graph_copy(const struct Graph *from, struct Graph *to, bool flat)
{
    struct Node *first = NULL, **last = &first;
    bool complete = false, progress = true;
    for (struct Node *node = from->first; node; node = node->next) node->copy = NULL;
    while (!complete && progress) {
        complete = true, progress = false;
        for (struct Node *node = from->first; node; node = node->next) {
            if (ready(node, flat)) {
                *last = node->copy = copy_of(node, to);
                last = &node->copy->next;
                progress = true;
            }
            if (!node->copy) complete = false;
        }
    }
    for (struct Node *node = from->first; !flat && node; node = node->next)
        for (size_t i = 0; i < node->dependencies.count; i++)
            nodes_add(&node->copy->dependencies, node->dependencies.at[i]->copy);
    if (complete) return first;
    graph_free_nodes(first);
    return NULL;
}

/* ---- questions. An answer fills an array of *count entries. Those that are too many become NULL (cuda.h 13.0:20112). A
 * question without an array is answered with the count alone. */

struct answer { CUgraphNode *from, *to; size_t room, count; };

static void answer(struct answer *a, struct Node *from, struct Node *to)
{
    if (a->from && a->count < a->room) a->from[a->count] = from;
    if (a->to && a->count < a->room) a->to[a->count] = to;
    a->count++;
}

static CUresult answered(struct answer *a, unsigned long long *data, size_t *count)
{
    bool filled = a->from || a->to;
    size_t number = filled && a->count > a->room ? a->room : a->count;
    for (size_t i = number; i < a->room; i++) {
        if (a->from) a->from[i] = NULL;
        if (a->to) a->to[i] = NULL;
    }
    for (size_t i = 0; data && i < number; i++) data[i] = 0;
    *count = number;
    return CUDA_SUCCESS;
}

static CUresult some_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots)
{
    ENTER("cuGraphGetNodes");
    REQUIRE(graph && count);
    struct answer a = {.from = nodes, .room = *count};
    for (struct Node *node = graph->first; node; node = node->next)
        if (!roots || !node->dependencies.count) answer(&a, node, NULL);
    return answered(&a, NULL, count);
}
API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) { return some_nodes(graph, nodes, count, false); }
API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) { return some_nodes(graph, nodes, count, true); }

API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, void *data, size_t *count)
{
    ENTER("cuGraphGetEdges");
    REQUIRE(graph && count && !from == !to && (!data || from));
    struct answer a = {from, to, *count, 0};
    for (struct Node *node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->dependencies.count; i++) answer(&a, node->dependencies.at[i], node);
    return answered(&a, data, count);
}
API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) { return cuGraphGetEdges_v2(graph, from, to, NULL, count); }

API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, void *data, size_t *count)
{
    ENTER("cuGraphNodeGetDependencies");
    REQUIRE(node && count && (!data || nodes));
    struct answer a = {.from = nodes, .room = *count};
    for (size_t i = 0; i < node->dependencies.count; i++) answer(&a, node->dependencies.at[i], node);
    return answered(&a, data, count);
}
API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) { return cuGraphNodeGetDependencies_v2(node, nodes, NULL, count); }

API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, void *data, size_t *count)
{
    ENTER("cuGraphNodeGetDependentNodes");
    REQUIRE(node && count && (!data || nodes));
    struct answer a = {.to = nodes, .room = *count};
    for (struct Node *other = node->graph->first; other; other = other->next)
        if (nodes_have(&other->dependencies, node)) answer(&a, node, other);
    return answered(&a, data, count);
}
API CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count) { return cuGraphNodeGetDependentNodes_v2(node, nodes, NULL, count); }

/* ---- changes */

/* An edge that is there already cannot be added, and one that is not there cannot be removed (cuda.h 13.0:20260, 20290).
 * Edges of a graph with allocation or free nodes cannot be removed (20294). */
static CUresult change(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count, bool present)
{
    REQUIRE(graph && (!count || (from && to)));
    REQUIRE(!present || !graph_has_memory(graph));
    for (size_t i = 0; i < count; i++) {
        REQUIRE(belongs(graph, from[i]) && belongs(graph, to[i]));
        REQUIRE(from[i] != to[i] && nodes_have(&to[i]->dependencies, from[i]) == present);
        if (present) nodes_remove(&to[i]->dependencies, from[i]);
        else nodes_add(&to[i]->dependencies, from[i]);
    }
    return CUDA_SUCCESS;
}
API CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const void *data, size_t count)
{
    (void)data;
    ENTER("cuGraphAddDependencies");
    return change(graph, from, to, count, false);
}
API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) { return cuGraphAddDependencies_v2(graph, from, to, NULL, count); }
API CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const void *data, size_t count)
{
    (void)data;
    ENTER("cuGraphRemoveDependencies");
    return change(graph, from, to, count, true);
}
API CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) { return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count); }

/* cuda.h 13.0:20318-20325: the edges of the node go too. Not in a graph with allocation or free nodes. */
API CUresult cuGraphDestroyNode(CUgraphNode node)
{
    ENTER("cuGraphDestroyNode");
    REQUIRE(node && !graph_has_memory(node->graph));
    struct Graph *graph = node->graph;
    for (struct Node **at = &graph->first; *at;) {
        nodes_remove(&(*at)->dependencies, node);
        if (*at == node) *at = node->next;
        else at = &(*at)->next;
    }
    graph->last = &graph->first;
    while (*graph->last) graph->last = &(*graph->last)->next;
    node->next = NULL;
    graph_free_nodes(node);
    return CUDA_SUCCESS;
}
