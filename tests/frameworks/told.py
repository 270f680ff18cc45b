"""Tensors under a limit. What nvidia-ml-py, torch.cuda.mem_get_info and torch's device properties tell agrees with the
simulator's table to the byte at every moment: told.py LIMIT_BYTES
"""

import os
import random
import sys

import pynvml
import torch
from account import account, truth

limit = int(sys.argv[1])
pynvml.nvmlInit()
uuid = "GPU-" + str(torch.cuda.get_device_properties(0).uuid)
handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
chance, tensors, most = random.Random(1), [], 0
for moment in range(30):
    if tensors and chance.random() < 0.3:
        tensors.pop(chance.randrange(len(tensors)))
        torch.cuda.empty_cache()
    try:
        tensors.append(torch.empty(chance.randrange(1, 256 << 20), dtype=torch.uint8, device="cuda:0"))
    except torch.OutOfMemoryError:
        tensors.clear()
    device = truth()["devices"][0]
    used = device["total"] - device["free"]
    most = max(most, used)
    linear = [row for row in account()["totals"] if (row["device"], row["class"]) == (0, "linear")]
    inside = sum(row["reserved"]["current"] - row["allocated"]["current"] for row in linear)
    for version in (None, pynvml.nvmlMemory_v2):
        told = pynvml.nvmlDeviceGetMemoryInfo(handle, version=version)
        assert (told.used, told.free, told.total) == (used, limit - used, limit), (moment, told, used)
    assert torch.cuda.mem_get_info(0) == (limit - used + inside, limit), (moment, used, inside)
    assert torch.cuda.get_device_properties(0).total_memory == limit
    processes = {one.pid: one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    assert processes == {os.getpid(): device["used_by_process"]}, (moment, processes)
    print(f"agreed: moment {moment}, {used} bytes used")
assert limit // 2 < most <= limit, f"the limit was never near: {most}"
