"""Asks and tells the library that is preloaded into this process: figures, marks, dumps and settings (shim.h).

All sizes are in bytes, and a device has the number that the job gives it. Any thread may call any function at any time.
Without the library in the process each function raises `NotLoaded`. An error that the library returns is an `OSError`
with its number, whose meaning shim.h tells.
"""

import ctypes
import functools
import os
import time

from . import library

#: The number that stands for host memory which the job obtained through CUDA.
HOST = -1

_STATS = (
    "requested requested_peak allocated allocated_peak reserved reserved_peak free_inside largest_free_block live failures"
).split()
_LIMIT = "limit used available context group".split()


class NotLoaded(RuntimeError):
    """libvramshim.so is not preloaded into this process."""


class _Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _STATS]


class _Limit(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _LIMIT]


@functools.lru_cache(maxsize=None)
def _function(name, result, *arguments):
    try:
        function = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        raise NotLoaded(
            f"{name}: libvramshim.so is not in this process, or is older; start the job with `vramshim run -- python ...`"
        ) from None
    function.restype, function.argtypes = result, arguments
    return function


def _check(error, what):
    if error:
        raise OSError(error, os.strerror(error), what)


def is_loaded():
    """Whether the library is preloaded into this process."""
    return hasattr(ctypes.CDLL(None), "vramshim_version")


def version():
    """The version of the library, for example "0.1.0"."""
    return _function("vramshim_version", ctypes.c_char_p)().decode()


def stat(name):
    """One figure by its name, such as "device.0.allocated". `OSError` (ENOENT) if there is no such figure."""
    value = ctypes.c_uint64()
    function = _function("vramshim_stat", ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))
    _check(function(name.encode(), ctypes.byref(value)), name)
    return value.value


def names():
    """The names of all figures of the host, and of the devices and classes that the job has used."""
    return library.text(_function("vramshim_stat_names", ctypes.c_size_t)).split("\n")


def stats(device=0, kind=None):
    """The totals of a device, or of `HOST`, as a dictionary; those of one class of memory if `kind` names it, such as
    "linear". `ValueError` if the job has no such device, or there is no such class."""
    found = _Stats()
    if kind is None:
        function = _function("vramshim_stats", ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Stats))
        failed = function(device, ctypes.byref(found))
    else:
        function = _function(
            "vramshim_class_stats", ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_Stats)
        )
        failed = function(device, kind.encode(), ctypes.byref(found))
    if failed:
        raise ValueError(f"no device {device}" + (f", or no class {kind!r} of memory" if kind is not None else ""))
    return {name: getattr(found, name) for name in _STATS}


def limit(device=0):
    """The limit of this process on a device as a dictionary. Without a limit "limit" is 0 and "available" is `None`.
    `ValueError` if the job has no such device."""
    found = _Limit()
    function = _function("vramshim_limit", ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Limit))
    if function(device, ctypes.byref(found)):
        raise ValueError(f"no device {device}")
    figures = {name: getattr(found, name) for name in _LIMIT}
    if figures["available"] == 2**64 - 1:
        figures["available"] = None
    return {**figures, "group": bool(figures["group"])}


def account():
    """The totals of the process by device and class, as `vramshim_account` gives them."""
    return library.parsed(_function("vramshim_account", ctypes.c_size_t))


def journal_path():
    """The path of this process's journal. `None` if the process keeps no journal."""
    return library.text(_function("vramshim_journal_path", ctypes.c_size_t)) or None


def mark(text):
    """Names this moment in the journal, for example "epoch 3". Returns whether the library is in this process: without it
    a script with marks runs as before."""
    is_here = is_loaded()
    if is_here:
        _function("vramshim_mark", None, ctypes.c_char_p)(text.encode())
    return is_here


def seldom(act):
    """Acts as `act`, at most once a second."""
    last = [float("-inf")]

    def acts(*arguments):
        if time.monotonic() >= last[0] + 1:
            last[0] = time.monotonic()
            act(*arguments)

    return acts


def dump(path):
    """Writes a copy of the journal as it is now to a file whose name ends in ".vraj"."""
    _check(_function("vramshim_dump", ctypes.c_int, ctypes.c_char_p)(os.fsencode(path)), os.fspath(path))


def trim(device=0):
    """Gives memory of a device without a live block back to the driver. Returns the bytes given back. `ValueError` if the
    job has no such device."""
    limit(device)
    return _function("vramshim_trim", ctypes.c_uint64, ctypes.c_int)(device)


def set(name, value):
    """Changes a setting while the job runs, such as `set("stacks", "python")`."""
    function = _function("vramshim_set", ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
    _check(function(name.encode(), str(value).encode()), f"{name}={value}")
