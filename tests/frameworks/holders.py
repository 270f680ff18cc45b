"""Holds tensors that two lines allocate, and memory that PyTorch does not see. Prints PyTorch's count as JSON.

usage: holders.py [killed|history]
  killed    ends by SIGKILL, long enough after the tensors were allocated
  history   records PyTorch's memory history itself, and finds its own events in it
"""

import ctypes
import json
import os
import signal
import sys
import time

import torch

MIB = 1 << 20


def weights():
    return [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(10)]  # line: weights


def activations():
    return torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")  # line: activations


def line_of(mark):
    with open(__file__) as source:
        return next(number for number, line in enumerate(source, 1) if line.endswith(f"# line: {mark}\n"))


word = sys.argv[1:2]
if word == ["history"]:
    torch.cuda.memory._record_memory_history()
held = weights()
beside = ctypes.c_void_p()
assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(beside), ctypes.c_size_t(5 * MIB)) == 0
# PyTorch's clock and the journal's differ by less than this.
time.sleep(0.05)
for _ in range(300):
    activations()
if word == ["history"]:
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    assert sum(event["action"] == "alloc" for event in events) == 310, len(events)
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
stats = torch.cuda.memory_stats()
told = {"peak": stats["requested_bytes.all.peak"], "allocations": stats["allocation.all.allocated"], "beside": 5 * MIB}
print(json.dumps(told | {mark: line_of(mark) for mark in ("weights", "activations")}), flush=True)
if word == ["killed"]:
    # What was allocated more than a second ago is on disk.
    time.sleep(2.5)
    for _ in range(50):
        activations()
    os.kill(os.getpid(), signal.SIGKILL)
del held[:]
