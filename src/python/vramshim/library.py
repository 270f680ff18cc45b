"""The functions of the preloaded libvramshim.so (shim.h), called through ctypes."""

import ctypes
import json
import sys


def preloaded():
    """The library that is preloaded into this process. `None` without one."""
    process = ctypes.CDLL(None)
    return process if hasattr(process, "vramshim_torch_alloc") else None


def address(library, name):
    """The address of a function, for PyTorch to call."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def text(function, *arguments):
    """The text that a function of the library writes into a buffer."""
    function.restype = ctypes.c_size_t
    size = 0
    while True:
        buffer = ctypes.create_string_buffer(size) if size else None
        needed = function(*arguments, buffer, ctypes.c_size_t(size))
        if size and needed <= size:
            return buffer.value.decode()
        # The text may have grown since it was measured.
        size = needed + 4096


def parsed(function, *arguments):
    return json.loads(text(function, *arguments))


def say(message):
    """One line on stderr, as the library writes it."""
    print(f"vramshim: {message}", file=sys.stderr, flush=True)
