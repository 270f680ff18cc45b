/* Asks the driver whether what the library assumes of it holds.
 *
 *   assumptions [--json] [--limit SECONDS] [NAME...]   all probes, or those named; one line each
 *   assumptions list                                   their names, assumptions and sources
 *
 * The first line tells the device and the driver. Each probe runs in a process of its own and is ended after SECONDS
 * (20), so that none can stop another. Exits with 1 if an assumption that a strategy needs does not hold, with 2 on
 * wrong usage, and with 3 if the driver does not answer at all. */
#include "probe.h"
#include "probes.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#define DECLARE(name) extern const struct probe probe_##name;
#define LISTED(name) &probe_##name,
PROBES(DECLARE)
static const struct probe *const probes[] = {PROBES(LISTED)};
enum { COUNT = sizeof probes / sizeof *probes };

enum outcome { HOLDS, DIFFERS, NOT_ASKED, HANGS };
static const char *const outcome_names[] = {"holds", "differs", "not asked", "hangs"};

static struct { enum outcome outcome; char figures[8192]; } said;
static int answer_fd = 1;

static void add(const char *before, const char *format, va_list values)
{
    size_t used = strlen(said.figures);
    char last = used ? said.figures[used - 1] : '\n';
    snprintf(said.figures + used, sizeof said.figures - used, "%s%s", last == '\n' ? "" : last == ':' ? " " : ", ", before);
    used = strlen(said.figures);
    vsnprintf(said.figures + used, sizeof said.figures - used, format, values);
}

static _Noreturn void answer(void)
{
    char outcome = (char)said.outcome;
    if (write(answer_fd, &outcome, 1) == 1) (void)!write(answer_fd, said.figures, strlen(said.figures));
    _exit(0);
}

#define ADD(before) do { va_list values; va_start(values, format); add(before, format, values); va_end(values); } while (0)
bool claim(bool seen_as_assumed, const char *format, ...)
{
    ADD(seen_as_assumed ? "" : "BUT ");
    if (!seen_as_assumed) said.outcome = DIFFERS;
    return seen_as_assumed;
}
void figure(const char *format, ...) { ADD(""); }
void not_asked(const char *format, ...)
{
    said.figures[0] = 0;
    ADD("");
    said.outcome = NOT_ASKED;
    answer();
}
void failed(const char *format, ...)
{
    ADD("BUT ");
    said.outcome = DIFFERS;
    answer();
}

PROBE(device, TELLS, "", "")
{
    int version = 0, count = 0;
    char name[128] = "";
    begin();
    CHECK(cu(cuDriverGetVersion)(&version));
    CHECK(cu(cuDeviceGetCount)(&count));
    CHECK(cu(cuDeviceGetName)(name, sizeof name, 0));
    figure("%s, driver %d, %d device%s", name, version, count, count == 1 ? "" : "s");
    figure("kernels compute%s here", kernels() ? "" : " nothing");
}

/* ---- in the parent, which never calls the driver */

static int limit_s = 20;
enum { MOMENT_MS = 2000, NO_ANSWER = 3 };

static void run(const struct probe *probe, enum outcome *outcome, char *figures, size_t capacity)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) perror("pipe"), exit(2);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        answer_fd = ends[1];
        probe->run();
        answer();
    }
    close(ends[1]);
    double end = now_us() + limit_s * 1e6;
    size_t used = 0;
    ssize_t bytes = 1;
    char text[sizeof said];
    struct pollfd ready = {.fd = ends[0], .events = POLLIN};
    for (double left; bytes > 0 && (left = end - now_us()) > 0;) {
        if (poll(&ready, 1, (int)(left / 1e3) + 1) <= 0) continue;
        bytes = read(ends[0], text + used, sizeof text - 1 - used);
        if (bytes > 0) used += (size_t)bytes;
    }
    close(ends[0]);
    bool hangs = bytes > 0;
    if (hangs) kill(child, SIGKILL);
    int status = 0;
    /* A process that hangs inside the kernel's driver ends late or never, so it is waited for a moment only. */
    for (int i = 0; waitpid(child, &status, hangs ? WNOHANG : 0) == 0 && i < MOMENT_MS; i++) usleep(1000);
    text[used] = 0;
    *outcome = hangs ? HANGS : used ? (enum outcome)text[0] : DIFFERS;
    if (hangs) snprintf(figures, capacity, "no end after %d s", limit_s);
    else if (used) snprintf(figures, capacity, "%s", text + 1);
    else if (WIFSIGNALED(status)) snprintf(figures, capacity, "ended by signal %d", WTERMSIG(status));
    else snprintf(figures, capacity, "exited with %d", WEXITSTATUS(status));
}

