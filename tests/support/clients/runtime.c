/* A client of the runtime API. It allocates every class of memory at random on two devices and counts bytes and calls.
 * It is linked to libcudart.so.12 or .13 and declares the functions itself.
 *
 *   runtime SEED STEPS */
#include "client.h"
#include "random.h"
#include <stdbool.h>

typedef int cudaError_t;
typedef struct { size_t width, height, depth; } cudaExtent;
typedef struct { void *ptr; size_t pitch, xsize, ysize; } cudaPitchedPtr;
typedef struct { int x, y, z, w, f; } cudaChannelFormatDesc;
cudaError_t cudaSetDevice(int), cudaDeviceSynchronize(void), cudaGetLastError(void), cudaStreamSynchronize(void *);
cudaError_t cudaMalloc(void **, size_t), cudaFree(void *), cudaMallocPitch(void **, size_t *, size_t, size_t);
cudaError_t cudaMalloc3D(cudaPitchedPtr *, cudaExtent), cudaMallocManaged(void **, size_t, unsigned);
cudaError_t cudaMallocHost(void **, size_t), cudaHostAlloc(void **, size_t, unsigned), cudaFreeHost(void *);
cudaError_t cudaHostRegister(void *, size_t, unsigned), cudaHostUnregister(void *);
cudaError_t cudaMallocAsync(void **, size_t, void *), cudaFreeAsync(void *, void *);
cudaError_t cudaMemPoolCreate(void **, const CUmemPoolProps *), cudaMallocFromPoolAsync(void **, size_t, void *, void *);
cudaError_t cudaMallocArray(void **, const cudaChannelFormatDesc *, size_t, size_t, unsigned), cudaFreeArray(void *);
cudaError_t cudaMalloc3DArray(void **, const cudaChannelFormatDesc *, cudaExtent, unsigned);
cudaError_t cudaMallocMipmappedArray(void **, const cudaChannelFormatDesc *, cudaExtent, unsigned, unsigned);
cudaError_t cudaFreeMipmappedArray(void *), cudaMemcpy(void *, const void *, size_t, int), cudaMemGetInfo(size_t *, size_t *);

enum { DEVICES = 2, ITEMS = 40 };
enum kind { MALLOC, PITCH, VOLUME, MANAGED_, PINNED, HOST_ALLOC, REGISTERED, ASYNC_, POOL, ARRAY_, ARRAY_3D, MIPMAP_, KINDS };
static struct { const char *obtain, *give_back; int class; } const apis[KINDS] = {
    {"cudaMalloc", "cudaFree", LINEAR}, {"cudaMallocPitch", "cudaFree", PITCHED}, {"cudaMalloc3D", "cudaFree", PITCHED},
    {"cudaMallocManaged", "cudaFree", MANAGED}, {"cudaMallocHost", "cudaFreeHost", HOST}, {"cudaHostAlloc", "cudaFreeHost", HOST},
    {"cudaHostRegister", "cudaHostUnregister", HOST_REGISTERED}, {"cudaMallocAsync", "cudaFreeAsync", ASYNC},
    {"cudaMallocFromPoolAsync", "cudaFreeAsync", ASYNC}, {"cudaMallocArray", "cudaFreeArray", ARRAY},
    {"cudaMalloc3DArray", "cudaFreeArray", ARRAY}, {"cudaMallocMipmappedArray", "cudaFreeMipmappedArray", MIPMAP},
};
struct item { bool live; enum kind kind; int device; void *memory; long long bytes; };

static struct item items[ITEMS];
static void *pools[DEVICES];
static uint64_t seed;
static struct { const char *name; long count; } calls[64];

static void called(const char *name)
{
    int i = 0;
    while (calls[i].name && strcmp(calls[i].name, name)) i++;
    calls[i].name = name;
    calls[i].count++;
}

