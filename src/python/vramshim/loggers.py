"""`vramshim.watch(trainer)` logs what the library counted, with the loggers that a trainer has already.

Each line that the trainer logs gets `figures()`. The last one has `vramshim/verdict`, the code that `vramshim why --help`
lists (0: no request failed), because loggers such as TensorBoard take numbers alone; the sentence goes to stderr. Without
the library in the process nothing is logged. No error of this module ends the job.
"""

import importlib
import json
import sys

from . import control
from .library import say
from .notebook import run as _run


def figures(device=None):
    """What the job holds of a device (PyTorch's current one, or 0), in bytes: `vramshim/peak_bytes` and `reserved_bytes` from
    the driver, `cached_bytes` free inside of PyTorch's cache; and the number of `failures`. Empty if they are not known."""
    torch = sys.modules.get("torch")
    has_torch = torch and torch.cuda.is_initialized()
    device = (torch.cuda.current_device() if has_torch else 0) if device is None else device
    try:
        found = control.stats(device)
    except (control.NotLoaded, ValueError):
        return {}
    told = {"peak_bytes": found["reserved_peak"], "reserved_bytes": found["reserved"], "failures": found["failures"]}
    if has_torch:
        told["cached_bytes"] = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return {f"vramshim/{name}": value for name, value in told.items()}


def verdict():
    """The verdict of `vramshim why` on this process so far: its code and its sentence. `None` if it cannot be told."""
    try:
        told = json.loads(_run("why", "--json", control.journal_path()).stdout)
        return told["process"]["verdict_code"], told["why"]["text"].partition("\n")[0]
    except Exception:
        return None


def _end(log):
    found = verdict()
    if found:
        say(found[1])
        try:
            log({**figures(), "vramshim/verdict": found[0]})
        except Exception as problem:
            say(f"the verdict was not logged: {problem}")


def watch(trainer):
    """Logs figures and verdict with the loggers of this trainer of Lightning or transformers, or of this Accelerator, and
    returns it. `TypeError` for another object."""
    if hasattr(trainer, "loggers") and hasattr(trainer, "callbacks"):
        trainer.callbacks.append(_for_lightning(type(trainer).__module__.partition(".")[0]))
        return trainer
    name = next((name for name in ("train", "end_training") if hasattr(trainer, name)), None)
    if name is None or not hasattr(trainer, "log"):
        raise TypeError(f"{type(trainer).__name__}: give a trainer of Lightning or transformers, or an Accelerator")
    log, end = trainer.log, getattr(trainer, name)

    def ended(*arguments, **named):
        if name == "end_training":  # It closes the loggers.
            _end(log)
            return end(*arguments, **named)
        try:
            return end(*arguments, **named)
        finally:
            _end(log)

    trainer.log = lambda values, *rest, **named: log({**values, **figures()}, *rest, **named)
    setattr(trainer, name, ended)
    return trainer


def _for_lightning(package):
    name = "lightning.pytorch" if package == "lightning" else package

    class Watch(importlib.import_module(f"{name}.callbacks").Callback):
        def tell(self, trainer, values):
            for logger in trainer.loggers if values else ():
                logger.log_metrics(values, step=trainer.global_step)

        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
                self.tell(trainer, figures())

        def on_fit_end(self, trainer, *_):
            _end(lambda values: self.tell(trainer, values))

        on_exception = on_fit_end

    return Watch()
