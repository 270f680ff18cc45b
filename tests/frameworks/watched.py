"""`vramshim.watch` with real trainers, whose loggers write TensorBoard's files or a list: watched.py KIND."""

import contextlib
import pickle
import sys

import torch
import vramshim

sys.path.append(".")  # The entry points for Lightning lie there.
WANTED = {"vramshim/peak_bytes", "vramshim/cached_bytes", "vramshim/failures"}
data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randn(64, 1))
layer = torch.nn.Linear(32, 1)


def too_much():
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")


def fit(trainer, fails=True):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def training_step(self, batch, number):
            if self.global_step == 5 and fails:
                too_much()
            return (self.layer(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    vramshim.watch(trainer).fit(Module(), torch.utils.data.DataLoader(data, batch_size=8))


OPTIONS = {"max_epochs": 1, "log_every_n_steps": 2, "accelerator": "gpu", "devices": 1, "enable_checkpointing": False}


def lightning():
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import TensorBoardLogger

    logger = TensorBoardLogger("logs", name="", version="run")
    with contextlib.suppress(torch.OutOfMemoryError):
        fit(pl.Trainer(logger=logger, **OPTIONS))
    logger.finalize("failed")
    return written("logs/run")


def own():
    """A trainer and loggers of the job's own classes, of which one takes keywords alone, and one fails."""
    import lightning.pytorch as pl
    from lightning.pytorch.loggers.logger import DummyLogger

    class Keywords(DummyLogger):
        def __init__(self):
            super().__init__()
            self.found = {}

        def log_metrics(self, *, metrics, step):
            self.found.update(metrics)

    class Failing(DummyLogger):
        calls = 0

        def log_metrics(self, metrics, step):
            self.calls += 1
            raise ValueError("the disk is full")

    class Trainer(pl.Trainer):
        pass

    class SecondRank(pl.Trainer):
        is_global_zero = False

    with contextlib.suppress(torch.OutOfMemoryError):
        fit(Trainer(logger=(logger := Keywords()), **OPTIONS))
    with contextlib.suppress(torch.OutOfMemoryError):
        fit(SecondRank(logger=(second := Keywords()), **OPTIONS))
    assert WANTED <= set(second.found) and "vramshim/verdict" not in second.found, second.found
    watched = Trainer(logger=(failing := Failing()), **OPTIONS)
    fit(watched, fails=False)
    assert watched.global_step == 8 and failing.calls == 1, failing.calls
    pickle.loads(pickle.dumps(watched.callbacks[-2:]))
    return logger.found


def written(folder):
    """The last value of each name in TensorBoard's files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(folder)
    found.Reload()
    return {name: found.Scalars(name)[-1].value for name in found.Tags()["scalars"]}


def transformers(kind=None, fails=True):
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.steps = layer, 0

        def forward(self, x, y):
            self.steps += 1
            if self.steps == 5 and fails:
                too_much()
            return {"loss": (self.layer(x) - y).square().mean()}

    options = {"logging_steps": 2, "report_to": "tensorboard", "save_strategy": "no", "remove_unused_columns": False}
    arguments = TrainingArguments("out", per_device_train_batch_size=8, num_train_epochs=1, **options)
    collate = lambda rows: {"x": torch.stack([row[0] for row in rows]), "y": torch.stack([row[1] for row in rows])}
    trainer = (kind or Trainer)(Model(), arguments, train_dataset=data, eval_dataset=data, data_collator=collate)
    vramshim.watch(trainer)
    with contextlib.suppress(torch.OutOfMemoryError):
        trainer.train()
    found = {name: value for line in trainer.state.log_history for name, value in line.items()}
    return found if kind is None else (trainer, found)


def own_of_transformers():
    """Values that are given by name, a log that refuses what it does not know, and a rank that is not the first."""
    from transformers import Trainer

    class Strict(Trainer):
        def log(self, logs, *rest):
            assert not any(name.startswith("vramshim/") for name in logs), "unknown"
            super().log(logs, *rest)

    class SecondRank(Trainer):
        def is_world_process_zero(self):
            return False

    strict, found = transformers(Strict, fails=False)
    assert "loss" in found and not WANTED & set(found) and strict.state.global_step == 8, found
    second, found = transformers(SecondRank)
    assert WANTED <= set(found) and "vramshim/verdict" not in found, found
    # What transformers adds to the values of its caller is there, and what is the loggers' is not.
    measured = second.evaluate()
    assert "epoch" in measured and not WANTED & set(measured), measured
    second.log(logs={"named": 1.0})
    assert "named" in second.state.log_history[-1] and WANTED <= set(second.state.log_history[-1])
    return transformers()


def accelerate():
    from accelerate import Accelerator

    accelerator = vramshim.watch(Accelerator(log_with="tensorboard", project_dir="logs"))
    accelerator.init_trackers("run")
    model, loader = accelerator.prepare(layer, torch.utils.data.DataLoader(data, batch_size=8))
    for step, (x, y) in enumerate(loader):
        accelerator.log({"loss": (model(x) - y).square().mean().item()}, step=step)
    with contextlib.suppress(torch.OutOfMemoryError):
        too_much()
    accelerator.end_training()
    return written("logs/run")


KINDS = [lightning, own, transformers, own_of_transformers, accelerate]
found = {kind.__name__: kind for kind in KINDS}[sys.argv[1]]()
assert WANTED <= set(found), found
assert found["vramshim/peak_bytes"] > 0 and found["vramshim/failures"] >= 1, found
# A terabyte is larger than the device.
assert found["vramshim/verdict"] == 11, found
print("passed", sys.argv[1])
