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

bool graph_has(const struct Graph *graph, unsigned types)
{
    for (const struct Node *node = graph->first; node; node = node->next) {
        if (TYPE(node->type) & types) return true;
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && node->child && graph_has(node->child, types)) return true;
        for (unsigned i = 0; node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL && i < node->conditional.size; i++)
            if (graph_has(node->conditional.bodies[i], types)) return true;
    }
    return false;
}

static bool holds_event(const struct Node *node)
{
    return node->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
}

void graph_free_node(struct Node *node)
{
    if (holds_event(node)) event_drop(node->event);
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) graph_free(node->child);
    if (node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL && node->conditional.bodies) {
        for (unsigned i = 0; i < node->conditional.size; i++) graph_free(node->conditional.bodies[i]);
        free(node->conditional.bodies);
    }
    nodes_clear(&node->dependencies);
    free(node);
}

void graph_free(struct Graph *graph)
{
    if (!graph) return;
    for (struct Node *node = graph->first, *next; node; node = next) {
        next = node->next;
        graph_free_node(node);
    }
    for (struct Condition *c = graph->conditions, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    nodes_clear(&graph->dependencies);
    free(graph);
}

/* ---- copies */

static bool copy_owned(struct Graph **graph, struct Graph *parent, bool ordered)
{
    if (*graph) *graph = graph_copy(*graph, ordered);
    if (*graph) (*graph)->parent = parent;
    return *graph;
}

/* Gives a copy of a node graphs of its own. */
static bool copy_graphs(struct Node *copy, struct Graph *to, bool ordered)
{
    if (copy->type == CU_GRAPH_NODE_TYPE_GRAPH && copy->child) return copy_owned(&copy->child, to, ordered);
    if (copy->type != CU_GRAPH_NODE_TYPE_CONDITIONAL) return true;
    struct Graph **bodies = copy->conditional.bodies;
    copy->conditional.bodies = calloc(copy->conditional.size, sizeof *bodies);
    bool complete = true;
    for (unsigned i = 0; i < copy->conditional.size; i++) {
        copy->conditional.bodies[i] = bodies[i];
        complete &= copy_owned(&copy->conditional.bodies[i], to, ordered);
    }
    return complete;
}

static struct Node *copy_of(const struct Node *node, struct Graph *to)
{
    struct Node *copy = malloc(sizeof *copy);
    *copy = *node;
    copy->graph = to;
    copy->dependencies = (struct Nodes){0};
    copy->copied_from = node->id;
    copy->id = graph_node_id();
    copy->next = NULL;
    *to->last = copy;
    to->last = &copy->next;
    if (holds_event(copy)) event_hold(copy->event);
    return copy;
}

static bool ready(const struct Node *node, bool ordered)
{
    for (size_t i = 0; ordered && i < node->dependencies.count; i++)
        if (!node->dependencies.at[i]->twin) return false;
    return !node->twin;
}

struct Graph *graph_copy(const struct Graph *from, bool ordered)
{
    struct Graph *to = graph_new();
    bool complete = false, progress = true, graphs = true;
    to->body = from->body;
    for (struct Node *node = from->first; node; node = node->next) node->twin = NULL;
    while (!complete && progress) {
        complete = true, progress = false;
        for (struct Node *node = from->first; node; node = node->next) {
            if (ready(node, ordered)) {
                node->twin = copy_of(node, to);
                graphs &= copy_graphs(node->twin, to, ordered);
                progress = true;
            }
            if (!node->twin) complete = false;
        }
    }
    for (struct Node *node = from->first; complete && node; node = node->next)
        for (size_t i = 0; i < node->dependencies.count; i++)
            nodes_add(&node->twin->dependencies, node->dependencies.at[i]->twin);
    for (const struct Condition *c = from->conditions; c; c = c->next) {
        struct Condition *copy = malloc(sizeof *copy);
        *copy = *c;
        copy->next = to->conditions;
        to->conditions = copy;
    }
    if (complete && graphs) return to;
    graph_free(to);
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
    REQUIRE(!present || !graph_has(graph, MEMORY_NODES));
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
    REQUIRE(node && !graph_has(node->graph, MEMORY_NODES));
    struct Graph *graph = node->graph;
    for (struct Node **at = &graph->first; *at;) {
        nodes_remove(&(*at)->dependencies, node);
        if (*at == node) *at = node->next;
        else at = &(*at)->next;
    }
    graph->last = &graph->first;
    while (*graph->last) graph->last = &(*graph->last)->next;
    graph_free_node(node);
    return CUDA_SUCCESS;
}
