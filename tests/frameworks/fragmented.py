"""Out of memory while PyTorch's cache holds enough free memory, but in small pieces. Prints PyTorch's own figures."""

import json

import torch

weights = [torch.empty(2 << 30, dtype=torch.uint8, device="cuda") for _ in range(6)]
# Two of these share a segment of 20 MiB. Each segment keeps one, so that PyTorch cannot give it back.
pieces = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda") for _ in range(1100)]
del pieces[::2]
try:
    torch.empty(6 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print(json.dumps({"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}))
    raise
