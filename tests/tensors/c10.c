/* Stands for PyTorch's libc10_cuda.so, of a version that has only the function that throws a RuntimeError. The function
 * prints what it would throw and ends the process, because it must not return. */
#include <stdio.h>
#include <stdlib.h>

void _ZN3c106detail14torchCheckFailEPKcS2_jS2_(const char *function, const char *file, unsigned line,
                                               const char *message)
{
    printf("thrown by %s (%s, %u): %s\n", function, file, line, message);
    fflush(stdout);
    /* A vector instruction of printf fails if the stack is not aligned as at a call. */
    exit(0);
}
