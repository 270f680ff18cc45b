/* What a library brings to be a contender of pair.c. A result other than 0 ends the run; what it means goes to stderr. */
#ifndef PAIR_H
#define PAIR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PAIR_EXPORT __attribute__((visibility("default")))

/* Called once, before any thread: NULL, or why it cannot be used. */
PAIR_EXPORT const char *pair_start(void);
PAIR_EXPORT int pair_allocate(unsigned long long *address, size_t size);
PAIR_EXPORT int pair_release(unsigned long long address, size_t size);

#ifdef __cplusplus
}
#endif

#endif
