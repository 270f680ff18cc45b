"""Runs out of memory in a way that only PyTorch's tensors show, for `vramshim run --torch record`. `leak`: each step keeps
a small tensor, which PyTorch packs into large segments. `fraction`: PyTorch's own limit refuses a request, and no call of
CUDA fails.
"""

import sys

import torch

MIB = 1 << 20


def keep(kept):
    kept.append(torch.empty(8 * MIB, dtype=torch.uint8, device="cuda"))


def leak():
    kept = []
    while True:
        temporary = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
        keep(kept)
        del temporary


def fraction():
    torch.cuda.set_per_process_memory_fraction(0.25)
    held = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
    del held


{"leak": leak, "fraction": fraction}[sys.argv[1]]()
