/* Calls functions of libvramshim.so as the first ones of the process, by their addresses: a look-up by name would be a call
 * of the library before.
 *
 *   first call BEFORE OFFSET...   calls each function in a child, with zeros; in the child, calls the function at BEFORE
 *                                 first if that is not 0. Prints how each child ended
 *   first crowd VERSION NAMES     in many children, eight threads at once make the first calls, while a signal handler does
 *   first errno VERSION           the first call leaves errno as it is
 *   first maps VERSION ADDRESS    prints the rights of the page at the address, before and after the first call
 *
 * Offsets and addresses are those of the file, in hexadecimal. */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uintptr_t (*Function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
typedef size_t (*Names)(char *, size_t);
typedef const char *(*Version)(void);

static uintptr_t base;

static int visit(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (!strstr(info->dlpi_name, "libvramshim.so")) return 0;
    base = info->dlpi_addr;
    return 1;
}

static void *at(const char *offset) { return (void *)(base + strtoul(offset, NULL, 16)); }

static int call(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            alarm(60);
            if (!freopen("/dev/null", "w", stderr)) return 1;
            if (strcmp(arguments[0], "0")) ((Function)at(arguments[0]))(0, 0, 0, 0, 0, 0);
            ((Function)at(arguments[i]))(0, 0, 0, 0, 0, 0);
            kill(getpid(), SIGUSR1);
        }
        int status;
        if (waitpid(child, &status, 0) != child) return 1;
        printf("%s %d\n", arguments[i], status);
    }
    return 0;
}

static Version version;
static Names names;
static pthread_barrier_t barrier;

static void handle(int signal)
{
    (void)signal;
    if (!version()[0]) abort();
}

static void *thread(void *unused)
{
    (void)unused;
    char text[4096];
    pthread_barrier_wait(&barrier);
    if (names(text, sizeof text) < 4 || !strstr(text, "pid")) abort();
    return NULL;
}

static int crowd(void)
{
    enum { CHILDREN = 100, THREADS = 8 };
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (!child) {
            alarm(60);
            pthread_t threads[THREADS];
            struct itimerval soon = {{0, 20}, {0, 20 + i}};
            signal(SIGPROF, handle);
            pthread_barrier_init(&barrier, NULL, THREADS);
            setitimer(ITIMER_PROF, &soon, NULL);
            for (int t = 0; t < THREADS; t++)
                if (pthread_create(&threads[t], NULL, thread, NULL)) return 1;
            /* A grandchild whose parent may be binding in another thread. */
            pid_t grandchild = fork();
            if (!grandchild) {
                alarm(60);
                char text[4096];
                _exit(names(text, sizeof text) < 4);
            }
            int status;
            if (waitpid(grandchild, &status, 0) != grandchild || status) return 1;
            for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) return fprintf(stderr, "child %d: %d\n", i, status), 1;
    }
    return 0;
}

static void print_rights(uintptr_t address)
{
    char line[512], rights[8];
    FILE *maps = fopen("/proc/self/maps", "r");
    uintptr_t start, end;
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3 && start <= address && address < end) puts(rights);
    if (maps) fclose(maps);
}

int main(int count, char **arguments)
{
    if (count < 3) return 2;
    if (!dl_iterate_phdr(visit, NULL)) return 3;
    const char *scene = arguments[1];
    version = (Version)at(arguments[2]);
    if (!strcmp(scene, "call")) return call(count - 2, arguments + 2);
    if (!strcmp(scene, "crowd") && count == 4) return names = (Names)at(arguments[3]), crowd();
    if (!strcmp(scene, "errno")) {
        errno = 77;
        return version()[0] && errno == 77 ? 0 : 1;
    }
    if (!strcmp(scene, "maps") && count == 4) {
        print_rights((uintptr_t)at(arguments[3]));
        if (!version()[0]) return 1;
        print_rights((uintptr_t)at(arguments[3]));
        return 0;
    }
    return 2;
}
