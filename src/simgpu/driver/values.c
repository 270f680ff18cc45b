/* Values in memory that streams write and wait for (cuda.h 13.0:16845-17030), batches of them, and semaphores of other
 * APIs. Those have no other API here: a semaphore is a value that signals raise and waits compare. */
#include "work.h"

enum { GEQ, EQ, AND, NOR, FLUSH = 1 << 30 }; /* CUstreamWaitValue_flags */

static bool holds(const struct Work *w)
{
    uint64_t wanted, now = w->element == 4 ? *(volatile uint32_t *)w->to.base : *(volatile uint64_t *)w->to.base;
    memcpy(&wanted, w->value, sizeof wanted);
    bool narrow = w->element == 4;
    switch (w->width) {
    case GEQ: return narrow ? (int32_t)((uint32_t)now - (uint32_t)wanted) >= 0 : (int64_t)(now - wanted) >= 0;
    case EQ: return now == wanted;
    case AND: return (now & wanted) != 0;
    default: return narrow ? (uint32_t)~(now | wanted) != 0 : ~(now | wanted) != 0;
    }
}

/* Runs as host functions do, without the lock. Work after it is held back. With SIMGPU_DELAYED all other work is done after
 * a second, because a program need not wait for the work that writes the value. */
void value_wait(const struct Work *w)
{
    time_t begun = time(NULL);
    while (!holds(w)) {
        nanosleep(&(struct timespec){0, 20000}, NULL);
        if (!config()->delayed || time(NULL) < begun + 2) continue;
        pthread_mutex_lock(&sim_mutex);
        for (struct Queue *q = work_queues; q; q = q->next) work_run(q, ~0ull);
        pthread_mutex_unlock(&sim_mutex);
    }
}

/* cuda.h 13.0:16858: not for managed memory. The address has to be of memory that the device reaches. */
static bool is_usable(CUdeviceptr address, size_t size)
{
    Allocation *a = table_find(address);
    return address && !(address % size) && (a ? a->class != MANAGED : table_find_registered(address) || vmm_accessible(ANY_DEVICE, address, size, true));
}

static CUresult wait_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags, size_t size)
{
    REQUIRE((flags & ~(unsigned)FLUSH) <= NOR && is_usable(address, size));
    struct Work work = {.kind = WORK_VALUE, .to.base = (char *)address, .element = size, .width = flags & ~(unsigned)FLUSH};
    if (size == 4) value = (uint32_t)value;
    memcpy(work.value, &value, sizeof value);
    SUBMIT_TO_CAPTURE(stream, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &work);
    work_submit(stream, work);
    return CUDA_SUCCESS;
}

static CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, size_t size)
{
    REQUIRE(is_usable(address, size));
    struct Work work = {.kind = WORK_FILL, .to.base = (char *)address, .element = size, .width = size, .height = 1, .depth = 1};
    memcpy(work.value, &value, size);
    SUBMIT_TO_CAPTURE(stream, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &work);
    work_submit(stream, work);
    return CUDA_SUCCESS;
}

#define VALUE(name, type, bytes)                                                                                     \
    API CUresult cuStreamWriteValue##name(CUstream stream, CUdeviceptr address, type value, unsigned flags)           \
    {                                                                                                                \
        STREAM_CALL("cuStreamWriteValue");                                                                           \
        (void)flags;                                                                                                 \
        return write_value(stream, address, value, bytes);                                                           \
    }                                                                                                                \
    API CUresult cuStreamWriteValue##name##_ptsz(CUstream stream, CUdeviceptr address, type value, unsigned flags) { return cuStreamWriteValue##name(of_thread(stream), address, value, flags); } \
    API CUresult cuStreamWaitValue##name(CUstream stream, CUdeviceptr address, type value, unsigned flags)            \
    {                                                                                                                \
        STREAM_CALL("cuStreamWaitValue");                                                                            \
        return wait_value(stream, address, value, flags, bytes);                                                     \
    }                                                                                                                \
    API CUresult cuStreamWaitValue##name##_ptsz(CUstream stream, CUdeviceptr address, type value, unsigned flags) { return cuStreamWaitValue##name(of_thread(stream), address, value, flags); }
VALUE(32, uint32_t, 4)
VALUE(64, uint64_t, 8)
VALUE(32_v2, uint32_t, 4)
VALUE(64_v2, uint64_t, 8)

