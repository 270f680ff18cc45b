/* What a program of steps has: contexts, streams, events, blocks of memory, pools and graphs, all in numbered places.
 *
 * The steps are played in the order of the list, each by its own thread. A step prints the results of its calls, and
 * nothing that differs between two correct drivers: no address, and no time. A step whose places have not what it needs
 * prints nothing, so any part of a list is a list too. Work on a block is ordered by events, host functions that wait
 * end before a call that waits, and so a program has one right outcome. */
#ifndef STATE_H
#define STATE_H

#include "client.h"
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEVICES = 2, CONTEXTS = 4, STREAMS = 6, EVENTS = 4, BLOCKS = 24, POOLS = 2, GRAPHS = 3, FLAGS = 64, TOKENS = 8192 };
enum { THREADS = 3, PART = 4096, MIB = 1 << 20, NONE = -1, OTHERS = 4 };

struct context { CUcontext handle; int device; bool alive; CUevent scratch; };
struct stream { CUstream handle; int context, mode, captor, origin; bool alive, blocking; atomic_uint done; };
struct event { CUevent handle; int context; bool alive, recorded; };
struct block {
    bool live, opened;     /* opened by the other process */
    int home;              /* of a tensor: 1 + its stream */
    int class, device, context, pool;
    const char *api;
    CUdeviceptr address;
    unsigned long long handle;
    size_t size, span;
    void *more;
    int last;              /* the stream of the last work */
    unsigned char value;
};
struct step { int thread; const char *kind; unsigned a, b, c; };
struct kind { const char *name; void (*play)(unsigned a, unsigned b, unsigned c); const char *words; unsigned weight; };

struct graph { CUgraph graph; CUgraphExec exec; };

/* All threads use the first of these in turn; if they play together, each has its own. */
static struct state {
    struct context contexts[CONTEXTS]; /* the primary contexts of both devices, and two others */
    struct stream streams[STREAMS + CONTEXTS]; /* the last ones are the default streams of the contexts */
    struct event events[EVENTS];
    struct block blocks[BLOCKS], graph_memory[GRAPHS]; /* the second are written by graphs, and live as long as the context */
    struct graph graphs[GRAPHS]; /* in the primary context of device 0 */
    CUmemoryPool pools[POOLS];
    bool peers[DEVICES][DEVICES]; /* the first may use memory of the second */
    atomic_int flags[FLAGS];
    int flags_used;
} states[THREADS];
static bool together;
static int devices;
static __thread int thread, CURRENT = NONE;
static __thread struct state *my = states;
static __thread FILE *out;
#define contexts my->contexts
#define streams my->streams
#define events my->events
#define blocks my->blocks
#define graph_memory my->graph_memory
#define graphs my->graphs
#define pools my->pools
#define peers my->peers
#define flags my->flags
#define flags_used my->flags_used
#define say(...) fprintf(out, __VA_ARGS__)

/* Words of a kind: U, not in a capture that forbids calls to this thread; A, waits for no work; O, concerns all threads, so
 * it is not for threads that play together; P, a policy may answer otherwise. */
#define KIND(name, weight, words)                                                                             \
    static void name(unsigned a, unsigned b, unsigned c);                                                     \
    static const struct kind kind_##name __attribute__((section("kinds"), used, aligned(8))) = {#name, name, words, weight}; \
    static void name(__attribute__((unused)) unsigned a, __attribute__((unused)) unsigned b, __attribute__((unused)) unsigned c)

static CUresult told(CUresult result) { return say(" %d", result), result; }
#define R(call) told(call)
#define DONE(call) (told(call) == CUDA_SUCCESS)

static void waits_for(void *flag) { while (!*(atomic_int *)flag) usleep(20); }
static void sets(void *flag) { *(atomic_int *)flag = 1; }
static void counts(void *done) { ++*(atomic_uint *)done; }

static void set_all_flags(void)
{
    for (int i = 0; i < flags_used; i++) flags[i] = 1;
}

static bool use(int context)
{
    if (context < 0 || !contexts[context].alive) return false;
    if (CURRENT != context && R(cuCtxSetCurrent(contexts[context].handle))) return false;
    CURRENT = context;
    return true;
}
/* Waits for the work of the current context; if other threads have work there too, which may capture, for this thread's. */
static bool in_context(void) { return use(CURRENT >= 0 && contexts[CURRENT].alive ? CURRENT : 0); }

