/* Threads that ask for memory and return it, under a sanitizer: prints how many bytes two of them got. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *asks(void *sum)
{
    for (int i = 0; i < 1000; i++) {
        void *block = malloc(4096);
        if (block) *(size_t *)sum += 4096;
        free(block);
    }
    return sum;
}

int main(void)
{
    pthread_t threads[2];
    size_t sums[2] = {0, 0};
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, asks, &sums[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("%zu %zu\n", sums[0], sums[1]);
    return 0;
}
