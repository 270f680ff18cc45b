"""Acts right after a job has imported PyTorch."""

import atexit
import importlib.util
import os
import sys
import threading


class _After:
    """A finder that lets the others find a module, and runs `act` when the module is imported."""

    def __init__(self, name, act):
        self.name = name
        self.act = act
        # Another thread may search at the same time, and must find what it imports.
        self.of_thread = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name != self.name or getattr(self.of_thread, "searches", False):
            return None
        self.of_thread.searches = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.of_thread.searches = False
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


_has_begun = False


def cuda_begins():
    """The library calls this when CUDA begins in a job that has imported PyTorch, in a thread of its own. The main thread
    waits for it, perhaps inside of PyTorch's own initialisation.
    """
    # `vramshim run` has begun before. At its end, a process starts nothing.
    if not _has_begun and threading.main_thread().is_alive():
        try:
            when_torch_is_imported(os.environ.get("VRAMSHIM_TORCH") or "state")
        except ValueError as problem:
            from . import library

            library.say(f"PyTorch's tensors are not recorded: {problem}")


def when_torch_is_imported(mode):
    """Does what `--torch MODE` asks for in this process."""
    global _has_begun
    _has_begun = True
    if mode not in ("state", "record", "allocator"):
        raise ValueError("VRAMSHIM_TORCH must be state, record, allocator or off")

    def act(module):
        from . import library

        # Nobody asked for the default, so nothing is said where it cannot act.
        if mode == "state" and (library.preloaded() is None or not hasattr(module, "_C")):
            return
        try:
            if mode == "allocator":
                from . import torch

                torch.install()
            else:
                from . import record

                record.start(mode)
            _mark_steps()
        except Exception as problem:
            library.say(f"--torch {mode} does not act: {problem}")

    after_import("torch", act)
    if mode == "record":
        # What is registered first runs last: the recorder has ended by then.
        atexit.register(_say_if_nothing_was_recorded)


def _mark_steps():
    """Marks the ends of steps of any optimizer, at most one a second."""
    try:
        from torch.compiler import is_compiling
        from torch.optim.optimizer import register_optimizer_step_post_hook
    except ImportError:  # before PyTorch 2.1
        return
    from . import control

    mark = control.seldom(control.mark)

    def stepped(*_):
        # A compiler that traces a step leaves this out.
        if not is_compiling():
            mark("optimizer.step")

    register_optimizer_step_post_hook(stepped)


def _say_if_nothing_was_recorded():
    from . import library

    # Workers that load data, and those of a pool, are daemons. What the job records is in other processes.
    processes = sys.modules.get("multiprocessing.process")
    if processes and processes.current_process().daemon:
        return
    preloaded = library.preloaded()
    # A process that has not used CUDA has no journal.
    if preloaded is None or not library.text(preloaded.vramshim_journal_path):
        return
    record = sys.modules.get("vramshim.record")
    imported = "torch" in sys.modules
    reason = record.why_nothing() if record else None if imported else "it has not imported PyTorch"
    # With stacks of Python, tensors are recorded in case the job has some.
    in_case = not imported and os.environ.get("VRAMSHIM_STACKS") in ("python", "both")
    if reason and not in_case:
        library.say(f"no tensor of this process was recorded, because {reason}")
