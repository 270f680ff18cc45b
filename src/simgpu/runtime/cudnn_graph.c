/* The backend functions of the stand-in cuDNN. A descriptor keeps the attributes that were set. At its end a descriptor
 * sums the bytes of the tensors below it, so that a plan knows its operands when all other descriptors are gone. */
#include "cudnn.h"

enum {
    ENGINE_CONFIGURATION = 3, EXECUTION_PLAN = 5, VARIANT_PACK = 16, TENSOR = 17, /* cudnnBackendDescriptorType_t */
    HEURISTIC_RESULTS = 202, CONFIGURATION_ENGINE = 300, CONFIGURATION_WORKSPACE = 303, SHARED_MEMORY = 304, PLAN_WORKSPACE = 402, GRAPH_ENGINES = 802, /* cudnnBackendAttributeName_t */
    TENSOR_TYPE = 901, TENSOR_SIZES = 902, TENSOR_STRIDES = 903, TENSOR_VIRTUAL = 907, PACK_WORKSPACE = 1003, ENGINE_INDEX = 1301,
    BOOLEAN = 2, INT64 = 3, DESCRIPTOR = 15, CHAR = 24, FRACTION = 26, /* cudnnBackendAttributeType_t */
};

struct Attribute {
    struct Attribute *next;
    int name, type;
    int64_t count;
    char elements[];
};
struct Descriptor {
    int type, engine;
    size_t operands;
    struct Attribute *attributes;
};

static size_t element_size(int type)
{
    switch (type) {
    case BOOLEAN: case CHAR: return 1;
    case FRACTION: return 16;
    case 0: case INT64: case 5: case 6: case DESCRIPTOR: return 8; /* handles, doubles and pointers too */
    default: return 4;
    }
}

static struct Attribute *find(const struct Descriptor *descriptor, int name)
{
    struct Attribute *one = descriptor->attributes;
    while (one && one->name != name) one = one->next;
    return one;
}

API int cudnnBackendCreateDescriptor(int type, struct Descriptor **out)
{
    if (!out) return BAD_PARAM;
    *out = calloc(1, sizeof **out);
    if (!*out) return ALLOC_FAILED;
    (*out)->type = type;
    return OK;
}

API int cudnnBackendDestroyDescriptor(struct Descriptor *descriptor)
{
    while (descriptor && descriptor->attributes) {
        struct Attribute *next = descriptor->attributes->next;
        free(descriptor->attributes);
        descriptor->attributes = next;
    }
    free(descriptor);
    return OK;
}

API int cudnnBackendInitialize(struct Descriptor *descriptor) { return descriptor ? OK : BAD_PARAM; }

API int cudnnBackendSetAttribute(struct Descriptor *descriptor, int name, int type, int64_t count, const void *elements)
{
    if (!descriptor || count < 0 || (count && !elements)) return BAD_PARAM;
    size_t bytes = (size_t)count * element_size(type);
    struct Attribute **place = &descriptor->attributes, *made = malloc(sizeof *made + bytes);
    if (!made) return ALLOC_FAILED;
    while (*place && (*place)->name != name) place = &(*place)->next;
    struct Attribute *before = *place;
    *made = (struct Attribute){before ? before->next : NULL, name, type, count};
    if (bytes) memcpy(made->elements, elements, bytes);
    *place = made;
    free(before);
    return OK;
}

/* The bytes from a tensor's first element to its last; none for a tensor that only passes from one operation to the next. */
static size_t tensor_bytes(const struct Descriptor *tensor)
{
    struct Attribute *type = find(tensor, TENSOR_TYPE), *sizes = find(tensor, TENSOR_SIZES), *strides = find(tensor, TENSOR_STRIDES);
    struct Attribute *virtual = find(tensor, TENSOR_VIRTUAL);
    if (!type || !sizes || !strides || strides->count < sizes->count || (virtual && virtual->count && virtual->elements[0])) return 0;
    size_t elements = 1;
    for (int64_t i = 0; i < sizes->count; i++) {
        int64_t size, stride;
        memcpy(&size, sizes->elements + 8 * i, 8);
        memcpy(&stride, strides->elements + 8 * i, 8);
        if (size > 1) elements += (size_t)(size - 1) * (size_t)stride;
    }
    int kind;
    memcpy(&kind, type->elements, 4);
    return (elements * bits_of(kind) + 7) / 8;
}

