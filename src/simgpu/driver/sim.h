/* Shared by the files of the simulated driver. One lock guards everything. Device memory is host memory. */
#ifndef SIMGPU_SIM_H
#define SIMGPU_SIM_H

#include "cuda_api.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_DEVICES 16
#define MAX_PROCESSES 1024

/* ---- config.c: the environment */
struct config {
    int devices;                 /* physical devices */
    uint64_t memory[MAX_DEVICES];
    int visible[MAX_DEVICES];    /* ordinal as the process sees it -> physical device */
    int visible_count;
    bool vmm, delayed, contiguous, managed_beyond, mig, nvml_bytes, dmabuf, peers, free_waits_for_peers, unmap_waits, waits_hold;
    bool mapping_waits, aliases, holes, mapping_after_fault, reset_frees_vmm, reset_unmaps;
    uint64_t granularity, context_bytes, reserved, pool_chunk;
    bool counted; /* simgpu_calls counts */
    int driver_version;
    int utilisation; /* percent */
    int fresh;       /* byte that fills memory when it is obtained, or -1 */
    int mps;         /* process id of a server, or 0 */
    const char *truth, *state, *host_proc;
};
const struct config *config(void);
void complain(const char *variable, const char *value, const char *accepted);

/* ---- rules.c: faults, durations and latches */
/* Returns the result that SIMGPU_FAULTS sets for this call, 0 for none. Sleeps as long as SIMGPU_LATENCY says, and waits at
 * a latch. Counts the call if SIMGPU_COUNTS or SIMGPU_DELAYED says so. */
CUresult fault(const char *function);
CUresult sim_fault(const char *function); /* context.c: also keeps a fault of the current context */
extern bool sim_watched; /* a variable needs to see each call, or the environment was not read yet */
extern bool sim_priced;  /* SIMGPU_LATENCY=prices */
enum priced { CREATE, MAP, SET_ACCESS, UNMAP, RELEASE, ALLOC, FREE, RESERVE, UNRESERVE };
uint64_t price_of(enum priced call, uint64_t size);
void price_pay(const uint64_t *ns);
/* Before ENTER in a call that has a price. The call adds to `price`, which is paid when it returns, without the lock. */
#define PRICED __attribute__((cleanup(price_pay), unused)) uint64_t price = 0

/* ---- state.c: the state that the processes of a simulated host share */
struct process_slot {
    int pid;
    uint64_t start_ticks;
    uint64_t used[MAX_DEVICES]; /* by physical device */
    int contexts[MAX_DEVICES];
};
struct shared_state {
    uint64_t magic;
    pthread_mutex_t lock;
    int slots_touched; /* slots from this one on were never used */
    struct process_slot slots[MAX_PROCESSES];
    uint16_t pages[]; /* extents.c: by device and page, 0 or 1 + the slot that holds it */
};
struct shared_state *simgpu_state(void); /* libnvidia-ml.so.1 finds the same */
void state_context(int physical, int change); /* this process has one context more, or one less */
struct extent;
/* Bytes are taken and given back with the same list of extents, all at once or in parts. The list begins as NULL. */
bool state_take(int physical, uint64_t bytes, struct extent **extents);
void state_give(int physical, uint64_t bytes, struct extent **extents);
uint64_t state_used(int physical); /* by all living processes */
uint64_t state_used_by_us(int physical);
bool state_park(bool park); /* all bytes of this process leave the devices, or come back, if all of them fit */
void state_lock(struct shared_state *state);
void state_forked(void); /* in a forked child, which must not use its parent's slot */

/* ---- extents.c: the places of taken bytes, for SIMGPU_CONTIGUOUS; called with the state's lock held */
struct extent { uint64_t page, bytes; struct extent *next; }; /* the extents of one owner, the latest first */
uint64_t extents_room(void); /* bytes of the shared state's pages */
bool extents_take(struct shared_state *state, int physical, int owner, uint64_t bytes, struct extent **extents);
void extents_give(struct shared_state *state, int physical, uint64_t bytes, struct extent **extents); /* from the latest extent on */
void extents_forget(struct shared_state *state, int owner);

