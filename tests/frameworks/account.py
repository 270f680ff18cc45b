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

_process = ctypes.CDLL(None)


def _text(function):
    function.restype = ctypes.c_size_t
    size = function(None, ctypes.c_size_t(0)) + 65536
    buffer = ctypes.create_string_buffer(size)
    function(buffer, ctypes.c_size_t(size))
    return json.loads(buffer.value)


def _function(name):
    for library in (_process, _driver()):
        try:
            return getattr(library, name)
        except AttributeError:
            continue
    return None


def _driver():
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def account():
    """The totals of the library's ledger by device and class. None without the library."""
    function = _function("vramshim_account")
    return None if function is None else _text(function)


def truth():
    """The simulator's table. None on a real GPU."""
    function = _function("simgpu_truth")
    return None if function is None else _text(function)


def layer():
    """The book of a quota layer (tests/support/layer), in the form that the C clients print. None without a layer."""
    used, limit = _function("layer_used"), _function("layer_limit")
    if used is None or limit is None:
        return None
    used.restype = limit.restype = ctypes.c_uint64
    return {"limit": limit(), "used": [used(device) for device in range(16)]}


def _sums(totals, bytes_of):
    return {(t["device"], t["class"]): bytes_of(t) for t in totals if bytes_of(t)}


def _as_asked(there, reserved):
    """Counts the memory that auto_growth mapped as linear memory. Memory that the job itself mapped stays as it is."""
    for device, kind in list(there):
        if kind in ("vmm", "address_range"):
            own = reserved.get((device, kind), 0)
            if kind == "vmm":
                there[(device, "linear")] = there.get((device, "linear"), 0) + there[(device, kind)] - own
            there[(device, kind)] = own
    return {key: value for key, value in there.items() if value}


def _as_layer_took(there, reserved):
    """Counts managed memory that a layer took in place of linear memory (LAYER_LINEAR) as linear memory."""
    for device, kind in list(there):
        if kind == "managed":
            own = reserved.get((device, kind), 0)
            there[(device, "linear")] = there.get((device, "linear"), 0) + there[(device, kind)] - own
            there[(device, kind)] = own
    return {key: value for key, value in there.items() if value}


_spent = 0.0


def time_spent():
    """Seconds spent at checkpoints so far. They are no part of a step."""
    return _spent


# What the driver may hold for a context that nothing tells.
UNKNOWN_MIB = 128


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


# What libraries such as cuBLAS may take from the driver by themselves, for a job that uses them on a real GPU.
MOST_OF_LIBRARIES = 256 << 20


def checkpoint(own, where, libraries=False, shares=False):
    """Compares `own`, the requested bytes by (device, class), with the ledger, and its reserved bytes with the table.

    Classes that are not in `own` are not compared with the ledger, because libraries in the job hold memory too. With
    `libraries`, libraries of the job may hold memory of these classes as well, on a real GPU. With `shares`, another
    process has opened the memory of this one.
    """
    global _spent
    began = time.perf_counter()
    _compare(own, where, MOST_OF_LIBRARIES if libraries and truth() is None else 0, shares)
    _spent += time.perf_counter() - began


def _compare(own, where, most_of_libraries, shares):
    held = account()
    if held is None:
        print_layer(None, truth())
        return
    requested = _sums(held["totals"], lambda t: t["requested"]["current"])
    if "LAYER_LINEAR" in os.environ:
        # A layer in front of the library asks it for managed memory in place of the job's linear memory.
        for device, kind in list(requested):
            if kind == "managed":
                requested[(device, "linear")] = requested.get((device, "linear"), 0) + requested.pop((device, kind))
    for key, value in own.items():
        if not 0 <= requested.get(key, 0) - value <= most_of_libraries:
            sys.exit(f"{where}: {key}: the job counts {value} bytes, the ledger {requested.get(key, 0)}")
    real = truth()
    if real is not None:
        reserved = _sums(held["totals"], lambda t: t["reserved"]["current"])
        there = _sums(real["totals"], lambda t: t["reserved"])
        if held["strategy"] == "auto_growth":
            there = _as_asked(there, reserved)
        if "LAYER_LINEAR" in os.environ:
            there = _as_layer_took(there, reserved)
        if reserved != there:
            sys.exit(f"{where}: reserved: the ledger says {reserved}, the driver holds {there}")
    linear = (t["reserved"]["current"] for t in held["totals"] if t["class"] == "linear")
    truth_told = reconciled(where, sum(linear) if shares else 0)
    print(f"agreed: {where}: {sorted(own.items())}; reconciled: {truth_told or 'not asked'}", flush=True)
    print_layer(held, real)


def print_layer(held, real):
    """Prints the book of a quota layer, if there is one, with the library's ledger and the simulator's table."""
    book = layer()
    if book is not None and real is not None:
        print(json.dumps({"layer": book, "account": held, "truth": real}), flush=True)


def torch_checkpoint(where, kind="linear", libraries=False, shares=False):
    """Like `checkpoint`, with the bytes that PyTorch says it holds on each device."""
    import torch

    own = {}
    # If the library is PyTorch's allocator, every tensor is in the ledger.
    is_ours = torch.cuda.get_allocator_backend() == "pluggable"
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        # With stream-ordered memory PyTorch's "reserved" counts the driver's pool, and "allocated" counts its requests.
        field = "allocated_bytes.all.current" if kind == "async" else "reserved_bytes.all.current"
        own[(device, kind)] = stats.get("requested_bytes.all.current" if is_ours else field, 0)
    checkpoint(own, where, libraries, shares)
