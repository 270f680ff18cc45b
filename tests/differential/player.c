/* Plays a list of steps from stdin, a line each: THREAD KIND A B C; with PLAY_TOGETHER each thread plays its steps without
 * waiting for the others. A list that was
 * compiled in as LIST is played instead (scripts/torture --differential prints such programs).
 *
 *   player                      steps from stdin
 *   player random SEED STEPS    random steps whose answers are the same under each strategy (scripts/gpu-check) */
#include "memory.h"
#include "work.h"
#include "random.h"

#ifndef LIST
#define LIST
#endif
static const struct step listed[] = { LIST {0, NULL, 0, 0, 0} };
extern const struct kind __start_kinds[], __stop_kinds[];
static sem_t turns[THREADS], done;
static pthread_barrier_t begin;
static struct step *all;
static char *texts[THREADS];
static volatile int number, count;

static void hangs(int unused)
{
    char text[100];
    int size = snprintf(text, sizeof text, " HANGS after step %d\n", number);
    (void)unused;
    if (write(1, text, (size_t)size)) _exit(3);
}

static void play_step(const struct step *step)
{
    for (const struct kind *kind = __start_kinds; kind < __stop_kinds; kind++) {
        if (strcmp(kind->name, step->kind)) continue;
        if ((together && strchr(kind->words, 'O')) || (strchr(kind->words, 'U') && forbidden())) return;
        if (!strchr(kind->words, 'A')) set_all_flags();
        if (flags_used == FLAGS && !captures(NONE, false)) {
            set_all_flags();
            for (int i = 0; i < CONTEXTS; i++) if (use(i)) R(finish());
            flags_used = 0;
        }
        kind->play(step->a, step->b, step->c);
        return;
    }
    say(" unknown");
}

/* The library gives idle memory back by itself: the books are read when nothing has moved for 50 ms. */
static void rest(void)
{
    static char texts[2][1 << 20];
    size_t (*truth)(char *, size_t) = optional_function("simgpu_truth");
    for (int i = 0; truth && getenv("VRAMSHIM_IDLE_RELEASE") && (i < 2 || strcmp(texts[0], texts[1])); i++) {
        usleep(50000);
        truth(texts[i % 2], sizeof texts[0]);
    }
}

/* Everything waits; then the books are printed. */
KIND(settle, 1, "O") {
    if (captures(NONE, false)) return;
    for (int i = 0; i < CONTEXTS; i++) if (use(i)) R(finish());
    flags_used = 0;
    __typeof__(&simgpu_hazards) hazards = (__typeof__(hazards))optional_function("simgpu_hazards");
    say(" hazards %llu\n", hazards ? (unsigned long long)hazards() : 0ull);
    rest();
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
    size_t size;
    thread = (int)(intptr_t)given;
    out = stdout;
    if (together) my = &states[thread], out = open_memstream(&texts[thread], &size), pthread_barrier_wait(&begin);
    for (int device = 0; together && device < devices; device++) retain(device);
    for (int i = 0; together && i < count; i++) {
        if (all[i].thread % THREADS != thread) continue;
        say("%d %s:", i, all[i].kind), play_step(&all[i]), say("\n");
        number = i;
    }
    while (!together) {
        sem_wait(&turns[thread]);
        if (number >= count) break;
        play_step(&all[number]);
        sem_post(&done);
    }
    end_captures();
    if (together) {
        for (int i = 0; i < CONTEXTS; i++) if (use(i)) R(finish());
        say("\n"), fclose(out);
    }
    return NULL;
}

static void print_live(void)
{
    const char *comma = "";
    say("{\"live\":[");
    for (int i = 0; i < THREADS * (BLOCKS + GRAPHS); i++) {
        my = &states[i % THREADS];
        int n = i / THREADS;
        const struct block *p = n < BLOCKS ? &blocks[n] : &graph_memory[n - BLOCKS];
        if (!p->live || p->class == GRAPH) continue;
        say("%s{\"api\":\"%s\",\"size\":%zu,\"device\":%d}", comma, p->api, p->size, p->device);
        if (p->class == VMM) say(",{\"api\":\"cuMemAddressReserve\",\"size\":%zu,\"device\":%d}", p->span, contexts[p->context].device);
        comma = ",";
    }
    my = states;
    say("]}\n");
}

