"""A job in Python that runs out of memory, so that the lines of code that hold it can be named:

  vramshim run --sim 24GiB --stacks python -- python3 tests/deaths/lines.py; vramshim why vramshim-lines

The calls go through PyDLL, which keeps Python's lock, as torch's own allocations do not.
"""

import ctypes

cuda = ctypes.PyDLL("libcuda.so.1")
GIB = 1 << 30


def begin():
    context = ctypes.c_void_p()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)


def allocate(size):
    address = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    if result:
        raise MemoryError(f"CUDA error {result}")
    return address.value


def load_weights():
    return [allocate(2 * GIB) for _ in range(9)]


def load_cache():
    return [allocate(GIB) for _ in range(3)]


def forward():
    return allocate(8 * GIB)


begin()
weights = load_weights()
cache = load_cache()
forward()
