/* Devices and their attributes: a card of compute capability 9.0 with every feature. */
#include "sim.h"

void sim_uuid(int physical, char uuid[16]);

API CUresult cuDriverGetVersion(int *version) { REQUIRE(version); *version = config()->driver_version; return CUDA_SUCCESS; }

API CUresult cuDeviceGetCount(int *count) { ENTER("cuDeviceGetCount"); REQUIRE(count); *count = config()->visible_count; return CUDA_SUCCESS; }

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER("cuDeviceGet");
    REQUIRE(device);
    if (!device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

#define DEVICE(function)                                         \
    ENTER(function);                                             \
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE

API CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    DEVICE("cuDeviceGetName");
    REQUIRE(name && length > 0);
    /* CUDA names a MIG instance so: the manual of condor_gpu_discovery prints "NVIDIA A100-SXM4-40GB MIG 1g.5gb", with
     * 4864 MiB. */
    if (config()->mig)
        snprintf(name, (size_t)length, "Simulated GPU MIG 1g.%zugb", config()->memory[physical_of(device)] >> 30);
    else
        snprintf(name, (size_t)length, "Simulated GPU");
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { DEVICE("cuDeviceGetUuid"); REQUIRE(uuid); sim_uuid(physical_of(device), uuid->bytes); return CUDA_SUCCESS; }
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult result = cuDeviceGetUuid(uuid, device);
    if (result == CUDA_SUCCESS && config()->mig) sim_uuid(physical_of(device) + MAX_DEVICES, uuid->bytes);
    return result;
}
API CUresult cuDeviceGetLuid(char *luid, unsigned *mask, CUdevice device) { (void)luid, (void)mask; DEVICE("cuDeviceGetLuid"); return CUDA_ERROR_NOT_SUPPORTED; }
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { DEVICE("cuDeviceTotalMem"); REQUIRE(bytes); *bytes = config()->memory[physical_of(device)]; return CUDA_SUCCESS; }
API CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    size_t whole;
    CUresult result = cuDeviceTotalMem_v2(&whole, device);
    if (!result && bytes) *bytes = whole > 0xffffffffu ? 0xffffffffu : (unsigned)whole;
    return result;
}

API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    DEVICE("cuDeviceGetPCIBusId");
    REQUIRE(text && length > 0);
    snprintf(text, (size_t)length, "0000:%02X:00.0", 0x10 + physical_of(device));
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    ENTER("cuDeviceGetByPCIBusId");
    REQUIRE(device && text);
    const char *bus = strchr(text, ':');
    unsigned number;
    if (bus && strchr(bus + 1, ':') && sscanf(bus + 1, "%x", &number) == 1)
        for (int i = 0; i < config()->visible_count; i++)
            if (physical_of(i) + 0x10 == (int)number) return *device = i, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_DEVICE;
}