/* ---- table.c: the table of everything that is allocated */
enum class {
    LINEAR, PITCHED, MANAGED, HOST, HOST_REGISTERED, ASYNC, VMM, ARRAY, MIPMAP, IMPORTED, GRAPH, ADDRESS_RANGE, CLASSES
};
typedef struct Allocation {
    uint64_t address, span;       /* the range in which table_find finds it */
    uint64_t requested, reserved; /* bytes */
    uint64_t taken;               /* bytes this entry took from the device's free memory */
    struct extent *extents;       /* the places of these bytes */
    int device;                   /* as the process sees it; -1 for the host */
    enum class class;
    const char *api;
    struct Context *context;      /* freed with this context; NULL for none */
    struct Pool *pool;
    /* host memory of the contents, if it is not at the address itself (arrays) */
    void *data;
    uint64_t id;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    uint64_t backing;   /* bytes of `data` */
    struct Tile *tiles; /* memory that is mapped to an array */
    struct Allocation *levels[16];
    int level_count;
    /* vmm */
    uint64_t offset, references, mappings;
    struct Region *region; /* of a handle: the region that holds its bytes; of an address range: its own region */
    int home;              /* of an imported handle: the physical device of its memory, -1 for the host */
    bool placed, exported, reachable; /* reachable: by network cards */
    unsigned short usage;          /* CU_MEM_CREATE_USAGE_... */
    struct Multicast *multicast;   /* of a handle that is a multicast object, which has no memory of its own */
    int watch;                     /* reads the file of the descriptors that were exported, whose owners hold the memory */
    int hold;                      /* of an imported handle: such a descriptor */
    int ipc_fd;
    uint64_t opened_as; /* identifies the IPC handle with which this was opened */
    bool from_arena, sync_memops;
} Allocation;

Allocation *table_new(enum class class, int device, uint64_t requested, uint64_t reserved, const char *api);
void table_add(Allocation *allocation);
void table_remove(Allocation *allocation); /* removes the entry, gives its memory back and frees it */
Allocation *table_find(uint64_t address);  /* the entry whose range contains the address */
Allocation *table_at(uint64_t address);    /* the entry that begins at the address */
Allocation *table_find_registered(uint64_t address);
Allocation *table_find_range(uint64_t address);
void table_each(void (*visit)(Allocation *, void *), void *data);
void table_remove_where(bool (*gone)(const Allocation *, const void *), const void *data);
extern const char *const class_names[CLASSES];

/* A product, or the largest number if it does not fit. No device has that many bytes, so such a request is answered with
 * CUDA_ERROR_OUT_OF_MEMORY, like each smaller one that is too large: cuda.h 13.0:2526, "unable to allocate enough memory",
 * and not 2520, "one or more of the parameters [...] is not within an acceptable range of values". Pitched memory and
 * arrays list both (8655, 11838). The step from one answer to the other would be at a size that means nothing to a device. */
static inline uint64_t times(uint64_t left, uint64_t right)
{
    uint64_t product;
    return __builtin_mul_overflow(left, right, &product) ? UINT64_MAX : product;
}
/* The least multiple of `step` that is not below `size`, which is not 0. */
static inline uint64_t rounded_up(uint64_t size, uint64_t step) { return times((size - 1) / step + 1, step); }
#define LARGEST_RANGE (1ull << 47) /* the address space that x86-64 gives a process */

/* ---- arena.c: address ranges that are backed by memory */
bool address_space_is_scarce(void); /* under valgrind, for example */
uint64_t arena_take(uint64_t size);
void arena_give(uint64_t address, uint64_t size, bool shared); /* shared: with another process, at any time */
bool arena_holds(uint64_t address); /* whether the address is of the arena, allocated or not */
/* Blocks of this part of the arena may share pages with others. `start` and `size` become those of the part. */
bool arena_packed(uint64_t address, uint64_t *start, uint64_t *size);
/* How many of the bytes of a request SIMGPU_FRESH fills. Large memory stays sparse. */
static inline uint64_t fresh_bytes(uint64_t size) { return size < (64ull << 20) ? size : 64ull << 20; }

/* ---- space.c: address space of virtual memory management, mapped to the file of vmm.c */
bool space_take(uint64_t hint, uint64_t size, uint64_t alignment, uint64_t *address, uint64_t *offset);
bool space_holds(uint64_t address); /* whether the address was reserved, and is no more */
void space_give(uint64_t address, uint64_t size, uint64_t offset); /* mapped as it was given */

