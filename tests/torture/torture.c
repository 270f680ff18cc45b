/* A random program over all kinds of memory. It goes on whatever the driver answers, and counts what it has.
 *
 *   torture SEED STEPS THREADS [WORD ...]
 *
 *   faults       calls of the driver fail (SIMGPU_FAULTS). Before each checkpoint they stop failing
 *   wild         at random moments: closes all descriptors, forks children that end, exec or ask, changes its folder
 *   limited      launches no graphs that allocate, because a limit holds for their memory only after the launch
 *   daemon       goes on as a daemon: forks twice, in a session of its own, without descriptors
 *   answer=FILE  prints into this file; it gets its name when the program ends
 *   handles=DIR  puts IPC handles of its memory into this folder, and opens those of other processes
 *
 * What happens to its surroundings at random moments:
 *
 *   ballast=FILE the disk of this file is filled to the last byte, and has room again
 *   sizes        the limit on the size of files changes (RLIMIT_FSIZE)
 *   folder=DIR   this folder is renamed, comes back, loses its permissions, and its files are removed
 *   again        after the first round the process becomes this program again (exec), with another seed
 *   again=FILE   after the first round this program starts again as a daemon, which prints into this file
 *
 * The program runs in rounds. After each round all threads stop, and a checkpoint is printed. Between rounds the
 * primary context of device 1 is reset or released at times. */
#include "items.h"
#include "shim.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 3 };
enum { FOLDERS = 4 };
static bool faulty, wild, as_daemon, sizes;
static const char *answer_file, *handles, *ballast, *again, *folders[FOLDERS];
static atomic_bool removed; /* files of a folder were removed */
static char **arguments;
static pthread_barrier_t barrier;
static atomic_int stop;

/* ---- what threads do to the process */

/* Held while a thread uses a file of this program, and while one closes descriptors. Otherwise the number of a file that was
 * closed may already stand for a file of the library, and what is meant for the first would be written into the second. */
static pthread_mutex_t own_files = PTHREAD_MUTEX_INITIALIZER;

static void close_descriptors(void)
{
    int (*descriptor)(void) = (int (*)(void))optional_function("simgpu_descriptor");
    int kept = descriptor ? descriptor() : -1;
    if (kept > 3) syscall(SYS_close_range, 3u, (unsigned)kept - 1, 0u);
    syscall(SYS_close_range, kept < 3 ? 3u : (unsigned)kept + 1, ~0u, 0u);
}

static void close_descriptors_of_all(void)
{
    pthread_mutex_lock(&own_files);
    close_descriptors();
    pthread_mutex_unlock(&own_files);
}

static void open_the_driver(void)
{
    CUdeviceptr range;
    INSIST(cu(cuMemAddressReserve)(&range, 2 << 20, 0, 0, 0));
    INSIST(cu(cuMemAddressFree)(range, 2 << 20));
}

static int status_of(pid_t child)
{
    int status = 0;
    while (waitpid(child, &status, 0) < 0) THAT(errno == EINTR);
    return status;
}