static int attribute_value(int attribute, int device)
{
    switch (attribute) {
    case 1: return 1024;                /* threads a block */
    case 2: case 3: return 1024;        /* block x, y */
    case 4: return 64;                  /* block z */
    case 5: return 0x7fffffff;          /* grid x */
    case 6: case 7: return 65535;
    case 8: return 49152;               /* shared memory a block */
    case 9: return 65536;               /* constant memory */
    case 10: return 32;                 /* warp */
    case 11: return 0x7fffffff;         /* pitch */
    case 12: return 65536;              /* registers a block */
    case 13: return 1980000;            /* clock, kHz */
    case 14: return 512;                /* texture alignment */
    case 16: return 132;                /* multiprocessors */
    case 19: return 1;                  /* can map host memory */
    case 31: return 1;                  /* concurrent kernels */
    case 33: return 0x10 + physical_of(device); /* pci bus */
    case 36: return 3201000;            /* memory clock */
    case 37: return 6144;               /* bus width */
    case 38: return 60 << 20;           /* L2 */
    case 39: return 2048;               /* threads a multiprocessor */
    case 40: return 3;                  /* copy engines */
    case 41: return 1;                  /* unified addressing */
    case 75: return 9;                  /* compute capability */
    case 76: return 0;
    case 78: case 79: case 80: return 1; /* stream priorities, L1 caches */
    case 81: case 97: return 233472;    /* shared memory a multiprocessor, opt-in a block */
    case 82: return 65536;
    case 69: return 1 << 28;   /* texels of a linear texture */
    case 70: case 71: return 131072;    /* width and height of a pitched one */
    case 72: return 2097120;            /* pitch */
    case 51: return 32;                 /* texture pitch alignment */
    case 83: return 1;                  /* managed memory */
    case 86: return 1;                  /* native host atomics */
    case 87: return 64;
    case 88: case 89: return 1;         /* pageable access, concurrent managed access */
    case 90: return 1;                  /* compute preemption */
    case 91: return 1;                  /* host pointer for registered memory */
    case 95: case 96: return 1;         /* cooperative launch */
    case 99: return 1;                  /* host register */
    case 102: return config()->vmm;     /* virtual memory management */
    case 103: return config()->vmm;     /* posix file descriptors */
    case 106: return 32;                /* blocks a multiprocessor */
    case 110: return config()->vmm;     /* virtual memory that network cards can reach */
    case 94: case 92: case 93: case 122: case 123: return 1; /* values on streams: waits, 64 bits, NOR */
    case 98: return 1;                  /* flush of remote writes */
    case 112: return config()->vmm;     /* sparse arrays */
    case 115: return 1;                 /* memory pools */
    case 119: return 1;                 /* pool handle types: file descriptor */
    case 120: return 1;                 /* cluster launch */
    case 124: return config()->dmabuf;  /* dma-bufs */
    case 129: return 1;                 /* unified function pointers */
    case 132: return config()->vmm;     /* multicast objects */
    case 136: return 7;                 /* decompression: deflate, snappy, LZ4 */
    case 137: return 1 << 30;           /* its largest length */
    case 149: return config()->driver_version >= 13050 ? 2 : 0; /* locality domains */
    default: return 0;
    }
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    DEVICE("cuDeviceGetAttribute");
    REQUIRE(value && attribute > 0 && attribute < 256);
    *value = attribute_value(attribute, device);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) { DEVICE("cuDeviceComputeCapability"); REQUIRE(major && minor); *major = 9, *minor = 0; return CUDA_SUCCESS; }
API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) { DEVICE("cuDeviceCanAccessPeer"); REQUIRE(can); if (!device_valid(peer)) return CUDA_ERROR_INVALID_DEVICE; *can = device != peer && config()->peers; return CUDA_SUCCESS; }
API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer)
{
    (void)attribute;
    DEVICE("cuDeviceGetP2PAttribute");
    REQUIRE(value && device_valid(peer) && device != peer);
    *value = attribute == 1 ? 0 : 1;
    return CUDA_SUCCESS;
}

#define ERRORS(X)                                                                                                       \
    X(0, "CUDA_SUCCESS", "no error")                                                                                    \
    X(1, "CUDA_ERROR_INVALID_VALUE", "invalid argument")                                                                \
    X(2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")                                                                   \
    X(3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error")                                                          \
    X(4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down")                                                            \
    X(35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version")                \
    X(100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected")                                                \
    X(101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal")                                                       \
    X(200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid")                                                \
    X(201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context")                                                      \
    X(400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle")                                                      \
    X(500, "CUDA_ERROR_NOT_FOUND", "named symbol not found")                                                            \
    X(600, "CUDA_ERROR_NOT_READY", "device not ready")                                                                  \
    X(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered")                                    \
    X(704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled")                                  \
    X(705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled")                                    \
    X(712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped")  \
    X(713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region")        \
    X(800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted")                                                       \
    X(801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported")                                                       \
    X(900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing")                 \
    X(901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture")          \
    X(999, "CUDA_ERROR_UNKNOWN", "unknown error")

API CUresult cuGetErrorName(CUresult error, const char **name)
{
    REQUIRE(name);
    switch (error) {
#define CASE(number, its_name, words) case number: *name = its_name; return CUDA_SUCCESS;
        ERRORS(CASE)
#undef CASE
    }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult error, const char **text)
{
    REQUIRE(text);
    switch (error) {
#define CASE(number, its_name, words) case number: *text = words; return CUDA_SUCCESS;
        ERRORS(CASE)
#undef CASE
    }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

/* Undocumented tables are not provided. */
API CUresult cuGetExportTable(const void **table, const CUuuid *id) { (void)id; if (table) *table = NULL; return CUDA_ERROR_NOT_FOUND; }