/* ---- context.c */
struct Context {
    int device;
    bool primary;
    unsigned references, flags;
    struct extent *extents;
    struct Context *next;
    uint64_t id;
    bool graphics;          /* created for a graphics client */
    struct Context *parent; /* of a green context: the primary one */
    CUresult broken; /* a fault of its work, which every later call answers */
};
extern pthread_mutex_t sim_mutex;
/* Set as soon as there was a capture, a pool or delayed work. Until then a synchronisation has nothing to do and
 * returns without the lock, so that benchmarks with many threads do not measure the simulator's lock. */
extern _Atomic bool sim_eventful;
/* Whether this process called cuInit. A forked child did not, even if its parent did. */
enum { BEFORE_INIT, INITIALISED, FORKED };
extern int sim_state;
/* Whether this thread runs a host function, which may call no CUDA function. cuda.h 13.0:18070: "Attempting to use a CUDA
 * API may result in CUDA_ERROR_NOT_PERMITTED, but this is not required". Here it always does. */
#define IN_HOST_FUNCTION __attribute__((tls_model("initial-exec"))) __thread bool in_host_function
extern IN_HOST_FUNCTION;
static inline CUresult sim_enter(const char *function)
{
    if (__builtin_expect(__atomic_load_n(&sim_state, __ATOMIC_ACQUIRE) != INITIALISED, 0)) return CUDA_ERROR_NOT_INITIALIZED;
    if (__builtin_expect(in_host_function, 0)) return CUDA_ERROR_NOT_PERMITTED;
    return __builtin_expect(sim_watched, 0) ? sim_fault(function) : CUDA_SUCCESS;
}
struct Context *context_current(void);
/* A fault makes every later call of the context answer its error. cuda.h 13.0:2837, CUDA_ERROR_ILLEGAL_ADDRESS: "This
 * leaves the process in an inconsistent state and any further CUDA work will return the same error." */
extern bool contexts_broken;
CUresult context_broken(void);
CUresult context_break(struct Context *context, CUresult error); /* returns the error */
int context_device(CUcontext context); /* -1 if there is no such context */
/* Whether a wait for `context` covers the work of the other one. */
bool context_covers(const struct Context *context, const struct Context *other);
CUresult context_new_green(int device, struct Context **out);
void context_end_green(struct Context *context);
/* The context that owns the memory which is allocated in this one. */
static inline struct Context *context_owner(struct Context *context) { return context && context->parent ? context->parent : context; }
struct Context *primary_of(int device);
/* Whether work of `user` may touch the memory of `owner`: its own work, and that of devices that were ever granted access
 * by cuCtxEnablePeerAccess. */
bool context_has_access(int user, int owner); /* whether peer access is enabled now */
bool context_may_touch(const struct Context *user, const struct Context *owner);
bool device_valid(int device);
/* The device whose memory a location names, valid or not; -1 for memory of the host. */
static inline int location_device(const CUmemLocation *location)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) return location->id & 0xff;
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : -1;
}
int physical_of(int device);
static inline void sim_unlock(int *unused) { (void)unused; pthread_mutex_unlock(&sim_mutex); }
/* An API function that needs cuInit begins with this. It fails if cuInit was not called or if SIMGPU_FAULTS says so;
 * otherwise it holds the lock until the function returns. */
#define ENTER(function)                                                        \
    CUresult refused_ = sim_enter(function);                                   \
    if (refused_) return refused_;                                             \
    pthread_mutex_lock(&sim_mutex);                                            \
    __attribute__((cleanup(sim_unlock), unused)) int locked_ = 0
/* The same for calls that concern the work or memory of a device. They answer a fault of the current context. */
#define ENTER_WORKING(function)                                                \
    ENTER(function);                                                           \
    CUresult broken_ = __builtin_expect(contexts_broken, 0) ? context_broken() : CUDA_SUCCESS; \
    if (broken_) return broken_
#define ENTER_CONTEXT(function, name)                                          \
    ENTER_WORKING(function);                                                   \
    struct Context *name = context_current();                                  \
    if (!name) return CUDA_ERROR_INVALID_CONTEXT
#define REQUIRE(condition)                                                     \
    do { if (!(condition)) return CUDA_ERROR_INVALID_VALUE; } while (0)

