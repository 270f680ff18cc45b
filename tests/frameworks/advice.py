"""Jobs of PyTorch that die of memory, each of a kind of its own, for scripts/ci/advice. usage: advice.py NAME

Variables carry out advice: LESS is bytes not to hold, ASK the bytes of the last request, FRACTION PyTorch's own
limit. Ends with 3 if memory lacks. HISTORY names a file for what PyTorch's own history says of the failure: bytes by line.
"""

import collections
import ctypes
import functools
import json
import os
import random
import sys
import time

import calm_end  # noqa: F401
import torch

import foretold

KIB, MIB = 1 << 10, 1 << 20
LESS = int(os.environ.get("LESS", "0"))


# No frame of Python: the line that calls it is the one that holds.
tensor = functools.partial(torch.empty, dtype=torch.uint8, device="cuda")


def weights(mebibytes):
    """Holds so much, less what is not to be held, in layers of 20 MiB as a model has them."""
    left = mebibytes * MIB - LESS
    return [tensor(20 * MIB + left % (20 * MIB))] + [tensor(20 * MIB) for _ in range(left // (20 * MIB) - 1)]


def ask(mebibytes):
    return tensor(int(os.environ.get("ASK", mebibytes * MIB)))


def too_large():
    return weights(300), ask(40 * KIB)


def full():
    return weights(1600), ask(700)


def both_devices():
    return torch.empty(1, device="cuda:1"), weights(1600), ask(700)


def odd_sizes():
    held = weights(900)
    return held, [tensor(random.randint(1, 12 * MIB)) for _ in range(90)], ask(333)


def leak():
    losses = []
    for _ in range(400):
        temporary = [tensor(4 * MIB) for _ in range(4)]
        losses.append(tensor(8 * MIB))
        del temporary
    return losses


def slow_leak():
    held, losses = weights(800), []
    for _ in range(600):
        batch = tensor(random.randint(20, 60) * MIB)
        losses.append(tensor(3 * MIB))
        del batch
    return held, losses


def in_pieces():
    """Hidden states stay between scratch memory that dies."""
    scratch, hidden = [], []
    for size in range(14):
        scratch.append(tensor((100 + size) * MIB))
        hidden.append(tensor(6 * MIB))
        del scratch[:]
        hidden.append(tensor((60 + 3 * size) * MIB))
    del hidden[1::2]
    return hidden, ask(700)


def small_pieces():
    pieces = [tensor(8 * MIB) for _ in range(240)]
    del pieces[::2]
    return pieces, ask(600)


def graph_pools():
    kept = []
    for batch in (40, 90, 140, 200):
        static = tensor(batch * MIB)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            middle = static + 1
            out = middle + 1
            del middle
        kept.append((graph, static, out))
    return kept, ask(600)


def mem_pool():
    held, pool = weights(200), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = [tensor(50 * MIB) for _ in range(16)]
    del inside
    return held, pool, ask(1200)


def other_stream():
    with torch.cuda.stream(torch.cuda.Stream()):
        loaded = [tensor(9 * MIB) for _ in range(80)]
    del loaded[::2]
    return weights(500), loaded, [tensor(9 * MIB) for _ in range(30)]


def fraction():
    torch.cuda.set_per_process_memory_fraction(float(os.environ.get("FRACTION", "0.25")))
    return weights(300), ask(700)


def beside_torch():
    """As NCCL does: memory of the driver, of which PyTorch knows nothing."""
    held, driver = weights(600), ctypes.CDLL("libcuda.so.1")
    for _ in range(6):
        pointer = ctypes.c_void_p()
        assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(128 * MIB)) == 0
    return held, ask(900)


def cache_retried():
    """A cache that PyTorch gives back, and still the memory does not suffice."""
    for size in range(4):
        tensor((150 + 40 * size) * MIB)
    return weights(700), ask(1500)


def hold():
    """Holds MiB of the device until it is ended."""
    held = tensor(int(os.environ["HOLD"]) * MIB)
    print(os.getpid(), flush=True)
    while held is not None:
        time.sleep(0.05)


def line_of(frames):
    own = (frame for frame in frames if "/site-packages/" not in frame["filename"] and frame["filename"].endswith(".py"))
    return next((f"{os.path.basename(frame['filename'])}:{frame['line']}" for frame in own), "")


def note_history(*_):
    bytes_of = collections.Counter()
    for segment in torch.cuda.memory._snapshot()["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                bytes_of[line_of(block["frames"])] += block["size"]
    with open(os.environ["HISTORY"], "w") as file:
        json.dump(bytes_of, file)


def main():
    name = sys.argv[1]
    random.seed(name)
    if "HISTORY" in os.environ:
        torch.cuda.memory._record_memory_history(stacks="python")
        torch._C._cuda_attach_out_of_memory_observer(note_history)
    try:
        kept = (globals().get(name) or foretold.JOBS[name])()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        print(error)
        sys.exit(3)


if __name__ == "__main__":
    main()
