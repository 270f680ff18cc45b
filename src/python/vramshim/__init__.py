"""What vramshim does inside a Python job.

`vramshim.stat("device.0.allocated")`, `vramshim.dump("now.vraj")` and the other functions of `vramshim.control` ask and
tell the library in this process. `vramshim.torch` serves PyTorch's tensors, and `vramshim.record` records them.

`vramshim.preload_path()` is the library for `LD_PRELOAD`, and `python -m vramshim` is the program.
"""

import importlib

from .installed import preload_path, program_path

_CONTROL = (
    "HOST NotLoaded account dump is_loaded journal_path limit mark names set stat stats trim version"
).split()

__all__ = ["preload_path", "program_path", *_CONTROL]


def __getattr__(name):
    """The functions of `vramshim.control`. They need ctypes, which the program's starter can do without."""
    if name in _CONTROL:
        return getattr(importlib.import_module(".control", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_CONTROL])
