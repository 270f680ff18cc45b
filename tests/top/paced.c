/* Runs commands, one a line, and keeps its memory while it waits for the next command.
 *
 *   paced SEED THREADS      reads lines from stdin, answers each with a checkpoint and the line of figures below:
 *                             N      runs N random steps in each thread, all threads at the same time
 *                             fail   makes a request that cannot be served
 *                             child  forks a child that sleeps until it or this process is killed
 *                             mark   sets the mark "epoch 1"
 *                             +N     runs N pairs of allocation and free in each thread
 *   {"stats":[{"device":0,"requested":...,...},...]} */
#include "client.h"
#include "random.h"
#include "shim.h"
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { DEVICES = 2, ITEMS = 40, MOST = 8 };
struct item { int device, class; unsigned long long address, bytes; };
struct worker { uint64_t seed; long steps; int churn; struct item items[ITEMS]; };

static CUcontext contexts[DEVICES];
static int devices;

static void give_back(struct item *i)
{
    if (!i->address) return;
    switch (i->class) {
    case HOST: CHECK(cuMemFreeHost((void *)i->address)); break;
    case ASYNC: CHECK(cuMemFreeAsync(i->address, NULL)); break;
    default: CHECK(cuMemFree_v2(i->address));
    }
    *count_of(i->class == HOST ? -1 : i->device, i->class) -= (long long)i->bytes;
    i->address = 0;
}

static void step(struct worker *w)
{
    struct item *i = &w->items[draw(&w->seed, ITEMS)];
    CHECK(cuCtxSetCurrent(contexts[i->address ? i->device : (int)draw(&w->seed, (unsigned)devices)]));
    if (i->address) {
        give_back(i);
        return;
    }
    CUdevice device;
    CHECK(cuCtxGetDevice(&device));
    size_t size = 1 + draw(&w->seed, draw(&w->seed, 4) ? 1 << 16 : 4 << 20), pitch;
    *i = (struct item){.device = device, .bytes = size};
    void *host;
    switch (draw(&w->seed, 8)) {
    case 0:
        i->class = HOST;
        CHECK(cuMemAllocHost_v2(&host, size));
        i->address = (unsigned long long)host;
        break;
    case 1:
        i->class = ASYNC;
        CHECK(cuMemAllocAsync(&i->address, size, NULL));
        break;
    case 2:
        i->class = MANAGED;
        CHECK(cuMemAllocManaged(&i->address, size, 1));
        break;
    case 3:
        i->class = PITCHED;
        i->bytes = (size % 1000 + 1) * 7;
        CHECK(cuMemAllocPitch_v2(&i->address, &pitch, size % 1000 + 1, 7, 4));
        break;
    default:
        i->class = LINEAR;
        CHECK(cuMemAlloc_v2(&i->address, size));
    }
    *count_of(i->class == HOST ? -1 : i->device, i->class) += (long long)i->bytes;
}

static void *work(void *worker)
{
    struct worker *w = worker;
    if (w->churn) {
        CHECK(cuCtxSetCurrent(contexts[0]));
        for (long n = 0; n < w->steps; n++) {
            CUdeviceptr address;
            CHECK(cuMemAlloc_v2(&address, 512));
            CHECK(cuMemFree_v2(address));
        }
    } else {
        for (long n = 0; n < w->steps; n++) step(w);
    }
    return NULL;
}

static void all(struct worker *workers, int threads, long steps, int churn)
{
    pthread_t ids[MOST];
    for (int t = 0; t < threads; t++) {
        workers[t].steps = steps;
        workers[t].churn = churn;
        pthread_create(&ids[t], NULL, work, &workers[t]);
    }
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
}

static void print_stats(void)
{
    int (*stats)(int, struct vramshim_stats *) = dlsym(RTLD_DEFAULT, "vramshim_stats");
    printf("{\"stats\":[");
    for (int device = 0; stats && device < devices; device++) {
        struct vramshim_stats s;
        THAT(stats(device, &s) == 0);
        printf("%s{\"device\":%d,\"requested\":%llu,\"allocated\":%llu,\"reserved\":%llu,\"free_inside\":%llu,"
               "\"largest_free_block\":%llu,\"live\":%llu,\"failures\":%llu,\"allocated_peak\":%llu,\"reserved_peak\":%llu}",
               device ? "," : "", device, (unsigned long long)s.requested, (unsigned long long)s.allocated,
               (unsigned long long)s.reserved, (unsigned long long)s.free_inside, (unsigned long long)s.largest_free_block,
               (unsigned long long)s.live, (unsigned long long)s.failures, (unsigned long long)s.allocated_peak,
               (unsigned long long)s.reserved_peak);
    }
    printf("]}\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static struct worker workers[MOST];
    int threads = argc == 3 ? atoi(argv[2]) : 0;
    if (threads < 1 || threads > MOST) return fprintf(stderr, "usage: paced SEED THREADS\n"), 2;
    for (int t = 0; t < threads; t++) workers[t].seed = strtoull(argv[1], NULL, 10) * 1000 + (unsigned)t;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&devices));
    if (devices > DEVICES) devices = DEVICES;
    for (int device = 0; device < devices; device++) CHECK(cuDevicePrimaryCtxRetain(&contexts[device], device));
    alarm(300);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "fail\n")) {
            CUdeviceptr address;
            CHECK(cuCtxSetCurrent(contexts[0]));
            EXPECT(cuMemAlloc_v2(&address, 1ull << 45), CUDA_ERROR_OUT_OF_MEMORY);
        } else if (!strcmp(line, "mark\n")) {
            void (*mark)(const char *) = dlsym(RTLD_DEFAULT, "vramshim_mark");
            if (mark) mark("epoch 1");
        } else if (!strcmp(line, "child\n")) {
            pid_t child = fork();
            if (child == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (;;) pause();
            }
            printf("{\"child\":%d}\n", child);
        } else {
            all(workers, threads, atol(line), line[0] == '+');
        }
        checkpoint();
        print_stats();
    }
    for (int t = 0; t < threads; t++)
        for (int i = 0; i < ITEMS; i++) {
            struct item *item = &workers[t].items[i];
            if (item->address) CHECK(cuCtxSetCurrent(contexts[item->device]));
            give_back(item);
        }
    return 0;
}
