/* Processes with a context, also if they hold no bytes, and how much of the device's time they use (SIMGPU_UTILISATION). */
#include "nvml.h"

struct process_v1 { unsigned pid; unsigned long long used; };
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
struct sample { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };
struct sample_info { unsigned long long time; unsigned pid, sm, memory, encoder, decoder, jpeg, ofa; };
struct samples { unsigned version, count; unsigned long long since; struct sample_info *at; };

/* Calls visit for each process of the device, with the state's lock held. Returns their number. Under MPS the server has
 * the memory of all clients (nvtop#93); nvmlDeviceGetMPSComputeRunningProcesses lists the clients (nvml.h 12.9, Volta and
 * newer). */
static unsigned each_of(Device device, bool clients, void (*visit)(unsigned number, const struct process *, void *), void *data)
{
    struct shared_state *s = simgpu_state();
    unsigned count = 0;
    struct process server = {(unsigned)config()->mps, 0, ~0u, ~0u};
    bool is_served = server.pid && !clients, any = false;
    state_used(index_of(device)); /* frees the slots of dead processes */
    state_lock(s);
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const struct process_slot *slot = &s->slots[i];
        uint64_t used = slot->used[index_of(device)];
        if (!slot->pid || (!used && slot->contexts[index_of(device)] <= 0)) continue;
        any = true;
        server.used += used;
        if (!config()->nvml_bytes) used = ~0ull; /* NVML_VALUE_NOT_AVAILABLE */
        if (!is_served) visit(count++, &(struct process){(unsigned)slot->pid, used, ~0u, ~0u}, data);
    }
    if (!config()->nvml_bytes) server.used = ~0ull;
    if (is_served && any) visit(count++, &server, data);
    pthread_mutex_unlock(&s->lock);
    return count;
}
static unsigned each_process(Device device, void (*visit)(unsigned number, const struct process *, void *), void *data) { return each_of(device, false, visit, data); }

struct list { void *out; unsigned room; bool small; };
static void write_process(unsigned number, const struct process *p, void *closure)
{
    const struct list *list = closure;
    if (!list->out || number >= list->room) return;
    if (list->small) ((struct process_v1 *)list->out)[number] = (struct process_v1){p->pid, p->used};
    else ((struct process *)list->out)[number] = *p;
}
static int processes(Device device, unsigned *count, void *out, bool small, bool clients)
{
    if (!valid(device) || !count) return INVALID_ARGUMENT;
    struct list list = {out, *count, small};
    *count = clients && !config()->mps ? 0 : each_of(device, clients, write_process, &list);
    return *count > list.room ? INSUFFICIENT_SIZE : OK;
}
static int none(Device device, unsigned *count) { DEVICE(); if (!count) return INVALID_ARGUMENT; *count = 0; return OK; }

API int nvmlDeviceGetComputeRunningProcesses(Device device, unsigned *count, struct process_v1 *out) { DEVICE(); return processes(device, count, out, true, false); }
API int nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *count, struct process *out) { DEVICE(); return processes(device, count, out, false, false); }
API int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, struct process *out) { DEVICE(); return processes(device, count, out, false, false); }
API int nvmlDeviceGetGraphicsRunningProcesses(Device device, unsigned *count, U struct process_v1 *out) { return none(device, count); }
API int nvmlDeviceGetGraphicsRunningProcesses_v2(Device device, unsigned *count, U struct process *out) { return none(device, count); }
API int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *count, U struct process *out) { return none(device, count); }
API int nvmlDeviceGetMPSComputeRunningProcesses(Device device, unsigned *count, struct process_v1 *out) { DEVICE(); return processes(device, count, out, true, true); }
API int nvmlDeviceGetMPSComputeRunningProcesses_v2(Device device, unsigned *count, struct process *out) { DEVICE(); return processes(device, count, out, false, true); }
API int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device device, unsigned *count, struct process *out) { DEVICE(); return processes(device, count, out, false, true); }

/* ---- utilisation */

static unsigned long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

static void write_sample(unsigned number, const struct process *p, void *closure)
{
    const struct list *list = closure;
    unsigned sm = (unsigned)config()->utilisation;
    if (list->out && number < list->room) ((struct sample *)list->out)[number] = (struct sample){p->pid, now_us(), sm, 0, 0, 0};
}
/* One sample for each process "that had some non-zero utilization"; without samples NVML_ERROR_NOT_FOUND; the size is asked
 * for with NULL (7788-7798). Not with MIG (7808). */
API int nvmlDeviceGetProcessUtilization(Device device, struct sample *out, unsigned *count, U unsigned long long since)
{
    DEVICE();
    if (!count) return INVALID_ARGUMENT;
    if (config()->mig) return NOT_SUPPORTED;
    if (!config()->utilisation) return *count = 0, NOT_FOUND;
    struct list list = {out, out ? *count : 0, false};
    *count = each_process(device, write_sample, &list);
    return !*count ? NOT_FOUND : *count > list.room ? INSUFFICIENT_SIZE : OK;
}

static void write_info(unsigned number, const struct process *p, void *closure)
{
    const struct list *list = closure;
    unsigned sm = (unsigned)config()->utilisation;
    if (list->out && number < list->room) ((struct sample_info *)list->out)[number] = (struct sample_info){now_us(), p->pid, sm, 0, 0, 0, 0, 0};
}
API int nvmlDeviceGetProcessesUtilizationInfo(Device device, struct samples *samples) /* 7827-7871 */
{
    DEVICE();
    if (!samples) return INVALID_ARGUMENT;
    if (samples->version != STRUCT_VERSION(struct samples, 1)) return VERSION_MISMATCH;
    if (config()->mig) return NOT_SUPPORTED;
    if (!config()->utilisation) return samples->count = 0, NOT_FOUND;
    struct list list = {samples->at, samples->at ? samples->count : 0, false};
    samples->count = each_process(device, write_info, &list);
    return !samples->count ? NOT_FOUND : samples->count > list.room ? INSUFFICIENT_SIZE : OK;
}

struct rates { unsigned gpu, memory; };
static void count_process(U unsigned number, U const struct process *p, U void *unused) {}
API int nvmlDeviceGetUtilizationRates(Device device, struct rates *out)
{
    DEVICE();
    if (!out) return INVALID_ARGUMENT;
    unsigned long long sum = each_process(device, count_process, NULL) * (unsigned long long)config()->utilisation;
    *out = (struct rates){sum > 100 ? 100 : (unsigned)sum, 0};
    return OK;
}
