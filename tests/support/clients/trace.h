/* Reads a trace with the columns of RMM's log: Thread,Time,Action,Pointer,Size,Stream. */
#ifndef TRACE_H
#define TRACE_H

#include "random.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 64 };
struct event { bool allocates; uint32_t block, stream; uint64_t size; };
static struct event *events;
static size_t event_count;
static uint32_t block_count;
static unsigned long long stream_ids[STREAMS];
static uint32_t stream_count;

__attribute__((noreturn)) static void bad_line(size_t number, const char *line)
{
    fprintf(stderr, "line %zu of the trace is no event: %s", number, line);
    exit(2);
}

static uint32_t stream_of(unsigned long long id)
{
    for (uint32_t i = 0; i < stream_count; i++)
        if (stream_ids[i] == id) return i;
    if (stream_count == STREAMS) {
        fprintf(stderr, "the trace has more than %d streams\n", STREAMS);
        exit(2);
    }
    stream_ids[stream_count] = id;
    return stream_count++;
}

/* Which block is live at a pointer: a hash table with open addressing, rebuilt when it is half full. */
static struct place { unsigned long long pointer; uint32_t block; bool used, live; } *places;
static size_t room, taken;

static struct place *place_of(unsigned long long pointer)
{
    if (2 * taken >= room) {
        struct place *old = places;
        size_t old_room = room;
        room = room ? 2 * room : 1024;
        places = calloc(room, sizeof *places);
        taken = 0;
        for (size_t i = 0; i < old_room; i++)
            if (old[i].live) *place_of(old[i].pointer) = old[i];
        free(old);
    }
    size_t at = (size_t)(pointer * 0x9e3779b97f4a7c15u >> 20) % room;
    while (places[at].used && places[at].pointer != pointer) at = (at + 1) % room;
    if (!places[at].used) taken++, places[at] = (struct place){.pointer = pointer, .used = true};
    return &places[at];
}

static void read_trace(FILE *file)
{
    char line[256] = "", action[32];
    size_t space = 0;
    if (!fgets(line, sizeof line, file) || strncmp(line, "Thread,Time,Action,Pointer,Size,Stream", 38)) bad_line(1, line);
    for (size_t number = 2; fgets(line, sizeof line, file); number++) {
        unsigned long long pointer, size, stream;
        if (sscanf(line, "%*[^,],%*[^,],%31[^,],%llx,%llu,%llu", action, &pointer, &size, &stream) != 4) bad_line(number, line);
        bool allocates = !strcmp(action, "allocate");
        struct place *place = place_of(pointer);
        /* A free of memory that the trace did not allocate is none of ours, and a failed request has no memory. */
        if ((!allocates && strcmp(action, "free")) || allocates == place->live || (allocates && !size)) continue;
        if (allocates) place->block = block_count++;
        place->live = allocates;
        if (event_count == space) events = realloc(events, (space = space ? 2 * space : 4096) * sizeof *events);
        events[event_count++] = (struct event){allocates, place->block, stream_of(stream), size};
    }
    free(places);
}

/* The size of an event, changed at random by up to `noise` percent. */
static inline uint64_t noisy_size(const struct event *event, uint64_t *random, uint64_t noise)
{
    /* In parts of a thousandth of a percent, of which there are 100,000. */
    uint64_t part = noise ? 100000 - 1000 * noise + draw(random, 2000 * noise + 1) : 100000;
    uint64_t size = (uint64_t)((double)event->size * (double)part / 100000);
    return size ? size : 1;
}

#endif
