/* What SIMGPU_FAULTS, SIMGPU_LATENCY and SIMGPU_LATCH do to calls. All waits are made without the simulator's lock. */
#include "sim.h"
#include <fcntl.h>
#include <stdatomic.h>


struct rule {
    char function[64];
    enum { AT, EVERY, FROM, WAIT, LATCH } kind;
    long number; /* calls, or nanoseconds */
    int code;
    atomic_long calls;
    struct rule *next;
};
static struct rule *rules;
static const char *latch_folder;
bool sim_watched = true, sim_priced;
static pthread_once_t rules_once = PTHREAD_ONCE_INIT;

static void add_rule(struct rule parsed)
{
    struct rule *rule = malloc(sizeof *rule);
    *rule = parsed;
    rule->next = rules;
    rules = rule;
}

static void pause_ns(uint64_t ns)
{
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
}

/* Calls by name, for simgpu_calls. They are counted only if a variable asks for it, because counting costs as much as
 * a call. */
static struct { const char *function; atomic_ulong calls; } counts[1024];
static pthread_mutex_t counts_lock = PTHREAD_MUTEX_INITIALIZER;

/* The counter of a name. If there is none, `add` makes a new one. */
static atomic_ulong *count_of(const char *function, bool add)
{
    size_t room = sizeof counts / sizeof *counts, at = 5381;
    for (const char *c = function; *c; c++) at = at * 33 + (unsigned char)*c;
    atomic_ulong *found = NULL;
    pthread_mutex_lock(&counts_lock);
    for (size_t i = 0; i < room && !found; i++) {
        size_t slot = (at + i) % room;
        if (!counts[slot].function && !add) break;
        if (!counts[slot].function) counts[slot].function = strdup(function);
        if (!strcmp(counts[slot].function, function)) found = &counts[slot].calls;
    }
    pthread_mutex_unlock(&counts_lock);
    return found;
}

API uint64_t simgpu_calls(const char *function)
{
    atomic_ulong *count = count_of(function, false);
    return count ? *count : 0;
}

#define EACH_PART(variable)                                              \
    char copy[4096];                                                     \
    const char *value = getenv(variable);                                \
    snprintf(copy, sizeof copy, "%s", value ? value : "");               \
    for (char *rest = copy, *part; (part = strsep(&rest, ",")) && *part;)

static void read_faults(void)
{
    EACH_PART("SIMGPU_FAULTS")
    {
        struct rule r = {.kind = AT};
        if (sscanf(part, "%63[^:]:/%ld=%d", r.function, &r.number, &r.code) == 3 && r.number > 0) r.kind = EVERY;
        else if (sscanf(part, "%63[^:]:%ld+=%d", r.function, &r.number, &r.code) == 3) r.kind = FROM;
        else if (sscanf(part, "%63[^:]:%ld=%d", r.function, &r.number, &r.code) != 3) {
            complain("SIMGPU_FAULTS", part, "NAME:N=CODE, NAME:/N=CODE or NAME:N+=CODE");
            continue;
        }
        add_rule(r);
    }
}

static void read_latency(void)
{
    EACH_PART("SIMGPU_LATENCY")
    {
        struct rule r = {.kind = WAIT};
        char unit[3];
        if (!strcmp(part, "prices")) {
            sim_priced = true;
            continue;
        }
        if (sscanf(part, "%63[^=]=%ld%2s", r.function, &r.number, unit) != 3 || (strcmp(unit, "us") && strcmp(unit, "ms"))) {
            complain("SIMGPU_LATENCY", part, "prices, NAME=29us or NAME=1ms");
            continue;
        }
        r.number *= strcmp(unit, "us") ? 1000000 : 1000;
        add_rule(r);
    }
}

static void read_latches(void)
{
    latch_folder = getenv("SIMGPU_LATCH_DIR");
    EACH_PART("SIMGPU_LATCH")
    {
        struct rule r = {.kind = LATCH};
        snprintf(r.function, sizeof r.function, "%s", part);
        if (latch_folder) add_rule(r);
        else complain("SIMGPU_LATCH", part, "names of calls, with a folder in SIMGPU_LATCH_DIR");
    }
}

