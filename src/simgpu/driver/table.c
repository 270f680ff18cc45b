/* The exact table of everything that is allocated, and the JSON made from it ("the truth" in tests). An entry is found
 * by any address in its range. */
#include "sim.h"
#include <search.h>
#include <stdarg.h>

const char *const class_names[CLASSES] = {
    "linear", "pitched", "managed", "host", "host_registered", "async", "vmm", "array", "mipmap", "imported", "graph",
    "address_range",
};

/* Host registrations and address ranges overlap other entries, so they have trees of their own. */
enum { MEMORY, REGISTERED, RANGES, TREES };
static void *trees[TREES];

static int tree_of(const Allocation *a)
{
    return a->class == HOST_REGISTERED ? REGISTERED : a->class == ADDRESS_RANGE ? RANGES : MEMORY;
}

static int compare(const void *left, const void *right)
{
    const Allocation *a = left, *b = right;
    if (a->address + a->span <= b->address) return -1;
    return b->address + b->span <= a->address;
}

Allocation *table_new(enum class class, int device, uint64_t requested, uint64_t reserved, const char *api)
{
    Allocation *a = calloc(1, sizeof *a);
    static uint64_t ids;
    a->class = class;
    a->device = device;
    a->requested = requested;
    a->reserved = reserved;
    a->api = api;
    a->id = ++ids;
    a->ipc_fd = a->watch = a->hold = -1;
    /* An object without an address has its entry's address as its handle. */
    a->address = (uint64_t)a;
    a->span = 1;
    return a;
}

void table_add(Allocation *a) { tsearch(a, &trees[tree_of(a)], compare); }

void table_remove(Allocation *a)
{
    if (a->tiles) array_unmap(a);
    tdelete(a, &trees[tree_of(a)], compare);
    if (a->taken) state_give(physical_of(a->device), a->taken, &a->extents);
    if (a->from_arena) arena_give(a->address, a->span, a->ipc_fd >= 0);
    if (a->ipc_fd >= 0) close(a->ipc_fd);
    if (a->watch >= 0) close(a->watch);
    if (a->hold >= 0) close(a->hold);
    free(a->multicast);
    for (int i = 0; i < a->level_count; i++) free(a->levels[i]);
    if (a->data && (a->class == ARRAY || a->class == MIPMAP)) arena_give((uint64_t)a->data, a->backing, false);
    free(a);
}

static Allocation *find_in(int tree, uint64_t address)
{
    Allocation key = {.address = address, .span = 1};
    Allocation **found = tfind(&key, &trees[tree], compare);
    return found ? *found : NULL;
}

Allocation *table_find(uint64_t address) { return find_in(MEMORY, address); }
Allocation *table_find_registered(uint64_t address) { return find_in(REGISTERED, address); }
Allocation *table_find_range(uint64_t address) { return find_in(RANGES, address); }

Allocation *table_at(uint64_t address)
{
    Allocation *a = table_find(address);
    return a && a->address == address ? a : NULL;
}

/* Whom this thread's walk visits: twalk hands nothing through, and glibc has twalk_r from version 2.30 on only. */
struct visitor { void (*visit)(Allocation *, void *); void *data; };
static __thread struct visitor visitor;

static void walk(const void *node, VISIT order, int depth)
{
    (void)depth;
    if (order == postorder || order == leaf) visitor.visit(*(Allocation *const *)node, visitor.data);
}

void table_each(void (*visit)(Allocation *, void *), void *data)
{
    struct visitor around = visitor;
    visitor = (struct visitor){visit, data};
    for (int tree = 0; tree < TREES; tree++) twalk(trees[tree], walk);
    visitor = around;
}

struct collection { Allocation **entries; size_t count, capacity; bool (*gone)(const Allocation *, const void *); const void *data; };

static void collect(Allocation *a, void *closure)
{
    struct collection *c = closure;
    if (c->gone && !c->gone(a, c->data)) return;
    if (c->count == c->capacity) c->entries = realloc(c->entries, sizeof a * (c->capacity = c->capacity * 2 + 64));
    c->entries[c->count++] = a;
}

void table_remove_where(bool (*gone)(const Allocation *, const void *), const void *data)
{
    struct collection c = {.gone = gone, .data = data};
    table_each(collect, &c);
    for (size_t i = 0; i < c.count; i++) table_remove(c.entries[i]);
    free(c.entries);
}

/* ---- the table as JSON */

