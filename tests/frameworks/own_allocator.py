"""Sets an allocator of the job's own before it uses CUDA. That one serves all tensors, and a second one comes too late."""

import ctypes

import torch
from torch.cuda import memory

runtime = ctypes.CDLL(None)
malloc, free = runtime.cudaMalloc, runtime.cudaFree
calls = {"malloc": 0, "free": 0}


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
def own_malloc(size, _device, _stream):
    calls["malloc"] += 1
    address = ctypes.c_void_p()
    assert malloc(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    return address.value


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
def own_free(address, _size, _device, _stream):
    calls["free"] += 1
    assert free(ctypes.c_void_p(address)) == 0


def allocator():
    find = lambda function: ctypes.cast(function, ctypes.c_void_p).value
    return memory._CUDAAllocator(torch._C._cuda_customAllocator(find(own_malloc), find(own_free)))


memory.change_current_allocator(allocator())
tensor = torch.ones(1000, device="cuda")
assert calls == {"malloc": 1, "free": 0}, calls
del tensor
assert calls == {"malloc": 1, "free": 1}, calls
try:
    memory.change_current_allocator(allocator())
except RuntimeError as problem:
    assert "already initialized" in str(problem), problem
else:
    raise SystemExit("a second allocator was accepted")
try:
    torch.cuda.memory_allocated()
except RuntimeError as problem:
    assert "does not yet support" in str(problem), problem
else:
    raise SystemExit("another allocator's figures were told")
print("served", flush=True)
