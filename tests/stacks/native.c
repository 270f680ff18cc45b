/* Native stacks and marks.
 *
 *   native deep N      allocates N calls deep
 *   native threads     allocates in threads, on small stacks
 *   native stacks      allocates on a stack that is not the thread's
 *   native marks       sets marks before and after the first call that concerns memory
 *   native only_marks  sets marks and makes no call that concerns memory
 *   native nvtx        sets marks as a job with NVTX does
 *   native full FILE   sets marks while FILE fills the disk, and after it is gone; with one more argument, one mark before */
#include "client.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <ucontext.h>
#include <unistd.h>
#include <wchar.h>

static CUdeviceptr allocate(size_t size)
{
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, size));
    return address;
}

/* The result is used after each call, so that no call is a jump. */
__attribute__((noinline)) int innermost(size_t size) { return allocate(size) != 0; }
__attribute__((noinline)) int middle(size_t size) { return innermost(size) + 1; }
__attribute__((noinline)) int recurse(int depth)
{
    volatile char frame[64 + 512 * (depth % 3)];
    frame[0] = 1;
    return (depth ? recurse(depth - 1) : middle(1 << 20)) + frame[0];
}

static void *in_thread(void *unused)
{
    start_cuda();
    recurse(5);
    return unused;
}

static ucontext_t main_context, other;
static void on_other_stack(void) { recurse(2); }

typedef void (*Mark)(const char *);

/* What NVTX's headers have in each program: the tables of functions, and the function that gives access to them. */
static void *functions[6][16];
static void **table[6][16];
static const unsigned sizes[6] = {0, 16, 0, 0, 0, 16};

static int module_functions(int module, void ****out, unsigned *size)
{
    if (module < 1 || module > 5 || !sizes[module]) return 0;
    for (unsigned number = 0; number < sizes[module]; number++) table[module][number] = &functions[module][number];
    *out = table[module];
    *size = sizes[module];
    return 1;
}

static const struct {
    size_t size;
    int (*module_functions)(int, void ****, unsigned *);
} callbacks = {sizeof callbacks, module_functions};

static const void *export_table(uint32_t id) { return id == 1 ? &callbacks : NULL; }

struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
};

static void nvtx(void)
{
    void *library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
    THAT(library);
    int (*initialize)(const void *(*)(uint32_t)) =
        (int (*)(const void *(*)(uint32_t)))dlsym(library, "InitializeInjectionNvtx2");
    THAT(initialize && initialize(NULL) == 0 && initialize(export_table) == 1);
    void (*mark_ex)(struct attributes *) = functions[1][1];
    Mark mark = functions[1][2];
    void (*mark_wide)(const wchar_t *) = functions[1][3];
    uint64_t (*range_start)(const char *) = functions[1][5];
    void (*range_end)(uint64_t) = functions[1][7];
    int (*push)(const char *) = functions[1][9];
    int (*pop)(void) = functions[1][11];
    int (*domain_push)(void *, struct attributes *) = functions[5][4];
    int (*domain_pop)(void *) = functions[5][5];
    void *(*register_string)(void *, const char *) = functions[5][10];
    void *(*create)(const char *) = functions[5][12];
    struct attributes event = {3, sizeof event, 0, 0, 0, 0, 0, 0, 1, "attributes"};

    /* Before the first call that concerns memory: no effect, but the depths are right. */
    mark("early");
    THAT(push("early") == 0 && push("early") == 1 && pop() == 1 && pop() == 0 && pop() == -2);
    THAT(!getenv("ONLY_MARKS") || (_exit(0), 0));
    start_cuda();
    allocate(4096);
    mark("plain");
    mark_ex(&event);
    mark_wide(L"wide \u00e4");
    mark(NULL);
    uint64_t long_range = range_start("long");
    THAT(push("outer") == 0);
    void *domain = create("domain");
    event.message_type = 3;
    event.message = register_string(domain, "registered");
    /* The ranges of a domain are counted by themselves. */
    THAT(domain_push(domain, &event) == 0 && push("inner") == 1);
    THAT(domain_pop(domain) == 0 && domain_pop(domain) == -2 && pop() == 1 && pop() == 0);
    range_end(long_range);
    for (int depth = 0; depth < 100; depth++) THAT(push("deep") == depth);
    for (int depth = 99; depth >= 0; depth--) THAT(pop() == depth);
    THAT(pop() == -2);
    event.size = 8; /* an older structure without a message */
    mark_ex(&event);
}

static void full(Mark mark, const char *path, int is_begun)
{
    enum { LINES = 40, TEXT = 200 };
    static const char bytes[1 << 16];
    char text[TEXT];
    start_cuda();
    allocate(4096);
    if (is_begun) mark("before");
    int file = open(path, O_WRONLY | O_CREAT, 0600);
    THAT(file >= 0);
    while (write(file, bytes, sizeof bytes) > 0) {}
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    for (int line = 0; line < LINES; line++) {
        text[0] = (char)('0' + line);
        mark(text);
    }
    mark("epoch");
    THAT(close(file) == 0 && unlink(path) == 0);
    /* The library tries again after a second. */
    usleep(1100 * 1000);
    mark("epoch");
    mark("later");
    mark("epoch");
}

int main(int count, char **arguments)
{
    const char *scene = arguments[1];
    if (!strcmp(scene, "nvtx")) return nvtx(), 0;
    Mark mark = (Mark)dlsym(RTLD_DEFAULT, "vramshim_mark");
    if (!strcmp(scene, "full")) return full(mark, arguments[2], count > 3), 0;
    if (strstr(scene, "marks")) {
        THAT(mark);
        mark("before the first call");
        if (!strcmp(scene, "only_marks")) return 0;
        start_cuda();
        allocate(4096);
        mark("epoch 1");
        mark("tab\tand\nline\\");
        mark("epoch 1");
        mark(NULL);
        char text[1000];
        memset(text, 'x', sizeof text - 1);
        text[sizeof text - 1] = 0;
        mark(text);
        for (int step = 0; count > 2 && step < atoi(arguments[2]); step++) mark("many");
        return 0;
    }
    start_cuda();
    if (!strcmp(scene, "deep")) {
        recurse(atoi(arguments[2]));
    } else if (!strcmp(scene, "threads")) {
        pthread_t threads[8];
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 128 << 10);
        for (int number = 0; number < 8; number++) THAT(!pthread_create(&threads[number], &small, in_thread, NULL));
        for (int number = 0; number < 8; number++) pthread_join(threads[number], NULL);
    } else {
        static char stack[256 << 10];
        getcontext(&other);
        other.uc_stack.ss_sp = stack;
        other.uc_stack.ss_size = sizeof stack;
        other.uc_link = &main_context;
        makecontext(&other, on_other_stack, 0);
        swapcontext(&main_context, &other);
    }
    return 0;
}
