/* The parts of program.c: what a thread has, work on its blocks, and memory. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "tensors.h"
#include "random.h"

enum { DEVICES = 2, STREAMS = 4, BLOCKS = 40, FLAGS = 64, PAIRS = 64, OFFERED = 16, EVENTS = 8, CAPTURED = 20000 };
enum { SYNCHRONISE_EVERY = 300, PART = 16 * KIB };

/* ---- what a thread has */

struct block {
    CUdeviceptr address;
    size_t size;
    int device;
    CUstream last;      /* the stream of its last work */
    CUstream only;      /* for memory of the allocator for PyTorch, a tensor: the stream that it belongs to */
    bool told;          /* the tensor was told of its other streams */
    unsigned char value;
};

struct pair { atomic_int arrived; }; /* the halves of a collective */

struct thread {
    pthread_t id;
    uint64_t random;
    long operations;
    CUstream streams[DEVICES][STREAMS], captured[DEVICES];
    CUevent events[DEVICES];
    struct block blocks[BLOCKS];
    CUdeviceptr of_graphs[DEVICES];
    CUgraphExec graphs[DEVICES];
    struct flag flags[FLAGS];
    struct pair pairs[PAIRS];
    int flags_used, pairs_used; /* since the last synchronise, so that nothing depends on the time that work takes */
    int capturing, mode; /* the device of the open capture, or -1 */
    bool between;        /* the halves of a collective */
    unsigned char *pinned;
};

static __thread struct thread *me;
/* What the program did. */
static atomic_long allocations, frees, tensors, told_tensors, collectives_met, peer_works, captures, captured_tensors,
    waiting, handed_over, new_streams, waited_events;
static int devices; /* in use: two, or one if the machine has no more */
static int other_than(int device) { return (device + 1) % devices; }
static atomic_bool access_of[DEVICES][DEVICES]; /* the first may use memory of the second */
static CUstream collective[DEVICES];
static CUstream home[DEVICES]; /* the last stream of every block that no thread has */


/* If memory is to run short: the most bytes of a block. Else 0. */
static size_t largest;
/* What the blocks of each device hold, and what the device had free at the beginning. */
static atomic_size_t held[DEVICES];
static size_t room[DEVICES];
static bool alone_and_mapped; /* one thread, and auto_growth serves it */
static atomic_long refusals;

static uint64_t below(uint64_t limit) { return draw(&me->random, limit); }
static int any_device(void) { return (int)below((uint64_t)devices); }

static void set_all_flags(void)
{
    for (int i = 0; i < me->flags_used; i++) set(&me->flags[i]);
}

static bool may_wait(void) { return me->capturing < 0 || me->mode == CU_STREAM_CAPTURE_MODE_RELAXED; }

static int device_of(CUstream stream)
{
    for (int device = 0; device < devices; device++)
        for (int i = 0; i < STREAMS; i++)
            if (me->streams[device][i] == stream && stream != PER_THREAD) return device;
    for (int device = 0; device < devices; device++)
        if (collective[device] == stream || home[device] == stream) return device;
    fprintf(stderr, "no such stream\n");
    exit(2);
}

/* ---- work */

/* Puts the next work of `stream` behind the last work on the block. */
static void follow(struct block *block, CUstream stream)
{
    if (block->last == stream) return;
    int device = device_of(block->last);
    use(device);
    DO(cuEventRecord(me->events[device], block->last));
    use(device_of(stream));
    DO(cuStreamWaitEvent(stream, me->events[device], 0));
    block->last = stream;
}

static void fill(struct block *block, CUstream stream)
{
    size_t part = block->size < PART ? block->size : PART;
    follow(block, stream);
    use(device_of(stream));
    block->value++;
    DO(cuMemsetD8Async(block->address, block->value, part, stream));
    DO(cuMemsetD8Async(block->address + block->size - part, block->value, part, stream));
}

static void copy(struct block *to, struct block *from, CUstream stream)
{
    size_t part = to->size < from->size ? to->size : from->size;
    if (part > PART) part = PART;
    follow(to, stream);
    follow(from, stream);
    use(device_of(stream));
    DO(cuMemcpyDtoDAsync_v2(to->address, from->address, part, stream));
    if (part < PART && part < to->size) fill(to, stream); /* the copy does not cover what is checked */
    else {
        DO(cuMemsetD8Async(to->address + to->size - part, from->value, part, stream));
        to->value = from->value;
    }
}

static void verify(struct block *block)
{
    size_t part = block->size < PART ? block->size : PART;
    set_all_flags();
    use(device_of(block->last));
    DO(cuMemcpyDtoHAsync_v2(me->pinned, block->address, part, block->last));
    DO(cuMemcpyDtoHAsync_v2(me->pinned + PART, block->address + block->size - part, part, block->last));
    DO(cuStreamSynchronize(block->last));
    all_bytes_are(me->pinned, block->value, part, block->address);
    all_bytes_are(me->pinned + PART, block->value, part, block->address + block->size - part);
}

/* ---- memory */

