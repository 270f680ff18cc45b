"""On a device of 8 GiB a step runs out of memory, and the next smaller one fits, as under PyTorch's own allocator.

The failed step leaves nothing but cuBLAS's workspace of 32 MiB, which lies between its large tensors.
"""

import gc

import calm_end  # noqa: F401
import torch

MIB = 1 << 20


def step(batch):
    layer = torch.nn.Linear(4096, 16384, device="cuda")
    inputs = torch.randn(batch, 4096, device="cuda", requires_grad=True)
    torch.relu(layer(inputs)).sum().backward()


failures = 0
for batch in (65536, 58982):
    try:
        step(batch)
    except torch.OutOfMemoryError:
        failures += 1
    gc.collect()
    torch.cuda.empty_cache()
    held, reserved = torch.cuda.memory_allocated() // MIB, torch.cuda.memory_reserved() // MIB
    assert reserved <= held + 8, f"{held} MiB allocated, {reserved} MiB reserved"
step(53083)
print(f"fits after {failures} failures", flush=True)
