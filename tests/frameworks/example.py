"""Runs examples/pytorch_allocator.py, and lets its autograd threads finish before the interpreter ends."""

import pathlib
import runpy

import calm_end  # noqa: F401

root = pathlib.Path(__file__).resolve().parents[2]
runpy.run_path(str(root / "examples" / "pytorch_allocator.py"), run_name="__main__")
