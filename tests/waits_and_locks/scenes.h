/* Shared by the clients of this folder: calls with a time limit, host functions that wait, and several devices.
 *
 * A call that is made with DO or ANSWER is known to a watchdog. If no thread enters or leaves such a call for PATIENCE
 * seconds, the watchdog prints where every thread is and ends the process with HUNG. A job whose calls wait for each other
 * therefore fails with a message that names these calls. */
#ifndef PROMISES_H
#define PROMISES_H

#include "delayed.h"
#include "more_api.h"
#include <pthread.h>
#include <unistd.h>

#define LEGACY ((CUstream)1)
#define PER_THREAD ((CUstream)2)

enum { PATIENCE = 20, HUNG = 3, MOST_THREADS = 512, MOST_DEVICES = 4, KIB = 1 << 10 };

static struct place { const char *_Atomic call; } places[MOST_THREADS];
static atomic_ulong steps_done;
static __thread struct place *my_place;

#define TEXT_OF(line) #line
#define LINE_TEXT(line) TEXT_OF(line)
#define HERE(call) __FILE__ ":" LINE_TEXT(__LINE__) ": " call

/* Notes that this thread is in `call`, and returns the call that it was in. */
static inline const char *enter(const char *call)
{
    static atomic_int threads;
    if (!my_place) my_place = &places[atomic_fetch_add(&threads, 1) % MOST_THREADS];
    const char *before = my_place->call;
    my_place->call = call;
    steps_done++;
    return before;
}

static inline void *watch(void *unused)
{
    unsigned long before = steps_done;
    for (int quiet = 0; quiet < PATIENCE * 10; quiet++) {
        usleep(100000);
        if (steps_done != before) before = steps_done, quiet = 0;
    }
    fprintf(stderr, "hang: for %d seconds no call has returned\n", PATIENCE);
    for (int i = 0; i < MOST_THREADS; i++) {
        const char *call = places[i].call;
        if (call) fprintf(stderr, "hang: a thread is at %s\n", call);
    }
    _exit(HUNG);
    return unused;
}

static inline void start_watchdog(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, watch, NULL);
    pthread_detach(thread);
}

#define ANSWER(call)                                       \
    ({                                                     \
        const char *before_ = enter(HERE(#call));          \
        CUresult answer_ = (call);                         \
        enter(before_);                                    \
        answer_;                                           \
    })
#define DO(call)                                                                         \
    do {                                                                                 \
        CUresult done_ = ANSWER(call);                                                   \
        if (done_ != CUDA_SUCCESS) {                                                     \
            fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, done_); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static inline void join(pthread_t thread)
{
    const char *before = enter(HERE("pthread_join"));
    pthread_join(thread, NULL);
    enter(before);
}

/* Set by the test's threads, and waited for by host functions. */
struct flag { atomic_int set; };

static inline void set(struct flag *flag) { flag->set = 1; }

/* A host function. */
static inline void waits_for(void *data)
{
    struct flag *flag = data;
    const char *before = enter(HERE("a host function that waits for a flag"));
    while (!flag->set) usleep(50);
    enter(before);
}

static inline void sets(void *flag) { set(flag); }

static inline void takes_50_ms(void *unused)
{
    (void)unused;
    usleep(50000);
}

static inline void takes_50_ms_and_sets(void *flag)
{
    takes_50_ms(NULL);
    set(flag);
}

/* A mutex of the job, as an interpreter has one. */
static pthread_mutex_t job_mutex = PTHREAD_MUTEX_INITIALIZER;

static inline void lock_mutex(void)
{
    const char *before = enter(HERE("pthread_mutex_lock, for the mutex of the job"));
    pthread_mutex_lock(&job_mutex);
    enter(before);
}

/* A host function. */
static inline void takes_the_mutex(void *unused)
{
    (void)unused;
    lock_mutex();
    pthread_mutex_unlock(&job_mutex);
}

static inline void nothing_pending(CUdeviceptr address, size_t size)
{
    uint64_t count = simgpu_hazard(address, size);
    if (!count) return;
    fprintf(stderr, "hazard: %#llx was handed out, and %llu pending operations use it\n", address, (unsigned long long)count);
    exit(1);
}

/* A block that no pending work uses. */
static inline CUdeviceptr allocate_at(const char *call, size_t size)
{
    const char *before = enter(call);
    CUdeviceptr address = linear_memory(size);
    enter(before);
    nothing_pending(address, size);
    return address;
}
#define allocate(size) allocate_at(HERE("cuMemAlloc_v2 of " #size), size)

static inline void release_at(const char *call, CUdeviceptr address)
{
    const char *before = enter(call);
    CHECK(cuMemFree_v2(address));
    enter(before);
}
#define release(address) release_at(HERE("cuMemFree_v2 of " #address), address)

static inline void all_bytes_are(const void *bytes, unsigned char value, size_t size, CUdeviceptr address)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)bytes)[i] != value) {
            fprintf(stderr, "overwritten: byte %zu of %#llx is %d instead of %d\n", i, address,
                    ((const unsigned char *)bytes)[i], value);
            exit(1);
        }
}

/* Waits for the work of the legacy default stream and of blocking streams. */
static inline void holds(CUdeviceptr address, unsigned char value, size_t size)
{
    unsigned char *bytes = malloc(size);
    DO(cuMemcpyDtoH_v2(bytes, address, size));
    all_bytes_are(bytes, value, size, address);
    free(bytes);
}

/* Ends a capture. */
static inline CUgraphExec captured_on(CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiateWithFlags(&exec, graph, 0));
    DO(cuGraphDestroy(graph));
    return exec;
}

static inline void trim_library(void)
{
    __typeof__(&vramshim_trim) trim = library_function(vramshim_trim);
    const char *before = enter(HERE("vramshim_trim"));
    if (trim) trim(0);
    enter(before);
}

/* Whether a strategy other than passthrough serves this process. */
static inline bool has_policy(void)
{
    const char *strategy = getenv("VRAMSHIM_STRATEGY");
    return dlsym(RTLD_DEFAULT, "vramshim_stats") && strategy && strcmp(strategy, "passthrough");
}

static CUcontext contexts[MOST_DEVICES];

static inline void use(int device) { DO(cuCtxSetCurrent(contexts[device])); }

/* Makes the primary contexts of the first devices. That of device 0 is current afterwards. Exits with LEFT_OUT if this
 * machine has fewer. */
enum { LEFT_OUT = 77 };
static inline void open_devices(int count)
{
    int there = 0;
    DO(cuInit(0));
    DO(cuDeviceGetCount(&there));
    if (there < count) {
        fprintf(stderr, "needs %d devices, and this machine has %d\n", count, there);
        exit(LEFT_OUT);
    }
    for (int i = 0; i < count; i++) DO(cuDevicePrimaryCtxRetain(&contexts[i], i));
    context = contexts[0];
    use(0);
}

static inline CUstream stream_on(int device)
{
    use(device);
    return new_stream(NON_BLOCKING);
}

#endif
