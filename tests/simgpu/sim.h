/* The simulated driver: what its files share. One lock guards everything; device memory is host memory. */
#ifndef SIMGPU_SIM_H
#define SIMGPU_SIM_H

#include "cuda_api.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEVICES 16
#define MAX_PROCESSES 1024

/* ---- config.c: the environment */
struct config {
    int devices;                 /* physical devices */
    uint64_t memory[MAX_DEVICES];
    int visible[MAX_DEVICES];    /* ordinal as the process sees it -> physical device */
    int visible_count;
    bool vmm;
    uint64_t granularity, context_bytes, pool_chunk;
    int driver_version;
    const char *truth, *state;
};
const struct config *config(void);
/* The result that SIMGPU_FAULTS wants of this call, 0 for none; waits as long as SIMGPU_LATENCY says. */
CUresult fault(const char *function);

/* ---- state.c: what the processes on the simulated host share */
struct process_slot {
    int pid;
    uint64_t start_ticks;
    uint64_t used[MAX_DEVICES]; /* by physical device */
};
struct shared_state {
    uint64_t magic;
    pthread_mutex_t lock;
    struct process_slot slots[MAX_PROCESSES];
};
struct shared_state *simgpu_state(void); /* exported: libnvidia-ml.so.1 reads the same */
bool state_take(int physical, uint64_t bytes);
void state_give(int physical, uint64_t bytes);
uint64_t state_used(int physical); /* by all living processes */
uint64_t simgpu_used(int physical); /* the same, exported */
uint64_t state_used_by_us(int physical);
void state_lock(struct shared_state *state);

/* ---- table.c: the truth */
enum class {
    LINEAR, PITCHED, MANAGED, HOST, HOST_REGISTERED, ASYNC, VMM, ARRAY, MIPMAP, IMPORTED, GRAPH, ADDRESS_RANGE, CLASSES
};
typedef struct Allocation {
    uint64_t address, span;       /* what a look-up by address finds */
    uint64_t requested, reserved; /* bytes */
    uint64_t taken;               /* bytes this entry took from the device's free memory */
    int device;                   /* as the process sees it; -1 for the host */
    enum class class;
    const char *api;
    struct Context *context;      /* dies with it; NULL for none */
    struct Pool *pool;
    /* host memory behind it, where that is not the address itself (arrays) */
    void *data;
    uint64_t id;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    struct Allocation *levels[16];
    int level_count;
    /* vmm */
    uint64_t offset, references, mappings;
    int ipc_fd;
    bool from_arena;
} Allocation;

Allocation *table_new(enum class class, int device, uint64_t requested, uint64_t reserved, const char *api);
void table_add(Allocation *allocation);
void table_remove(Allocation *allocation); /* out of the table, memory given back, freed */
Allocation *table_find(uint64_t address);  /* the entry that holds address */
Allocation *table_at(uint64_t address);    /* the entry that begins there */
void table_each(void (*visit)(Allocation *, void *), void *data);
void table_remove_where(bool (*gone)(const Allocation *, const void *), const void *data);
extern const char *const class_names[CLASSES];

/* arena.c: addresses with memory behind them */
uint64_t arena_take(uint64_t size);
void arena_give(uint64_t address, uint64_t size);

/* ---- context.c */
struct Context {
    int device;
    bool primary;
    unsigned references, flags;
    struct Context *next;
    uint64_t id;
};
extern pthread_mutex_t sim_mutex;
CUresult sim_enter(const char *function);
struct Context *context_current(void);
struct Context *primary_of(int device);
bool device_valid(int device);
int physical_of(int device);
static inline void sim_unlock(int *unused) { (void)unused; pthread_mutex_unlock(&sim_mutex); }
/* Every API function begins so: initialised? a fault wanted? then alone. */
#define ENTER(function)                                                        \
    CUresult refused_ = sim_enter(function);                                   \
    if (refused_) return refused_;                                             \
    pthread_mutex_lock(&sim_mutex);                                            \
    __attribute__((cleanup(sim_unlock), unused)) int locked_ = 0
#define ENTER_CONTEXT(function, name)                                          \
    ENTER(function);                                                           \
    struct Context *name = context_current();                                  \
    if (!name) return CUDA_ERROR_INVALID_CONTEXT
#define REQUIRE(condition)                                                     \
    do { if (!(condition)) return CUDA_ERROR_INVALID_VALUE; } while (0)

/* ---- stream.c */
struct Stream {
    struct Context *context;
    struct Graph *capture;
    int mode;
    bool invalidated, own_graph;
    unsigned flags;
    int priority;
    uint64_t id, owner;
    struct Stream *next;
};
bool stream_valid(CUstream stream);
struct Graph *stream_capture(CUstream stream); /* NULL where it is not capturing */
/* Calls that a capture forbids to this thread: 900, and the capture is spoilt. */
CUresult unsafe_while_capturing(void);
void stream_forget_context(struct Context *context);
/* Work on a stream: done at once, or a node of the graph that is being captured. True when it is to be done now. */
bool stream_submit(CUstream stream, int node_type);

/* ---- pool.c */
struct Pool {
    int device; /* -1: host */
    bool is_default;
    uint64_t threshold, reserved, reserved_high, used, used_high;
    struct Pool *next;
};
void pools_synchronised(int device);
uint64_t pools_release_unused(int device);
uint64_t pools_reserved(int device);
void pools_reset(int device);
bool device_take(int device, uint64_t bytes); /* with unused pool memory given up where it is short */

/* ---- graph.c */
struct Graph *graph_new(void);
struct Node *graph_add(struct Graph *graph, int type);
CUresult graph_capture_alloc(struct Graph *graph, int device, uint64_t size, CUdeviceptr *out);
CUresult graph_capture_free(struct Graph *graph, CUdeviceptr address);
void graph_freed(Allocation *allocation); /* the address was freed by cuMemFree or cuMemFreeAsync */
uint64_t graph_used(int device), graph_reserved(int device);
void graph_reset(int device);

/* ---- vmm.c */
char *vmm_data(Allocation *physical);
void mapping_forget(void);

/* A per-thread-default-stream variant: the same behaviour at an address of its own, as in the real driver. */
#if defined(__x86_64__)
#define JUMP "jmp "
#else
#define JUMP "b "
#endif
#define VARIANT(name, suffix)                                                                            \
    __asm__(".text\n.globl " #name #suffix "\n.type " #name #suffix ", @function\n" #name #suffix ":\n" \
            JUMP #name "\n.size " #name #suffix ", . - " #name #suffix "\n")
#define PTSZ(name) VARIANT(name, _ptsz)
#define PTDS(name) VARIANT(name, _ptds)

#endif
