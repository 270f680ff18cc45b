/* The helpers of the probes: the driver, memory, and work that blocks. */
#include "probe.h"
#include <dlfcn.h>

CUcontext contexts[2];

void *driver_function(const char *name)
{
    static void *library;
    if (!library && !(library = dlopen("libcuda.so.1", RTLD_NOW))) not_asked("no libcuda.so.1 is found");
    void *found = dlsym(library, name);
    if (!found) not_asked("no %s", name);
    return found;
}

const char *name_of_call(const char *text)
{
    static char name[64];
    return sscanf(text, "cu(%63[A-Za-z0-9_]", name) == 1 ? name : text;
}

void begin_on(int count)
{
    int devices = 0;
    NEED(cu(cuInit)(0));
    NEED(cu(cuDeviceGetCount)(&devices));
    if (devices < count) not_asked("needs %s", count == 2 ? "two devices" : "a device");
    for (int device = count - 1; device >= 0; device--) {
        CHECK(cu(cuDevicePrimaryCtxRetain)(&contexts[device], device));
        current(device);
    }
}

void begin(void) { begin_on(1); }
void current(int device) { CHECK(cu(cuCtxSetCurrent)(contexts[device])); }

int attribute_of_device(int attribute, int device)
{
    int value = 0;
    return cu(cuDeviceGetAttribute)(&value, attribute, device) ? 0 : value;
}

void need_peers(void)
{
    for (int device = 0; device < 2; device++) {
        int can = 0;
        CHECK(cu(cuDeviceCanAccessPeer)(&can, device, !device));
        if (!can) not_asked("the devices cannot reach each other's memory");
    }
}

CUstream new_stream(void)
{
    enum { NON_BLOCKING = 1 };
    CUstream stream;
    CHECK(cu(cuStreamCreate)(&stream, NON_BLOCKING));
    return stream;
}

CUdeviceptr alloc(size_t size)
{
    CUdeviceptr address;
    CHECK(cu(cuMemAlloc_v2)(&address, size));
    return address;
}

