/* Allocates and frees without end, and prints each event after the call has returned: "THREAD a|f ADDRESS SIZE", with
 * one write(2) for each line.
 *
 *   steady THREADS SEED */
#include "client.h"
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HELD = 64 };
static CUcontext context;
static unsigned seed;

static void told(char what, CUdeviceptr address, size_t size)
{
    char line[96];
    int length = snprintf(line, sizeof line, "%ld %c %llu %zu\n", syscall(SYS_gettid), what, address, size);
    if (write(1, line, (size_t)length) != length) _exit(1);
}

static void *work(void *number)
{
    CUdeviceptr held[HELD] = {0};
    size_t sizes[HELD];
    unsigned state = seed * 7919u + (unsigned)(size_t)number;
    CHECK(cuCtxSetCurrent(context));
    for (;;) {
        state = state * 1664525u + 1013904223u;
        int place = (int)(state >> 20) % HELD;
        if (held[place]) {
            CHECK(cuMemFree_v2(held[place]));
            told('f', held[place], sizes[place]);
            held[place] = 0;
        } else {
            sizes[place] = (state >> 8) % 100000 + 1;
            CHECK(cuMemAlloc_v2(&held[place], sizes[place]));
            told('a', held[place], sizes[place]);
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "usage: steady THREADS SEED\n"), 2;
    seed = (unsigned)atoi(argv[2]);
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    pthread_t id;
    for (size_t n = 1; n < (size_t)atoi(argv[1]); n++) pthread_create(&id, NULL, work, (void *)n);
    work(NULL);
}
