/* What the files of CUDA graphs share: graph.c (graphs, execution), graph_nodes.c (nodes and their parameters),
 * graph_update.c (changes of executable graphs), graph_memory.c (allocation nodes) and edges.c. */
#ifndef GRAPH_H
#define GRAPH_H

#include "sim.h"

/* A conditional node: `handle` names the condition, `bodies` are graphs that the node owns. */
struct Conditional { uint64_t handle; int type; unsigned size; struct Graph **bodies; struct Context *context; unsigned value; };
enum { COND_IF, COND_WHILE, COND_SWITCH };

struct Node {
    int type, device;
    uint64_t size;
    CUdeviceptr address;
    struct Work work;
    union { /* the parameters, by type */
        CUDA_KERNEL_NODE_PARAMS kernel;
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS fill;
        CUDA_HOST_NODE_PARAMS host;
        struct Event *event;
        struct Graph *child;
        struct Conditional conditional;
    };
    struct Context *context;   /* in which the work is done; NULL for that of the launch */
    struct Graph *graph;
    struct Nodes dependencies; /* nodes of the same graph that come before this one */
    uint64_t id, copied_from;  /* never used again; copied_from: the id of the node of which this is a copy */
    bool disabled;             /* in an executable graph */
    struct Node *twin;         /* during graph_copy the copy of this node, during an update the node of the other graph */
    struct Node *next;
};
struct Condition { uint64_t handle; struct Context *context; unsigned value, flags; struct Condition *next; };
struct Graph {
    struct Node *first, **last, **recaptured; /* recaptured: the next node of a recapture */
    struct Nodes dependencies;                /* of the node that is added next; see graph_next */
    struct Nodes *ends;
    struct Condition *conditions;
    struct Graph *parent; /* of a graph that a node owns: the graph of that node */
    bool body;            /* of a conditional node */
};
/* The nodes of an executable graph are a copy in which each node comes after its dependencies. */
struct Exec { struct Graph *graph; unsigned long long flags; };

/* ---- edges.c */
bool nodes_have(const struct Nodes *nodes, const struct Node *node);
/* Takes over graph->dependencies for a node that was just added. */
void graph_link(struct Graph *graph, struct Node *node);
/* Returns a copy of the graph. With `ordered` each node comes after its dependencies; then NULL stands for edges that make
 * a circle, here or in a graph that a node owns. */
struct Graph *graph_copy(const struct Graph *from, bool ordered);
void graph_free(struct Graph *graph);
void graph_free_node(struct Node *node);
/* Whether it has nodes of one of these types, also in the graphs that its nodes own. */
bool graph_has(const struct Graph *graph, unsigned types);
#define TYPE(type) (1u << (type))
#define MEMORY_NODES (TYPE(CU_GRAPH_NODE_TYPE_MEM_ALLOC) | TYPE(CU_GRAPH_NODE_TYPE_MEM_FREE))

/* ---- graph_nodes.c */
CUresult node_set_kernel(struct Node *node, const CUDA_KERNEL_NODE_PARAMS *kernel, int version); /* 1 or 2 */
CUresult node_set_copy(struct Node *node, const CUDA_MEMCPY3D *copy, struct Context *context);
CUresult node_set_fill(struct Node *node, const CUDA_MEMSET_NODE_PARAMS *fill, struct Context *context);
CUresult node_set_host(struct Node *node, const CUDA_HOST_NODE_PARAMS *host);
CUresult node_set_event(struct Node *node, struct Event *event);
/* Everything but a child graph and a conditional node. */
CUresult node_set(struct Node *node, const CUgraphNodeParams *parameters);

uint64_t graph_node_id(void);
CUresult graph_capture_child(CUstream stream, const struct Graph *child, bool *captured); /* captured: the stream captures */

/* ---- graph_memory.c */
CUresult graph_add_alloc(struct Node **out, struct Graph *graph, int device, uint64_t size, CUdeviceptr *address);
CUresult graph_add_free(struct Node **out, struct Graph *graph, CUdeviceptr address);
CUresult graph_launch_alloc(const struct Node *node, unsigned long long flags);
CUresult graph_launch_free(const struct Node *node);

#endif
