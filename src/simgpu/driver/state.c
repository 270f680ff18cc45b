/* The memory of the devices, which the processes of one simulated host share. Each process has a slot with the bytes
 * that it holds of each device. A slot belongs to a process id and start time. The next process that looks frees the
 * slots of dead processes, and the lock survives the death of its holder. */
#include "sim.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAGIC 0x73696d6770752033ull
/* Without SIMGPU_STATE the state is memory of this process at a place of its own, where libcuda.so.1 and
 * libnvidia-ml.so.1 both find it. Neither is linked to the other, as with NVIDIA's. */
#define PLACE ((void *)0x6f0000000000ull)

static struct shared_state *state;
static struct process_slot *slot;
static pthread_mutex_t attach = PTHREAD_MUTEX_INITIALIZER;

/* The process id as NVIDIA's driver tells it: the one of the host. A container sees other ids ("always", nvidia-docker#1483),
 * and SIMGPU_HOSTPROC is where it finds the /proc of the host. */
static const char *host_proc(void) { return config()->host_proc ? config()->host_proc : "/proc"; }
static int our_pid(void)
{
    char path[4096], text[32] = "";
    if (!config()->host_proc) return getpid();
    snprintf(path, sizeof path, "%s/self", host_proc());
    return readlink(path, text, sizeof text - 1) > 0 ? atoi(text) : getpid();
}

static uint64_t start_ticks(int pid)
{
    char path[4096], text[1024];
    ssize_t length;
    snprintf(path, sizeof path, "%s/%d/stat", host_proc(), pid);
    do {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return 0;
        length = read(fd, text, sizeof text - 1);
        close(fd);
    } while (length < 0 && errno == EBADF); /* another thread of the job closed it */
    if (length <= 0) return 0;
    text[length] = 0;
    char *at = strrchr(text, ')'); /* the process name before it may contain any character */
    unsigned long long ticks = 0, address_space = 0;
    int threads = 0;
    /* There are 19 fields between the name and the start time. */
    if (at)
        sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d %llu %llu", &threads, &ticks,
               &address_space);
    /* A zombie holds no memory. A leader that ended looks like one, but its process lives as long as another thread does
     * (mxnet#4242). */
    return address_space || threads > 1 ? ticks : 0;
}

void state_lock(struct shared_state *s)
{
    if (pthread_mutex_lock(&s->lock) == EOWNERDEAD) pthread_mutex_consistent(&s->lock);
}

/* The other library has mapped it, and may be about to fill it. */
static struct shared_state *in_place(struct shared_state *s)
{
    while (__atomic_load_n(&s->magic, __ATOMIC_ACQUIRE) != MAGIC) sched_yield();
    return s;
}

/* Opens the file that the processes of a host share, locked and as long as it must be; -1 if there is none. */
static int open_file(const char *path, size_t size)
{
    struct stat st;
    if (!path || !*path) return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) fprintf(stderr, "simgpu: SIMGPU_STATE=\"%s\": %s; memory is not shared\n", path, strerror(errno));
    if (fd < 0) return -1;
    bool usable = !flock(fd, LOCK_EX) && !fstat(fd, &st) && ((size_t)st.st_size >= size || !ftruncate(fd, (off_t)size));
    if (usable || errno == EBADF) return fd;
    close(fd);
    return -1;
}

static struct shared_state *map_private(size_t size)
{
    struct shared_state *s = mmap(PLACE, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (s == MAP_FAILED && errno == EEXIST) return in_place(PLACE);
    if (s == MAP_FAILED) s = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) abort();
    return s;
}

static void begin(struct shared_state *s)
{
    if (s->magic == MAGIC) return;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&s->lock, &attributes);
    __atomic_store_n(&s->magic, MAGIC, __ATOMIC_RELEASE);
}

static struct shared_state *map(void)
{
    size_t size = sizeof(struct shared_state) + extents_room();
    for (;;) {
        struct shared_state *s;
        int fd = open_file(config()->state, size);
        if (fd < 0) return s = map_private(size), begin(s), s;
        s = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (s == MAP_FAILED && errno != EBADF) abort();
        if (s == MAP_FAILED) continue; /* another thread of the job closed the descriptor */
        begin(s);
        /* The mapping keeps the file open and locked. If the descriptor is closed, only its end unlocks the file. */
        bool unlocked = !flock(fd, LOCK_UN);
        if (unlocked) return close(fd), s;
        munmap(s, size);
    }
}

