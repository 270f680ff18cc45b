"""Compares a job's own count with the library's ledger and the simulator's table. The jobs of this folder share it.

On a real GPU there is no table, and without the library there is no ledger. What is missing is not compared. If
GPU_CHECK_RECONCILE names the program vramshim, it compares the ledger with the driver at each checkpoint.
"""

import ctypes
import json
import os
import subprocess
import sys
import time

# What the driver may hold for a context that nothing tells.
UNKNOWN_MIB = 128
# What libraries such as cuBLAS may take from the driver by themselves, for a job that uses them on a real GPU.
MOST_OF_LIBRARIES = 256 << 20
_spent = 0.0


def _function(name, kind):
    for library in (None, "libcuda.so.1"):
        try:
            function = getattr(ctypes.CDLL(library), name)
        except (AttributeError, OSError):
            continue
        function.restype = kind
        return function
    return None


def _told(name):
    """The JSON that a function writes. None if there is no such function."""
    function = _function(name, ctypes.c_size_t)
    if function is None:
        return None
    size = function(None, ctypes.c_size_t(0)) + 65536
    buffer = ctypes.create_string_buffer(size)
    function(buffer, ctypes.c_size_t(size))
    return json.loads(buffer.value)


def account():
    """The totals of the library's ledger by device and class. None without the library."""
    return _told("vramshim_account")


def truth():
    """The simulator's table. None on a real GPU."""
    return _told("simgpu_truth")


def print_layer(held, real):
    """Prints the book of a quota layer (tests/support/layer), if there is one, in the form of the C clients."""
    used, limit = (_function(name, ctypes.c_uint64) for name in ("layer_used", "layer_limit"))
    if used is not None and limit is not None and real is not None:
        book = {"limit": limit(), "used": [used(device) for device in range(16)]}
        print(json.dumps({"layer": book, "account": held, "truth": real}), flush=True)


def _sums(totals, bytes_of):
    return {(t["device"], t["class"]): bytes_of(t) for t in totals if bytes_of(t)}


def _as_asked(there, own, kinds):
    """Counts what there is more of these classes than the job's own as linear memory, for which it was taken."""
    for device, kind in [key for key in there if key[1] in kinds]:
        if kind != "address_range":
            more = there[device, kind] - own.get((device, kind), 0)
            there[device, "linear"] = there.get((device, "linear"), 0) + more
        there[device, kind] = own.get((device, kind), 0)
    return {key: value for key, value in there.items() if value}


def time_spent():
    """Seconds spent at checkpoints so far. They are no part of a step."""
    return _spent


def reconciled(where, shared_bytes):
    """The last line of `vramshim reconcile` on this process, which must name every byte. None if nothing is asked.

    For `shared_bytes` of memory that another process has opened, its page tables take 2 MiB a GiB (seen on an H100).
    """
    program = os.environ.get("GPU_CHECK_RECONCILE")
    if program is None:
        return None
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [program, "reconcile", str(os.getpid()), "--bound", f"{UNKNOWN_MIB + (shared_bytes >> 29)}MiB"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = [line for line in done.stdout.splitlines() if line.strip()] or ["nothing was said"]
    if done.returncode != 0:
        sys.exit(f"{where}: not reconciled: {lines[-1]}")
    return lines[-1]


def checkpoint(own, where, libraries=False, shares=False):
    """Compares `own`, the requested bytes by (device, class), with the ledger, and its reserved bytes with the table.

    Other classes are not compared with the ledger, because libraries in the job hold memory too. With `libraries` they may
    hold memory of these classes as well, on a real GPU. With `shares`, another process has opened the memory of this one.
    """
    global _spent
    began = time.perf_counter()
    _compare(own, where, libraries, shares)
    _spent += time.perf_counter() - began


def _compare(own, where, libraries, shares):
    held, real = account(), truth()
    if held is None:
        print_layer(None, real)
        return
    # A layer may ask for managed memory in place of the job's linear memory.
    managed = ["managed"] if "LAYER_LINEAR" in os.environ else []
    requested = _as_asked(_sums(held["totals"], lambda t: t["requested"]["current"]), {}, managed)
    most = MOST_OF_LIBRARIES if libraries and real is None else 0
    for key, value in own.items():
        if not 0 <= requested.get(key, 0) - value <= most:
            sys.exit(f"{where}: {key}: the job counts {value} bytes, the ledger {requested.get(key, 0)}")
    reserved = _sums(held["totals"], lambda t: t["reserved"]["current"])
    if real is not None:
        mapped = ["vmm", "address_range"] if held["strategy"] == "auto_growth" else []
        there = _as_asked(_sums(real["totals"], lambda t: t["reserved"]), reserved, mapped + managed)
        if reserved != there:
            sys.exit(f"{where}: reserved: the ledger says {reserved}, the driver holds {there}")
    linear = sum(value for (_, kind), value in reserved.items() if kind == "linear")
    told = reconciled(where, linear if shares else 0)
    print(f"agreed: {where}: {sorted(own.items())}; reconciled: {told or 'not asked'}", flush=True)
    print_layer(held, real)


def torch_checkpoint(where, kind="linear", libraries=False, shares=False):
    """Like `checkpoint`, with the bytes that PyTorch says it holds on each device."""
    import torch

    # With stream-ordered memory PyTorch's "reserved" counts the driver's pool, and "allocated" counts its requests.
    field = "allocated_bytes" if kind == "async" else "reserved_bytes"
    # If the library is PyTorch's allocator, every tensor is in the ledger.
    field = "requested_bytes" if torch.cuda.get_allocator_backend() == "pluggable" else field
    stats = map(torch.cuda.memory_stats, range(torch.cuda.device_count()))
    own = {(device, kind): one.get(f"{field}.all.current", 0) for device, one in enumerate(stats)}
    checkpoint(own, where, libraries, shares)
