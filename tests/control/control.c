/* The functions of shim.h by which a job asks and tells the library while it runs, and a job for `vramshim ctl`.
 *
 *   control api              names of figures, settings and their errors
 *   control signals          figures in a signal handler, while pools begin and end
 *   control dumps FOLDER     copies of the journal, while threads allocate and free
 *   control serve            reads a command a line: close, fork, figures, quit */
#include "client.h"
#include "shim.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

/* A struct never grows: see "Growth" in shim.h. */
_Static_assert(sizeof(struct vramshim_stats) == 80, "struct vramshim_stats");
_Static_assert(sizeof(struct vramshim_limit) == 40, "struct vramshim_limit");

#define MIB (1ull << 20)

/* A signal handler calls these, and may not look them up. */
static __typeof__(&vramshim_version) version;
static __typeof__(&vramshim_stat) stat_of;
static __typeof__(&vramshim_journal_path) journal_path;
#define stats library_function(vramshim_stats)
#define stat_names library_function(vramshim_stat_names)
#define dump library_function(vramshim_dump)
#define set library_function(vramshim_set)

static void refused(const char *name, int wanted)
{
    uint64_t value = 4711;
    int error = stat_of(name, &value);
    if (error != wanted || value != 4711) fprintf(stderr, "%s: errno %d\n", name ? name : "NULL", error);
    THAT(error == wanted && value == 4711);
}

static void api(void)
{
    THAT(figure_of("device.0.allocated") == 0 && figure_of("device.0.limit_available") == UINT64_MAX);
    THAT(set("stacks", "python") == ENODATA && dump("early.vraj") == ENODATA);
    start_cuda();
    CUdeviceptr large = linear_memory(16 * MIB);
    linear_memory(1000);
    CHECK(cuMemFree_v2(large));
    struct { struct vramshim_stats s; uint64_t after; } out = {.after = 42};
    THAT(stats(0, NULL) == -1 && stats(-2, &out.s) == -1 && stats(99, &out.s) == -1);
    THAT(stats(0, &out.s) == 0 && out.after == 42);
#define IS_FIGURE(field) (figure_of("device.0." #field) == out.s.field)
    THAT(IS_FIGURE(requested) && IS_FIGURE(requested_peak) && IS_FIGURE(allocated) && IS_FIGURE(allocated_peak));
    THAT(IS_FIGURE(reserved) && IS_FIGURE(reserved_peak) && IS_FIGURE(free_inside) && IS_FIGURE(largest_free_block));
    THAT(IS_FIGURE(live) && IS_FIGURE(failures));
    THAT(figure_of("device.0.live") == 1 && figure_of("device.0.live_peak") == 2 && figure_of("device.0.failures") == 0);
    THAT(figure_of("device.0.class.linear.requested") == 1000 && figure_of("device.0.class.vmm.live") == 0);
    THAT(figure_of("host.allocated") == 0 && figure_of("device.1.reserved_peak") == 0);
    THAT(figure_of("pid") == (uint64_t)getpid() && figure_of("events_lost") == 0);
    THAT(out.s.reserved == 16 * MIB || out.s.reserved == 1000 || out.s.reserved >= 18 * MIB);

    static const char *const unknown[] = {
        "", "device.0", "device", "device.+1.live", "device.01.live", "device.32.live", "device.99999.live", "device.0.live.",
        "device.0.resident", "device.0.class.nothing.live", "device.0.class.linear.free_inside", "host.class.host.resident",
        "device.0.colour", "host.limit",
    };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) refused(unknown[i], ENOENT);
    refused(NULL, EINVAL);
    THAT(stat_of("pid", NULL) == EINVAL);

    size_t size = stat_names(NULL, 0);
    char *names = malloc(size);
    THAT(names && stat_names(names, size) == size && strlen(names) + 1 == size);
    int count = 0;
    bool has_reserved = false;
    for (char *name = strtok(names, "\n"); name; name = strtok(NULL, "\n"), count++) {
        figure_of(name);
        has_reserved |= strcmp(name, "device.0.class.linear.reserved") == 0;
        THAT(strncmp(name, "device.1.", 9) != 0);
    }
    THAT(count > 30 && has_reserved);
    free(names);

    THAT(set("stacks", "native") == 0 && set("stacks", "off") == 0 && set("stack_depth", "128") == 0);
    THAT(set("stack_depth", "129") == EINVAL && set("stacks", "perl") == EINVAL && set("stacks", "") == EINVAL);
    THAT(set("strategy", "auto_growth") == EPERM && set("VRAMSHIM_MEMORY_LIMIT", "1GiB") == EPERM);
    THAT(set("FLAGS_free_idle_chunk", "1") == EPERM && set("colour", "red") == ENOENT);
    THAT(set(NULL, "off") == EINVAL && set("stacks", NULL) == EINVAL);

    THAT(dump(NULL) == EINVAL && dump("now.txt") == EINVAL && dump(".vraj") == EINVAL);
    THAT(dump("missing/now.vraj") == ENOENT);
    THAT(dump("now.vraj") == 0 && dump("now.vraj") == 0);

    /* Frames are recorded from the change on. */
    THAT(set("stacks", "native") == 0);
    linear_memory(2000);
    THAT(dump("later.vraj") == 0);
    /* The journal of a file that may not grow so far is not copied, and the job goes on. */
    struct rlimit limit = {1 << 16, 1 << 16};
    THAT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    for (int i = 0; i < 2000; i++) CHECK(cuMemFree_v2(linear_memory(512)));
    THAT(dump("large.vraj") == EFBIG && access("large.vraj", F_OK) != 0);
    THAT(dump("now.txt") == EINVAL);
}