static bool captures(int context, bool blocking)
{
    for (int i = 0; i < STREAMS; i++)
        if (streams[i].mode && (context < 0 || streams[i].context == context) && (!blocking || streams[i].blocking)) return true;
    return false;
}
static CUresult finish(void)
{
    /* While a stream of the context captures, cuCtxSynchronize answers 900 and waits for nothing. */
    CUresult result = together || captures(CURRENT, false) ? cuStreamSynchronize(NULL) : cuCtxSynchronize();
    for (int i = 0; together && !result && i < STREAMS + CONTEXTS; i++)
        if (streams[i].alive && !streams[i].mode && streams[i].context == CURRENT) result = cuStreamSynchronize(streams[i].handle);
    return result;
}

/* The capture that a stream began is over, for the streams that joined it too. */
static void capture_over(int origin)
{
    for (int i = 0; i < STREAMS; i++) if (streams[i].origin == origin) streams[i].mode = 0;
}

/* Whether a capture forbids calls that may wait to this thread. */
static bool forbidden(void)
{
    for (int i = 0; i < STREAMS; i++) {
        int mode = streams[i].mode - 1;
        if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL || (mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && streams[i].captor == thread)) return true;
    }
    return false;
}

/* Whether work can go to a stream: it does not capture, and waits for no stream that does. */
static bool works(int s)
{
    return streams[s].alive && !streams[s].mode && (s < STREAMS || !captures(streams[s].context, true));
}

/* A stream of a context, counted from `from`; or NONE. */
static int stream_of(int context, unsigned from)
{
    for (unsigned i = 0; i < STREAMS + CONTEXTS; i++) {
        int s = (int)((from + i) % (STREAMS + CONTEXTS));
        if (works(s) && streams[s].context == context) return s;
    }
    return NONE;
}

static int own_stream(unsigned from)
{
    for (unsigned i = 0; i < STREAMS; i++) if (works((int)((from + i) % STREAMS))) return (int)((from + i) % STREAMS);
    return NONE;
}

static struct event *event_from(unsigned from)
{
    for (unsigned i = 0; i < EVENTS; i++) if (events[(from + i) % EVENTS].alive) return &events[(from + i) % EVENTS];
    return NULL;
}

static bool ready(int s) { return s >= 0 && works(s) && use(streams[s].context); }

static struct block *place(unsigned a) { return &blocks[a % BLOCKS]; }

/* The next block from a place on that `wanted` accepts. */
static struct block *next_block(unsigned a, bool (*wanted)(const struct block *))
{
    for (unsigned i = 0; i < BLOCKS; i++)
        if (place(a + i)->live && wanted(place(a + i))) return place(a + i);
    return NULL;
}
static bool is_linear(const struct block *b) { return b->class == LINEAR && !b->home; }
static bool is_async(const struct block *b) { return b->class == ASYNC && !b->home; }
static bool is_known(const struct block *b) { return !b->home; } /* to the driver; a tensor is of another class there */
static bool is_mapped(const struct block *b) { return b->class == VMM && b->device >= 0; }
static bool is_array(const struct block *b) { return b->class == ARRAY; }
static bool is_host(const struct block *b) { return b->class == HOST; }
static bool is_any(const struct block *b) { return b->live; }
static bool holds_bytes(const struct block *b)
{
    return b->class == LINEAR || b->class == PITCHED || b->class == MANAGED || b->class == ASYNC || b->class == GRAPH || is_mapped(b);
}

/* Whether a stream's context can use the memory, and its end waits for such work. */
static bool may_use(int s, const struct block *b)
{
    int context = streams[s].context, device = contexts[context].device;
    if (context == b->context) return true;
    if (b->home) return false;
    if (b->class == VMM || b->class == ASYNC || b->class == GRAPH) return device == b->device;
    return context < DEVICES && b->context < DEVICES && b->class == LINEAR && peers[device][b->device];
}
static int stream_for(const struct block *b, unsigned from)
{
    for (unsigned i = 0; i < STREAMS + CONTEXTS; i++) {
        int s = (int)((from + i) % (STREAMS + CONTEXTS));
        if (works(s) && may_use(s, b)) return s;
    }
    return NONE;
}

/* Puts the next work of a stream behind the last work on the block. */
static bool follow(struct block *b, int s)
{
    if (b->last == s) return ready(s);
    struct context *before = &contexts[streams[b->last].context];
    if (!ready(b->last) || R(cuEventRecord(before->scratch, streams[b->last].handle))) return false;
    if (!ready(s) || R(cuStreamWaitEvent(streams[s].handle, before->scratch, 0))) return false;
    return b->last = s, true;
}

static size_t part_of(const struct block *b) { return b->size < PART ? b->size : PART; }

