/* Initialisation, primary contexts, and contexts that the process creates. The memory of a context is freed with it. */
#include "sim.h"
#include <stdatomic.h>

/* The lock is on another cache line than the variables that are read at every call. */
#define APART __attribute__((aligned(128)))
APART pthread_mutex_t sim_mutex = PTHREAD_MUTEX_INITIALIZER;
APART _Atomic bool sim_eventful;
APART int sim_state;

static APART struct Context primaries[MAX_DEVICES];
static struct Context *contexts; /* live contexts of cuCtxCreate */
static uint64_t ids;

#define STACK 32
static __thread struct Context *stack[STACK];
static __thread int depth;

/* Number of destroyed contexts. While it does not change, what a thread remembers of its current context is valid. */
static atomic_ulong destroyed;
static __thread struct { struct Context *context; unsigned long destroyed; int device; } known;

static void in_child(void)
{
    if (sim_state == INITIALISED) sim_state = FORKED;
    state_forked();
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

API CUresult cuInit(unsigned flags)
{
    CUresult result = fault("cuInit");
    if (result) return result;
    REQUIRE(flags == 0);
    if (config()->visible_count == 0) return CUDA_ERROR_NO_DEVICE;
    if (sim_state == FORKED) return CUDA_ERROR_NOT_INITIALIZED;
    __atomic_store_n(&sim_state, INITIALISED, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

bool device_valid(int device) { return device >= 0 && device < config()->visible_count; }
int physical_of(int device) { return config()->visible[device]; }

static bool context_valid(struct Context *context)
{
    if (context >= primaries && context < primaries + MAX_DEVICES) return context->references > 0;
    for (struct Context *c = contexts; c; c = c->next)
        if (c == context) return !c->parent || c->parent->references > 0;
    return false;
}

struct Context *context_current(void)
{
    struct Context *context = depth ? stack[depth - 1] : NULL;
    return context && context_valid(context) ? context : NULL;
}

/* The current context and its device. The lock is taken only after a context was destroyed, because clients and layers
 * ask for the current context very often. */
static struct Context *current_and_device(int *device)
{
    struct Context *context = depth ? stack[depth - 1] : NULL;
    if (!context) return NULL;
    if (context >= primaries && context < primaries + MAX_DEVICES) {
        *device = (int)(context - primaries);
        return __atomic_load_n(&context->references, __ATOMIC_ACQUIRE) ? context : NULL;
    }
    if (known.context != context || known.destroyed != atomic_load(&destroyed)) {
        pthread_mutex_lock(&sim_mutex);
        known.context = context_current();
        known.destroyed = atomic_load(&destroyed);
        if (known.context) known.device = known.context->device;
        pthread_mutex_unlock(&sim_mutex);
    }
    *device = known.device;
    return known.context;
}

bool contexts_broken;

CUresult context_broken(void)
{
    struct Context *context = context_current();
    return context ? context->broken : CUDA_SUCCESS;
}

CUresult context_break(struct Context *context, CUresult error)
{
    contexts_broken = sim_eventful = true;
    return context->broken = error;
}

/* The errors of which cuda.h 13.0:2837-2960 says that any further CUDA work will return the same error. */
CUresult sim_fault(const char *function)
{
    CUresult error = fault(function);
    bool fault = error == CUDA_ERROR_ILLEGAL_ADDRESS || error == 702 || (error >= 714 && error <= 719);
    if (!fault) return error;
    pthread_mutex_lock(&sim_mutex);
    struct Context *context = context_current();
    if (context) context_break(context, error);
    pthread_mutex_unlock(&sim_mutex);
    return error;
}

int context_device(CUcontext context) { return context && context_valid(context) ? context->device : -1; }

struct Context *primary_of(int device) { return &primaries[device]; }

static bool belongs(const Allocation *a, const void *context) { return a->context == context; }

static bool of_device_stream_ordered(const Allocation *a, const void *device)
{
    return (a->class == ASYNC || a->class == GRAPH) && a->device == *(const int *)device;
}

static void memory_dies(struct Context *context)
{
    work_context_gone(context);
    table_remove_where(belongs, context);
    stream_forget_context(context);
    state_give(physical_of(context->device), config()->context_bytes, &context->extents);
    state_context(physical_of(context->device), -1);
}

static CUresult created(struct Context *context)
{
    context->id = ++ids;
    bool taken = state_take(physical_of(context->device), config()->context_bytes, &context->extents);
    if (taken) state_context(physical_of(context->device), 1);
    return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult retain(int device)
{
    struct Context *primary = &primaries[device];
    if (primary->references == 0) {
        primary->device = device;
        primary->primary = true;
        CUresult result = created(primary);
        if (result) return result;
    }
    primary->references++;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    ENTER("cuDevicePrimaryCtxRetain");
    REQUIRE(out);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = retain(device);
    if (!result) *out = &primaries[device];
    return result;
}

static bool peers[MAX_DEVICES][MAX_DEVICES], ever_peers[MAX_DEVICES][MAX_DEVICES]; /* by user and owner */

static CUresult primary_dies(int device, bool reset)
{
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct Context *primary = &primaries[device];
    if (reset || primary->references == 1) work_wait_context(primary);
    if (primary->references == 0) return reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (!reset && --primary->references > 0) return CUDA_SUCCESS;
    primary->references = 0;
    primary->broken = CUDA_SUCCESS;
    for (int other = 0; other < MAX_DEVICES; other++) peers[device][other] = peers[other][device] = false;
    memory_dies(primary);
    table_remove_where(of_device_stream_ordered, &device);
    pools_reset(device);
    graph_reset(device);
    if (config()->reset_frees_vmm || config()->reset_unmaps) vmm_reset(device);
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER("cuDevicePrimaryCtxRelease");
    return primary_dies(device, false);
}
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENTER("cuDevicePrimaryCtxReset");
    return primary_dies(device, true);
}
API CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }
API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    ENTER("cuDevicePrimaryCtxGetState");
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (flags) *flags = primaries[device].flags;
    if (active) *active = primaries[device].references > 0;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    ENTER("cuDevicePrimaryCtxSetFlags");
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    primaries[device].flags = flags;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) { return cuDevicePrimaryCtxSetFlags_v2(device, flags); }

/* The last context that was destroyed: the next one gets its handle. */
static struct Context *spare;

API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
    ENTER("cuCtxCreate");
    REQUIRE(out && depth < STACK);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct Context *context = spare ? spare : malloc(sizeof *context);
    spare = NULL;
    *context = (struct Context){.device = device, .references = 1, .flags = flags};
    CUresult result = created(context);
    if (result) return free(context), result;
    context->next = contexts;
    contexts = context;
    stack[depth++] = context;
    *out = context;
    return CUDA_SUCCESS;
}
API CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device) { return cuCtxCreate_v2(out, flags, device); }
API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
    (void)affinity, (void)count;
    return cuCtxCreate_v2(out, flags, device);
}
API CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned flags, CUdevice device)
{
    const struct { void *affinity; int count; void *graphics; } *given = parameters; /* CUctxCreateParams, cuda.h 13.0:2473 */
    CUresult result = cuCtxCreate_v2(out, flags, device);
    if (!result && given) (*out)->graphics = given->graphics;
    return result;
}