/* A job that has recorded a stream records every stream that uses another stream's block. */
static void record_a_stream(void)
{
    void *tensor = torch_alloc(512, 0, collective[0]);
    torch_record_stream(tensor, collective[1]);
    torch_free(tensor, 512, 0, collective[0]);
}

/* Only work that the stream waits for may still use a tensor that was handed out. */
static void unordered_use(CUdeviceptr address, size_t size, CUstream stream)
{
    uint64_t count = simgpu_unordered(address, size, stream);
    if (!count) return;
    fprintf(stderr, "hazard: %#llx was handed out for a stream, and %llu pending operations of other streams use it\n",
            address, (unsigned long long)count);
    exit(1);
}

/* A request was refused, which is right if the memory is held by others. `auto_growth` wastes less than half of it here:
 * a block occupies parts of at most two pages of 2 MiB that no other block of its thread can use. */
static void refused(const struct block *block)
{
    size_t all = held[block->device] + block->size;
    THAT(largest);
    refusals++;
    if (!alone_and_mapped || all > room[block->device] / 2) return;
    fprintf(stderr, "refused: %zu bytes beside %zu, on a device with %zu\n", block->size, held[block->device],
            room[block->device]);
    exit(1);
}

static void tensor_of(struct block *block, CUstream stream)
{
    if (largest) set_all_flags();
    CUresult answer = ask_for_tensor(&block->address, block->device, block->size, stream);
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) return refused(block);
    THAT(answer == CUDA_SUCCESS);
    block->only = stream;
    held[block->device] += block->size;
    unordered_use(block->address, block->size, stream);
}

static void linear(struct block *block)
{
    if (largest) set_all_flags(); /* what waits for these flags ends before memory runs out */
    CUresult answer = ANSWER(cuMemAlloc_v2(&block->address, block->size));
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) return refused(block);
    THAT(answer == CUDA_SUCCESS);
    held[block->device] += block->size;
    nothing_pending(block->address, block->size);
}

static size_t any_size(void)
{
    if (largest) return 512 * (1 + below(below(2) ? 2048 : largest / 512));
    return 512 * (1 + below(below(4) ? 256 : 8192));
}

static void obtain(struct block *block)
{
    size_t size = any_size();
    int device = any_device();
    CUstream stream = below(8) ? me->streams[device][below(STREAMS)] : home[device];
    unsigned char value = block->value;
    *block = (struct block){.size = size, .device = device, .last = stream, .value = value};
    use(device);
    /* For a tensor the library waits as PyTorch does before memory runs out: as long as the work takes. */
    if (below(4) || me->capturing >= 0 || (largest && me->between)) {
        linear(block);
        allocations++;
    } else {
        tensor_of(block, stream);
        tensors++;
    }
    if (block->address) fill(block, stream);
}

static void give_back(struct block *block)
{
    if (block->only) {
        /* Only with the library a free may come before the work of other streams. */
        if (!torch_record_stream || !block->told) follow(block, block->only);
        use(block->device);
        free_tensor_on(block->device, block->address, block->size, block->only);
    } else {
        set_all_flags();
        use(any_device());
        release(block->address);
        frees++;
    }
    block->address = 0;
    held[block->device] -= block->size;
}

/* A tensor is used on another stream, which the allocator is told. It may be freed with this work pending. Then the
 * next tensor has the same size, as in most jobs. */
static void use_elsewhere(struct block *tensor)
{
    CUstream stream = me->streams[tensor->device][below(STREAMS)];
    fill(tensor, stream);
    if (stream == tensor->only) return;
    if (torch_record_stream) torch_record_stream((void *)tensor->address, stream);
    tensor->told = true;
    told_tensors++;
    if (below(2) || me->capturing >= 0) return;
    struct block next = {.size = tensor->size, .device = tensor->device, .last = tensor->only, .value = tensor->value};
    give_back(tensor);
    use(next.device);
    tensor_of(&next, next.last);
    *tensor = next;
    tensors++;
    if (tensor->address) fill(tensor, tensor->only);
}

/* ---- blocks that threads hand to each other */

static struct block offered[OFFERED];
static pthread_mutex_t offering = PTHREAD_MUTEX_INITIALIZER;

/* Exchanges a block with one that another thread may have offered. No thread records an event on another thread's
 * stream: between the halves of a collective such an event could make a circle. So the block's last stream is `home`
 * meanwhile. */
static void hand_over(struct block *block)
{
    if (block->address) follow(block, home[block->device]);
    pthread_mutex_lock(&offering);
    struct block *other = &offered[below(OFFERED)], mine = *block;
    *block = *other;
    *other = mine;
    pthread_mutex_unlock(&offering);
    if (block->address && mine.address) handed_over++;
}

static void ask(const struct block *block)
{
    CUdeviceptr base;
    size_t size, total;
    int device;
    use(block->device);
    if (!block->only) {
        DO(cuMemGetAddressRange_v2(&base, &size, block->address + below(block->size)));
        THAT(base == block->address && size == block->size);
    }
    DO(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block->address));
    THAT(device == block->device);
    DO(cuMemGetInfo_v2(&size, &total));
}

#endif
