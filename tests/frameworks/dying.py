"""Runs out of memory in a way that only PyTorch's tensors show, for `vramshim run --torch record`. `leak`: each step keeps
a small tensor, which PyTorch packs into large segments. `fraction`: PyTorch's own limit refuses a request, and no call of
CUDA fails.
"""

import sys

import torch

kept = []


def tensor(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")


def keep():
    kept.append(tensor(8))


if sys.argv[1] == "fraction":
    torch.cuda.set_per_process_memory_fraction(0.25)
    kept.append(tensor(64))
    tensor(1024)
while True:
    temporary = [tensor(4) for _ in range(4)]
    keep()
    del temporary
