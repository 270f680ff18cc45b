/* Plays a list of steps from stdin, a line each: THREAD KIND A B C. The first line has the seed of the end. A list that was
 * compiled in as LIST is played instead (scripts/torture --differential prints such programs). */
#include "memory.h"
#include "work.h"

#ifndef LIST
#define LIST
#endif
static const struct step listed[] = { LIST {0, NULL, 0, 0, 0} };
extern const struct kind __start_kinds[], __stop_kinds[];
static sem_t turns[THREADS], done;
static struct step now;
static volatile int number, ended;

static void hangs(int unused)
{
    char text[100];
    int size = snprintf(text, sizeof text, " HANGS in step %d, %s\n", number, now.kind);
    (void)unused;
    if (write(1, text, (size_t)size)) _exit(3);
}

static void play_step(void)
{
    for (const struct kind *kind = __start_kinds; kind < __stop_kinds; kind++) {
        if (strcmp(kind->name, now.kind)) continue;
        if (strchr(kind->words, 'U') && forbidden()) return;
        if (!strchr(kind->words, 'A')) set_all_flags();
        if (flags_used == FLAGS && !captures(NONE, false)) {
            set_all_flags();
            for (int i = 0; i < CONTEXTS; i++) if (use(i)) R(cuCtxSynchronize());
            flags_used = 0;
        }
        kind->play(now.a, now.b, now.c);
        return;
    }
    printf(" unknown");
}

/* Everything waits; then the books are printed. */
KIND(settle, 1, "")
{
    if (captures(NONE, false)) return;
    for (int i = 0; i < CONTEXTS; i++) if (use(i)) R(cuCtxSynchronize());
    flags_used = 0;
    __typeof__(&simgpu_hazards) hazards = (__typeof__(hazards))optional_function("simgpu_hazards");
    printf(" hazards %llu\n", hazards ? (unsigned long long)hazards() : 0ull);
    checkpoint();
}

static void end_captures(void)
{
    set_all_flags();
    for (int i = 0; i < STREAMS; i++) {
        CUgraph graph = NULL;
        if (!streams[i].mode || streams[i].captor != thread || streams[i].origin != i) continue;
        if (use(streams[i].context) && DONE(cuStreamEndCapture(streams[i].handle, &graph)) && graph) R(cuGraphDestroy(graph));
        capture_over(i);
    }
}

static void *plays(void *given)
{
    thread = (int)(intptr_t)given;
    CURRENT = NONE;
    for (;;) {
        sem_wait(&turns[thread]);
        if (ended) return end_captures(), NULL;
        play_step();
        sem_post(&done);
    }
}

static void print_live(void)
{
    const char *comma = "";
    printf("{\"live\":[");
    for (int i = 0; i < BLOCKS + GRAPHS; i++) {
        const struct block *p = i < BLOCKS ? &blocks[i] : &graph_memory[i - BLOCKS];
        if (!p->live || p->class == GRAPH) continue;
        printf("%s{\"api\":\"%s\",\"size\":%zu,\"device\":%d}", comma, p->api, p->size, p->device);
        if (p->class == VMM) printf(",{\"api\":\"cuMemAddressReserve\",\"size\":%zu,\"device\":%d}", p->span, contexts[p->context].device);
        comma = ",";
    }
    printf("]}\n");
}

static void *exits(void *unused) { exit(0); return unused; }

int main(int argc, char **argv)
{
    pthread_t ids[THREADS];
    unsigned end = 0;
    static char kind[64];
    if (argc == 2 && !strcmp(argv[1], "other")) return be_the_other();
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    signal(SIGALRM, hangs);
    signal(SIGPIPE, SIG_IGN);
    alarm(20);
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&devices));
    if (devices > DEVICES) devices = DEVICES;
    printf("begin:");
    CURRENT = NONE;
    for (int i = 0; i < BLOCKS; i++) blocks[i].value = (unsigned char)(i * 11);
    for (int device = 0; device < devices; device++) retain(device);
    printf("\n");
    sem_init(&done, 0, 0);
    for (int t = 0; t < THREADS; t++) sem_init(&turns[t], 0, 0);
    for (int t = 1; t < THREADS; t++) pthread_create(&ids[t], NULL, plays, (void *)(intptr_t)t);
    for (number = 0;; number++) {
        now = listed[number < (int)(sizeof listed / sizeof *listed) ? number : 0];
        if (sizeof listed == sizeof *listed && scanf("%d %63s %u %u %u", &now.thread, kind, &now.a, &now.b, &now.c) == 5) now.kind = kind;
        if (!now.kind) break;
        if (!strcmp(now.kind, "end")) { end = now.a; continue; }
        alarm(10);
        printf("%d %s:", number, now.kind);
        if (now.thread % THREADS) sem_post(&turns[now.thread % THREADS]), sem_wait(&done);
        else play_step();
        printf("\n");
    }
    alarm(20);
    ended = 1;
    for (int t = 1; t < THREADS; t++) sem_post(&turns[t]), pthread_join(ids[t], NULL);
    end_captures();
    settle(0, 0, 0);
    printf("end:");
    /* What lives at the end: all, all but the blocks, or nothing that a context has. */
    for (int i = 0; end & 1 && i < BLOCKS; i++) if (blocks[i].live) give_back(&blocks[i], (unsigned)i);
    for (int i = DEVICES; end & 2 && i < CONTEXTS; i++)
        if (contexts[i].alive && (about_to_end(i), use(0)) && DONE(cuCtxDestroy_v2(contexts[i].handle))) forget_context(i);
    printf("\n");
    settle(0, 0, 0);
    for (int i = 0; i < BLOCKS; i++) if (blocks[i].live && blocks[i].opened) close_in_other(&blocks[i]);
    printf("\n");
    print_live();
    fflush(stdout);
    if (other_end >= 0) close(other_end), wait(NULL);
    if (end & 4) pthread_create(&ids[0], NULL, exits, NULL), pthread_join(ids[0], NULL);
    return 0;
}