/* A forked child calls no CUDA function, as CUDA does not work there. It may exec, and be killed. */
static void have_a_child(uint64_t choice)
{
    pid_t child = fork();
    if (child < 0) return;
    if (child == 0) {
        size_t free_bytes, total;
        if (choice & 1) close_descriptors();
        if (choice & 2) execl("/bin/true", "true", (char *)NULL);
        if (choice & 4) (void)cu(cuMemGetInfo_v2)(&free_bytes, &total);
        if (choice & 8) raise(SIGKILL);
        if (choice & 16) exit(0);
        _exit(0);
    }
    int status = status_of(child);
    THAT(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
}

static void *with_own_descriptors(void *unused)
{
    unshare(CLONE_FILES);
    close_descriptors();
    (void)cu(cuCtxSetCurrent)(contexts[0]);
    CUdeviceptr address;
    if (cu(cuMemAlloc_v2)(&address, 3 << 20) == CUDA_SUCCESS) INSIST(cu(cuMemFree_v2)(address));
    return unused;
}

static void *close_at_random(void *unused)
{
    for (unsigned wait = (unsigned)getpid(); !stop; wait = wait * 1664525 + 1013904223) {
        usleep(wait >> 17);
        close_descriptors_of_all();
    }
    return unused;
}

static void disturb(struct worker *w)
{
    pthread_t thread;
    switch (draw(&w->seed, 4)) {
    case 0: have_a_child(draw(&w->seed, 32)); break;
    case 1: close_descriptors_of_all(); break;
    case 2:
        if (!pthread_create(&thread, NULL, with_own_descriptors, NULL)) pthread_join(thread, NULL);
        break;
    case 3: THAT(chdir(draw(&w->seed, 2) ? "/" : "/tmp") == 0); break;
    }
}

static void fill_the_disk(bool full)
{
    static const char bytes[4096] = "ballast";
    if (!full) {
        unlink(ballast);
        return;
    }
    int file = open(ballast, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    while (file >= 0 && write(file, bytes, sizeof bytes) > 0) {}
    if (file >= 0) close(file);
}

static void limit_sizes(uint64_t choice)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = choice < 12 ? choice << 14 : limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
}

static void empty(const char *path)
{
    char file[512];
    DIR *folder = opendir(path);
    for (struct dirent *one; folder && (one = readdir(folder));) {
        snprintf(file, sizeof file, "%s/%s", path, one->d_name);
        if (one->d_name[0] != '.' && !unlink(file)) removed = true;
    }
    if (folder) closedir(folder);
}

static void change_folder(const char *path, uint64_t choice)
{
    char away[512];
    snprintf(away, sizeof away, "%s.away", path);
    switch (choice) {
    case 0: rename(path, away); break;
    case 1: if (!rename(path, away)) mkdir(path, 0700); break;
    case 2: chmod(path, 0); break;
    case 3: empty(path); break;
    default:
        rmdir(path);
        rename(away, path);
        chmod(path, 0700);
    }
}

static void change_surroundings(struct worker *w)
{
    pthread_mutex_lock(&own_files);
    if (ballast) fill_the_disk(draw(&w->seed, 2));
    if (sizes) limit_sizes(draw(&w->seed, 16));
    for (int n = 0; n < FOLDERS && folders[n]; n++) change_folder(folders[n], draw(&w->seed, 8));
    pthread_mutex_unlock(&own_files);
}

/* ---- calls besides those of items.h */

static void work_on(struct worker *w, const struct item *i)
{
    CUstream stream;
    bool is_memory = i->kind == K_LINEAR || i->kind == K_MANAGED || i->kind == K_ASYNC || i->kind == K_POOL;
    if (!i->live || !is_memory || !DONE(cu(cuCtxSetCurrent)(contexts[i->home]))) return;
    (void)DONE(cu(cuMemsetD8Async)(i->address, (unsigned char)draw(&w->seed, 256), i->bytes, NULL));
    if (draw(&w->seed, 4) || !DONE(cu(cuStreamCreate)(&stream, 1))) return;
    (void)DONE(cu(cuMemsetD8Async)(i->address, 1, 1, stream));
    INSIST(cu(cuStreamDestroy_v2)(stream));
}

/* Answers that would be wrong with any driver end the program. */
static void ask(const struct item *i)
{
    size_t free_bytes = 0, total = 0, size = 0;
    CUdeviceptr base = 0;
    if (!DONE(cu(cuCtxSetCurrent)(contexts[i->home]))) return;
    if (DONE(cu(cuMemGetInfo_v2)(&free_bytes, &total))) THAT(free_bytes <= total && total > 0);
    if (!i->live || i->kind != K_LINEAR) return;
    if (DONE(cu(cuMemGetAddressRange_v2)(&base, &size, i->address))) THAT(base == i->address && size >= i->bytes);
}

/* Access between the devices stays as it is for the memory that is there already, so all results are accepted. */
static void change_peers(struct worker *w)
{
    int device = (int)draw(&w->seed, DEVICES);
    if (!DONE(cu(cuCtxSetCurrent)(contexts[device]))) return;
    if (draw(&w->seed, 3)) (void)cu(cuCtxEnablePeerAccess)(contexts[!device], 0);
    else (void)cu(cuCtxDisablePeerAccess)(contexts[!device]);
}

/* Writes a handle of a block that stays as long as its context. */
static void export_one(struct worker *w, struct item *i)
{
    CUipcMemHandle handle;
    char path[512], fresh[512];
    if (i->live || !DONE(cu(cuCtxSetCurrent)(contexts[0]))) return;
    *i = (struct item){.kind = K_LINEAR, .bytes = 1 + draw(&w->seed, 3 << 20)};
    if (!make(w, i)) return;
    i->live = i->stays = true;
    *count_of(0, LINEAR) += (long long)i->bytes;
    if (cu(cuIpcGetMemHandle)(&handle, i->address)) return;
    snprintf(fresh, sizeof fresh, "%s/.%d-%d", handles, getpid(), w->number);
    snprintf(path, sizeof path, "%s/%d-%d", handles, getpid(), w->number);
    pthread_mutex_lock(&own_files);
    int file = open(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file >= 0 && write(file, &handle, sizeof handle) == sizeof handle) rename(fresh, path);
    if (file >= 0) close(file);
    pthread_mutex_unlock(&own_files);
}

/* Opens a handle of another process, whether it lives or not, and closes it again. */
static void import_one(struct worker *w)
{
    CUipcMemHandle handle;
    CUdeviceptr address;
    char path[512] = "";
    uint64_t skip = draw(&w->seed, 8);
    pthread_mutex_lock(&own_files);
    DIR *folder = opendir(handles);
    for (struct dirent *one; folder && (one = readdir(folder));)
        if (one->d_name[0] != '.' && (!*path || skip-- > 0)) snprintf(path, sizeof path, "%s/%s", handles, one->d_name);
    if (folder) closedir(folder);
    int file = *path ? open(path, O_RDONLY) : -1;
    bool whole = file >= 0 && read(file, &handle, sizeof handle) == sizeof handle;
    if (file >= 0) close(file);
    pthread_mutex_unlock(&own_files);
    if (!whole || !DONE(cu(cuCtxSetCurrent)(contexts[0]))) return;
    if (cu(cuIpcOpenMemHandle_v2)(&address, handle, 1) == CUDA_SUCCESS) INSIST(cu(cuIpcCloseMemHandle)(address));
}

static void step(struct worker *w)
{
    struct item *i = &w->items[draw(&w->seed, ITEMS)];
    uint64_t choice = draw(&w->seed, 100);
    if (choice < 70) {
        if (!i->live) allocate(w, i);
        else if (!i->stays) release(w, i);
    } else if (choice < 78) work_on(w, i);
    else if (choice < 84) ask(i);
    else if (choice < 90) failures(w);
    else if (choice < 93) context_with_memory(w);
    else if (choice < 95) change_peers(w);
    else if (choice < 97 && handles) draw(&w->seed, 4) ? import_one(w) : export_one(w, i);
    else if (wild && draw(&w->seed, 2)) disturb(w);
    else change_surroundings(w);
}

static void *work(void *data)
{
    struct worker *w = data;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        for (int n = 0; n < w->steps / ROUNDS; n++) step(w);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

/* The context of device 1 ends with all its memory, and is made anew. */
static void end_context(struct worker *workers, int threads, bool reset)
{
    if (reset) INSIST(cu(cuDevicePrimaryCtxReset_v2)(1));
    else INSIST(cu(cuDevicePrimaryCtxRelease_v2)(1));
    forget_memory_of(1, workers, threads);
    retain_and_make_pool(1);
}

static void become_a_daemon(bool both)
{
    pid_t child = fork();
    if (child && !both) _exit(0);
    if (child) {
        THAT(status_of(child) == 0);
        return;
    }
    THAT(setsid() >= 0);
    if (fork()) _exit(0);
    syscall(SYS_close_range, 0u, ~0u, 0u);
    for (int number = 0; number < 3; number++) THAT(open("/dev/null", O_RDWR) == number);
}

/* Starts this program again, in place of this process or as a daemon beside it. */
static void start_again(void)
{
    enum { MOST = 24 };
    char *words[MOST], seed[32], answer[512];
    int count = 0;
    if (!again) return;
    printf("{\"again\":%d}\n", getpid());
    fflush(stdout);
    snprintf(seed, sizeof seed, "%lld", atoll(arguments[1]) + 1);
    snprintf(answer, sizeof answer, "answer=%s", again);
    for (char **word = arguments; *word && count < MOST - 2; word++)
        if (strncmp(*word, "again", 5) && strncmp(*word, "answer=", 7)) words[count++] = *word;
    words[1] = seed;
    if (*again) words[count++] = answer;
    words[count] = NULL;
    pid_t before = getpid();
    if (*again) become_a_daemon(true);
    if (!*again || getpid() != before) {
        execv("/proc/self/exe", words);
        _exit(126);
    }
    again = NULL;
}

/* Output goes to a file whose name says that it is not complete. */
static void open_answer(void)
{
    char fresh[512];
    if (!answer_file) return;
    snprintf(fresh, sizeof fresh, "%s.part", answer_file);
    int file = open(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    THAT(file >= 0 && dup2(file, 1) == 1 && (!as_daemon || dup2(file, 2) == 2));
}

static void name_answer(void)
{
    char fresh[512];
    if (!answer_file) return;
    snprintf(fresh, sizeof fresh, "%s.part", answer_file);
    fflush(stdout);
    THAT(rename(fresh, answer_file) == 0);
}

static void read_words(int count, char **words)
{
    int count_folders = 0;
    for (int n = 0; n < count; n++) {
        if (!strcmp(words[n], "faults")) faulty = tolerant = true;
        else if (!strcmp(words[n], "wild")) wild = true;
        else if (!strcmp(words[n], "limited")) without_graphs = true;
        else if (!strcmp(words[n], "daemon")) as_daemon = true;
        else if (!strncmp(words[n], "answer=", 7)) answer_file = words[n] + 7;
        else if (!strncmp(words[n], "handles=", 8)) handles = words[n] + 8;
        else if (!strncmp(words[n], "ballast=", 8)) ballast = words[n] + 8;
        else if (!strcmp(words[n], "sizes")) sizes = true;
        else if (!strncmp(words[n], "folder=", 7) && count_folders < FOLDERS) folders[count_folders++] = words[n] + 7;
        else if (!strcmp(words[n], "again")) again = "";
        else if (!strncmp(words[n], "again=", 6)) again = words[n] + 6;
        else fprintf(stderr, "torture: unknown word %s\n", words[n]), exit(2);
    }
}

/* Prints the faults of the driver, and what this process's quota counts on each device. */
static void print_end(void)
{
    __typeof__(&vramshim_limit) limit = (__typeof__(limit))dlsym(RTLD_DEFAULT, "vramshim_limit");
    printf("{\"end\":{\"pid\":%d,\"faults\":%d,\"last\":\"%s\",\"removed\":%s,\"limits\":[", getpid(), faults_met(),
           last_fault(), removed ? "true" : "false");
    for (int device = 0; limit && device < DEVICES; device++) {
        struct vramshim_limit l;
        THAT(limit(device, &l) == 0);
        printf("%s{\"limit\":%llu,\"used\":%llu}", device ? "," : "", (unsigned long long)l.limit,
               (unsigned long long)l.used);
    }
    printf("]}}\n");
    name_answer();
}

int main(int argc, char **argv)
{
    enum { MOST = 64 };
    pthread_t ids[MOST], closer;
    if (argc < 4) return fprintf(stderr, "usage: torture SEED STEPS THREADS [WORD ...]\n"), 2;
    int steps = atoi(argv[2]), threads = atoi(argv[3]);
    THAT(threads > 0 && threads <= MOST);
    arguments = argv;
    read_words(argc - 4, argv + 4);
    if (as_daemon) become_a_daemon(false);
    open_answer();
    uint64_t seed = strtoull(argv[1], NULL, 10);
    INSIST(cu(cuInit)(0));
    for (int device = 0; device < DEVICES; device++) retain_and_make_pool(device);
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    if (wild) open_the_driver(), pthread_create(&closer, NULL, close_at_random, NULL);
    for (int t = 0; t < threads; t++) {
        int number = threads == 1 ? -1 : t;
        workers[t] = (struct worker){.seed = seed * 1000 + (unsigned)t, .number = number, .steps = steps};
        THAT(!pthread_create(&ids[t], NULL, work, &workers[t]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        if (!faulty) checkpoint();
        if (round == 0) start_again();
        if (draw(&seed, 2)) end_context(workers, threads, draw(&seed, 2));
    }
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    stop = 1;
    if (wild) pthread_join(closer, NULL);
    end_faults();
    for (int n = 0; n < FOLDERS && folders[n]; n++) change_folder(folders[n], 4);
    checkpoint();
    print_live(workers, threads);
    print_end();
    return 0;
}
