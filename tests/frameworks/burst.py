"""Makes a tensor of 64 MiB, frees it, and makes more tensors than PyTorch's list has room for, and others while what the list
still has is written. Prints how many tensors are missing before and after those others, and how many PyTorch counts.
"""

import json

import torch
from vramshim import record

tensor = torch.empty(1, device="cuda")
recorder = record._recorder
record.drain()


def make(count):
    for _ in range(count):
        torch.empty(1, device="cuda")


count, catch_up = recorder._count, recorder._catch_up


def catch_up_late(*arguments):
    make(1000)
    return catch_up(*arguments)


# The thread sees nothing new.
recorder._count = lambda: (1, recorder.drained_events)
torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
make(recorder.entries)
recorder._count, recorder._catch_up = count, catch_up_late
record.drain()
before = recorder.lost
make(1)
record.drain()
made = torch.cuda.memory_stats()["allocation.all.allocated"]
print(json.dumps({"before": before, "after": recorder.lost, "made": made}))