static void json_text(const char *name, const char *text, const char *after)
{
    printf("\"%s\":\"", name);
    for (; *text; text++)
        if (*text == '\n') printf("\\n");
        else if (*text == '"' || *text == '\\') printf("\\%c", *text);
        else putchar(*text);
    printf("\"%s", after);
}

/* Figures of several lines are a table: it follows, indented. */
static void print(const struct probe *probe, enum outcome outcome, const char *figures, bool json)
{
    if (json) {
        putchar('{');
        json_text("name", probe->name, ",");
        json_text("outcome", outcome_names[outcome], ",");
        printf("\"needed\":%s,", probe->weight == NEEDED ? "true" : "false");
        json_text("figures", figures, ",");
        json_text("assumption", probe->assumption, ",");
        json_text("source", probe->source, "}\n");
    } else if (strchr(figures, '\n')) {
        printf("%-9s  %s  (%s)\n", outcome_names[outcome], probe->name, probe->source);
        for (const char *line = figures; *line; line += strcspn(line, "\n") + (line[strcspn(line, "\n")] != 0))
            printf("    %.*s\n", (int)strcspn(line, "\n"), line);
    } else {
        printf("%-9s  %s  %s  (%s)\n", outcome_names[outcome], probe->name, figures, probe->source);
    }
    fflush(stdout);
}

/* Whether the probe is among the arguments from `first` on, or there are none. */
static bool wanted(const struct probe *probe, int argc, char **argv, int first)
{
    bool found = first == argc;
    for (int i = first; i < argc; i++) found |= !strcmp(argv[i], probe->name);
    return found;
}

static int usage(const char *argument)
{
    fprintf(stderr, "assumptions: no such probe or option: %s\n", argument);
    fprintf(stderr, "usage: assumptions [--json] [--limit SECONDS] [NAME...]\n       assumptions list\n");
    return 2;
}

int main(int argc, char **argv)
{
    int first = 1;
    bool json = false, list = argc == 2 && !strcmp(argv[1], "list");
    for (; first < argc && !strncmp(argv[first], "--", 2); first++) {
        if (!strcmp(argv[first], "--json")) json = true;
        else if (!strcmp(argv[first], "--limit") && first + 1 < argc && (limit_s = atoi(argv[first + 1])) > 0) first++;
        else return usage(argv[first]);
    }
    for (int i = first; i < argc && !list; i++) {
        bool known = false;
        for (int j = 0; j < COUNT; j++) known |= !strcmp(argv[i], probes[j]->name);
        if (!known) return usage(argv[i]);
    }
    int failures = 0, counts[4] = {0};
    enum outcome outcome;
    static char figures[sizeof said.figures];
    if (!list) {
        run(&probe_device, &outcome, figures, sizeof figures);
        int asked = 0;
        for (int i = 0; i < COUNT; i++) asked += wanted(probes[i], argc, argv, first);
        if (json) {
            putchar('{'), json_text("device", figures, ","), json_text("outcome", outcome_names[outcome], ",");
            printf("\"probes\":%d}\n", asked);
        } else
            printf("on: %s\n", figures);
        fflush(stdout);
        if (outcome != HOLDS) return NO_ANSWER;
    }
    for (int i = 0; i < COUNT; i++) {
        if (list) {
            printf("%s%s: %s (%s)\n", probes[i]->name, probes[i]->weight == NEEDED ? " (needed)" : "", probes[i]->assumption,
                   probes[i]->source);
            continue;
        }
        if (!wanted(probes[i], argc, argv, first)) continue;
        run(probes[i], &outcome, figures, sizeof figures);
        print(probes[i], outcome, figures, json);
        counts[outcome]++;
        failures += probes[i]->weight == NEEDED && (outcome == DIFFERS || outcome == HANGS);
    }
    if (!list && !json)
        printf("%d hold, %d differ, %d hang, %d not asked; %d of those that a strategy needs do not hold\n", counts[HOLDS], counts[DIFFERS],
               counts[HANGS], counts[NOT_ASKED], failures);
    return failures > 0;
}
