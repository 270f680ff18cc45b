"""Holds tensors, memory that PyTorch does not see, and two devices' memory; runs out of memory once.

Writes PyTorch's own snapshot to the file that the argument names, if there is one. Prints PyTorch's figures as JSON.
"""

import ctypes
import json
import sys
import time

import torch

MIB = 1 << 20


def layer(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")  # line: layer


if sys.argv[1:]:
    before = layer(3 * MIB)
    torch.cuda.memory._record_memory_history()
kept = [layer(size) for size in (5 * MIB, 300 * 1024, 700, 21 * MIB)]
for size in range(1, 60):
    layer(size * 100_000)
del kept[1]
beside = ctypes.c_void_p()
assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(beside), ctypes.c_size_t(5 * MIB)) == 0
# PyTorch's clock and the journal's differ by less than this.
time.sleep(0.05)
try:
    layer(1 << 45)
except torch.OutOfMemoryError:
    pass
if sys.argv[1:]:
    torch.cuda.memory._dump_snapshot(sys.argv[1])
stats = torch.cuda.memory_stats()
with open(__file__) as source:
    line = next(number for number, line in enumerate(source, 1) if line.endswith("# line: layer\n"))
print(
    json.dumps(
        {
            "peak": stats["requested_bytes.all.peak"],
            "now": stats["requested_bytes.all.current"],
            "reserved": stats["reserved_bytes.all.current"],
            "allocated": stats["allocated_bytes.all.current"],
            "beside": 5 * MIB,
            "line": line,
        }
    ),
    flush=True,
)
