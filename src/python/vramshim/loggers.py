"""`vramshim.watch(trainer)` logs what the library counted, with the loggers that a trainer has already.

The trainer is one of Lightning or transformers, or an `Accelerator` of accelerate. Each of its log lines gets
`figures()`, and its last one `vramshim/verdict`: the code that `vramshim why --help` lists (0: no request failed), because loggers such as
TensorBoard take numbers alone. The verdict's sentence goes to stderr. Without the library in
the process nothing is logged, and the job runs as before.
"""

import importlib
import json
import subprocess
import sys

from . import control
from .library import say
from .notebook import run as _run


def figures(device=0):
    """What the job holds on a device, in bytes: `vramshim/peak_bytes` (most that it reserved), `vramshim/reserved_bytes`,
    `vramshim/cached_bytes` (free inside of PyTorch's cache), and the number of `vramshim/failures`. Empty without the
    library in the process, or before it used the device."""
    try:
        found = control.stats(device)
    except (control.NotLoaded, ValueError):
        return {}
    told = {"peak_bytes": found["reserved_peak"], "reserved_bytes": found["reserved"], "failures": found["failures"]}
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        told["cached_bytes"] = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return {f"vramshim/{name}": value for name, value in told.items()}


def verdict():
    """The verdict of `vramshim why` on this process so far: its code and its sentence. `None` if it cannot be told."""
    try:
        told = json.loads(_run("why", "--json", control.journal_path() or "").stdout)
    except (control.NotLoaded, OSError, ValueError, subprocess.SubprocessError):
        return None
    return told["process"]["verdict_code"], told["why"]["text"].partition("\n")[0]


def _at_end(log):
    found = verdict()
    if found:
        say(found[1])
        log({**figures(), "vramshim/verdict": found[0]})


def watch(trainer):
    """Logs figures and verdict with the loggers of this trainer, and returns it. `TypeError` for another object."""
    if hasattr(trainer, "loggers") and hasattr(trainer, "callbacks"):
        trainer.callbacks.append(_for_lightning(type(trainer).__module__.partition(".")[0]))
        return trainer
    ends = [name for name in ("train", "end_training") if hasattr(trainer, name)]
    if not hasattr(trainer, "log") or not ends:
        raise TypeError(f"{type(trainer).__name__}: give a trainer of Lightning or transformers, or an Accelerator")
    log, end = trainer.log, getattr(trainer, ends[0])

    def logged(values, *rest, **named):
        return log({**values, **figures()}, *rest, **named)

    def ended(*arguments, **named):
        if ends[0] == "end_training":  # It closes the loggers.
            _at_end(log)
            return end(*arguments, **named)
        try:
            return end(*arguments, **named)
        finally:
            _at_end(log)

    trainer.log = logged
    setattr(trainer, ends[0], ended)
    return trainer


def _for_lightning(package):
    name = "lightning.pytorch" if package == "lightning" else package
    base = importlib.import_module(f"{name}.callbacks").Callback

    class Watch(base):
        def tell(self, trainer, values):
            for logger in trainer.loggers if values else ():
                logger.log_metrics(values, step=trainer.global_step)

        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step % max(1, getattr(trainer, "log_every_n_steps", 1)) == 0:
                self.tell(trainer, figures())

        def on_fit_end(self, trainer, *_):
            _at_end(lambda values: self.tell(trainer, values))

        def on_exception(self, trainer, *_):
            self.on_fit_end(trainer)

    return Watch()
