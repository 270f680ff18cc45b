/* The book: the bytes that each device has allocated, and an entry for each allocation. There is one lock. A slow layer
 * sleeps while it holds the lock, as a layer with a lock for all processes would. */
#include "layer.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { DEVICES = 16, CHAINS = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t of_process[DEVICES], *used = of_process;
static struct entry *chains[CHAINS];

static struct entry **chain_of(uint64_t key) { return &chains[(key >> 9 ^ key >> 4) % CHAINS]; }

static struct entry **find(enum kind kind, uint64_t key)
{
    struct entry **at = chain_of(key);
    while (*at && ((*at)->kind != kind || (*at)->key != key)) at = &(*at)->next;
    return at;
}

static void begin(void)
{
    pthread_mutex_lock(&lock);
    if (habits.slow_microseconds)
        nanosleep(&(struct timespec){.tv_nsec = (long)habits.slow_microseconds * 1000}, NULL);
}

bool book_charge(int device, uint64_t size)
{
    if (device < 0 || device >= DEVICES) return true;
    scheduler_admit();
    begin();
    uint64_t held = used[device];
    bool fits;
    do fits = habits.has_no_quota || (size <= habits.limit && held <= habits.limit - size);
    while (fits && !__atomic_compare_exchange_n(&used[device], &held, held + size, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    pthread_mutex_unlock(&lock);
    return fits;
}

static void take_off(int device, uint64_t size) { __atomic_fetch_sub(&used[device], size, __ATOMIC_SEQ_CST); }

void book_share(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *shared = MAP_FAILED;
    if (!ftruncate(file, sizeof of_process)) shared = mmap(NULL, sizeof of_process, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) abort();
    used = shared;
}

void book_refund(int device, uint64_t size)
{
    if (device < 0 || device >= DEVICES) return;
    begin();
    take_off(device, size);
    pthread_mutex_unlock(&lock);
}

void book_enter(struct entry entry)
{
    struct entry *made = malloc(sizeof *made);
    *made = entry;
    pthread_mutex_lock(&lock);
    struct entry **chain = chain_of(entry.key);
    made->next = *chain;
    *chain = made;
    pthread_mutex_unlock(&lock);
}

bool book_take(enum kind kind, uint64_t key, struct entry *out)
{
    pthread_mutex_lock(&lock);
    struct entry **at = find(kind, key), *found = *at;
    if (found) {
        *out = *found;
        if (found->references > 1) found->references--; /* `out` has the old number: this was not the last reference */
        else *at = found->next, free(found);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool book_retain(uint64_t handle)
{
    pthread_mutex_lock(&lock);
    struct entry *found = *find(HANDLE, handle);
    if (found) found->references++;
    pthread_mutex_unlock(&lock);
    return found;
}

void book_forget(bool (*gone)(const struct entry *, const void *), const void *data)
{
    begin();
    for (int chain = 0; chain < CHAINS; chain++)
        for (struct entry **at = &chains[chain]; *at;) {
            struct entry *entry = *at;
            if (!gone(entry, data)) { at = &entry->next; continue; }
            if (entry->device >= 0) take_off(entry->device, entry->size);
            *at = entry->next;
            free(entry);
        }
    pthread_mutex_unlock(&lock);
}

uint64_t book_used(int device)
{
    if (device < 0 || device >= DEVICES) return 0;
    pthread_mutex_lock(&lock);
    uint64_t bytes = used[device];
    pthread_mutex_unlock(&lock);
    return bytes;
}

API uint64_t layer_used(int device) { return book_used(device); }
API uint64_t layer_limit(void) { return habits.limit; }
