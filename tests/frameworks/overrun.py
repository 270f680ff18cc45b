"""Makes a tensor of 64 MiB, frees it, and makes more tensors than PyTorch's list has room for, while the recorder looks away.
Prints how many tensors PyTorch counts.
"""

import json

import torch
from vramshim import record

torch.empty(1, device="cuda")
recorder = record._recorder
record.drain()
count = recorder._count
recorder._count = lambda: (1, recorder.drained_events)
torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
for _ in range(recorder.entries):
    torch.empty(1, device="cuda")
recorder._count = count
record.drain()
print(json.dumps({"made": torch.cuda.memory_stats()["allocation.all.allocated"]}))
