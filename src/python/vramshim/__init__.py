"""What vramshim does inside a Python job.

`vramshim.stat("device.0.allocated")`, `vramshim.dump("now.vraj")` and the other functions of `vramshim.control` ask and
tell the library in this process. `vramshim.torch` serves PyTorch's tensors, and `vramshim.record` records them.

`vramshim.report()` is the report of this job, which a notebook shows, and `%load_ext vramshim` has `%vramshim why`.
`vramshim.watch(trainer)` logs figures and verdict with the loggers of Lightning, transformers or accelerate.

`vramshim.preload_path()` is the library for `LD_PRELOAD`, and `python -m vramshim` is the program.
"""

import importlib

from .installed import preload_path, program_path

_OF = {
    "control": "HOST NotLoaded account dump is_loaded journal_path limit mark names set stat stats trim version",
    "notebook": "Page report",
    "loggers": "figures verdict watch",
}
_MODULES = {name: module for module, names in _OF.items() for name in names.split()}

__all__ = ["preload_path", "program_path", *_MODULES]


def __getattr__(name):
    """The functions of the modules. They need ctypes, which the program's starter can do without."""
    if name in _MODULES:
        return getattr(importlib.import_module("." + _MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_MODULES])


def load_ipython_extension(shell):
    """What `%load_ext vramshim` calls."""
    from .notebook import magic

    shell.register_magic_function(magic, magic_name="vramshim")