static atomic_long handled;

static void handler(int signal)
{
    (void)signal;
    int before = errno;
    char path[4096];
    uint64_t value;
    static const char *const names[] = {
        "device.0.requested", "device.0.allocated_peak", "device.0.reserved", "device.0.live", "device.0.failures",
        "device.0.class.linear.allocated", "host.reserved", "pid", "events_lost",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int error = stat_of(names[i], &value);
        if (error && error != EAGAIN) abort();
    }
    if (!version()[0] || journal_path(path, sizeof path) < 2) abort();
    handled++;
    errno = before;
}

static void *churn(void *context)
{
    CHECK(cuCtxSetCurrent(context));
    for (int i = 0; i < 20000; i++) CHECK(cuMemFree_v2(linear_memory(512 + i % 4096)));
    return NULL;
}

static void signals(void)
{
    CUcontext context = start_cuda();
    linear_memory(1000);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    THAT(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 2000}, {0, 2000}}; /* More often, a busy machine does nothing else. */
    THAT(setitimer(ITIMER_REAL, &often, NULL) == 0);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) THAT(pthread_create(&threads[i], NULL, churn, context) == 0);
    /* Each context has a pool, so the list of pools changes. */
    for (int i = 0; i < 200; i++) {
        CUcontext other;
        CHECK(cuCtxCreate_v2(&other, 0, 0));
        linear_memory(4096);
        CHECK(cuCtxDestroy_v2(other));
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    THAT(handled > 10);
}

static atomic_bool stop;
static atomic_int threads_with_a_free;

static void *one_at_a_time(void *context)
{
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemFree_v2(linear_memory(3000)));
    threads_with_a_free++;
    while (!stop) CHECK(cuMemFree_v2(linear_memory(3000)));
    return NULL;
}

static const char *folder;

static void dumps(void)
{
    CUcontext context = start_cuda();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) THAT(pthread_create(&threads[i], NULL, one_at_a_time, context) == 0);
    /* On a busy machine the threads may begin late, and a process without events has nothing to dump. */
    while (threads_with_a_free < 4) usleep(1000);
    for (int i = 0; i < 5; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d.vraj", folder, i);
        usleep(3000);
        THAT(dump(path) == 0);
    }
    stop = true;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