/* ---- edges.c: sets of graph nodes */
struct Nodes { struct Node **at; size_t count; };
void nodes_add(struct Nodes *nodes, struct Node *node);
void nodes_add_all(struct Nodes *to, const struct Nodes *from);
void nodes_clear(struct Nodes *nodes);
/* The node that is added next has these dependencies. If `ends` is given, that node then becomes the only one in it. */
CUresult graph_next(struct Graph *graph, const CUgraphNode *dependencies, size_t count, struct Nodes *ends);

/* ---- stream.c */
struct Stream {
    struct Context *context;
    struct Capture *capture;
    unsigned place, *seen; /* in its capture; see capture.c */
    struct Nodes ends;     /* on which its next node depends */
    struct Queue *queue;
    unsigned flags;
    int priority;
    uint64_t id;
    bool orphan;     /* its green context was destroyed */
    uint64_t thread; /* 0, or the thread whose default stream this stands for; only captures need it */
    struct Stream *next;
};
#define PER_THREAD ((CUstream)2)
/* The stream that the variant of a function for per-thread default streams uses. */
static inline CUstream of_thread(CUstream stream) { return stream ? stream : PER_THREAD; }
bool stream_valid(CUstream stream);
/* 400 for an unknown handle, 709 for a stream whose green context was destroyed. */
CUresult stream_check(CUstream stream);
#define CHECK_STREAM(stream) do { CUresult check_ = stream_check(stream); if (check_) return check_; } while (0)
#define STREAM_CALL(function) ENTER_WORKING(function); CHECK_STREAM(stream)
struct Stream *stream_new(struct Context *context, unsigned flags, int priority);
void stream_orphan(struct Context *context, struct Context *heir); /* the context's streams cannot be used any more */
struct Stream *stream_object(CUstream stream);     /* NULL for the legacy stream, and for a thread's that never captured */
struct Stream *stream_object_new(CUstream stream); /* NULL for the legacy stream alone */
struct Stream *stream_next(const struct Stream *after, bool (*wanted)(const struct Stream *, const void *), const void *data);
struct Context *stream_context(CUstream stream, struct Context *current); /* the current context if it is a default stream */
void stream_forget_context(struct Context *context);

/* ---- capture.c */
bool stream_captures(CUstream stream);
/* For calls that a capture forbids to this thread: returns 900 and invalidates the capture. */
CUresult unsafe_while_capturing(void);
/* The same for waits for a context that has an open capture, whatever the capture's mode is. */
CUresult context_capturing(struct Context *context);
/* The same for a wait for this stream, or a question whether it is idle. */
CUresult capture_refuses(CUstream stream);
/* For uses of the legacy stream: 906 while a blocking stream of its context captures. */
CUresult legacy_captured(CUstream stream);
/* For work on a stream: the graph that it becomes a node of, or NULL if the stream does not capture. */
CUresult stream_capture(CUstream stream, int node_type, struct Graph **graph);
/* Adds a node if the stream captures. Its work is done when the graph is launched. */
struct Work;
CUresult stream_submit(CUstream stream, int node_type, const struct Work *work, bool *captured);
#define SUBMIT_TO_CAPTURE(stream, node_type, work)                             \
    do {                                                                       \
        bool captured_;                                                        \
        CUresult result_ = stream_submit(stream, node_type, work, &captured_); \
        if (result_ || captured_) return result_;                              \
    } while (0)
CUresult capture_failed(CUstream stream); /* the node is not the one of the recaptured graph: 918 */
void capture_stream_gone(struct Stream *stream);
struct CapturedEvent { uint64_t capture; unsigned *seen; struct Nodes ends; };
void capture_forget(struct CapturedEvent *event);
/* Returns whether the stream captures. Then the event stands for its nodes, if the result is success. */
bool capture_record(CUstream stream, struct CapturedEvent *event, CUresult *result);
CUresult capture_wait(CUstream stream, const struct CapturedEvent *event, bool recorded, bool external);