static void *exits(void *unused) { exit(0); return unused; }

static void read_steps(void)
{
    char kind[64];
    struct step step;
    all = calloc(1 << 20, sizeof *all);
    for (; listed[count].kind; count++) all[count] = listed[count];
    while (!listed[0].kind && scanf("%d %63s %u %u %u", &step.thread, kind, &step.a, &step.b, &step.c) == 5)
        step.kind = strdup(kind), all[count++] = step;
}

static void draw_steps(uint64_t seed, int steps)
{
    unsigned kinds = (unsigned)(__stop_kinds - __start_kinds);
    all = calloc((size_t)steps, sizeof *all);
    while (count < steps) {
        const struct kind *kind = &__start_kinds[draw(&seed, kinds)];
        if (strchr(kind->words, 'P') || draw(&seed, 26) >= kind->weight) continue;
        all[count++] = (struct step){(int)draw(&seed, THREADS), kind->name, (unsigned)draw(&seed, 24), (unsigned)draw(&seed, 64), (unsigned)draw(&seed, 65536)};
    }
}

int main(int argc, char **argv)
{
    pthread_t ids[THREADS];
    unsigned end = 0;
    if (argc == 2 && !strcmp(argv[1], "other")) return be_the_other();
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    signal(SIGALRM, hangs);
    signal(SIGPIPE, SIG_IGN);
    alarm(15);
    if (argc == 4) draw_steps(strtoull(argv[2], NULL, 10), atoi(argv[3]));
    else read_steps();
    if (count && !strcmp(all[count - 1].kind, "end")) end = all[--count].a;
    together = getenv("PLAY_TOGETHER");
    out = stdout;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&devices));
    if (devices > DEVICES) devices = DEVICES;
    for (int t = 0; t < THREADS; t++) {
        my = &states[t];
        for (int i = 0; i < BLOCKS; i++) blocks[i].value = (unsigned char)(i * 11 + t * 5);
        sem_init(&turns[t], 0, 0);
    }
    my = states;
    sem_init(&done, 0, 0);
    pthread_barrier_init(&begin, NULL, THREADS);
    say("begin:");
    for (int device = 0; !together && device < devices; device++) retain(device);
    say("\n");
    for (int t = !together; t < THREADS; t++) pthread_create(&ids[t], NULL, plays, (void *)(intptr_t)t);
    for (number = 0; !together && number < count; number++) {
        int turn = all[number].thread % THREADS;
        alarm(10);
        say("%d %s:", number, all[number].kind);
        if (turn) sem_post(&turns[turn]), sem_wait(&done);
        else play_step(&all[number]);
        say("\n");
    }
    for (int t = !together; t < THREADS; t++) {
        sem_post(&turns[t]), pthread_join(ids[t], NULL);
        if (texts[t]) fputs(texts[t], stdout);
    }
    alarm(15);
    end_captures();
    /* What lives at the end: all, all but the blocks, or nothing that a context has. */
    for (int t = 0; t < (together ? THREADS : 1); t++) {
        my = &states[t];
        CURRENT = NONE;
        say("settle %d:", t), settle(0, 0, 0), say("end:");
        for (int i = 0; end & 1 && i < BLOCKS; i++) if (blocks[i].live) give_back(&blocks[i], (unsigned)i);
        for (int i = DEVICES; end & 2 && i < CONTEXTS; i++)
            if (contexts[i].alive && (about_to_end(i), use(0)) && DONE(cuCtxDestroy_v2(contexts[i].handle))) forget_context(i);
        for (int i = 0; i < BLOCKS; i++) if (blocks[i].live) close_in_other(&blocks[i]);
        say("\n");
    }
    say("all:"), settle(0, 0, 0), say("\n");
    print_live();
    fflush(stdout);
    if (other_end >= 0) close(other_end), wait(NULL);
    if (end & 4) pthread_create(&ids[0], NULL, exits, NULL), pthread_join(ids[0], NULL);
    return 0;
}
