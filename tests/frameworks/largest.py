"""Holds most in one function at its peak, and in another one when it runs out of memory. Prints which function that is by
PyTorch's own snapshot: a line of JSON for each of the two moments. Needs `vramshim run --torch record`, which has PyTorch
record its memory history.

Each tensor is as large as a segment, so that PyTorch's tensors and its segments are the same bytes.
"""

import collections
import json

import torch

MIB = 1 << 20
cuda = torch.cuda


def weights():
    return [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(20)]


def activations():
    return [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(60)]


def optimizer():
    return [torch.empty(128 * MIB, dtype=torch.uint8, device="cuda") for _ in range(24)]


def too_much():
    return torch.empty(100 << 30, dtype=torch.uint8, device="cuda")


NAMES = ("weights", "activations", "optimizer")


def tell(moment):
    held = collections.Counter()
    for segment in cuda.memory._snapshot()["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                frames = block["frames"]
                held[next(frame["name"] for frame in frames if frame["name"] in NAMES)] += block["size"]
    ((name, size),) = held.most_common(1)
    print(json.dumps({"moment": moment, "function": name, "bytes": size}), flush=True)


kept = weights()
step = activations()
tell("peak")
del step
kept += optimizer()
try:
    too_much()
except cuda.OutOfMemoryError:
    tell("failure")
    raise
