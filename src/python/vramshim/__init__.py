"""What vramshim does inside a Python job: `vramshim.torch` serves PyTorch's tensors, `vramshim.record` records them.

`vramshim.preload_path()` is the library for `LD_PRELOAD`, and `python -m vramshim` is the program.
"""

from .installed import preload_path, program_path

__all__ = ["preload_path", "program_path"]
