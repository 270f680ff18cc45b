"""A job whose functions hold different amounts of memory, with marks by torch.cuda.nvtx.

With the argument `held` it ends while all of it is live."""
import os
import sys

import torch


def parameters():
    return [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]


def buffers():
    return torch.empty(32 << 20, dtype=torch.uint8, device="cuda")


def too_much():
    torch.empty(100 << 30, dtype=torch.uint8, device="cuda")


held = parameters()
torch.cuda.nvtx.mark("built")
with torch.cuda.nvtx.range("step 1"):
    held.append(buffers())
handle = torch.cuda.nvtx.range_start("step 2")
try:
    too_much()
except torch.OutOfMemoryError:
    pass
torch.cuda.nvtx.range_end(handle)
if sys.argv[1:] == ["held"]:
    os._exit(0)
