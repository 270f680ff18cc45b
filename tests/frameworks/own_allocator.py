"""Sets an allocator of the job's own before it uses CUDA. That one serves all tensors, and a second one comes too late."""

import ctypes

import torch
from torch.cuda import memory

runtime = ctypes.CDLL(None)
calls = {"malloc": 0, "free": 0}


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
def malloc(size, _device, _stream):
    calls["malloc"] += 1
    address = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    return address.value


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
def free(address, _size, _device, _stream):
    calls["free"] += 1
    assert runtime.cudaFree(ctypes.c_void_p(address)) == 0


def set_own():
    functions = (ctypes.cast(function, ctypes.c_void_p).value for function in (malloc, free))
    memory.change_current_allocator(memory._CUDAAllocator(torch._C._cuda_customAllocator(*functions)))


set_own()
tensor = torch.ones(1000, device="cuda")
assert calls == {"malloc": 1, "free": 0}, calls
del tensor
assert calls == {"malloc": 1, "free": 1}, calls
for refused, words in ((set_own, "already initialized"), (torch.cuda.memory_allocated, "does not yet support")):
    try:
        refused()
    except RuntimeError as problem:
        assert words in str(problem), problem
    else:
        raise SystemExit(f"done: {refused}")
