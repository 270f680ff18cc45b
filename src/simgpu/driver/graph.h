/* What graph.c and edges.c share. */
#ifndef GRAPH_H
#define GRAPH_H

#include "sim.h"

struct Node {
    int type, device;
    uint64_t size;
    CUdeviceptr address;
    struct Work work;
    struct Context *context;   /* in which the work is done; NULL for that of the launch */
    struct Graph *graph;       /* NULL for a node of an executable graph */
    struct Nodes dependencies; /* nodes of the same graph that come before this one */
    struct Node *copy;         /* while graph_copy makes one */
    struct Node *next;
};
struct Graph {
    struct Node *first, **last, **recaptured; /* recaptured: the next node of a recapture */
    struct Nodes dependencies;                /* of the node that is added next; see graph_next */
    struct Nodes *ends;
};

/* ---- edges.c */
bool nodes_have(const struct Nodes *nodes, const struct Node *node);
/* Takes over graph->dependencies for a node that was just added. */
void graph_link(struct Graph *graph, struct Node *node);
/* Returns a copy of the graph's nodes. With `flat` each node comes after its dependencies, and the copy keeps no edges;
 * NULL then may also stand for edges that make a circle. */
struct Node *graph_copy(const struct Graph *from, struct Graph *to, bool flat);
void graph_free_nodes(struct Node *first);
bool graph_has_memory(const struct Graph *graph); /* whether it has allocation or free nodes */

#endif