/* CUstreamBatchMemOpParams: the first words of each member of the union. A barrier and a flush order what is in order here. */
union operation {
    int type;
    struct { int type; CUdeviceptr address; uint64_t value; unsigned flags; } value;
    uint64_t pad[6];
};
enum { WAIT_32 = 1, WRITE_32 = 2, FLUSH_REMOTE_WRITES = 3, WAIT_64 = 4, WRITE_64 = 5, BARRIER = 6 };
static CUresult batch(CUstream stream, unsigned count, const union operation *operations, unsigned flags)
{
    REQUIRE(operations && count && count <= 256 && !flags); /* cuda.h 13.0:17047 */
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !result; i++) {
        const union operation *o = &operations[i];
        size_t size = o->type == WAIT_64 || o->type == WRITE_64 ? 8 : 4;
        if (o->type == WAIT_32 || o->type == WAIT_64) result = wait_value(stream, o->value.address, o->value.value, o->value.flags, size);
        else if (o->type == WRITE_32 || o->type == WRITE_64) result = write_value(stream, o->value.address, o->value.value, size);
        else REQUIRE(o->type == FLUSH_REMOTE_WRITES || o->type == BARRIER);
    }
    return result;
}
API CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, union operation *operations, unsigned flags) { STREAM_CALL("cuStreamBatchMemOp"); return batch(stream, count, operations, flags); }
API CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned count, union operation *operations, unsigned flags) { return cuStreamBatchMemOp_v2(of_thread(stream), count, operations, flags); }
API CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, union operation *operations, unsigned flags) { return cuStreamBatchMemOp_v2(stream, count, operations, flags); }
API CUresult cuStreamBatchMemOp_ptsz(CUstream stream, unsigned count, union operation *operations, unsigned flags) { return cuStreamBatchMemOp_v2(of_thread(stream), count, operations, flags); }

/* ---- semaphores of other APIs. Their memory stays, because work may use them after they were destroyed. */

struct Semaphore { uint64_t value; bool counts, destroyed; struct Semaphore *next; };
static struct Semaphore *semaphores;
struct semaphore_desc { int type; union { int fd; void *handles[2]; } handle; unsigned flags, reserved[16]; };
struct semaphore_params { uint64_t value, others[8]; unsigned flags, reserved[16]; }; /* 144 bytes, for signals and waits */
enum { OPAQUE_FD = 1, TIMELINE_FD = 9 };

static struct Semaphore *semaphore(const void *handle)
{
    struct Semaphore *s = semaphores;
    while (s && s != handle) s = s->next;
    return s && !s->destroyed ? s : NULL;
}

API CUresult cuImportExternalSemaphore(struct Semaphore **out, const struct semaphore_desc *desc)
{
    ENTER_WORKING("cuImportExternalSemaphore");
    REQUIRE(out && desc && !desc->flags && (desc->type == OPAQUE_FD || desc->type == TIMELINE_FD) && desc->handle.fd >= 0);
    struct Semaphore *s = calloc(1, sizeof *s);
    *s = (struct Semaphore){.counts = desc->type == TIMELINE_FD, .next = semaphores};
    *out = semaphores = s;
    return CUDA_SUCCESS;
}
API CUresult cuDestroyExternalSemaphore(struct Semaphore *handle)
{
    ENTER_WORKING("cuDestroyExternalSemaphore");
    struct Semaphore *s = semaphore(handle);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    s->destroyed = true;
    return CUDA_SUCCESS;
}

/* A semaphore that does not count is signalled or not. A wait takes the signal. */
static CUresult semaphore_work(struct Semaphore *const *handles, const struct semaphore_params *params, unsigned count, CUstream stream, bool signal)
{
    REQUIRE(handles && params && count);
    for (unsigned i = 0; i < count; i++)
        if (!semaphore(handles[i])) return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < count; i++) {
        struct Semaphore *s = handles[i];
        uint64_t value = s->counts ? params[i].value : 1;
        struct Work set = {.kind = WORK_FILL, .to.base = (char *)&s->value, .element = 8, .width = 8, .height = 1, .depth = 1};
        struct Work wait = {.kind = WORK_VALUE, .to.base = (char *)&s->value, .element = 8, .width = GEQ};
        memcpy(signal ? set.value : wait.value, &value, sizeof value);
        const struct Work *first = signal ? &set : &wait;
        bool captured;
        CUresult result = stream_submit(stream, signal ? CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL : CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, first, &captured);
        if (result) return result;
        if (captured) continue;
        work_submit(stream, *first);
        if (!signal && !s->counts) work_submit(stream, set);
    }
    return CUDA_SUCCESS;
}
#define SEMAPHORES(name, signal)                                                                                     \
    API CUresult name(struct Semaphore *const *handles, const struct semaphore_params *params, unsigned count, CUstream stream) { STREAM_CALL(#name); return semaphore_work(handles, params, count, stream, signal); } \
    API CUresult name##_ptsz(struct Semaphore *const *handles, const struct semaphore_params *params, unsigned count, CUstream stream) { return name(handles, params, count, of_thread(stream)); }
SEMAPHORES(cuSignalExternalSemaphoresAsync, true)
SEMAPHORES(cuWaitExternalSemaphoresAsync, false)