static void fill(struct block *b, int s)
{
    size_t part = part_of(b);
    if (s < 0 || !follow(b, s)) return;
    b->value += 7;
    R(cuMemsetD8Async(b->address, b->value, part, streams[s].handle));
    R(cuMemsetD8Async(b->address + b->size - part, b->value, part, streams[s].handle));
}

static unsigned hash(unsigned hash, const unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

static void verify(struct block *b)
{
    static __thread unsigned char bytes[2 * PART];
    size_t part = part_of(b);
    set_all_flags();
    if (!ready(b->last)) return;
    memset(bytes, 0, sizeof bytes);
    R(cuMemcpyDtoHAsync_v2(bytes, b->address, part, streams[b->last].handle));
    R(cuMemcpyDtoHAsync_v2(bytes + PART, b->address + b->size - part, part, streams[b->last].handle));
    R(cuStreamSynchronize(streams[b->last].handle));
    say(" bytes %08x", hash(2166136261u, bytes, sizeof bytes));
}

/* Notes a new block. No pending work may use its memory. */
static void got(struct block *b, int class, const char *api, int device, size_t size, unsigned from)
{
    unsigned char value = b->value;
    CUdeviceptr address = b->address;
    unsigned long long handle = b->handle;
    *b = (struct block){.live = true, .class = class, .device = device, .context = CURRENT, .api = api, .value = value,
        .address = address, .handle = handle, .size = size, .span = b->span, .more = b->more, .pool = b->pool};
    *count_of(device, class) += (long long)size;
    b->last = stream_of(CURRENT, from);
    __typeof__(&simgpu_hazard) hazard = (__typeof__(hazard))optional_function("simgpu_hazard");
    if (!holds_bytes(b) || b->last < 0) return;
    if (hazard && class != ASYNC && strncmp(api, "vramshim", 8) && hazard(b->address, size)) say(" STILL IN USE");
    fill(b, b->last);
}

static size_t size_from(unsigned c)
{
    switch (c % 4) {
    case 0: return 1 + c / 4 % 3000;
    case 1: return 512 * (1 + c / 4 % 512);
    case 2: return 1 + c * 977 % (3 * MIB);
    default: return 65536 * (1 + c / 4 % 160);
    }
}

static void forget(struct block *b)
{
    *count_of(b->device, b->class) -= (long long)b->size;
    if (b->class == VMM) *count_of(contexts[b->context].device, ADDRESS_RANGE) -= (long long)b->span;
    *b = (struct block){.value = b->value};
}

/* ---- the other process, which opens what this one shares */

struct order { char what; int number; CUipcMemHandle handle; size_t size; };
struct answer { CUresult result, second; unsigned hash; };
static int other_end = -1;

static struct answer ask_other(struct order order)
{
    struct answer answer = {999, 999, 0};
    int ends[2];
    if (other_end < 0 && !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
        if (!fork()) {
            dup2(ends[1], 0);
            execl("/proc/self/exe", "other", "other", (char *)NULL);
            _exit(127);
        }
        close(ends[1]);
        other_end = ends[0];
    }
    if (write(other_end, &order, sizeof order) != sizeof order || read(other_end, &answer, sizeof answer) != sizeof answer)
        answer.result = CUDA_ERROR_OUT_OF_MEMORY, say(" the other process is gone"); /* or has no context: the device is full */
    return answer;
}

static int be_the_other(void)
{
    static unsigned char bytes[PART];
    CUdeviceptr opened[OTHERS] = {0};
    CUcontext context;
    struct order order;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    while (read(0, &order, sizeof order) == sizeof order) {
        struct answer answer = {0};
        CUdeviceptr *one = &opened[order.number];
        size_t part = order.size < PART ? order.size : PART;
        if (order.what == 'o') answer.result = cuIpcOpenMemHandle_v2(one, order.handle, 1);
        if (order.what == 'r' && !(answer.result = cuMemcpyDtoH_v2(bytes, *one, part))) answer.hash = hash(1, bytes, part);
        if (order.what == 'w' && !(answer.result = cuMemsetD8_v2(*one, (unsigned char)order.size, part))) answer.second = cuCtxSynchronize();
        if (order.what == 'c') answer.result = cuIpcCloseMemHandle(*one), answer.second = cuIpcCloseMemHandle(*one);
        if (write(0, &answer, sizeof answer) < 0) return 1;
    }
    return 0;
}

/* Before memory that is shared goes, the other process closes it. */
static void close_in_other(struct block *b)
{
    if (!b->opened) return;
    struct answer answer = ask_other((struct order){.what = 'c', .number = (int)(b - blocks) % OTHERS});
    say(" closed %d %d", answer.result, answer.second);
    b->opened = false;
}

#endif