/* ---- pool.c */
struct Pool {
    int device; /* -1: host */
    bool is_default, imported;
    bool destroyed;            /* but not all of its memory is freed */
    bool managed;
    bool shareable;            /* with other processes */
    bool granted[MAX_DEVICES]; /* devices that may touch its memory */
    unsigned short usage;      /* CU_MEM_POOL_CREATE_USAGE_... */
    uint64_t most;             /* bytes, 0 without a limit */
    uint64_t id;               /* of a pool that was exported, in its owner's process */
    int owner;                 /* process id */
    int not_reusing[4]; /* by attribute, CU_MEMPOOL_ATTR_REUSE_...: stored only; 0 is the driver's default, reuse */
    uint64_t threshold, reserved, reserved_high, used, used_high;
    struct extent *extents;
    struct Pool *next;
};
struct Pool *pool_new(int device);
bool pool_valid(const struct Pool *pool);
void pool_freed(struct Pool *pool, uint64_t bytes); /* may end a pool that was destroyed */
void pools_synchronised(int device);
uint64_t pools_release_unused(int device);
uint64_t pools_reserved(int device);
void pools_reset(int device);
bool device_take(int device, uint64_t bytes, struct extent **extents); /* pools give up unused memory if the device has too little */

/* ---- pool_share.c */
/* Whether a device may touch this range: memory of a pool if the pool grants it; otherwise as vmm_accessible says. */
bool accessible(int device, uint64_t address, uint64_t size, bool write);
void pool_close(Allocation *a); /* the end of what cuMemPoolImportPointer gave */

/* ---- ipc.c: files that hold the bytes of an allocation */
bool ipc_share(Allocation *a, uint64_t *start); /* makes a->ipc_fd, whose first byte is the one at `start` */
void ipc_unshare(uint64_t first, uint64_t last); /* pages that show such a file */
bool ipc_map(int pid, int descriptor, uint64_t offset, uint64_t size, uint64_t *address);
void ipc_unmap(const Allocation *a);

/* ---- image.c */
struct Variable;
bool image_variables(const void *image, struct Variable **out); /* false if the image does not tell its variables */
bool image_variable(const struct Variable *list, const char *name, CUdeviceptr *address, size_t *size);
void image_forget(struct Variable *list);

/* ---- graph.c, graph_nodes.c, graph_memory.c */
struct Graph *graph_new(void);
struct Node *graph_add(struct Graph *graph, int type);
void graph_work(struct Node *node, const struct Work *work);
/* Kernels and events on a stream. captured: the stream captures, so nothing is left to do. */
CUresult graph_capture_kernel(CUstream stream, const CUDA_KERNEL_NODE_PARAMS *kernel, bool *captured);
CUresult graph_capture_event(CUstream stream, struct Event *event, bool wait, bool *captured);
void graph_begin_recapture(struct Graph *graph);
bool graph_end_recapture(struct Graph *graph); /* whether all nodes were recaptured */
CUresult graph_capture_alloc(struct Graph *graph, int device, uint64_t size, CUdeviceptr *out);
CUresult graph_capture_free(struct Graph *graph, CUdeviceptr address);
void graph_freed(Allocation *allocation); /* called when cuMemFree or cuMemFreeAsync freed the address */
uint64_t graph_used(int device), graph_reserved(int device);
void graph_reset(int device);

/* ---- event.c: events that nodes of graphs hold. An event that was destroyed is there until no node holds it. */
void event_hold(struct Event *event);
void event_drop(struct Event *event);
CUresult event_launch(struct Event *event, CUstream stream, bool wait); /* what a node for it does */

/* ---- module.c */
CUresult kernel_launched(const void *kernel, struct Context *context); /* what the kernel does when it runs */

/* ---- texture.c */
void texture_module_gone(const void *module);

/* ---- vmm.c */
int vmm_file(void);
bool resize_file(int fd, uint64_t size);
uint64_t vmm_take_file(uint64_t size); /* a range of the file that was never used, or ~0 if there is none */
/* Whether a device may touch this range. Memory that is not of virtual memory management can always be touched. */
#define ANY_DEVICE (-1)
bool vmm_accessible(int device, uint64_t address, uint64_t size, bool write); /* by this device, or by ANY_DEVICE */
bool vmm_is_shared(const Allocation *a); /* vmm_share.c: a descriptor of its memory is open, here or elsewhere */
void vmm_unused(Allocation *handle);     /* a mapping ended: frees the memory if it was the last use */
void vmm_sweep(void);                    /* frees what no descriptor holds any more */
/* Unmaps the handles of a device; with SIMGPU_RESET_FREES_VMM they are freed too. */
void vmm_reset(int device);
Allocation *vmm_handle(CUmemGenericAllocationHandle handle); /* NULL if there is no such handle */
bool vmm_export(Allocation *handle); /* fixes its bytes at their place in the file */
Allocation *vmm_at(uint64_t address, uint64_t *start, uint64_t *size);
/* Fixes the bytes of the handle that is mapped there at their place in the file. Returns false if there are none. */
bool vmm_pin(uint64_t address, int *fd, uint64_t *offset);