/* Closes every descriptor from 3 on, and opens as many files of its own in their places, each with a byte of its own. */
static bool is_own[400];

static void close_all(void)
{
    for (int fd = 3; fd < 400; fd++) close(fd);
    for (int fd = 3; fd < 400; fd++) {
        char name[32];
        snprintf(name, sizeof name, "own-%d", fd);
        int made = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (made < 0) break;
        /* Another number than that of the name if a thread of the library had that one for a moment. */
        char byte = (char)made;
        is_own[made] = true;
        THAT(write(made, &byte, 1) == 1);
    }
}

static void tell_of_own_files(void)
{
    for (int fd = 3; fd < 400; fd++) {
        char byte = 0;
        if (!is_own[fd]) continue;
        long long size = lseek(fd, 0, SEEK_END), got = pread(fd, &byte, 1, 0);
        if (size == 1 && got == 1 && byte == (char)fd) continue;
        printf("descriptor %d: size %lld, read %lld, byte %d, errno %d\n", fd, size, got, byte, errno);
        return;
    }
    puts("whole");
}

static void serve(void)
{
    start_cuda();
    linear_memory(1000);
    CHECK(cuMemFree_v2(linear_memory(64 * MIB)));
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "close", 5) == 0) {
            close_all();
            puts("closed");
        } else if (strncmp(line, "files", 5) == 0) {
            tell_of_own_files();
        } else if (strncmp(line, "fork", 4) == 0) {
            pid_t child = fork();
            if (child == 0) {
                close(0);
                close(1);
                close(2);
                for (;;) pause();
            }
            printf("child %d\n", child);
        } else if (strncmp(line, "allocate", 8) == 0) {
            linear_memory(5000);
            puts("allocated");
        } else {
            break;
        }
        fflush(stdout);
    }
}

/* A name that ends as the journal's, or as a file beside it, with another ending. */
static const char *with_ending(const char *path, const char *ending)
{
    static char text[4096];
    const char *dot = strrchr(path, '.');
    snprintf(text, sizeof text, "%.*s%s", (int)(dot - path), path, ending);
    return text;
}

/* Copies of the journal onto itself and onto the files beside it, under several names. */
static void onto_itself(void)
{
    char own[4096], spelled[4200];
    start_cuda();
    linear_memory(1000);
    THAT(set("stacks", "native") == 0);
    linear_memory(2000);
    THAT(journal_path(own, sizeof own) <= sizeof own);
    const char *name = strrchr(own, '/');
    snprintf(spelled, sizeof spelled, "%.*s/.%s", (int)(name - own), own, name);
    THAT(link(own, "hard.vraj") == 0 && symlink(own, "soft.vraj") == 0);
    THAT(dump(own) == EBUSY && dump(spelled) == EBUSY && dump("hard.vraj") == EBUSY && dump("soft.vraj") == EBUSY);

    FILE *tensors = fopen(with_ending(own, ".tensors"), "w");
    THAT(tensors && fclose(tensors) == 0);
    THAT(link(with_ending(own, ".tensors"), "tensors.tensors") == 0 && dump("tensors.vraj") == EBUSY);
    THAT(link(with_ending(own, ".stacks"), "stacks.stacks") == 0 && dump("stacks.vraj") == EBUSY);
    THAT(access("tensors.vraj", F_OK) != 0 && access("stacks.vraj", F_OK) != 0);
    /* A link whose file is gone is no file of the job. */
    THAT(symlink("gone.vraj", "dangling.vraj") == 0 && dump("dangling.vraj") == 0);
    linear_memory(4000);
}

int main(int count, char **arguments)
{
    static const struct scene scenes[] = {{"api", api}, {"signals", signals}, {"dumps", dumps}, {"onto_itself", onto_itself}, {"serve", serve}};
    version = library_function(vramshim_version), stat_of = library_function(vramshim_stat);
    journal_path = library_function(vramshim_journal_path);
    folder = arguments[count - 1];
    return PLAY(scenes, count, arguments);
}
