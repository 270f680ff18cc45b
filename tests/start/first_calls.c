/* Functions of the preloaded library are the first ones of it that the process calls. They are bound at the link, because a
 * look-up by name would be a call of the library before.
 *
 *   first_calls crowd    in many children, eight threads at once make the first calls, while a signal handler, a child and a
 *                        child of vfork do
 *   first_calls errno    the first call leaves errno as it is
 *   first_calls locked   a child looks a name up first, and its parent had locked the loader's list at the fork */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((weak)) const char *vramshim_version(void);
__attribute__((weak)) size_t vramshim_stat_names(char *, size_t);

static int names_fail(void)
{
    char text[4096];
    return vramshim_stat_names(text, sizeof text) < 4 || !strstr(text, "pid");
}

static int look_up_fails(void) { return !dlsym(RTLD_DEFAULT, "getpid") || dlsym(RTLD_DEFAULT, "cuNoSuchFunction"); }

/* Looks up a name that is there: for one that is not, glibc allocates the text of the error, and without the library too
 * a signal within fork, which holds malloc's locks, then waits for ever. */
static void handle(int signal)
{
    (void)signal;
    if (!dlsym(RTLD_DEFAULT, "getpid") || !vramshim_version()[0]) abort();
}

static pthread_barrier_t barrier;

static void *thread(void *unused)
{
    pthread_barrier_wait(&barrier);
    if (names_fail()) abort();
    return unused;
}

static int succeeded(pid_t child)
{
    int status;
    return waitpid(child, &status, 0) == child && !status;
}

static int one_of_crowd(int delay)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    struct itimerval soon = {{0, 20}, {0, 20 + delay}};
    alarm(60);
    signal(SIGPROF, handle);
    pthread_barrier_init(&barrier, NULL, THREADS);
    setitimer(ITIMER_PROF, &soon, NULL);
    for (int t = 0; t < THREADS; t++)
        if (pthread_create(&threads[t], NULL, thread, NULL)) return 1;
    pid_t child = fork();
    if (!child) {
        alarm(60);
        _exit(names_fail());
    }
    pid_t borrower = vfork();
    if (!borrower) _exit(look_up_fails() || !vramshim_version()[0]);
    if (!succeeded(borrower) || !succeeded(child)) return 1;
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    return 0;
}

static int crowd(void)
{
    enum { CHILDREN = 100 };
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (!child) _exit(one_of_crowd(i));
        if (!succeeded(child)) return fprintf(stderr, "child %d failed\n", i), 1;
    }
    return 0;
}

static int wait_for_fork(struct dl_phdr_info *info, size_t size, void *ready)
{
    (void)info, (void)size;
    pthread_barrier_wait(ready);
    pthread_barrier_wait(ready);
    return 1;
}

static void *locks_the_list(void *unused)
{
    dl_iterate_phdr(wait_for_fork, &barrier);
    return unused;
}

static int locked(void)
{
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    if (pthread_create(&thread, NULL, locks_the_list, NULL)) return 1;
    pthread_barrier_wait(&barrier);
    pid_t child = fork();
    if (!child) {
        alarm(20);
        _exit(!dlsym(RTLD_DEFAULT, "getpid"));
    }
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    return !succeeded(child);
}

int main(int count, char **arguments)
{
    if (count != 2 || !vramshim_version || !vramshim_stat_names) return 2;
    if (!strcmp(arguments[1], "crowd")) return crowd();
    if (!strcmp(arguments[1], "locked")) return locked();
    errno = 77;
    return vramshim_version()[0] && errno == 77 ? 0 : 1;
}
