/* Green contexts: a share of a device's multiprocessors with a context of its own, which is "a normal primary context but
 * with the resources of the specified green context" (cuda.h 13.0:24886). It has the primary context's address space, so
 * memory that is allocated in it belongs to the primary one. A synchronise of the primary context covers its work
 * (cuda.h 13.0:6595); one of its own covers nothing else. */
#include "sim.h"

enum { SM = 1, MULTIPROCESSORS = 132, ALIGNMENT = 8, DEFAULT_STREAM = 1, NON_BLOCKING = 1 };

/* CUdevResource, cuda.h 13.0:24770-24801. */
struct Resource {
    int type;
    unsigned char padding[92];
    union { struct { unsigned count, least, alignment; } sm; unsigned char oversize[48]; } u;
};
struct Description { unsigned multiprocessors; };
struct Green { struct Context *context; unsigned multiprocessors; struct Green *next; };

static struct Green *greens;

static struct Green *find(const struct Green *handle)
{
    struct Green *g = greens;
    while (g && g != handle) g = g->next;
    return g;
}

static struct Green *of_context(const struct Context *context)
{
    struct Green *g = greens;
    while (g && g->context != context) g = g->next;
    return g;
}

static CUresult resource(struct Resource *out, int type, unsigned multiprocessors)
{
    enum { INVALID_RESOURCE_TYPE = 914 };
    REQUIRE(out);
    if (type != SM) return INVALID_RESOURCE_TYPE;
    memset(out, 0, sizeof *out);
    out->type = SM;
    out->u.sm.count = multiprocessors;
    out->u.sm.least = out->u.sm.alignment = ALIGNMENT;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDevResource(CUdevice device, struct Resource *out, int type)
{
    ENTER("cuDeviceGetDevResource");
    return device_valid(device) ? resource(out, type, MULTIPROCESSORS) : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuCtxGetDevResource(CUcontext context, struct Resource *out, int type)
{
    ENTER("cuCtxGetDevResource");
    if (context_device(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const struct Green *g = of_context(context);
    return resource(out, type, g ? g->multiprocessors : MULTIPROCESSORS);
}

API CUresult cuGreenCtxGetDevResource(struct Green *green, struct Resource *out, int type)
{
    ENTER("cuGreenCtxGetDevResource");
    return find(green) ? resource(out, type, green->multiprocessors) : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuDevSmResourceSplitByCount(struct Resource *result, unsigned *groups, const struct Resource *input,
                                         struct Resource *remaining, unsigned flags, unsigned least)
{
    (void)flags;
    ENTER("cuDevSmResourceSplitByCount");
    REQUIRE(groups && input && input->type == SM && least <= input->u.sm.count);
    unsigned size = least ? (least + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT, most = input->u.sm.count / size;
    unsigned count = result && *groups < most ? *groups : most;
    for (unsigned i = 0; result && i < count; i++) resource(&result[i], SM, size);
    if (remaining) resource(remaining, SM, input->u.sm.count - count * size);
    *groups = count;
    return CUDA_SUCCESS;
}

API CUresult cuDevResourceGenerateDesc(struct Description **out, const struct Resource *resources, unsigned count)
{
    ENTER("cuDevResourceGenerateDesc");
    REQUIRE(out && resources && count);
    unsigned sum = 0;
    for (unsigned i = 0; i < count; i++) {
        REQUIRE(resources[i].type == SM);
        sum += resources[i].u.sm.count;
    }
    *out = malloc(sizeof **out); /* never freed: CUDA has no function for it */
    (*out)->multiprocessors = sum;
    return CUDA_SUCCESS;
}

/* Retains the primary context, as cuda.h 13.0:24814 says. */
API CUresult cuGreenCtxCreate(struct Green **out, struct Description *description, CUdevice device, unsigned flags)
{
    ENTER("cuGreenCtxCreate");
    REQUIRE(out && description && flags == DEFAULT_STREAM);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct Context *context;
    CUresult result = context_new_green(device, &context);
    if (result) return result;
    struct Green *g = malloc(sizeof *g);
    *g = (struct Green){context, description->multiprocessors, greens};
    *out = greens = g;
    return CUDA_SUCCESS;
}

/* Does not wait for its work, and does not destroy its streams: calls with them answer CUDA_ERROR_CONTEXT_IS_DESTROYED
 * (cuda.h 13.0:24861-24866). */
API CUresult cuGreenCtxDestroy(struct Green *green)
{
    ENTER("cuGreenCtxDestroy");
    if (!find(green)) return CUDA_ERROR_INVALID_CONTEXT;
    struct Green **at = &greens;
    while (*at != green) at = &(*at)->next;
    *at = green->next;
    context_end_green(green->context);
    free(green);
    return CUDA_SUCCESS;
}

API CUresult cuCtxFromGreenCtx(CUcontext *out, struct Green *green)
{
    ENTER("cuCtxFromGreenCtx");
    REQUIRE(out);
    if (!find(green)) return CUDA_ERROR_INVALID_CONTEXT;
    *out = green->context;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxStreamCreate(CUstream *out, struct Green *green, unsigned flags, int priority)
{
    ENTER("cuGreenCtxStreamCreate");
    REQUIRE(out && flags == NON_BLOCKING);
    if (!find(green)) return CUDA_ERROR_INVALID_CONTEXT;
    *out = stream_new(green->context, flags, priority);
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetGreenCtx(CUstream stream, struct Green **out)
{
    STREAM_CALL("cuStreamGetGreenCtx");
    REQUIRE(out);
    *out = of_context(stream_context(stream, context_current()));
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetGreenCtx_ptsz(CUstream stream, struct Green **out) { return cuStreamGetGreenCtx(of_thread(stream), out); }

API CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *out, struct Green **green)
{
    STREAM_CALL("cuStreamGetCtx");
    REQUIRE(out && green);
    struct Context *context = stream_context(stream, context_current());
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    *green = of_context(context);
    *out = *green ? context->parent : context; /* cuda.h 13.0:15180 */
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *out, struct Green **green) { return cuStreamGetCtx_v2(of_thread(stream), out, green); }

API CUresult cuGreenCtxGetId(struct Green *green, unsigned long long *id)
{
    ENTER("cuGreenCtxGetId");
    struct Green *g = green ? find(green) : of_context(context_current());
    if (!g) return CUDA_ERROR_INVALID_CONTEXT;
    REQUIRE(id);
    *id = g->context->id;
    return CUDA_SUCCESS;
}
