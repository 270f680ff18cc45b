/* A job for a real GPU: it computes numbers in memory that it allocates and frees all the time, and checks all of them.
 *
 *   compute [STEPS]     300 steps by default
 *
 * Every block is filled on its stream, used by a second stream, summed up by a kernel, and freed at once: what the work
 * wrote to pinned memory is read right after cuMemFree, which returns after the work. If kernels compute nothing (on
 * the simulated GPU), bytes are filled and copied instead. At four checkpoints the job compares its own count with the
 * library's ledger, and the ledger with the driver: `vramshim reconcile` must name every byte (GPU_CHECK_RECONCILE is
 * the program). Prints "result" lines, which depend on STEPS alone, and "agreed" lines. Exits with 1 if a number is
 * wrong.
 *
 * Only functions of cuda.h are called, each looked up by name, so the job runs on any machine with a driver. */
#include "client.h"
#include "random.h"
#include "shim.h"
#include <stdbool.h>
#include <unistd.h>

enum { STREAMS = 3, BLOCKS = 48, CHECKPOINTS = 4, SAMPLE = 4096, MIB = 1 << 20 };
enum { THREADS = 256, GRID = 264 };

CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared, CUstream stream, void **parameters, void **extra);

/* `fill` writes word i * 2654435761 + seed to each word i; `sum` adds all words to *out. PTX of 2018. */
#define WALK(name, parameters, first, body, last)                                                          \
    ".visible .entry " name "(.param .u64 words, .param .u64 count, " parameters ") {\n"                    \
    "  .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<2>;\n"                                              \
    "  ld.param.u64 %rd1, [words];\n  ld.param.u64 %rd2, [count];\n" first                                   \
    "  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %ntid.x;\n  mov.u32 %r3, %tid.x;\n"                           \
    "  mov.u32 %r4, %nctaid.x;\n  mul.lo.u32 %r4, %r4, %r2;\n  mad.lo.u32 %r1, %r1, %r2, %r3;\n"            \
    "  mov.u64 %rd6, 0;\n  cvt.u64.u32 %rd3, %r1;\n  cvt.u64.u32 %rd4, %r4;\n"                              \
    "again:\n  setp.ge.u64 %p1, %rd3, %rd2;\n  @%p1 bra over;\n"                                            \
    "  shl.b64 %rd5, %rd3, 2;\n  add.u64 %rd5, %rd5, %rd1;\n" body                                          \
    "  add.u64 %rd3, %rd3, %rd4;\n  bra again;\n"                                                           \
    "over:\n" last "  ret;\n}\n"
static const char code[] = ".version 6.2\n.target sm_60\n.address_size 64\n"
    WALK("fill", ".param .u32 seed", "  ld.param.u32 %r6, [seed];\n",
         "  cvt.u32.u64 %r5, %rd3;\n  mad.lo.u32 %r5, %r5, 2654435761, %r6;\n  st.global.u32 [%rd5], %r5;\n", "")
    WALK("sum", ".param .u64 out", "  ld.param.u64 %rd7, [out];\n",
         "  ld.global.u32 %r5, [%rd5];\n  cvt.u64.u32 %rd5, %r5;\n  add.u64 %rd6, %rd6, %rd5;\n",
         "  red.global.add.u64 [%rd7], %rd6;\n");

static CUfunction fill, sum;
static CUstream streams[STREAMS];
static CUevent event;
static unsigned char *pinned; /* what came back: a sample of bytes, then the sum */
static CUdeviceptr total_at;
static uint64_t random_state = 1, digest = 14695981039346656037ull, checked;

struct block { CUdeviceptr address; size_t size; CUstream stream; uint32_t seed; };

static _Noreturn void wrong(const char *what, const struct block *block, uint64_t found, uint64_t wanted)
{
    fprintf(stderr, "compute: %s of a block of %zu bytes at %#llx: %llu instead of %llu\n", what, block->size,
            block->address, (unsigned long long)found, (unsigned long long)wanted);
    exit(1);
}

static void launch(CUfunction function, struct block *block, void *last, CUstream stream)
{
    uint64_t count = block->size / 4;
    void *parameters[] = {&block->address, &count, last};
    CHECK(cu(cuLaunchKernel)(function, GRID, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL));
}

static void allocate(struct block *block)
{
    static const size_t steps[] = {512, 4096, 65536, MIB, 8 * MIB};
    size_t step = steps[draw(&random_state, 5)];
    *block = (struct block){.size = step * (1 + draw(&random_state, 7)), .stream = streams[draw(&random_state, STREAMS)],
                            .seed = (uint32_t)draw(&random_state, 1u << 31)};
    CHECK(cu(cuMemAlloc_v2)(&block->address, block->size));
    *count_of(0, LINEAR) += (long long)block->size;
    if (fill) launch(fill, block, &block->seed, block->stream);
    else CHECK(cu(cuMemsetD8Async)(block->address, (unsigned char)block->seed, block->size, block->stream));
}

static uint64_t wanted_sum(const struct block *block)
{
    uint64_t wanted = 0;
    for (uint32_t i = 0; i < block->size / 4; i++) wanted += (uint32_t)(i * 2654435761u + block->seed);
    return wanted;
}

