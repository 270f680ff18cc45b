/* The program that scripts/bench times, the same for every allocator. It allocates LIVE blocks and then runs pairs. A
 * pair frees a random block and allocates a block of random size in its place.
 *
 *   pair CONTENDER LIVE THREADS MILLISECONDS PAIRS
 *
 *   CONTENDER  see contender.h
 *   LIVE       live blocks, split evenly among the threads; a thread frees its own only
 *
 * Prints "ready" when the blocks are allocated and were replaced about twice. Then each line on stdin asks for one
 * round of at most MILLISECONDS and PAIRS for each thread. The answer is a line "PAIRS NANOSECONDS PROCESSOR": the
 * pairs of all threads, the wall time, and the sum of the threads' processor time in nanoseconds. If the allocator
 * fails, the program prints "refused WHY" instead and exits with 1. */
#include "contender.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    LEAST = 512,
    MOST = 1 << 20,
    MAX_THREADS = 64,
    BATCH = 32,              /* pairs between two readings of the clock */
    SETUP_SECONDS = 60,      /* limit for allocating the live blocks */
    TURNOVER_SECONDS = 3,    /* limit for replacing each block about twice */
    STUCK_SECONDS = 120,     /* a process whose round takes longer ends itself */
};

struct block { unsigned long long address; size_t size; };

struct worker {
    struct block *blocks;
    size_t live, pairs;
    uint64_t random, processor;
    uint64_t begin, end; /* of the round: the main thread may get a processor late */
} __attribute__((aligned(128))); /* two workers share no cache line */

static struct worker workers[MAX_THREADS];
static size_t threads, most_pairs;
static uint64_t most_nanoseconds;
static pthread_barrier_t barrier;

static uint64_t read_clock(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t now(void) { return read_clock(CLOCK_MONOTONIC); }

static uint64_t next(struct worker *worker)
{
    uint64_t x = worker->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return worker->random = x;
}

/* A number below `limit`, made from 32 random bits. */
static size_t below(uint32_t bits, size_t limit) { return (size_t)(((uint64_t)bits * limit) >> 32); }

static void obtain(struct worker *worker, size_t place, size_t beside, uint32_t bits)
{
    struct block *block = &worker->blocks[place];
    block->size = LEAST + below(bits, MOST - LEAST + 1);
    int result = allocate(&block->address, block->size);
    if (result) refused("allocating %zu bytes beside %zu live blocks: error %d", block->size, beside * threads, result);
}

static size_t run_pairs(struct worker *worker, size_t most, uint64_t nanoseconds)
{
    uint64_t end = now() + nanoseconds;
    size_t done = 0;
    while (done < most) {
        for (int i = 0; i < BATCH; i++) {
            uint64_t random = next(worker);
            size_t victim = below((uint32_t)(random >> 32), worker->live);
            int result = release(worker->blocks[victim].address, worker->blocks[victim].size);
            if (result) refused("freeing a block: error %d", result);
            obtain(worker, victim, worker->live - 1, (uint32_t)random);
        }
        done += BATCH;
        if (now() >= end) break;
    }
    return done;
}

static void prepare(struct worker *worker)
{
    uint64_t end = now() + SETUP_SECONDS * 1000000000ull;
    for (size_t i = 0; i < worker->live; i++) {
        obtain(worker, i, i, (uint32_t)next(worker));
        if (i % BATCH == 0 && now() > end) refused("only %zu of %zu blocks after %d s", i + 1, worker->live, SETUP_SECONDS);
    }
    run_pairs(worker, 2 * worker->live + 2000, TURNOVER_SECONDS * 1000000000ull);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    enter_thread();
    prepare(worker);
    pthread_barrier_wait(&barrier);
    for (;;) {
        pthread_barrier_wait(&barrier); /* the round begins */
        /* Not timed: these pairs warm the caches, which other processes used since the last round. */
        run_pairs(worker, most_pairs / 10, most_nanoseconds / 10);
        pthread_barrier_wait(&barrier);
        worker->begin = now();
        uint64_t processor = read_clock(CLOCK_THREAD_CPUTIME_ID);
        worker->pairs = run_pairs(worker, most_pairs, most_nanoseconds);
        worker->processor = read_clock(CLOCK_THREAD_CPUTIME_ID) - processor;
        worker->end = now();
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 6) return fprintf(stderr, "usage: pair CONTENDER LIVE THREADS MILLISECONDS PAIRS\n"), 2;
    size_t live = strtoull(argv[2], NULL, 10);
    threads = strtoull(argv[3], NULL, 10);
    most_nanoseconds = strtoull(argv[4], NULL, 10) * 1000000u;
    most_pairs = strtoull(argv[5], NULL, 10);
    if (!live || !threads || threads > MAX_THREADS || !most_pairs) return fprintf(stderr, "pair: a number is out of range\n"), 2;
    /* No block is written to, so an allocator of host memory must not pay for huge pages. */
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    alarm(SETUP_SECONDS + STUCK_SECONDS);
    open_contender(argv[1]);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (size_t i = 0; i < threads; i++) {
        struct worker *worker = &workers[i];
        worker->live = live / threads ? live / threads : 1;
        worker->blocks = calloc(worker->live, sizeof *worker->blocks);
        worker->random = 0x9e3779b97f4a7c15ull * (i + 1);
        pthread_t id;
        if (!worker->blocks || pthread_create(&id, NULL, work, worker)) refused("no memory for a thread");
    }
    pthread_barrier_wait(&barrier);
    alarm(0);
    printf("ready\n");
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        alarm(STUCK_SECONDS);
        for (int i = 0; i < 3; i++) pthread_barrier_wait(&barrier);
        size_t pairs = 0;
        uint64_t processor = 0, begin = UINT64_MAX, end = 0;
        for (size_t i = 0; i < threads; i++) {
            struct worker *worker = &workers[i];
            pairs += worker->pairs, processor += worker->processor;
            if (worker->begin < begin) begin = worker->begin;
            if (worker->end > end) end = worker->end;
        }
        printf("%zu %llu %llu\n", pairs, (unsigned long long)(end - begin), (unsigned long long)processor);
        fflush(stdout);
        alarm(0);
    }
    /* The blocks are not freed: that would take long and is not measured. */
    _exit(0);
}
