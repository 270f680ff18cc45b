/* Requests for host memory, under a guard of 64 MiB. The argument names the scene:
 *
 *   refused    each function gets nothing for 256 MiB, and the job goes on
 *   allowed    reservations of a terabyte, and small requests of each function
 *   handler    a signal handler with a stack of 8 KiB is refused
 *   unread     as refused, and nobody reads standard error any more
 *   limited    as refused, and standard error is a file that may not grow
 *   cancelled  a thread that is to be cancelled is refused, and goes on to its next cancellation point
 *   forked     a child is refused that was forked while another thread had the loader's list locked
 *   touch      asks for 256 MiB and touches what it gets; prints the peak of resident KiB
 *   fills      asks for argv[2] MiB and writes what it gets; then asks for argv[3] MiB, which its work needs, and writes
 *              them. Its address space is limited to argv[4] MiB. The exit code is 3 if the work gets no memory. */
#include "client.h"
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define TIB ((size_t)1 << 40)
#define REFUSED(call)             \
    do {                          \
        errno = 0;                \
        THAT((call) == NULL);     \
        THAT(errno == ENOMEM);    \
    } while (0)

enum { NO_MEMORY_FOR_THE_WORK = 3, SECONDS = 10 };

static volatile size_t large = 256 * MIB, huge = SIZE_MAX / 2;

__attribute__((noinline)) void *ask_for_a_lot(void) { return malloc(large); }

static void *map(size_t length, int protection, int flags)
{
    void *address = mmap(NULL, length, protection, flags | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return address == MAP_FAILED ? NULL : address;
}

static void refused(void)
{
    char *old = malloc(100);
    THAT(old);
    strcpy(old, "stays");
    REFUSED(ask_for_a_lot());
    REFUSED(calloc(large / 16, 16));
    REFUSED(calloc(huge, 16));
    REFUSED(realloc(old, large));
    REFUSED(reallocarray(old, large / 16, 16));
    REFUSED(reallocarray(old, huge, 16));
    REFUSED(aligned_alloc(4096, large));
    REFUSED(memalign(4096, large));
    REFUSED(map(large, PROT_READ | PROT_WRITE, 0));
    void *out = old;
    errno = 0;
    THAT(posix_memalign(&out, 4096, large) == ENOMEM && out == old && errno == 0);
    THAT(strcmp(old, "stays") == 0);
    free(old);
}

static void allowed(void)
{
    THAT(map(TIB, PROT_NONE, 0));
    THAT(map(TIB, PROT_READ | PROT_WRITE, MAP_NORESERVE));
    void *out = NULL, *block;
    THAT(posix_memalign(&out, 4096, MIB) == 0 && out);
    free(out);
    THAT((block = calloc(1, MIB)) && (block = realloc(block, 2 * MIB)) && (block = reallocarray(block, 3, MIB)));
    free(block);
    THAT((block = aligned_alloc(4096, MIB)));
    free(block);
    THAT((block = memalign(4096, MIB)));
    free(block);
    THAT((block = map(MIB, PROT_READ | PROT_WRITE, 0)));
    THAT(munmap(block, MIB) == 0);
    THAT((block = malloc(64 * MIB)));
    free(block);
}

static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
    (void)signal;
    handled = ask_for_a_lot() == NULL;
}

/* The page below the stack cannot be written. */
static void handler(void)
{
    enum { STACK = 8192, PAGE = 4096 };
    char *memory = map(STACK + PAGE, PROT_READ | PROT_WRITE, 0);
    THAT(memory && mprotect(memory, PAGE, PROT_NONE) == 0);
    stack_t stack = {.ss_sp = memory + PAGE, .ss_size = STACK};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    THAT(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    THAT(raise(SIGUSR1) == 0 && handled);
}

/* Nothing can be written to this standard error, and a try would raise the signal. */
static void without(int standard_error, int signal)
{
    sigset_t set;
    THAT(dup2(standard_error, STDERR_FILENO) == STDERR_FILENO);
    refused();
    /* Neither the mask nor what waits for the thread has changed. */
    THAT(sigpending(&set) == 0 && !sigismember(&set, signal));
    THAT(pthread_sigmask(SIG_BLOCK, NULL, &set) == 0 && !sigismember(&set, signal));
    puts("went on");
}

static void unread(void)
{
    int ends[2];
    THAT(pipe(ends) == 0 && close(ends[0]) == 0);
    without(ends[1], SIGPIPE);
}

static void limited(void)
{
    FILE *file = tmpfile();
    THAT(file && setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0}) == 0);
    without(fileno(file), SIGXFSZ);
}

