/* What calls cost on an idle device: the lines for the table of prices. Times are host times, median and least. */
#include "probe.h"

enum { MOST = 64 };
static struct { const char *name; double us[MOST]; int count; } of_call[8];

static void timed(const char *name, double us)
{
    int call = 0;
    while (of_call[call].name && strcmp(of_call[call].name, name)) call++;
    of_call[call].name = name;
    if (of_call[call].count < MOST) of_call[call].us[of_call[call].count++] = us;
}
/* Calls a function of the driver, which is looked up before. */
#define TIMED(function, ...)                          \
    do {                                              \
        __typeof__(&function) call_ = cu(function);   \
        double since_ = now_us();                     \
        CUresult answer_ = call_(__VA_ARGS__);        \
        timed(#function, now_us() - since_);          \
        if (answer_) failed(#function " answered %d", answer_); \
    } while (0)

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Forgets the times of all calls; prints them first if a size is named. */
static void lines(const char *size)
{
    for (int i = 0; of_call[i].name; i++) {
        const char *name = of_call[i].name, *version = strstr(name, "_v2");
        double *us = of_call[i].us;
        int length = (int)(version ? (size_t)(version - name) : strlen(name));
        qsort(us, (size_t)of_call[i].count, sizeof *us, by_size);
        if (size) figure("| %.*s | %s | %.1f us | %.1f us |\n", length, name, size, us[of_call[i].count / 2], us[0]);
    }
    memset(of_call, 0, sizeof of_call);
}

static void prices_of_mapping(size_t size, const char *text, int turns)
{
    CUmemAllocationProp properties = pinned_on(0);
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr start = reserve(size);
    for (int turn = 0; turn < turns; turn++) {
        TIMED(cuMemCreate, &handle, size, &properties, 0);
        TIMED(cuMemMap, start, size, 0, handle, 0);
        TIMED(cuMemSetAccess, start, size, &access, 1);
        TIMED(cuMemUnmap, start, size);
        TIMED(cuMemRelease, handle);
    }
    lines(text);
}

static void prices_of_alloc(size_t size, const char *text, int turns)
{
    CUdeviceptr address;
    for (int turn = 0; turn < turns; turn++) {
        TIMED(cuMemAlloc_v2, &address, size);
        TIMED(cuMemFree_v2, address);
    }
    lines(text);
}

static void prices_of_reserving(size_t size, const char *text, int turns)
{
    CUdeviceptr address;
    for (int turn = 0; turn < turns; turn++) {
        TIMED(cuMemAddressReserve, &address, size, 0, 0, 0);
        TIMED(cuMemAddressFree, address, size);
    }
    lines(text);
}

/* Many handles under one range, and one call: what a handle of the range costs. */
static void prices_of_a_run(size_t size, unsigned count, const char *text, int turns)
{
    CUmemAccessDesc access = access_of(0);
    CUdeviceptr start = reserve(count * size);
    CUmemGenericAllocationHandle handles[MOST];
    for (unsigned i = 0; i < count; i++) handles[i] = create(size, 0);
    for (int turn = 0; turn < turns; turn++) {
        for (unsigned i = 0; i < count; i++) map(start + i * size, size, handles[i]);
        TIMED(cuMemSetAccess, start, count * size, &access, 1);
        TIMED(cuMemUnmap, start, count * size);
    }
    for (unsigned i = 0; i < count; i++) CHECK(cu(cuMemRelease)(handles[i]));
    lines(text);
}

/* The second mapping of a handle that is mapped and accessible already. */
static void prices_of_an_alias(size_t size, const char *text, int turns)
{
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle handle = create(size, 0);
    CUdeviceptr first = address_of(handle, size), second = reserve(size);
    for (int turn = 0; turn < turns; turn++) {
        TIMED(cuMemMap, second, size, 0, handle, 0);
        TIMED(cuMemSetAccess, second, size, &access, 1);
        TIMED(cuMemUnmap, second, size);
    }
    CHECK(cu(cuMemUnmap)(first, size));
    CHECK(cu(cuMemRelease)(handle));
    lines(text);
}

PROBE(prices, TELLS, "what calls cost on an idle device, once each was made before", "measured here; for the price table")
{
    begin();
    granule();
    prices_of_mapping(2 * MIB, NULL, 1), prices_of_alloc(2 * MIB, NULL, 1);
    figure("| call | size | median | least |\n");
    static const struct { size_t size; const char *text; int turns; } sizes[] = {
        {2 * MIB, "2 MiB", 32}, {32 * MIB, "32 MiB", 16}, {128 * MIB, "128 MiB", 8}, {1024 * MIB, "1 GiB", 4}, {2048ull * MIB, "2 GiB", 4},
    };
    size_t most = free_memory() / 2;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i].size <= most; i++) {
        prices_of_mapping(sizes[i].size, sizes[i].text, sizes[i].turns);
        prices_of_alloc(sizes[i].size, sizes[i].text, sizes[i].turns);
    }
    prices_of_reserving(8192ull * MIB, "8 GiB", 16);
    prices_of_a_run(2 * MIB, 8, "8 handles of 2 MiB", 8);
    prices_of_a_run(2 * MIB, 64, "64 handles of 2 MiB", 4);
    prices_of_a_run(32 * MIB, 8, "8 handles of 32 MiB", 4);
    prices_of_an_alias(2 * MIB, "alias of 2 MiB", 8);
    prices_of_an_alias(32 * MIB, "alias of 32 MiB", 8);
    CUstream stream = new_stream();
    CUevent event;
    CHECK(cu(cuEventCreate)(&event, 2));
    for (int turn = 0; turn < MOST; turn++) {
        TIMED(cuEventRecord, event, stream);
        CHECK(cu(cuCtxSynchronize)());
        TIMED(cuCtxSynchronize);
    }
    lines("idle");
    for (int turn = 0; turn < MOST; turn++) TIMED(cuEventQuery, event);
    lines("done");
}
