/* Starts /bin/true again and again, under each of these preloads in turn, and prints a line for each:
 *
 *   preload ROUNDS [LIBRARY ...]
 *
 *   microseconds at the lower decile, page faults (the least), private pages of a process that reads its own smaps
 *
 * An empty LIBRARY stands for none. Turns share what else the machine does, so the ratios of the times are fair. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int ascending(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void environment_of(const char *library, char *text, size_t room, char **environment)
{
    snprintf(text, room, "LD_PRELOAD=%s", library);
    environment[0] = *library ? text : NULL;
    environment[1] = NULL;
}

static double start(const char *library, long *faults)
{
    char text[4096], *environment[2], *arguments[] = {"true", NULL};
    struct timespec before, after;
    struct rusage usage;
    pid_t child;
    int status;
    environment_of(library, text, sizeof text, environment);
    clock_gettime(CLOCK_MONOTONIC, &before);
    if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environment) || wait4(child, &status, 0, &usage) != child || status) {
        fprintf(stderr, "preload: /bin/true does not run with %s\n", library);
        exit(1);
    }
    clock_gettime(CLOCK_MONOTONIC, &after);
    if (*faults == 0 || usage.ru_minflt < *faults) *faults = usage.ru_minflt;
    return (double)(after.tv_sec - before.tv_sec) * 1e6 + (double)(after.tv_nsec - before.tv_nsec) / 1e3;
}

/* Pages that `cat` has for itself: those that it or the loader wrote to. */
static long private_pages(const char *library)
{
    char line[4096];
    long kib, sum = 0;
    snprintf(line, sizeof line, "%s%s /bin/cat /proc/self/smaps", *library ? "LD_PRELOAD=" : "", library);
    FILE *smaps = popen(line, "r");
    while (smaps && fgets(line, sizeof line, smaps))
        if (sscanf(line, "Anonymous: %ld", &kib) == 1) sum += kib;
    if (smaps) pclose(smaps);
    return sum * 1024 / sysconf(_SC_PAGESIZE);
}

int main(int count, char **arguments)
{
    enum { MOST = 16 };
    double *times[MOST];
    long faults[MOST] = {0};
    int rounds = count > 1 ? atoi(arguments[1]) : 0, libraries = count - 2;
    if (rounds < 10 || libraries < 1 || libraries > MOST) return fprintf(stderr, "usage: preload ROUNDS [LIBRARY ...]\n"), 2;
    /* Without random addresses the number of page faults is the same each time. */
    if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE) && personality(ADDR_NO_RANDOMIZE) >= 0) execv("/proc/self/exe", arguments);
    for (int l = 0; l < libraries; l++) times[l] = calloc((size_t)rounds, sizeof *times[l]);
    for (int round = 0; round < rounds; round++)
        for (int l = 0; l < libraries; l++) times[l][round] = start(arguments[l + 2], &faults[l]);
    for (int l = 0; l < libraries; l++) {
        qsort(times[l], (size_t)rounds, sizeof *times[l], ascending);
        printf("%.1f %ld %ld\n", times[l][rounds / 10], faults[l], private_pages(arguments[l + 2]));
    }
    return 0;
}
