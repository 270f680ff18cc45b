"""`vramshim.watch(trainer)` logs what the library counted, with the loggers that a trainer has already.

Each line that the trainer logs gets `figures()`. The last one has `vramshim/verdict`, the code that `vramshim why --help`
lists (0: no request failed), because loggers such as TensorBoard take numbers alone; the sentence goes to stderr. Without
the library in the process nothing is logged. No error of this module ends the job.
"""

import functools
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


class _Attempts:
    """Calls what logs, and nothing more after the first error: the training is worth more than its figures."""

    def __init__(self):
        self.has_failed = False

    def __call__(self, act):
        try:
            return None if self.has_failed else act()
        except Exception as problem:
            self.stop(problem)

    def stop(self, problem):
        self.has_failed = True
        say(f"no more figures are logged, because that failed: {problem!r}")


def _is_first(trainer):
    """Whether this process is rank 0, by its trainer."""
    names = ("is_global_zero", "is_main_process", "is_world_process_zero")
    found = next((getattr(trainer, name) for name in names if hasattr(trainer, name)), True)
    return found() if callable(found) else found


def _end(trainer, attempt, log):
    """The verdict is of this process, and the loggers are the job's: rank 0 logs its own. Other ranks say theirs if a
    request failed."""
    found = verdict()
    is_first = _is_first(trainer)
    if found and (is_first or found[0] != 0):
        say(found[1])
    if found and is_first:
        attempt(lambda: log({**figures(), "vramshim/verdict": found[0]}))


def watch(trainer):
    """Logs figures and verdict with the loggers of this trainer of Lightning or transformers, or of this Accelerator, and
    returns it. `TypeError` for another object."""
    attempt = _Attempts()
    # The class may be the job's own.
    modules = (kind.__module__.partition(".")[0] for kind in type(trainer).__mro__)
    lightning = next((name for name in modules if name in ("lightning", "pytorch_lightning")), None)
    if lightning and hasattr(trainer, "loggers") and hasattr(trainer, "callbacks"):
        trainer.callbacks.append(_for_lightning(lightning))
        return trainer
    kinds = {"train": "logs", "end_training": "values"}
    name = next((name for name in kinds if hasattr(trainer, name)), None)
    if name is None or not hasattr(trainer, "log"):
        raise TypeError(f"{type(trainer).__name__}: give a trainer of Lightning or transformers, or an Accelerator")
    log, end = trainer.log, getattr(trainer, name)

    def ended(*arguments, **named):
        if name == "end_training":  # It closes the loggers.
            _end(trainer, attempt, log)
            return end(*arguments, **named)
        try:
            return end(*arguments, **named)
        finally:
            _end(trainer, attempt, log)

    def logged(*arguments, **named):
        own = attempt(figures)
        if not own:
            return log(*arguments, **named)
        values = arguments[0] if arguments else named.get(kinds[name])
        try:
            more = {**values, **own}
            done = log(more, *arguments[1:], **named) if arguments else log(**{**named, kinds[name]: more})
            # transformers adds the epoch to the values that it is given.
            for key in more.keys() - values.keys() - own.keys():
                values[key] = more[key]
            return done
        except Exception as problem:
            attempt.stop(problem)
            return log(*arguments, **named)

    trainer.log = logged
    setattr(trainer, name, ended)
    return trainer


def _callback(package):
    name = "lightning.pytorch" if package == "lightning" else package
    return importlib.import_module(f"{name}.callbacks").Callback


def _for_lightning(package):
    class Watch(_callback(package)):
        def __init__(self):
            self.attempt = _Attempts()

        def __reduce__(self):  # A strategy that spawns processes pickles the trainer.
            return _for_lightning, (package,)

        def tell(self, trainer, values):
            for logger in trainer.loggers if values else ():
                logger.log_metrics(metrics=values, step=trainer.global_step)

        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
                self.attempt(lambda: self.tell(trainer, figures()))

        def on_fit_end(self, trainer, *_):
            _end(trainer, self.attempt, lambda values: self.tell(trainer, values))

        on_exception = on_fit_end

    return Watch()


def _epochs(package):
    if not control.is_loaded():
        return []

    class Epochs(_callback(package)):
        def __init__(self):
            self.mark = control.seldom(control.mark)

        def __reduce__(self):
            return _epochs, (package,)

        def on_train_epoch_start(self, trainer, *_):
            self.mark(f"epoch {trainer.current_epoch}")

    return Epochs()


# The entry points of the wheel by which Lightning finds the callback.
epochs_of_lightning = functools.partial(_epochs, "lightning")
epochs_of_pytorch_lightning = functools.partial(_epochs, "pytorch_lightning")