static void allocate(struct item *i)
{
    size_t size = 1 + draw(&seed, draw(&seed, 4) ? 1 << 16 : 8 << 20), pitch;
    int device = (int)draw(&seed, DEVICES);
    *i = (struct item){.live = true, .kind = (enum kind)draw(&seed, KINDS), .device = device, .bytes = (long long)size};
    cudaChannelFormatDesc floats = {32, 32, 0, 0, 2};
    CHECK(cudaSetDevice(device));
    called(apis[i->kind].obtain);
    switch (i->kind) {
    case MALLOC: CHECK(cudaMalloc(&i->memory, size)); break;
    case PITCH: i->bytes = 777 * 13; CHECK(cudaMallocPitch(&i->memory, &pitch, 777, 13)); break;
    case VOLUME: {
        cudaPitchedPtr whole;
        i->bytes = 100 * 7 * 5;
        CHECK(cudaMalloc3D(&whole, (cudaExtent){100, 7, 5}));
        i->memory = whole.ptr;
        break;
    }
    case MANAGED_: CHECK(cudaMallocManaged(&i->memory, size, 1)); break;
    case PINNED: i->device = -1; CHECK(cudaMallocHost(&i->memory, size)); break;
    case HOST_ALLOC: i->device = -1; CHECK(cudaHostAlloc(&i->memory, size, 0)); break;
    case REGISTERED: i->device = -1; i->memory = malloc(size); CHECK(cudaHostRegister(i->memory, size, 0)); break;
    case ASYNC_: CHECK(cudaMallocAsync(&i->memory, size, NULL)); break;
    case POOL: CHECK(cudaMallocFromPoolAsync(&i->memory, size, pools[device], NULL)); break;
    case ARRAY_: i->bytes = 60 * 40 * 8; CHECK(cudaMallocArray(&i->memory, &floats, 60, 40, 0)); break;
    case ARRAY_3D: i->bytes = 30 * 20 * 10 * 8; CHECK(cudaMalloc3DArray(&i->memory, &floats, (cudaExtent){30, 20, 10}, 0)); break;
    case MIPMAP_:
        i->bytes = (32 * 32 + 16 * 16 + 8 * 8) * 8;
        CHECK(cudaMallocMipmappedArray(&i->memory, &floats, (cudaExtent){32, 32, 0}, 3, 0));
        break;
    case KINDS: break;
    }
    *count_of(i->device, apis[i->kind].class) += i->bytes;
    if (i->kind == MALLOC && size >= 4096) { /* copies bytes to the device and back */
        char there[4096], back[4096];
        memset(there, (int)draw(&seed, 256), sizeof there);
        CHECK(cudaMemcpy(i->memory, there, sizeof there, 1));
        CHECK(cudaMemcpy(back, i->memory, sizeof back, 2));
        if (memcmp(there, back, sizeof back)) exit((fprintf(stderr, "runtime: bytes changed\n"), 1));
    }
}

static void release(struct item *i)
{
    CHECK(cudaSetDevice((int)draw(&seed, DEVICES)));
    called(apis[i->kind].give_back);
    switch (i->kind) {
    case MALLOC: case PITCH: case VOLUME: case MANAGED_: CHECK(cudaFree(i->memory)); break;
    case PINNED: case HOST_ALLOC: CHECK(cudaFreeHost(i->memory)); break;
    case REGISTERED: CHECK(cudaHostUnregister(i->memory)); free(i->memory); break;
    case ASYNC_: case POOL: CHECK(cudaFreeAsync(i->memory, NULL)); break;
    case ARRAY_: case ARRAY_3D: CHECK(cudaFreeArray(i->memory)); break;
    case MIPMAP_: CHECK(cudaFreeMipmappedArray(i->memory)); break;
    case KINDS: break;
    }
    *count_of(i->device, apis[i->kind].class) -= i->bytes;
    i->live = false;
}

static void failures(void)
{
    void *memory;
    size_t size;
    CHECK(cudaMalloc(&memory, 0)); /* no bytes are requested, so there is no record */
    CHECK(cudaFree(NULL));
    CHECK(cudaMemGetInfo(NULL, &size));
    called("cudaMalloc");
    EXPECT(cudaMalloc(&memory, 1ull << 50), CUDA_ERROR_OUT_OF_MEMORY);
    called("cudaFree");
    EXPECT(cudaFree((void *)0x123456), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cudaGetLastError(), CUDA_ERROR_INVALID_VALUE);
    CHECK(cudaGetLastError());
}

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "usage: runtime SEED STEPS\n"), 2;
    seed = strtoull(argv[1], NULL, 10);
    for (int device = 0; device < DEVICES; device++) {
        CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
        CHECK(cudaSetDevice(device));
        CHECK(cudaMemPoolCreate(&pools[device], &properties));
    }
    checkpoint();
    for (int step = 1; step <= atoi(argv[2]); step++) {
        struct item *i = &items[draw(&seed, ITEMS)];
        if (i->live) release(i);
        else allocate(i);
        if (step % 50 == 0) failures();
        if (step % 60 == 0) CHECK(cudaDeviceSynchronize());
        if (step % 40 == 0) checkpoint();
    }
    checkpoint();
    printf("{\"calls\":{");
    for (int n = 0; calls[n].name; n++) printf("%s\"%s\":%ld", n ? "," : "", calls[n].name, calls[n].count);
    printf("}}\n{\"live\":[");
    const char *comma = "";
    for (int n = 0; n < ITEMS; n++) {
        if (!items[n].live) continue;
        printf("%s{\"api\":\"%s\",\"size\":%lld,\"device\":%d}", comma, apis[items[n].kind].obtain, items[n].bytes, items[n].device);
        comma = ",";
    }
    printf("]}\n");
    return 0;
}
