"""PyTorch's own functions for its memory history and its snapshots."""

import importlib
import threading
import types

import torch


class _NoInductor(types.ModuleType):
    """Stands for `torch._inductor` while PyTorch looks up the names of frames.

    PyTorch asks it for the frames of compiled code, and would import it for that: seconds and 140 MiB, for a job that
    has compiled nothing. Another thread that asks gets the module itself.
    """

    # Those that ask PyTorch for a snapshot now.
    threads = []

    def __getattr__(self, name):
        if threading.get_ident() in self.threads:
            raise AttributeError(name)
        return getattr(importlib.import_module("torch._inductor"), name)

    def __setattr__(self, name, value):
        setattr(importlib.import_module("torch._inductor"), name, value)


_stand_in = _NoInductor("torch._inductor")
_memory_snapshot = getattr(torch._C, "_cuda_memorySnapshot", None)


def memory_snapshot(*arguments):
    """PyTorch's function of this name, which imports nothing. The job's calls come here as well."""
    names, thread = vars(torch), threading.get_ident()
    try:
        _stand_in.threads.append(thread)
        names.setdefault("_inductor", _stand_in)
        return _memory_snapshot(*arguments)
    finally:
        # A forked child has none.
        if thread in _stand_in.threads:
            _stand_in.threads.remove(thread)
        if not _stand_in.threads:
            remove_stand_in()


def forget():
    """In a forked child: other threads are gone."""
    _stand_in.threads.clear()
    remove_stand_in()


def remove_stand_in():
    if vars(torch).get("_inductor") is _stand_in:
        vars(torch).pop("_inductor", None)


def snapshot():
    """PyTorch's snapshot of its allocator."""
    # The function of older versions takes no argument.
    try:
        return memory_snapshot(None)
    except TypeError:
        return memory_snapshot()


def keep(*arguments):
    """Calls PyTorch's function for the memory history. Older versions lack the last arguments."""
    for count in (8, 7, 5):
        try:
            return record_history(*arguments[:count])
        except TypeError:
            if count == 5:
                raise


# None before PyTorch 2.1. Taken before the job's own calls of it are watched.
record_history = getattr(torch._C, "_cuda_record_memory_history", None)
