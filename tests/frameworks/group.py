"""Three PyTorch processes on one device under one limit. nvidia-ml-py, torch.cuda.mem_get_info, torch's device
properties, `vramshim top` and the simulator's table agree to the byte at every moment.

    group.py LIMIT_BYTES MOMENTS
"""

import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile

import pynvml
import torch
from account import truth

MEMBERS = 3
CONTEXT = 300 << 20
LOOK = "look"


def member(orders):
    pynvml.nvmlInit()
    uuid = "GPU-" + str(torch.cuda.get_device_properties(0).uuid)
    tensors = []
    while (seed := orders.recv()) is not None:
        orders.send(figures(uuid) if seed == LOOK else change(tensors, random.Random(seed)))


def change(tensors, chance):
    for _ in range(chance.randrange(1, 12)):
        if tensors and chance.random() < 0.45:
            tensors.pop(chance.randrange(len(tensors)))
        elif chance.random() < 0.1:
            torch.cuda.empty_cache()
        else:
            try:
                tensors.append(torch.empty(chance.randrange(1, 96 << 20), dtype=torch.uint8, device="cuda:0"))
            except torch.OutOfMemoryError:
                tensors.clear()


def figures(uuid):
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    infos = [pynvml.nvmlDeviceGetMemoryInfo(handle, version=version) for version in (None, pynvml.nvmlMemory_v2)]
    return {
        "pid": os.getpid(),
        "mem_get_info": torch.cuda.mem_get_info(0),
        "total_memory": torch.cuda.get_device_properties(0).total_memory,
        "nvml": [(one.used, one.free, one.total) for one in infos],
        "processes": {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)},
        "truth": truth()["devices"][0],
    }


def same(name, values):
    values = list(values)
    assert all(value == values[0] for value in values), f"{name}: {values}"


def compare(told, top, limit):
    truth = told[0]["truth"]
    used = truth["total"] - truth["free"]
    of_process = {one["pid"]: one["truth"]["used_by_process"] for one in told}
    on_top = {
        process["pid"]: next(device for device in process["devices"] if device["uuid"] == truth["uuid"])
        for process in top["processes"]
    }
    for one in told:
        inside = on_top[one["pid"]]["free_inside"]
        same("NVML", [*one["nvml"], (used, limit - used, limit)])
        same("mem_get_info", [one["mem_get_info"], (limit - used + inside, limit)])
        same("total_memory", [one["total_memory"], limit])
        same("processes", [one["processes"], of_process])
        same("top", [on_top[one["pid"]]["reserved"] + CONTEXT, of_process[one["pid"]]])
        same("limit", [on_top[one["pid"]]["limit"], limit])
    device = next(device for device in top["devices"] if device["uuid"] == truth["uuid"])
    same("top's device", [device["reserved"] + MEMBERS * CONTEXT, used])
    return used


def main(limit, moments):
    with tempfile.TemporaryDirectory() as accounts:
        os.environ.update(
            VRAMSHIM_MEMORY_LIMIT=str(limit),
            VRAMSHIM_ACCOUNTS=accounts,
            SIMGPU_CONTEXT_BYTES=str(CONTEXT),
            # With these variables unset, naive_best_fit would leave no memory for the other processes.
            FLAGS_initial_gpu_memory_in_mb="256",
            FLAGS_reallocate_gpu_memory_in_mb="64",
        )
        context = multiprocessing.get_context("fork")
        ends = [context.Pipe() for _ in range(MEMBERS)]
        members = [context.Process(target=member, args=(theirs,)) for _, theirs in ends]
        for one in members:
            one.start()

        def ask(number, order):
            ends[number][0].send(order)
            return ends[number][0].recv()

        for one in range(MEMBERS):
            ask(one, 0)
        chance = random.Random(1)
        pids = [str(one.pid) for one in members]
        most = 0
        for moment in range(moments):
            for one in chance.sample(range(MEMBERS), chance.randrange(1, MEMBERS + 1)):
                ask(one, chance.randrange(1 << 30))
            told = [ask(one, LOOK) for one in range(MEMBERS)]
            top = subprocess.run([os.environ["VRAMSHIM_PROGRAM"], "top", "--once", "--json", *pids], stdout=subprocess.PIPE, check=True)
            used = compare(told, json.loads(top.stdout), limit)
            assert used <= limit
            most = max(most, used)
            print(f"agreed: moment {moment}, {used} bytes used")
        assert most > limit // 2, f"the limit was never near: {most}"
        for one, (ours, _) in zip(members, ends):
            ours.send(None)
            one.join()
            assert one.exitcode == 0


main(int(sys.argv[1]), int(sys.argv[2]))
