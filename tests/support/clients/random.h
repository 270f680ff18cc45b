/* Random numbers. The same state gives the same sequence in every run. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

/* A random number less than `below`, which is at most 2^31. */
static inline uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

#endif
