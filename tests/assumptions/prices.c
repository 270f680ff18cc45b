/* What calls cost on an idle device: the lines for the table of prices. Times are host times, median and least. */
#include "probe.h"

enum { MOST = 64 };
static struct { double us[MOST]; int count; } of_call[8];

static void timed(int call, double since)
{
    double us = now_us() - since;
    if (of_call[call].count < MOST) of_call[call].us[of_call[call].count++] = us;
}
#define TIMED(call, expression)          \
    do {                                 \
        double since_ = now_us();        \
        CUresult timed_ = (expression);  \
        timed(call, since_);             \
        CHECK(timed_);                   \
    } while (0)

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Forgets the times of a call; prints them first if a size is named. */
static void line(int call, const char *name, const char *size)
{
    int count = of_call[call].count;
    qsort(of_call[call].us, (size_t)count, sizeof(double), by_size);
    if (size) figure("| %s | %s | %.1f us | %.1f us |\n", name, size, of_call[call].us[count / 2], of_call[call].us[0]);
    of_call[call].count = 0;
}

static void prices_of_mapping(size_t size, const char *text, int turns)
{
    enum { CREATE, MAP, ACCESS, UNMAP, RELEASE };
    CUmemAllocationProp properties = pinned_on(0);
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr start = reserve(size);
    __typeof__(&cuMemCreate) create = cu(cuMemCreate);
    __typeof__(&cuMemMap) map = cu(cuMemMap);
    __typeof__(&cuMemSetAccess) set_access = cu(cuMemSetAccess);
    __typeof__(&cuMemUnmap) unmap = cu(cuMemUnmap);
    __typeof__(&cuMemRelease) release = cu(cuMemRelease);
    for (int turn = 0; turn < turns; turn++) {
        TIMED(CREATE, create(&handle, size, &properties, 0));
        TIMED(MAP, map(start, size, 0, handle, 0));
        TIMED(ACCESS, set_access(start, size, &access, 1));
        TIMED(UNMAP, unmap(start, size));
        TIMED(RELEASE, release(handle));
    }
    static const char *const names[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"};
    for (int call = CREATE; call <= RELEASE; call++) line(call, names[call], text);
}

static void prices_of_alloc(size_t size, const char *text, int turns)
{
    __typeof__(&cuMemAlloc_v2) take = cu(cuMemAlloc_v2);
    __typeof__(&cuMemFree_v2) give = cu(cuMemFree_v2);
    CUdeviceptr address;
    for (int turn = 0; turn < turns; turn++) {
        TIMED(0, take(&address, size));
        TIMED(1, give(address));
    }
    line(0, "cuMemAlloc", text);
    line(1, "cuMemFree", text);
}

/* Address space alone. */
static void prices_of_reserving(size_t size, const char *text, int turns)
{
    __typeof__(&cuMemAddressReserve) take = cu(cuMemAddressReserve);
    __typeof__(&cuMemAddressFree) give = cu(cuMemAddressFree);
    CUdeviceptr address;
    for (int turn = 0; turn < turns; turn++) {
        TIMED(0, take(&address, size, 0, 0, 0));
        TIMED(1, give(address, size));
    }
    line(0, "cuMemAddressReserve", text);
    line(1, "cuMemAddressFree", text);
}

/* Many handles under one range, and one call: what a handle of the range costs. */
static void prices_of_a_run(size_t size, unsigned count, const char *text, int turns)
{
    CUmemAllocationProp properties = pinned_on(0);
    CUmemAccessDesc access = access_of(0);
    CUdeviceptr start = reserve(count * size);
    CUmemGenericAllocationHandle handles[MOST];
    for (unsigned i = 0; i < count; i++) CHECK(cu(cuMemCreate)(&handles[i], size, &properties, 0));
    for (int turn = 0; turn < turns; turn++) {
        for (unsigned i = 0; i < count; i++) map(start + i * size, size, handles[i]);
        TIMED(0, cu(cuMemSetAccess)(start, count * size, &access, 1));
        TIMED(1, cu(cuMemUnmap)(start, count * size));
    }
    for (unsigned i = 0; i < count; i++) CHECK(cu(cuMemRelease)(handles[i]));
    line(0, "cuMemSetAccess", text);
    line(1, "cuMemUnmap", text);
}

/* The second mapping of a handle that is mapped and accessible already. */
static void prices_of_an_alias(size_t size, const char *text, int turns)
{
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle handle = create(size, 0);
    CUdeviceptr first = reserve(size), second = reserve(size);
    map(first, size, handle);
    grant(first, size, 0);
    for (int turn = 0; turn < turns; turn++) {
        TIMED(0, cu(cuMemMap)(second, size, 0, handle, 0));
        TIMED(1, cu(cuMemSetAccess)(second, size, &access, 1));
        TIMED(2, cu(cuMemUnmap)(second, size));
    }
    CHECK(cu(cuMemUnmap)(first, size));
    CHECK(cu(cuMemRelease)(handle));
    line(0, "cuMemMap", text);
    line(1, "cuMemSetAccess", text);
    line(2, "cuMemUnmap", text);
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
    __typeof__(&cuCtxSynchronize) synchronise = cu(cuCtxSynchronize);
    __typeof__(&cuEventRecord) record = cu(cuEventRecord);
    __typeof__(&cuEventQuery) query = cu(cuEventQuery);
    for (int turn = 0; turn < MOST; turn++) {
        TIMED(1, record(event, stream));
        CHECK(synchronise());
        TIMED(2, query(event));
        TIMED(0, synchronise());
    }
    line(0, "cuCtxSynchronize", "idle");
    line(1, "cuEventRecord", "idle");
    line(2, "cuEventQuery", "done");
}
