/* Multicast objects (cuda.h 13.0:13805-14066): handles without memory of their own, to which memory of several devices is
 * bound. Kernels compute nothing here, so what is written through an object does not reach the memory that is bound to it. A
 * process that imported an object can map it, but cannot add a device. */
#include "sim.h"

struct Multicast { unsigned wanted, added; bool in_team[MAX_DEVICES]; };
typedef struct { unsigned numDevices; size_t size; unsigned long long handleTypes, flags; } Properties;
static pthread_cond_t complete = PTHREAD_COND_INITIALIZER;

static Allocation *object(CUmemGenericAllocationHandle handle)
{
    Allocation *a = vmm_handle(handle);
    return a && a->multicast ? a : NULL;
}

#define SUPPORTED() do { if (!config()->vmm) return CUDA_ERROR_NOT_SUPPORTED; } while (0)

API CUresult cuMulticastGetGranularity(size_t *granularity, const Properties *properties, int option)
{
    (void)option;
    ENTER("cuMulticastGetGranularity");
    SUPPORTED();
    REQUIRE(granularity && properties && properties->numDevices);
    *granularity = config()->granularity;
    return CUDA_SUCCESS;
}

API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *out, const Properties *properties)
{
    ENTER_WORKING("cuMulticastCreate");
    SUPPORTED();
    REQUIRE(out && properties && properties->size && properties->size % config()->granularity == 0 && !properties->flags);
    REQUIRE(properties->numDevices && properties->numDevices <= (unsigned)config()->devices);
    Allocation *a = table_new(VMM, -1, properties->size, 0, "cuMulticastCreate");
    a->references = 1;
    a->multicast = calloc(1, sizeof *a->multicast);
    a->multicast->wanted = properties->numDevices;
    table_add(a);
    *out = a->address;
    return CUDA_SUCCESS;
}

API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
    ENTER_WORKING("cuMulticastAddDevice");
    Allocation *a = object(handle);
    REQUIRE(a);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    REQUIRE(!a->multicast->in_team[device] && a->multicast->added < a->multicast->wanted);
    a->multicast->in_team[device] = true;
    a->multicast->added++;
    pthread_cond_broadcast(&complete);
    return CUDA_SUCCESS;
}

/* "will block until all devices have been added": cuda.h 13.0:13879-13884 */
void multicast_wait(const Allocation *a)
{
    while (a->multicast && a->multicast->added < a->multicast->wanted) pthread_cond_wait(&complete, &sim_mutex);
}

static CUresult bind(CUmemGenericAllocationHandle handle, size_t at, Allocation *memory, size_t offset, size_t size, unsigned long long flags)
{
    uint64_t granularity = config()->granularity;
    Allocation *a = object(handle);
    REQUIRE(a && memory && !memory->multicast && size && !flags);
    multicast_wait(a);
    REQUIRE(!(at % granularity) && !(offset % granularity) && !(size % granularity));
    REQUIRE(at <= a->requested && size <= a->requested - at && offset <= memory->requested && size <= memory->requested - offset);
    REQUIRE(memory->device >= 0 && a->multicast->in_team[memory->device]);
    return CUDA_SUCCESS;
}
API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at, CUmemGenericAllocationHandle memory, size_t offset, size_t size, unsigned long long flags)
{
    ENTER_WORKING("cuMulticastBindMem");
    return bind(handle, at, vmm_handle(memory), offset, size, flags);
}
API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t at, CUdeviceptr address, size_t size, unsigned long long flags)
{
    ENTER_WORKING("cuMulticastBindAddr");
    uint64_t start = 0, bytes = 0;
    Allocation *memory = vmm_at(address, &start, &bytes);
    return bind(handle, at, memory, address - start, size, flags);
}
API CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at, size_t size)
{
    ENTER_WORKING("cuMulticastUnbind");
    Allocation *a = object(handle);
    REQUIRE(a && device_valid(device) && a->multicast->in_team[device] && at <= a->requested && size <= a->requested - at);
    return CUDA_SUCCESS;
}
