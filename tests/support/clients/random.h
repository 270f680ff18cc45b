/* Random numbers, the same in every run that starts from the same state. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

/* A number below this one, which is at most 2^31. */
static inline uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

#endif
