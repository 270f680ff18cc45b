"""Acts right after a job has imported PyTorch."""

import importlib.util
import sys


class _After:
    """A finder that lets the others find a module, and runs `act` when the module is imported."""

    def __init__(self, name, act):
        self.name = name
        self.act = act
        self.searching = False

    def find_spec(self, name, path=None, target=None):
        if name != self.name or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        original = spec.loader.exec_module

        def exec_module(module):
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.act(module)

        spec.loader.exec_module = exec_module
        return spec


def after_import(name, act):
    """Runs `act(module)` when the module of this name has been imported; at once if it is imported already."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _After(name, act))


def when_torch_is_imported(mode):
    """Does what `vramshim run --torch MODE` asks for, in this process and in those that inherit its environment."""
    if mode not in ("allocator", "record"):
        raise ValueError("VRAMSHIM_TORCH must be allocator, record or off")

    def act(_module):
        from . import library

        try:
            if mode == "allocator":
                from . import torch

                torch.install()
            else:
                from . import record

                record.start()
        except Exception as problem:
            library.say(f"--torch {mode} does not act: {problem}")

    after_import("torch", act)
