/* A stand-in cuDNN 9, written from the public headers cudnn_ops_v9.h, cudnn_cnn_v9.h, cudnn_adv_v9.h and
 * cudnn_graph_v9.h. Each function succeeds and computes nothing: no kernel of the simulated GPU computes anything either.
 * Sizes are given as for real work, because a framework allocates what it is told. cuDNN documents no size of a
 * workspace; `workspace_of` has ours. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define U __attribute__((unused))

enum { OK = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, ALLOC_FAILED = 4003 };
/* PyTorch refuses a cuDNN that is older than the one it was built with; 2.12 was built with 9.20. */
enum { VERSION = 92000, MAX_DIMENSIONS = 8 };
enum { ENGINES = 3 };

static inline size_t rounded(size_t bytes) { return (bytes + 511) & ~(size_t)511; }

/* The bytes that one of the engines (or of the algorithms of the older functions) asks for: engine 0 works in place,
 * 1 copies its operands into another layout, and 2 does so twice. */
static inline size_t workspace_of(int engine, size_t operands) { return (size_t)engine * rounded(operands); }
/* The order in which engines are offered: the one that copies once is first. */
static inline int offered(int64_t rank) { return (int[]){1, 0, 2}[rank]; }

/* The bits of an element of a cudnnDataType_t. */
static inline size_t bits_of(int type)
{
    static const unsigned short bits[] = {32, 64, 16, 8, 32, 32, 8, 32, 256, 16, 64, 8, 8, 8, 8, 8, 4, 4, 4, 32, 64, 128};
    return type >= 0 && (size_t)type < sizeof bits / sizeof *bits ? bits[type] : 32;
}
