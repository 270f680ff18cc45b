/* Runs commands, one a line, and keeps its memory while it waits for the next command.
 *
 *   paced SEED THREADS      reads lines from stdin, answers each with a checkpoint and the line of figures below:
 *                             N      runs N random steps in each thread, all threads at the same time
 *                             fail   makes a request that cannot be served
 *                             child  forks a child that sleeps until it or this process is killed
 *                             mark   sets the mark "epoch 1"
 *                             +N     runs N pairs of allocation and free in each thread
 *   {"stats":[{"device":0,"requested":...,...},...]} */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "items.h"
#include "shim.h"
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST = 8 };
static bool churns;

static void *work(void *worker)
{
    struct worker *w = worker;
    CUdeviceptr address;
    CHECK(cuCtxSetCurrent(contexts[0]));
    for (int n = 0; n < w->steps; n++) {
        struct item *i = &w->items[draw(&w->seed, ITEMS)];
        if (churns) {
            CHECK(cuMemAlloc_v2(&address, 512));
            CHECK(cuMemFree_v2(address));
        } else if (i->live) release(w, i);
        else allocate(w, i);
    }
    return NULL;
}

static void all(struct worker *workers, int threads, int steps)
{
    pthread_t ids[MOST];
    for (int t = 0; t < threads; t++) {
        workers[t].steps = steps;
        pthread_create(&ids[t], NULL, work, &workers[t]);
    }
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
}

static void print_stats(void)
{
    static const char *const names[] = {"requested", "allocated", "reserved", "free_inside", "largest_free_block", "live", "failures"};
    printf("{\"stats\":[");
    for (int device = 0; device < DEVICES; device++) {
        printf("%s{\"device\":%d", device ? "," : "", device);
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            char name[64];
            snprintf(name, sizeof name, "device.%d.%s", device, names[n]);
            printf(",\"%s\":%llu", names[n], figure_of(name));
        }
        printf("}");
    }
    printf("]}\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static struct worker workers[MOST];
    int threads = argc == 3 ? atoi(argv[2]) : 0;
    if (threads < 1 || threads > MOST) return fprintf(stderr, "usage: paced SEED THREADS\n"), 2;
    for (int t = 0; t < threads; t++) workers[t] = (struct worker){.seed = strtoull(argv[1], NULL, 10) * 1000 + (unsigned)t, .number = t};
    CHECK(cuInit(0));
    for (int device = 0; device < DEVICES; device++) retain_and_make_pool(device);
    CHECK(cuCtxSetCurrent(contexts[0]));
    without_graphs = true;
    alarm(300);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        CUdeviceptr address;
        void (*mark)(const char *) = dlsym(RTLD_DEFAULT, "vramshim_mark");
        if (!strcmp(line, "fail\n")) EXPECT(cuMemAlloc_v2(&address, 1ull << 45), CUDA_ERROR_OUT_OF_MEMORY);
        else if (!strcmp(line, "mark\n")) mark("epoch 1");
        else if (!strcmp(line, "child\n")) {
            pid_t child = fork();
            if (child == 0) {
                prctl(PR_SET_PDEATHSIG, 9);
                for (;;) pause();
            }
            printf("{\"child\":%d}\n", child);
        } else {
            churns = line[0] == '+';
            all(workers, threads, atoi(line));
        }
        checkpoint();
        print_stats();
    }
    return 0;
}