static void read_rules(void)
{
    read_faults();
    read_latency();
    read_latches();
    sim_watched = rules || config()->counted;
}

static void wait_at_latch(const char *function)
{
    char open_file[4096], waiting[4096];
    snprintf(open_file, sizeof open_file, "%s/%s.open", latch_folder, function);
    snprintf(waiting, sizeof waiting, "%s/%s.waiting", latch_folder, function);
    if (access(open_file, F_OK) == 0) return;
    close(open(waiting, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    while (access(open_file, F_OK)) pause_ns(1000000);
}

static atomic_int met;
static const char *_Atomic met_last = "";
static atomic_bool no_more;

API int simgpu_faults_met(void) { return met; }
API const char *simgpu_last_fault(void) { return met_last; }
API void simgpu_end_faults(void) { no_more = true; }

CUresult fault(const char *function)
{
    pthread_once(&rules_once, read_rules);
    CUresult result = CUDA_SUCCESS;
    if (config()->counted) {
        atomic_ulong *count = count_of(function, true);
        if (count) atomic_fetch_add(count, 1);
    }
    for (struct rule *rule = rules; rule; rule = rule->next) {
        if (strcmp(rule->function, function) && (strcmp(rule->function, "*") || !strncmp(function, "nvml", 4))) continue;
        if (rule->kind == WAIT) pause_ns((uint64_t)rule->number);
        if (rule->kind == LATCH) wait_at_latch(rule->function);
        if (rule->kind == WAIT || rule->kind == LATCH || no_more) continue;
        long call = atomic_fetch_add(&rule->calls, 1) + 1;
        if (rule->kind == AT ? call == rule->number : rule->kind == EVERY ? call % rule->number == 0 : call >= rule->number)
            result = rule->code;
    }
    if (result) {
        atomic_fetch_add(&met, 1);
        atomic_store(&met_last, function);
    }
    return result;
}

/* ---- prices. The build makes prices.inc from src/prices/prices.toml, which names the sources of the figures. A call
 * with many handles pays for each. */
#include "prices.inc"

enum { MIB = 1 << 20 };

static double by_size(double base, double per_gib, uint64_t size)
{
    return base + per_gib * ((double)size / (1 << 30));
}

static double access_us(uint64_t size)
{
    if (size <= 2 * MIB) return PRICE_ACCESS_US_SMALL;
    if (size >= 128 * MIB) return PRICE_ACCESS_US_LARGE;
    double more = PRICE_ACCESS_US_LARGE - PRICE_ACCESS_US_SMALL;
    return PRICE_ACCESS_US_SMALL + more * (double)(size - 2 * MIB) / (126 * MIB);
}

static double price_us(enum priced call, uint64_t size)
{
    switch (call) {
    case CREATE: return by_size(PRICE_CREATE_US, PRICE_CREATE_US_PER_GIB, size);
    case MAP: return PRICE_MAP_US;
    case SET_ACCESS: return access_us(size);
    case UNMAP: return PRICE_UNMAP_US;
    case RELEASE: return PRICE_RELEASE_US;
    case ALLOC: return by_size(PRICE_ALLOCATE_US, PRICE_ALLOCATE_US_PER_GIB, size);
    case FREE: return by_size(PRICE_FREE_US, PRICE_FREE_US_PER_GIB, size);
    case RESERVE: return PRICE_RESERVE_US;
    case UNRESERVE: return PRICE_UNRESERVE_US;
    }
    return 0;
}

/* In nanoseconds. */
uint64_t price_of(enum priced call, uint64_t size)
{
    return sim_priced ? (uint64_t)(price_us(call, size) * 1000) : 0;
}

static atomic_ulong paid_ns;

API uint64_t simgpu_paid_ns(void)
{
    return atomic_load(&paid_ns);
}

/* A sleep takes longer than a short time, so the thread counts that out. */
void price_pay(const uint64_t *ns)
{
    enum { SLEEP = 100000 };
    if (!*ns) return;
    atomic_fetch_add(&paid_ns, *ns);
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (*ns > SLEEP) pause_ns(*ns - SLEEP);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((uint64_t)(now.tv_sec - start.tv_sec) * 1000000000u + (uint64_t)now.tv_nsec - (uint64_t)start.tv_nsec < *ns);
}
