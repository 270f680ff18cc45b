/* A thread that asks NVML all the while how busy the devices are, and which processes use them. The layer's first call of
 * cuInit asks once itself, to learn the process's number outside the container. Kernels wait for the thread: each round
 * lets some of them pass. HAMi-core does all of this (its utilization_watcher, set_task_pid and rate_limiter).
 *
 * HAMi-core calls NVML's functions by name, so they are those of whatever library comes first in the process. */
#include "layer.h"
#include <string.h>
#include <time.h>

enum { MOST_PROCESSES = 64, KERNELS_A_ROUND = 64, NVML_SUCCESS = 0 };

typedef void *Device;
struct process { unsigned pid; unsigned long long used; };
struct sample { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };

static struct {
    int (*init)(void);
    int (*count)(unsigned *);
    int (*device)(unsigned, Device *);
    int (*processes)(Device, unsigned *, struct process *);
    int (*utilisation)(Device, struct sample *, unsigned *, unsigned long long);
} management;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t round_ended = PTHREAD_COND_INITIALIZER;
static unsigned kernels_left;
static unsigned long long rounds;

static void ask(void)
{
    struct process processes[MOST_PROCESSES];
    struct sample samples[MOST_PROCESSES];
    unsigned devices = 0;
    if (management.count(&devices) != NVML_SUCCESS) return;
    for (unsigned i = 0; i < devices; i++) {
        Device device;
        unsigned count = MOST_PROCESSES;
        if (management.device(i, &device) != NVML_SUCCESS) continue;
        management.processes(device, &count, processes);
        count = MOST_PROCESSES;
        management.utilisation(device, samples, &count, 0);
    }
    pthread_mutex_lock(&lock);
    kernels_left = KERNELS_A_ROUND;
    rounds++;
    pthread_cond_broadcast(&round_ended);
    pthread_mutex_unlock(&lock);
}

static void *watch(void *unused)
{
    (void)unused;
    for (;;) {
        ask();
        nanosleep(&(struct timespec){.tv_nsec = (long)habits.watch_microseconds * 1000}, NULL);
    }
    return NULL;
}

static bool find_all(void)
{
    static const struct { const char *name; void *slot; } functions[] = {
        {"nvmlInit_v2", &management.init},
        {"nvmlDeviceGetCount_v2", &management.count},
        {"nvmlDeviceGetHandleByIndex_v2", &management.device},
        {"nvmlDeviceGetComputeRunningProcesses", &management.processes},
        {"nvmlDeviceGetProcessUtilization", &management.utilisation},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = management_of_process(functions[i].name);
        if (!found) return false;
        memcpy(functions[i].slot, &found, sizeof found);
    }
    return true;
}

static bool runs;

static void begin(void)
{
    pthread_t thread;
    if (!find_all() || management.init() != NVML_SUCCESS) return;
    ask();
    runs = pthread_create(&thread, NULL, watch, NULL) == 0;
}

void watcher_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (habits.watch_microseconds) pthread_once(&once, begin);
}

void watcher_admit(void)
{
    if (!runs) return;
    pthread_mutex_lock(&lock);
    while (!kernels_left) pthread_cond_wait(&round_ended, &lock);
    kernels_left--;
    pthread_mutex_unlock(&lock);
}

API unsigned long long layer_rounds(void)
{
    pthread_mutex_lock(&lock);
    unsigned long long so_far = rounds;
    pthread_mutex_unlock(&lock);
    return so_far;
}
