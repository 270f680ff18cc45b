"""Allocates and frees at a depth of 20 functions. Prints the nanoseconds of a pair in each round.

    stacks.py ROUNDS PAIRS
"""
import ctypes
import sys
import time

# PyDLL keeps Python's lock during a call, without which there are no Python frames.
cuda = ctypes.PyDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0


def work(depth, rounds, pairs):
    if depth > 1:
        return work(depth - 1, rounds, pairs)
    allocate, free, address, size = cuda.cuMemAlloc_v2, cuda.cuMemFree_v2, ctypes.c_uint64(), ctypes.c_size_t(4096)
    reference = ctypes.byref(address)
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for _ in range(pairs):
            allocate(reference, size)
            free(address)
        print((time.perf_counter_ns() - begin) / pairs)


# The module is the twentieth frame.
work(19, int(sys.argv[1]), int(sys.argv[2]))
