/* Green contexts: a block of a device may be used on the streams of its primary context and of every green context,
 * whichever context it was allocated or freed in.
 *
 *   green one-pool      what was freed in one of the contexts serves a request in the other
 *   green primary       a block that was allocated in a green context is used on the primary context's stream
 *   green other         a block that was allocated in the primary context is used on a green context's stream
 *   green defaults      the default stream of a green context is another one than that of the primary context
 *   green destroyed     a green context is destroyed while its streams have work
 *   green last          the primary context goes with the last green context */
#include "tensors.h"

enum { SIZE = 2 * MIB, DEFAULT_STREAM = 1, SM = 1, LEAST = 8 };

typedef struct { unsigned char bytes[256]; } Resource; /* CUdevResource of cuda.h, with room to spare */
CUresult cuDeviceGetDevResource(CUdevice device, Resource *resource, int type);
CUresult cuDevSmResourceSplitByCount(Resource *result, unsigned *groups, const Resource *input, Resource *rest, unsigned flags, unsigned least);
CUresult cuDevResourceGenerateDesc(void **description, Resource *resources, unsigned count);
CUresult cuGreenCtxCreate(void **green, void *description, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(void *green);
CUresult cuCtxFromGreenCtx(CUcontext *context, void *green);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CUresult cuGreenCtxStreamCreate(CUstream *stream, void *green, unsigned flags, int priority);

struct green { void *handle; CUcontext context; CUstream stream; };

static struct green new_green(void)
{
    struct green green;
    Resource whole, part, rest;
    unsigned groups = 1;
    void *description;
    DO(cuDeviceGetDevResource(0, &whole, SM));
    DO(cuDevSmResourceSplitByCount(&part, &groups, &whole, &rest, 0, LEAST));
    DO(cuDevResourceGenerateDesc(&description, &part, 1));
    DO(cuGreenCtxCreate(&green.handle, description, 0, DEFAULT_STREAM));
    DO(cuCtxFromGreenCtx(&green.context, green.handle));
    DO(cuGreenCtxStreamCreate(&green.stream, green.handle, NON_BLOCKING, 0));
    return green;
}

static void enter_context(CUcontext wanted) { DO(cuCtxSetCurrent(wanted)); }

static uint64_t reserved(void)
{
    __typeof__(&vramshim_stats) stats = library_function(vramshim_stats);
    struct vramshim_stats now = {0};
    THAT(!stats || stats(0, &now) == 0);
    return now.reserved;
}

static void one_pool(void)
{
    enum { LARGE = 300 * MIB }; /* of 1 GiB: one of them fits into each of three pools */
    struct green greens[] = {new_green(), new_green()};
    CUcontext all[] = {context, greens[0].context, greens[1].context};
    uint64_t settled = 0;
    for (int round = 0; round < 9; round++) {
        enter_context(all[round % 3]);
        CUdeviceptr block = allocate(LARGE);
        enter_context(all[(round + 1) % 3]);
        CUcontext owner;
        DO(cuPointerGetAttribute(&owner, 1 /* CU_POINTER_ATTRIBUTE_CONTEXT */, block));
        THAT(owner == context);
        release(block);
        if (!settled) settled = reserved();
        THAT(reserved() == settled || !has_policy());
    }
}

static void behind(CUcontext allocates, CUstream stream, CUcontext frees)
{
    unsigned char *copy;
    DO(cuMemAllocHost_v2((void **)&copy, SIZE));
    for (unsigned char round = 1; round <= 4; round++) {
        struct flag done = {0};
        enter_context(allocates);
        CUdeviceptr block = allocate(SIZE);
        DO(cuLaunchHostFunc(stream, takes_50_ms, NULL));
        DO(cuMemsetD8Async(block, round, SIZE, stream));
        DO(cuMemcpyDtoHAsync_v2(copy, block, SIZE, stream));
        DO(cuLaunchHostFunc(stream, takes_50_ms_and_sets, &done));
        enter_context(frees);
        release(block);
        THAT(done.set && copy[0] == round && copy[SIZE - 1] == round);
    }
    THAT(simgpu_hazards() == 0);
}

static void primary(void)
{
    struct green green = new_green();
    CUstream stream = new_stream(NON_BLOCKING);
    behind(green.context, stream, green.context);
    behind(green.context, stream, context);
}

static void other(void)
{
    struct green one = new_green(), another = new_green();
    behind(context, one.stream, context);
    behind(context, one.stream, another.context);
    behind(one.context, another.stream, one.context);
}

/* ---- tensors */

static CUdeviceptr obtain(CUstream stream)
{
    CUdeviceptr address = tensor_on(0, SIZE, stream);
    nothing_pending(address, SIZE);
    return address;
}

static void give_back(CUdeviceptr address, CUstream stream) { free_tensor_on(0, address, SIZE, stream); }

static void records_streams(CUstream stream)
{
    CUdeviceptr any = obtain(stream);
    if (torch_record_stream) torch_record_stream((void *)any, stream);
    give_back(any, stream);
}

static void defaults(void)
{
    struct green green = new_green();
    CUcontext contexts[] = {context, green.context};
    records_streams(new_stream(NON_BLOCKING));
    for (int round = 0; round < 10; round++) {
        struct flag flag = {0};
        enter_context(contexts[round % 2]);
        CUdeviceptr tensor = obtain(NULL);
        DO(cuLaunchHostFunc(NULL, waits_for, &flag));
        DO(cuMemsetD8Async(tensor, 0xee, SIZE, NULL));
        give_back(tensor, NULL);
        enter_context(contexts[(round + 1) % 2]);
        CUdeviceptr next = obtain(NULL); /* nothing pending uses it */
        set(&flag);
        give_back(next, NULL);
        enter_context(context);
        DO(cuCtxSynchronize());
    }
}

static void destroyed(void)
{
    enum { ROUNDS = 40, SETTLED = 8 };
    uint64_t settled = 0;
    CUstream own = new_stream(NON_BLOCKING);
    records_streams(own);
    for (int round = 1; round <= ROUNDS; round++) {
        struct flag flag = {0};
        struct green green = new_green();
        enter_context(green.context);
        CUdeviceptr block = allocate(SIZE), tensor = obtain(green.stream);
        DO(cuLaunchHostFunc(green.stream, waits_for, &flag));
        DO(cuMemsetD8Async(tensor, 0xee, SIZE, green.stream));
        if (torch_free) give_back(tensor, green.stream);
        enter_context(context);
        DO(cuGreenCtxDestroy(green.handle));
        CUdeviceptr next = obtain(own);
        set(&flag);
        DO(cuMemsetD8_v2(block, (unsigned char)round, SIZE)); /* it outlives the green context */
        holds(block, (unsigned char)round, SIZE);
        release(block);
        if (!torch_free) give_back(tensor, own);
        give_back(next, own);
        DO(cuStreamSynchronize(own));
        if (round == SETTLED) settled = reserved();
    }
    THAT(reserved() <= settled);
    THAT(simgpu_hazards() == 0);
}

static void last(void)
{
    for (int round = 0; round < 4; round++) {
        struct green green = new_green();
        int active;
        unsigned flags;
        DO(cuDevicePrimaryCtxRelease_v2(0));
        enter_context(green.context);
        allocate(SIZE);
        DO(cuGreenCtxDestroy(green.handle));
        DO(cuDevicePrimaryCtxGetState(0, &flags, &active));
        THAT(!active);
        THAT(reserved() == 0);
        DO(cuDevicePrimaryCtxRetain(&context, 0));
        enter_context(context);
        release(allocate(SIZE));
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {{"one-pool", one_pool}, {"primary", primary},     {"other", other},
                                          {"defaults", defaults}, {"destroyed", destroyed}, {"last", last}};
    find_torch_functions();
    start_watchdog();
    open_devices(1);
    return PLAY(scenes, argc, argv);
}