/* Frees the slots of dead processes. Called with the lock held. */
static void reap(struct shared_state *s)
{
    for (int i = 0; i < s->slots_touched; i++) {
        struct process_slot *other = &s->slots[i];
        if (!other->pid || other == slot || start_ticks(other->pid) == other->start_ticks) continue;
        extents_forget(s, i + 1);
        memset(other, 0, sizeof *other);
    }
}

struct shared_state *simgpu_state(void)
{
    pthread_mutex_lock(&attach);
    if (!state) state = map();
    pthread_mutex_unlock(&attach);
    return state;
}

static struct process_slot *ours(void)
{
    struct shared_state *s = simgpu_state();
    if (slot) return slot;
    state_lock(s);
    reap(s);
    for (int i = 0; i < MAX_PROCESSES && !slot; i++)
        if (!s->slots[i].pid) {
            slot = &s->slots[i];
            memset(slot, 0, sizeof *slot);
            slot->pid = our_pid();
            slot->start_ticks = start_ticks(slot->pid);
            if (s->slots_touched <= i) s->slots_touched = i + 1;
        }
    pthread_mutex_unlock(&s->lock);
    return slot;
}

void state_forked(void) { slot = NULL; }

static uint64_t sum(struct shared_state *s, int physical)
{
    uint64_t used = 0;
    for (int i = 0; i < s->slots_touched; i++)
        if (s->slots[i].pid) used += s->slots[i].used[physical];
    return used;
}

/* Called with the lock held. */
static bool take(struct shared_state *s, struct process_slot *mine, int physical, uint64_t bytes, struct extent **extents)
{
    uint64_t total = config()->memory[physical];
    if (bytes > total || sum(s, physical) > total - bytes) return false;
    if (!extents_take(s, physical, (int)(mine - s->slots) + 1, bytes, extents)) return false;
    mine->used[physical] += bytes;
    return true;
}

bool state_take(int physical, uint64_t bytes, struct extent **extents)
{
    struct process_slot *mine = ours();
    if (!mine) return false;
    struct shared_state *s = simgpu_state();
    state_lock(s);
    bool taken = take(s, mine, physical, bytes, extents);
    if (!taken) {
        reap(s);
        taken = take(s, mine, physical, bytes, extents);
    }
    pthread_mutex_unlock(&s->lock);
    return taken;
}

void state_give(int physical, uint64_t bytes, struct extent **extents)
{
    struct process_slot *mine = ours();
    if (!mine) return;
    struct shared_state *s = simgpu_state();
    state_lock(s);
    mine->used[physical] -= bytes;
    extents_give(s, physical, bytes, extents);
    pthread_mutex_unlock(&s->lock);
}

bool state_park(bool park)
{
    static uint64_t parked[MAX_DEVICES];
    struct process_slot *mine = ours();
    if (!mine) return false;
    struct shared_state *s = simgpu_state();
    bool fits = true;
    state_lock(s);
    reap(s);
    for (int i = 0; i < MAX_DEVICES && !park; i++) fits &= !parked[i] || sum(s, i) + parked[i] <= config()->memory[i];
    for (int i = 0; i < MAX_DEVICES && fits; i++) {
        if (park) parked[i] = mine->used[i], mine->used[i] = 0;
        else mine->used[i] += parked[i], parked[i] = 0;
    }
    pthread_mutex_unlock(&s->lock);
    return fits;
}

void state_context(int physical, int change)
{
    struct process_slot *mine = ours();
    if (!mine) return;
    state_lock(simgpu_state());
    mine->contexts[physical] += change;
    pthread_mutex_unlock(&simgpu_state()->lock);
}

uint64_t state_used(int physical)
{
    struct shared_state *s = simgpu_state();
    state_lock(s);
    reap(s);
    uint64_t used = sum(s, physical);
    pthread_mutex_unlock(&s->lock);
    return used;
}

uint64_t state_used_by_us(int physical)
{
    struct process_slot *mine = ours();
    return mine ? mine->used[physical] : 0;
}

API uint64_t simgpu_used(int physical) { return state_used(physical); }
