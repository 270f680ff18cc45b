"""Training with the library's allocator for PyTorch, which gets a request, with its stream, for every tensor."""

import ctypes
import os
import sys

import torch

library = next(path for path in os.environ["LD_PRELOAD"].split(":") if path.endswith("libvramshim.so"))
allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "vramshim_torch_alloc", "vramshim_torch_free")
torch.cuda.memory.change_current_allocator(allocator)
shim = ctypes.CDLL(library)
allocator.allocator().set_record_stream_fn(ctypes.cast(shim.vramshim_torch_record_stream, ctypes.c_void_p).value)

from account import account, checkpoint  # noqa: E402  (the allocator must be set before CUDA is used)


class Stats(ctypes.Structure):
    names = "requested requested_peak allocated allocated_peak reserved reserved_peak free_inside largest live failures"
    _fields_ = [(name, ctypes.c_uint64) for name in names.split()]


def live():
    out = Stats()
    assert shim.vramshim_stats(0, ctypes.byref(out)) == 0
    return out.live


def linear():
    rows = account()["totals"]
    return sum(row["requested"]["current"] for row in rows if (row["device"], row["class"]) == (0, "linear"))


torch.empty(1, device="cuda")  # what CUDA itself needs is there from now on
before, bytes_before = live(), linear()
kept = [torch.empty(1000 + 512 * number, dtype=torch.uint8, device="cuda") for number in range(50)]
assert live() == before + 50, "a tensor is an allocation of its own"
checkpoint({(0, "linear"): bytes_before + sum(tensor.numel() for tensor in kept)}, "50 tensors")
del kept
assert live() == before
checkpoint({(0, "linear"): bytes_before}, "none of them")

torch.manual_seed(7)
side = torch.cuda.Stream()
for _ in range(20):
    with torch.cuda.stream(side):
        tensor = torch.zeros(1 << 20, device="cuda")
        other = tensor + 1
    tensor.record_stream(torch.cuda.default_stream())
    del tensor, other

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)).cuda()
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(8):
    loss = model(torch.randn(16 + 8 * step, 256, device="cuda")).square().mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    print(f"step {step} loss {loss.item():.6f}")
torch.cuda.synchronize()
numbers = torch.arange(1_000_003, dtype=torch.int64)
assert torch.equal(numbers.to("cuda").cpu(), numbers), "bytes changed on the way"
sys.stdout.flush()
os._exit(0)