/* Another stream sums the block up, copies its end, and the block is freed while that work may still run. */
static void check_and_free(struct block *block)
{
    CUstream other = streams[draw(&random_state, STREAMS)];
    size_t sample = block->size < SAMPLE ? block->size : SAMPLE;
    uint64_t *came_back = (uint64_t *)(pinned + SAMPLE);
    memset(pinned, 0, SAMPLE + sizeof *came_back);
    CHECK(cu(cuEventRecord)(event, block->stream));
    CHECK(cu(cuStreamWaitEvent)(other, event, 0));
    if (sum) {
        CHECK(cu(cuMemsetD8Async)(total_at, 0, 8, other));
        launch(sum, block, &total_at, other);
        CHECK(cu(cuMemcpyDtoHAsync_v2)(came_back, total_at, 8, other));
    }
    CHECK(cu(cuMemcpyDtoHAsync_v2)(pinned, block->address + block->size - sample, sample, other));
    CHECK(cu(cuMemFree_v2)(block->address));
    *count_of(0, LINEAR) -= (long long)block->size;
    if (sum) {
        uint64_t wanted = wanted_sum(block);
        if (*(volatile uint64_t *)came_back != wanted) wrong("the sum", block, *came_back, wanted);
    }
    size_t first = block->size - sample;
    for (size_t i = 0; i < sample; i += 4) {
        uint32_t found, wanted = block->seed % 256 * 0x01010101u;
        memcpy(&found, pinned + i, sizeof found);
        if (fill) wanted = (uint32_t)((first + i) / 4) * 2654435761u + block->seed;
        if (found != wanted) wrong("the end", block, found, wanted);
        digest = (digest ^ found) * 1099511628211ull;
    }
    checked++;
    block->address = 0;
}

/* Runs `vramshim reconcile` on this process. Returns its last line. */
static const char *reconciled(void)
{
    static char line[512];
    char command[1024], text[512];
    const char *program = getenv("GPU_CHECK_RECONCILE");
    if (!program) return "not asked";
    snprintf(command, sizeof command, "env -u LD_PRELOAD '%s' reconcile %d --bound 128MiB 2>&1", program,
             (int)getpid());
    FILE *pipe = popen(command, "r");
    line[0] = 0;
    while (pipe && fgets(text, sizeof text, pipe))
        if (text[0] != '\n') snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
    if (pipe && pclose(pipe) == 0) return line;
    fprintf(stderr, "compute: not reconciled: %s\n", line);
    exit(1);
}

/* The job's count, the ledger and the driver must say the same. Without the library nothing is compared. */
static void agree(int number, int live)
{
    struct vramshim_stats stats;
    int (*ask)(int, const char *, struct vramshim_stats *) = dlsym(RTLD_DEFAULT, "vramshim_class_stats");
    if (!ask) return;
    long long own_bytes = *count_of(0, LINEAR);
    if (ask(0, "linear", &stats) || (long long)stats.requested != own_bytes || stats.live != (uint64_t)live) {
        fprintf(stderr, "compute: the ledger has %llu bytes in %llu allocations, the job %lld in %d\n",
                (unsigned long long)stats.requested, (unsigned long long)stats.live, own_bytes, live);
        exit(1);
    }
    printf("agreed: checkpoint %d: %lld bytes in %d allocations; reconciled: %s\n", number, own_bytes, live,
           reconciled());
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int steps = argc > 1 ? atoi(argv[1]) : 300;
    if (steps < CHECKPOINTS) return fprintf(stderr, "usage: compute [STEPS]\n"), 2;
    CUmodule module;
    start_cuda();
    for (int i = 0; i < STREAMS; i++) CHECK(cu(cuStreamCreate)(&streams[i], NON_BLOCKING));
    CHECK(cu(cuEventCreate)(&event, 2));
    CHECK(cu(cuMemAllocHost_v2)((void **)&pinned, SAMPLE + 8));
    CHECK(cu(cuMemAlloc_v2)(&total_at, 8));
    *count_of(0, LINEAR) += 8;
    if (!cu(cuModuleLoadData)(&module, code)) {
        CHECK(cu(cuModuleGetFunction)(&fill, module, "fill"));
        CHECK(cu(cuModuleGetFunction)(&sum, module, "sum"));
    }
    /* A kernel that computes nothing leaves zeros. */
    struct block trial = {.size = 64, .seed = 1, .stream = streams[0]};
    CHECK(cu(cuMemAlloc_v2)(&trial.address, trial.size));
    CHECK(cu(cuMemsetD8Async)(trial.address, 0, trial.size, trial.stream));
    if (fill) launch(fill, &trial, &trial.seed, trial.stream);
    CHECK(cu(cuMemcpyDtoHAsync_v2)(pinned, trial.address, 4, trial.stream));
    CHECK(cu(cuMemFree_v2)(trial.address));
    if (pinned[0] != 1) fill = sum = NULL;
    printf("result: kernels compute%s\n", fill ? "" : " nothing, bytes are filled and copied");

    static struct block blocks[BLOCKS];
    for (int step = 0; step < steps; step++) {
        struct block *block = &blocks[draw(&random_state, BLOCKS)];
        if (block->address) check_and_free(block);
        allocate(block);
        if ((step + 1) % (steps / CHECKPOINTS) == 0 && (step + 1) / (steps / CHECKPOINTS) <= CHECKPOINTS) {
            int live = 1;
            for (int i = 0; i < BLOCKS; i++) live += blocks[i].address != 0;
            printf("result: step %d: %llu blocks checked, digest %016llx\n", step + 1, (unsigned long long)checked,
                   (unsigned long long)digest);
            agree((step + 1) / (steps / CHECKPOINTS), live);
        }
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].address) check_and_free(&blocks[i]);
    CHECK(cu(cuMemFree_v2)(total_at));
    printf("result: %llu blocks checked, digest %016llx\n", (unsigned long long)checked, (unsigned long long)digest);
    return 0;
}