CUmemAllocationProp pinned_on(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

CUmemAccessDesc access_of(int device)
{
    return (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

size_t granule(void)
{
    enum { VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102, MINIMUM = 0 };
    if (!attribute_of_device(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0)) not_asked("no virtual memory management");
    CUmemAllocationProp properties = pinned_on(0);
    size_t size;
    CHECK(cu(cuMemGetAllocationGranularity)(&size, &properties, MINIMUM));
    return size;
}

CUdeviceptr reserve(size_t size)
{
    CUdeviceptr address;
    CHECK(cu(cuMemAddressReserve)(&address, size, 0, 0, 0));
    return address;
}

CUmemGenericAllocationHandle create(size_t size, int device)
{
    CUmemAllocationProp properties = pinned_on(device);
    CUmemGenericAllocationHandle handle;
    CHECK(cu(cuMemCreate)(&handle, size, &properties, 0));
    return handle;
}

void map(CUdeviceptr address, size_t size, CUmemGenericAllocationHandle handle) { CHECK(cu(cuMemMap)(address, size, 0, handle, 0)); }

void grant(CUdeviceptr address, size_t size, int device)
{
    CUmemAccessDesc access = access_of(device);
    CHECK(cu(cuMemSetAccess)(address, size, &access, 1));
}

CUdeviceptr address_of(CUmemGenericAllocationHandle handle, size_t size)
{
    CUdeviceptr start = reserve(size);
    map(start, size, handle);
    grant(start, size, 0);
    return start;
}

CUdeviceptr mapped(unsigned count, int device)
{
    size_t size = granule();
    CUdeviceptr start = reserve(count * size);
    for (unsigned i = 0; i < count; i++) map(start + i * size, size, create(size, device));
    grant(start, count * size, device);
    return start;
}

size_t free_memory(void)
{
    size_t bytes, total;
    CHECK(cu(cuMemGetInfo_v2)(&bytes, &total));
    return bytes;
}

void fill(CUdeviceptr address, unsigned char value, size_t size) { CHECK(cu(cuMemsetD8_v2)(address, value, size)); }

bool holds_only(CUdeviceptr address, unsigned char value, size_t size)
{
    unsigned char *bytes = malloc(size);
    memset(bytes, ~value, size);
    CHECK(cu(cuCtxSynchronize)());
    CHECK(cu(cuMemcpyDtoH_v2)(bytes, address, size));
    bool same = true;
    for (size_t i = 0; i < size; i++) same &= bytes[i] == value;
    free(bytes);
    return same;
}

void claim_bytes(const char *what, CUdeviceptr address, unsigned char value, size_t size)
{
    bool right = holds_only(address, value, size);
    claim(right, "%s %s", what, right ? "right" : "lost");
}

void fill_on(int device, CUdeviceptr address, unsigned char value, size_t size)
{
    current(device);
    fill(address, value, size);
    CHECK(cu(cuCtxSynchronize)());
}

double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

const char *const kind_names[KINDS] = {"host function", "kernel"};

/* `spin` tells that it began, and ends when it is released or when its time is up; `wild` writes to address 16. PTX of
 * 2018, which every driver with virtual memory management compiles for its own device. */
static const char code[] =
    ".version 6.2\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry spin(.param .u64 words, .param .u64 limit) {\n"
    "  .reg .b64 %rd<5>; .reg .b32 %r<2>; .reg .pred %p<3>;\n"
    "  ld.param.u64 %rd1, [words];\n"
    "  ld.param.u64 %rd2, [limit];\n"
    "  mov.u64 %rd3, %globaltimer;\n"
    "  mov.u32 %r1, 1;\n"
    "  st.volatile.u32 [%rd1], %r1;\n"
    "again:\n"
    "  ld.volatile.u32 %r0, [%rd1+4];\n"
    "  setp.ne.u32 %p1, %r0, 0;\n"
    "  @%p1 bra over;\n"
    "  mov.u64 %rd4, %globaltimer;\n"
    "  sub.u64 %rd4, %rd4, %rd3;\n"
    "  setp.lt.u64 %p2, %rd4, %rd2;\n"
    "  @%p2 bra again;\n"
    "over:\n"
    "  membar.sys;\n"
    "  st.volatile.u32 [%rd1+8], %r1;\n"
    "  ret;\n"
    "}\n"
    ".visible .entry wild() {\n"
    "  .reg .b64 %rd<2>; .reg .b32 %r<2>;\n"
    "  mov.u64 %rd1, 16;\n"
    "  mov.u32 %r1, 1;\n"
    "  st.volatile.global.u32 [%rd1], %r1;\n"
    "  ret;\n"
    "}\n";

/* A module belongs to a context: each context loads its own. */
static struct known { CUcontext context; CUmodule module; bool was_tried, works; } *known(void)
{
    static struct known each[4];
    CUcontext context;
    CHECK(cu(cuCtxGetCurrent)(&context));
    int i = 0;
    while (each[i].context && each[i].context != context) i++;
    each[i].context = context;
    return &each[i];
}

static CUfunction function_of(const char *name)
{
    CUmodule *module = &known()->module;
    CUfunction function = NULL;
    if (!*module && cu(cuModuleLoadData)(module, code)) return NULL;
    return cu(cuModuleGetFunction)(&function, *module, name) ? NULL : function;
}

CUfunction wild_kernel(void) { return function_of("wild"); }

static struct blocked *new_work(void)
{
    enum { PORTABLE_AND_MAPPED = 3 };
    void *words;
    CHECK(cu(cuMemHostAlloc)(&words, sizeof(struct blocked), PORTABLE_AND_MAPPED));
    memset(words, 0, sizeof(struct blocked));
    return words;
}

static void launch_spin(struct blocked *work, CUstream stream)
{
    uint64_t words = (uint64_t)work, limit = BLOCK_MS * 1000000ull;
    void *parameters[] = {&words, &limit};
    CUfunction spin = function_of("spin");
    if (!spin) failed("the kernel is not found");
    CHECK(cu(cuLaunchKernel)(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

/* Tries one that is released already, which also loads the code: that may wait for other work. */
bool kernels(void)
{
    struct known *here = known();
    if (here->was_tried || !function_of("spin")) return here->works;
    here->was_tried = true;
    struct blocked *trial = new_work();
    trial->released = 1;
    launch_spin(trial, NULL);
    CHECK(cu(cuCtxSynchronize)());
    return here->works = trial->ended;
}

static void wait_on_host(void *data)
{
    struct blocked *work = data;
    double end = now_us() + BLOCK_MS * 1e3;
    work->started = 1;
    while (!work->released && now_us() < end) usleep(100);
    work->ended = 1;
}

struct blocked *block(enum kind kind, CUstream stream)
{
    struct blocked *work = new_work();
    if (kind == KERNEL) launch_spin(work, stream);
    else CHECK(cu(cuLaunchHostFunc)(stream, wait_on_host, work));
    for (int i = 0; i < 50 && !work->started; i++) usleep(1000);
    return work;
}

struct blocked *told_block(enum kind kind, CUstream stream)
{
    figure("%s:", kind_names[kind]);
    return block(kind, stream);
}

void release(struct blocked *work) { work->released = 1; }
