/* The functions that a library must export to be a contender of pair.c. A result of pair_allocate or pair_release other
 * than 0 is an error and ends the run. The library may explain the error on stderr. */
#ifndef PAIR_H
#define PAIR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PAIR_EXPORT __attribute__((visibility("default")))

/* Called once, before any thread is started. Returns NULL, or the reason why the library cannot be used. */
PAIR_EXPORT const char *pair_start(void);
PAIR_EXPORT int pair_allocate(unsigned long long *address, size_t size);
PAIR_EXPORT int pair_release(unsigned long long address, size_t size);

#ifdef __cplusplus
}
#endif

#endif