static volatile int went_on;

static void *to_be_cancelled(void *unused)
{
    THAT(pthread_cancel(pthread_self()) == 0);
    went_on = ask_for_a_lot() == NULL;
    pthread_testcancel();
    return unused;
}

static void cancelled(void)
{
    pthread_t thread;
    void *result;
    THAT(pthread_create(&thread, NULL, to_be_cancelled, NULL) == 0 && pthread_join(thread, &result) == 0);
    THAT(went_on && result == PTHREAD_CANCELED);
}

static pthread_barrier_t is_locked, is_done;

/* The loader's list is locked as long as this runs, as it is for moments of dlopen and dlclose. */
static int on_object(struct dl_phdr_info *object, size_t size, void *unused)
{
    (void)object, (void)size, (void)unused;
    pthread_barrier_wait(&is_locked);
    pthread_barrier_wait(&is_done);
    return 1;
}

static void *locks(void *unused)
{
    dl_iterate_phdr(on_object, NULL);
    return unused;
}

static void forked(void)
{
    pthread_t thread;
    int status;
    pthread_barrier_init(&is_locked, NULL, 2);
    pthread_barrier_init(&is_done, NULL, 2);
    THAT(pthread_create(&thread, NULL, locks, NULL) == 0);
    pthread_barrier_wait(&is_locked);
    pid_t child = fork();
    if (!child) {
        alarm(SECONDS);
        _exit(ask_for_a_lot() != NULL);
    }
    THAT(waitpid(child, &status, 0) == child);
    pthread_barrier_wait(&is_done);
    THAT(pthread_join(thread, NULL) == 0);
    THAT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void write_to(volatile char *block, size_t size)
{
    for (size_t i = 0; i < size; i += 4096) block[i] = 1;
}

static char **arguments;

static void fills(void)
{
    size_t asked = strtoul(arguments[2], NULL, 10) * MIB, needed = strtoul(arguments[3], NULL, 10) * MIB;
    size_t address_space = strtoul(arguments[4], NULL, 10) * MIB;
    THAT(setrlimit(RLIMIT_AS, &(struct rlimit){address_space, address_space}) == 0);
    large = asked;
    errno = 0;
    char *block = ask_for_a_lot();
    printf("the request: %s\n", block ? "granted" : errno == ENOMEM ? "ENOMEM" : "another error");
    fflush(stdout);
    if (block) write_to(block, asked);
    char *work = malloc(needed);
    if (!work) exit(NO_MEMORY_FOR_THE_WORK);
    write_to(work, needed);
    puts("the work: done");
}

static void touch(void)
{
    volatile char *block = ask_for_a_lot();
    if (block) write_to(block, large);
    /* Not getrusage(2): its peak includes the program that this process was before exec. */
    char line[128];
    FILE *status = fopen("/proc/self/status", "r");
    long peak_kib = 0;
    THAT(status != NULL);
    while (fgets(line, sizeof line, status) && sscanf(line, "VmHWM: %ld", &peak_kib) != 1) {}
    printf("%ld\n", peak_kib);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        {"refused", refused}, {"allowed", allowed}, {"handler", handler}, {"unread", unread}, {"limited", limited},
        {"cancelled", cancelled}, {"forked", forked}, {"touch", touch}, {"fills", fills},
    };
    arguments = argv;
    return PLAY(scenes, argc, argv);
}