API int cudnnBackendFinalize(struct Descriptor *descriptor)
{
    if (!descriptor) return BAD_PARAM;
    descriptor->operands = descriptor->type == TENSOR ? tensor_bytes(descriptor) : 0;
    struct Attribute *index = find(descriptor, ENGINE_INDEX);
    if (index && index->count) {
        int64_t engine;
        memcpy(&engine, index->elements, 8);
        if (engine < 0 || engine >= ENGINES) return NOT_SUPPORTED;
        descriptor->engine = (int)engine;
    }
    for (struct Attribute *one = descriptor->attributes; one; one = one->next) {
        for (int64_t i = 0; one->type == DESCRIPTOR && i < one->count; i++) {
            struct Descriptor *below;
            memcpy(&below, one->elements + 8 * i, 8);
            if (!below) continue;
            descriptor->operands += below->operands;
            if (descriptor->type == ENGINE_CONFIGURATION || descriptor->type == EXECUTION_PLAN) descriptor->engine = below->engine;
        }
    }
    return OK;
}

/* Descriptors are answered into those that the caller made. An attribute that has no value has no element. */
API int cudnnBackendGetAttribute(struct Descriptor *descriptor, int name, int type, int64_t wanted, int64_t *count, void *out)
{
    if (!descriptor) return BAD_PARAM;
    struct Attribute *set = find(descriptor, name);
    int64_t number = -1, found = set && set->type == type ? set->count : 0;
    if (name == PLAN_WORKSPACE || name == CONFIGURATION_WORKSPACE) number = (int64_t)workspace_of(descriptor->engine, descriptor->operands);
    if (name == SHARED_MEMORY) number = 48 << 10; /* of the GPU's 227 KiB; without an answer a framework takes the engine for unfit */
    if (name == GRAPH_ENGINES) number = ENGINES;
    if (name == ENGINE_INDEX) number = descriptor->engine;
    if (number >= 0) found = 1;
    if (name == HEURISTIC_RESULTS) found = ENGINES;
    if (name == CONFIGURATION_ENGINE) found = 1;
    if (count) *count = found;
    if (found > wanted) found = wanted;
    if (!out || found <= 0) return OK;
    if (number >= 0) {
        memcpy(out, &number, element_size(type)); /* little-endian */
    } else if (type == DESCRIPTOR) {
        for (int64_t i = 0; i < found; i++) {
            struct Descriptor *answer = ((struct Descriptor **)out)[i];
            if (!answer) return BAD_PARAM;
            answer->operands = descriptor->operands;
            answer->engine = name == HEURISTIC_RESULTS ? offered(i) : descriptor->engine;
        }
    } else {
        memcpy(out, set->elements, (size_t)found * element_size(type));
    }
    return OK;
}

/* Fails as cuDNN does if a plan does not get the workspace that it asked for. */
API int cudnnBackendExecute(void *handle, struct Descriptor *plan, struct Descriptor *pack)
{
    if (!handle || !plan || !pack || plan->type != EXECUTION_PLAN || pack->type != VARIANT_PACK) return BAD_PARAM;
    if (workspace_of(plan->engine, plan->operands) == 0) return OK;
    struct Attribute *workspace = find(pack, PACK_WORKSPACE);
    void *at = NULL;
    if (workspace && workspace->count) memcpy(&at, workspace->elements, sizeof at);
    return at ? OK : BAD_PARAM;
}