struct text { char *buffer; size_t capacity, length; };

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = text->length < text->capacity ? text->capacity - text->length : 0;
    int length = vsnprintf(room ? text->buffer + text->length : NULL, room, format, arguments);
    va_end(arguments);
    text->length += (size_t)length;
}

struct totals { uint64_t requested, reserved, count; };
static struct totals totals[MAX_DEVICES + 1][CLASSES];

static void sum_up(Allocation *a, void *unused)
{
    (void)unused;
    if (a->multicast) return; /* no memory */
    struct totals *t = &totals[a->device < 0 ? MAX_DEVICES : a->device][a->class];
    t->requested += a->requested;
    t->reserved += a->reserved;
    t->count++;
}

static void list(Allocation *a, void *closure)
{
    struct text *text = closure;
    if (a->multicast) return;
    add(text, "%s{\"device\":%d,\"class\":\"%s\",\"address\":%llu,\"requested\":%llu,\"reserved\":%llu,\"api\":\"%s\"}",
        text->buffer && text->length && text->length <= text->capacity && text->buffer[text->length - 1] == '[' ? "" : ",",
        a->device, class_names[a->class], (unsigned long long)a->address, (unsigned long long)a->requested,
        (unsigned long long)a->reserved, a->api);
}

void sim_uuid_text(int physical, char text[41]);

static void write_truth(struct text *text)
{
    const struct config *c = config();
    memset(totals, 0, sizeof totals);
    table_each(sum_up, NULL);
    add(text, "{\"pid\":%d,\"devices\":[", getpid());
    for (int device = 0; device < c->visible_count; device++) {
        char uuid[41];
        int physical = physical_of(device);
        sim_uuid_text(physical, uuid);
        add(text, "%s{\"device\":%d,\"uuid\":\"%s\",\"total\":%llu,\"free\":%llu,\"used_by_process\":%llu}", device ? "," : "",
            device, uuid, (unsigned long long)c->memory[physical],
            (unsigned long long)(c->memory[physical] - state_used(physical)), (unsigned long long)state_used_by_us(physical));
        /* Reserved memory of a pool belongs to no single entry. */
        totals[device][ASYNC].reserved = pools_reserved(device);
        totals[device][GRAPH].requested = graph_used(device);
        totals[device][GRAPH].reserved = graph_reserved(device);
    }
    totals[MAX_DEVICES][ASYNC].reserved = pools_reserved(-1);
    add(text, "],\"totals\":[");
    bool first = true;
    for (int device = 0; device <= MAX_DEVICES; device++)
        for (int class = 0; class < CLASSES; class++) {
            struct totals *t = &totals[device][class];
            if (!t->count && !t->reserved) continue;
            add(text, "%s{\"device\":%d,\"class\":\"%s\",\"requested\":%llu,\"reserved\":%llu,\"count\":%llu}",
                first ? "" : ",", device == MAX_DEVICES ? -1 : device, class_names[class],
                (unsigned long long)t->requested, (unsigned long long)t->reserved, (unsigned long long)t->count);
            first = false;
        }
    add(text, "],\"allocations\":[");
    table_each(list, text);
    add(text, "]}");
}

API size_t simgpu_truth(char *buffer, size_t capacity)
{
    pthread_mutex_lock(&sim_mutex);
    struct text text = {buffer, capacity, 0};
    write_truth(&text);
    pthread_mutex_unlock(&sim_mutex);
    if (buffer && capacity) buffer[text.length < capacity ? text.length : capacity - 1] = 0;
    return text.length + 1;
}

API int simgpu_write_truth(const char *path)
{
    size_t capacity = simgpu_truth(NULL, 0) + 4096;
    char *buffer = malloc(capacity);
    simgpu_truth(buffer, capacity);
    FILE *file = fopen(path, "w");
    int failed = !file || fputs(buffer, file) < 0;
    if (file) failed |= fclose(file) != 0;
    free(buffer);
    return failed;
}

__attribute__((destructor)) static void at_exit(void)
{
    const char *pattern = getenv("SIMGPU_TRUTH");
    if (!pattern || sim_state != INITIALISED) return;
    char path[4096];
    const char *mark = strstr(pattern, "%p");
    if (mark) snprintf(path, sizeof path, "%.*s%d%s", (int)(mark - pattern), pattern, getpid(), mark + 2);
    else snprintf(path, sizeof path, "%s", pattern);
    simgpu_write_truth(path);
}