uint64_t sim_thread(void); /* a number of the calling thread, never used again */

/* ---- work.c: work on streams, done at once, or as late as possible with SIMGPU_DELAYED. A wait releases the lock while
 * a host function holds the work back, so the caller must look its table entries up again afterwards. */
struct side { char *base; size_t pitch, slice; bool of_array; }; /* source or destination of a copy of rows and slices */
struct Work {
    enum { WORK_NOTHING, WORK_FILL, WORK_COPY, WORK_HOST, WORK_CALLBACK, WORK_VALUE, WORK_WAIT, WORK_RELEASE } kind;
    struct side to, from;
    size_t width, height, depth; /* bytes, rows, slices */
    unsigned char value[8];
    size_t element;
    bool peer;   /* a copy by the devices of both sides */
    bool shared; /* a release of memory that was shared with another process */
    void *owned; /* memory that holds `from`, freed after the work */
    void (*function)(void *);
    void (*callback)(CUstream, CUresult, void *);
    CUstream stream;
    void *data;
    struct Queue *after;
    uint64_t after_number, number;
    bool running;          /* a host function that began */
    struct timespec begin; /* a host function begins at this time, even if no call waits for it */
    struct Work *next;
};
extern unsigned host_functions_pending;
struct Queue *work_queue(CUstream stream); /* NULL if work is done at once */
void work_submit(CUstream stream, struct Work work);
uint64_t work_add(struct Queue *queue, struct Work work); /* returns its number */
uint64_t work_next_number(void);
void work_wait(struct Queue *queue);
void work_wait_for(struct Queue *queue, uint64_t number);
void work_wait_context(struct Context *context);
struct Queue *work_context_end(struct Context *context, uint64_t *number);
void work_wait_users(struct Context *owner); /* waits for all contexts that may touch the memory of `owner` */
void work_wait_all(void);
/* Whether operations up to `number` are pending. If so, performs one of them, if none holds it back. Never waits. */
bool work_pending(struct Queue *queue, uint64_t number);
bool work_stream_pending(CUstream stream);
void work_stream_gone(struct Stream *stream);
void work_context_gone(struct Context *context);
void work_context_moves(struct Context *from, struct Context *to); /* pending work of `from` becomes work of `to` */

/* ---- gate.c: which waits hold up other threads. They release the lock, so what was looked up before may be gone. */
void context_passes(struct Context *context); /* waits while another thread holds the context */
struct Context *context_hold(struct Context *context); /* returns what to let go */
void context_let_go(const struct Context *hold);       /* the context may be gone */

/* ---- multicast.c */
void multicast_wait(const Allocation *handle); /* until its devices were added. Releases the lock */

/* ---- memory.c */
bool memory_migrates(uint64_t address, uint64_t size); /* whether a prefetch may name the range */
CUresult memory_location(CUmemLocation where);         /* whether it may name the place */

/* ---- array.c */
void array_unmap(Allocation *array);

/* ---- batch.c */
bool can_decompress(const Allocation *a); /* whether a batch of decompressions may name its memory */

/* ---- copy.c */
struct Work copy_work(const CUDA_MEMCPY3D *copy);

/* ---- hazard.c */
void work_unmapped(uint64_t address, uint64_t size);
void work_freed(uint64_t address, uint64_t size); /* without a wait */
/* Gives memory back to the arena after the pending work of a stream. Returns false if the caller must do it at once. */
bool work_release(CUstream stream, uint64_t address, uint64_t size, bool shared);

/* A file in memory, close-on-exec. The raw call, because glibc has its function from version 2.27 on only; the flag is
 * MFD_CLOEXEC of linux/memfd.h. */
static inline int memory_file(const char *name) { return (int)syscall(SYS_memfd_create, name, 1u); }

/* The variant for per-thread default streams of a function that does the same on every stream. It has an address of its
 * own, as in the real driver. */
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
