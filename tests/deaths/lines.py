"""A job in Python that runs out of memory, so that the lines of code that hold it can be named:

  vramshim run --sim 24GiB --stacks python -- python3 tests/deaths/lines.py; vramshim why vramshim-lines
"""

import ctypes

# Calls through PyDLL keep Python's lock, as torch's own allocations do not.
cuda = ctypes.PyDLL("libcuda.so.1")
context = ctypes.c_void_p()
GIB = 1 << 30


def allocate(size):
    result = cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size))
    if result:
        raise MemoryError(f"CUDA error {result}")


def load_weights():
    return [allocate(2 * GIB) for _ in range(9)]


def load_cache():
    return [allocate(GIB) for _ in range(3)]


assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
load_weights()
load_cache()
allocate(8 * GIB)
