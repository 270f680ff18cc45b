/* The allocator that a program of scripts/bench calls, chosen by name:
 *
 *   driver   cuMemAlloc_v2 and cuMemFree_v2 of the library that is loaded as libcuda.so.1
 *   tensors  vramshim_torch_alloc and vramshim_torch_free of the preloaded library, on the default stream
 *   async    cuMemAllocAsync and cuMemFreeAsync, a stream for each thread
 *   FILE.so  pair_allocate, pair_release and pair_start of that library (pair.h) */
#ifndef CONTENDER_H
#define CONTENDER_H

#include <stddef.h>
#include <stdint.h>

/* 0, or the error. */
extern int (*allocate)(unsigned long long *address, size_t size);
extern int (*release)(unsigned long long address, size_t size);

/* Prints "refused WHY" and ends the program. */
__attribute__((noreturn, format(printf, 1, 2))) void refused(const char *format, ...);

void open_contender(const char *name);
/* Each thread calls this before it allocates. */
void enter_thread(void);

uint64_t now_ns(void); /* of the clock that never goes back */

#endif
