"""Asks torch.cuda for what a job seldom asks for. Prints what each question ends with, a line of JSON each.

The test compares a run under PyTorch's own allocator with one under the library. Of an error only its type counts.
PyTorch 2.12 cannot decode some of its own messages, and hides a TypeError behind a SystemError.
"""

import json
import sys
import warnings

import calm_end  # noqa: F401
import torch
from torch import cuda

warnings.simplefilter("ignore")
TYPES = {"UnicodeDecodeError": "RuntimeError", "SystemError": "TypeError"}
NAN = float("nan")


def ask(question, act):
    try:
        answer = act()
    except Exception as problem:
        name = type(problem).__name__
        answer = TYPES.get(name, name)
        if "1EB" in str(problem):
            answer = str(problem)
    print(json.dumps({"question": question, "answer": answer}), flush=True)


def before_the_first_tensor():
    ask("summary", lambda: len(cuda.memory_summary()) > 1000)
    cuda.init()
    ask("stats", lambda: (len(cuda.memory_stats()), cuda.memory_stats()["num_ooms"]))
    ask("the other device", lambda: cuda.memory_stats(1)["allocation.all.current"])


def devices():
    functions = (
        "memory_allocated memory_stats max_memory_allocated memory_reserved memory_summary reset_peak_memory_stats "
        "reset_accumulated_memory_stats get_per_process_memory_fraction"
    )
    for device in (2, 7, -1, "cuda:7", True, "cpu", 1 << 20):
        for name in functions.split():
            ask(f"{name}({device!r})", lambda: getattr(cuda, name)(device) and 1)
        for name in ("memory_allocated", "reset_peak_memory_stats") if device != 1 << 20 else ():
            ask(f"accelerator.{name}({device!r})", lambda: getattr(torch.accelerator, name)(device))


def fractions():
    set_it, get_it = cuda.set_per_process_memory_fraction, cuda.get_per_process_memory_fraction
    for arguments in ((0.5, -1), (0.5, 9), (NAN,), (2.0,), (-0.1,), (1,), (0.25, 1), (0.5, "cpu"), (0.0,)):
        ask(f"fraction {arguments}", lambda: set_it(*arguments))
        ask(f"after {arguments}", lambda: (get_it(0), get_it(1)))
    ask("nothing is allowed", lambda: torch.empty(4 << 20, device="cuda"))
    set_it(1.0)


def pointers():
    for pointer in (0, "x", None, 1.5, 12345, -1):
        ask(f"delete({pointer!r})", lambda: cuda.caching_allocator_delete(pointer))
    ask("delete", lambda: cuda.caching_allocator_delete(cuda.caching_allocator_alloc(100)))


def out_of_memory():
    cuda.reset_accumulated_memory_stats()
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *told: seen.append(told))
    empty = lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
    for size in (1 << 62, 1 << 60):
        ask(f"{size} bytes", lambda: empty(size))
    ask("too much", lambda: empty(1 << 40))
    cuda.set_per_process_memory_fraction(0.25)
    ask("too much of a fraction", lambda: empty(4 << 30))
    cuda.set_per_process_memory_fraction(1.0)
    ask("observed", lambda: [told[:3] for told in seen])
    ask("free at that time", lambda: all(0 < told[3] <= 8 << 30 for told in seen))
    ask("counts", lambda: [cuda.memory_stats()[name] for name in ("num_ooms", "num_alloc_retries")])


def settings():
    for text in ("backend:native", "expandable_segments:True", "max_split_size_mb:100,backend:native", "unknown:1"):
        ask(text, lambda: cuda.memory._set_allocator_settings(text))
    ask("metadata", lambda: (cuda.memory._set_memory_metadata("a note"), cuda.memory._get_memory_metadata()))
    ask("snapshot", lambda: sorted(cuda.memory._snapshot()))


def pools():
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        tensor = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
        dead = tensor + 1
        del dead
    held = lambda segment: sum(block["size"] for block in segment["blocks"] if block["state"] == "active_allocated")
    of_pool = cuda.memory_snapshot(graph.pool())
    ask("held by the pool", lambda: sum(map(held, of_pool)))
    ask("its segments", lambda: {segment["segment_pool_id"] for segment in of_pool} == {graph.pool()})
    ask("all of it in all segments", lambda: {s["segment_pool_id"] for s in cuda.memory_snapshot()} >= {graph.pool()})
    ask("of no pool", lambda: cuda.memory_snapshot((0, 5)))


kept = None
before_the_first_tensor()
kept = torch.ones(3, device="cuda")
for part in (devices, fractions, pointers, out_of_memory, settings, pools):
    part()
sys.stdout.flush()
