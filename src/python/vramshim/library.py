"""The functions of the preloaded libvramshim.so (shim.h), called through ctypes."""

import ctypes
import json
import os


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
    """One line on stderr, as the library writes it. `VRAMSHIM_LOG` silences what the job has by default."""
    is_silent = os.environ.get("VRAMSHIM_LOG") in ("error", "off")
    if is_silent and os.environ.get("VRAMSHIM_TORCH") not in ("record", "allocator"):
        return
    # The job may have closed or replaced `sys.stderr`.
    try:
        os.write(2, f"vramshim: {message}\n".encode("utf-8", "backslashreplace"))
    except (OSError, RecursionError):
        pass