static void discard(struct Context *context)
{
    for (struct Context **c = &contexts; *c; c = &(*c)->next)
        if (*c == context) {
            *c = context->next;
            break;
        }
    atomic_fetch_add(&destroyed, 1);
    if (depth && stack[depth - 1] == context) depth--;
    free(spare);
    spare = context;
}

CUresult context_new_green(int device, struct Context **out)
{
    CUresult result = retain(device);
    if (result) return result;
    struct Context *context = calloc(1, sizeof *context);
    *context = (struct Context){.device = device, .parent = &primaries[device], .id = ++ids, .next = contexts};
    *out = contexts = context;
    return CUDA_SUCCESS;
}

void context_end_green(struct Context *context)
{
    int device = context->device;
    work_context_moves(context, context->parent);
    stream_orphan(context, context->parent);
    discard(context);
    if (primaries[device].references) primary_dies(device, false);
}

static CUresult destroy(struct Context *context)
{
    if (!context || !context_valid(context) || context->primary || context->parent) return CUDA_ERROR_INVALID_CONTEXT;
    work_wait_context(context);
    if (!context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT; /* destroyed during the wait */
    memory_dies(context);
    discard(context);
    return CUDA_SUCCESS;
}
API CUresult cuCtxDestroy_v2(CUcontext context) { ENTER("cuCtxDestroy"); return destroy(context); }
API CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

/* The usage count of cuda.h 12.9:7390-7465 (deprecated, and still exported). */
API CUresult cuCtxAttach(CUcontext *out, unsigned flags)
{
    ENTER_CONTEXT("cuCtxAttach", context);
    REQUIRE(out && flags == 0);
    if (context->parent) return CUDA_ERROR_INVALID_CONTEXT;
    context->references++;
    *out = context;
    return CUDA_SUCCESS;
}
API CUresult cuCtxDetach(CUcontext context)
{
    ENTER("cuCtxDetach");
    if (!context || context != context_current() || context->parent) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->primary) return primary_dies(context->device, false);
    if (context->references > 1) return context->references--, CUDA_SUCCESS;
    return destroy(context);
}

API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER("cuCtxPushCurrent");
    if (!context || !context_valid(context) || depth == STACK) return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }

API CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
    ENTER("cuCtxPopCurrent");
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (out) *out = stack[depth];
    return CUDA_SUCCESS;
}
API CUresult cuCtxPopCurrent(CUcontext *out) { return cuCtxPopCurrent_v2(out); }

API CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER("cuCtxSetCurrent");
    if (context && !context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (depth) depth--;
    if (context) stack[depth++] = context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *out)
{
    CUresult refused = sim_enter("cuCtxGetCurrent");
    if (refused) return refused;
    REQUIRE(out);
    int device;
    *out = current_and_device(&device);
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *out)
{
    CUresult refused = sim_enter("cuCtxGetDevice");
    if (refused) return refused;
    int device;
    if (!current_and_device(&device)) return CUDA_ERROR_INVALID_CONTEXT;
    REQUIRE(out);
    *out = device;
    return CUDA_SUCCESS;
}

static CUresult synchronise(struct Context *context)
{
    pthread_mutex_lock(&sim_mutex);
    __attribute__((cleanup(sim_unlock), unused)) int locked = 0;
    if (!context) context = context_current();
    if (!context || !context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = context->broken ? context->broken : context_capturing(context);
    if (result) return result;
    int device = context->device;
    work_wait_context(context);
    if (context->broken) return context->broken;
    pools_synchronised(device);
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void)
{
    CUresult refused = sim_enter("cuCtxSynchronize");
    int device;
    if (refused || (!atomic_load(&sim_eventful) && current_and_device(&device))) return refused;
    return synchronise(NULL);
}

/* The variant of CUDA 13, which takes a context that need not be current. */
API CUresult cuCtxSynchronize_v2(CUcontext context)
{
    CUresult refused = sim_enter("cuCtxSynchronize");
    return refused ? refused : synchronise(context);
}

API CUresult cuCtxGetFlags(unsigned *flags) { ENTER_CONTEXT("cuCtxGetFlags", context); REQUIRE(flags); *flags = context->flags; return CUDA_SUCCESS; }
API CUresult cuCtxSetFlags(unsigned flags) { ENTER_CONTEXT("cuCtxSetFlags", context); context->flags = flags; return CUDA_SUCCESS; }
API CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    ENTER("cuCtxGetId");
    struct Context *c = context ? context : context_current();
    if (!c || !context_valid(c)) return CUDA_ERROR_INVALID_CONTEXT;
    REQUIRE(id);
    *id = c->id;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) { (void)context; ENTER("cuCtxGetApiVersion"); REQUIRE(version); *version = 3020; return CUDA_SUCCESS; }

static size_t limits[16] = {1024, 1 << 20, 8 << 20};
API CUresult cuCtxSetLimit(int limit, size_t value) { ENTER_CONTEXT("cuCtxSetLimit", context); (void)context; REQUIRE(limit >= 0 && limit < 16); limits[limit] = value; return CUDA_SUCCESS; }
API CUresult cuCtxGetLimit(size_t *value, int limit) { ENTER_CONTEXT("cuCtxGetLimit", context); (void)context; REQUIRE(value && limit >= 0 && limit < 16); *value = limits[limit]; return CUDA_SUCCESS; }
static int cache_config, bank_config;
API CUresult cuCtxGetCacheConfig(int *value) { ENTER_CONTEXT("cuCtxGetCacheConfig", context); (void)context; REQUIRE(value); *value = cache_config; return CUDA_SUCCESS; }
API CUresult cuCtxSetCacheConfig(int value) { ENTER_CONTEXT("cuCtxSetCacheConfig", context); (void)context; cache_config = value; return CUDA_SUCCESS; }
API CUresult cuCtxGetSharedMemConfig(int *value) { ENTER_CONTEXT("cuCtxGetSharedMemConfig", context); (void)context; REQUIRE(value); *value = bank_config; return CUDA_SUCCESS; }
API CUresult cuCtxSetSharedMemConfig(int value) { ENTER_CONTEXT("cuCtxSetSharedMemConfig", context); (void)context; bank_config = value; return CUDA_SUCCESS; }
API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER_CONTEXT("cuCtxGetStreamPriorityRange", context);
    (void)context;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}
API CUresult cuCtxResetPersistingL2Cache(void) { ENTER_CONTEXT("cuCtxResetPersistingL2Cache", context); (void)context; return CUDA_SUCCESS; }
API CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) { (void)target, (void)scope; ENTER("cuFlushGPUDirectRDMAWrites"); return CUDA_SUCCESS; }

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    ENTER_CONTEXT("cuCtxEnablePeerAccess", context);
    REQUIRE(flags == 0 && peer && context_valid(peer));
    if (!config()->peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (peers[context->device][peer->device]) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    peers[context->device][peer->device] = ever_peers[context->device][peer->device] = true;
    return CUDA_SUCCESS;
}
API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    ENTER_CONTEXT("cuCtxDisablePeerAccess", context);
    REQUIRE(peer && context_valid(peer));
    if (!peers[context->device][peer->device]) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    peers[context->device][peer->device] = false;
    return CUDA_SUCCESS;
}

bool context_has_access(int user, int owner) { return peers[user][owner]; }

bool context_covers(const struct Context *context, const struct Context *other)
{
    return other == context || (other->parent && other->parent == context);
}

bool context_may_touch(const struct Context *user, const struct Context *owner)
{
    return context_covers(owner, user) || ever_peers[user->device][owner->device];
}

API CUresult cuProfilerStart(void) { return CUDA_SUCCESS; }
API CUresult cuProfilerStop(void) { return CUDA_SUCCESS; }
